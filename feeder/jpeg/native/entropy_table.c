/* The look-up tables of entropy.h, made for each image. */
#include "entropy.h"

static inline uint32_t *fill(uint32_t *out, uint32_t entry, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    out[i] = entry;
  return out + count;
}

/* The entries of a code and the magnitudes after it, each `each` times; `entry` has all but the
 * values. */
static inline uint32_t *fill_values(uint32_t *out, uint32_t entry, unsigned size, unsigned each) {
  int32_t half = 1 << (size - 1);
  if (each == 1) { /* a loop over consecutive words: most of the time of making a table */
    uint32_t value = entry + ((uint32_t)(1 - 2 * half) << 16);
    for (int32_t i = 0; i < half; i++)
      out[i] = value + ((uint32_t)i << 16);
    value = entry + ((uint32_t)half << 16);
    for (int32_t i = 0; i < half; i++)
      out[half + i] = value + ((uint32_t)i << 16);
    return out + 2 * half;
  }
  for (int32_t i = 1 - 2 * half; i <= -half; i++)
    out = fill(out, entry + ((uint32_t)i << 16), each);
  for (int32_t i = half; i < 2 * half; i++)
    out = fill(out, entry + ((uint32_t)i << 16), each);
  return out;
}

static void make_ac(uint32_t *out, const huffman_spec *spec) {
  const uint32_t *end = out + (1 << AC_BITS);
  const unsigned char *next = spec->symbols;
  for (unsigned bits = 1; bits <= AC_BITS; bits++)
    for (unsigned i = 0; i < spec->counts[bits - 1]; i++) {
      unsigned symbol = *next++, size = symbol & 15, advance = (symbol >> 4) + 1;
      unsigned room = 1u << (AC_BITS - bits);
      if (size == 0)
        out = fill(out, bits | (symbol == 0xF0 ? 16 : END_OF_BLOCK) << 8, room);
      else if (bits + size <= AC_BITS)
        out = fill_values(out, (bits + size) | advance << 8, size, room >> size);
      else
        out = fill(out, TO_SEARCH << 8 | bits << 16 | symbol << 24, room);
    }
  fill(out, TO_SEARCH << 8, (unsigned)(end - out));
}

static void make_dc(uint32_t *out, const huffman_spec *spec) {
  const uint32_t *end = out + (1 << DC_BITS);
  const unsigned char *next = spec->symbols;
  for (unsigned bits = 1; bits <= DC_BITS; bits++)
    for (unsigned i = 0; i < spec->counts[bits - 1]; i++) {
      unsigned size = *next++, room = 1u << (DC_BITS - bits);
      if (size == 0)
        out = fill(out, bits, room);
      else if (bits + size <= DC_BITS)
        out = fill_values(out, bits + size, size, room >> size);
      else
        out = fill(out, 0, room);
    }
  fill(out, 0, (unsigned)(end - out));
}

int make_entropy_table(entropy_table *table, const huffman_spec *dc, const huffman_spec *ac) {
  if (!make_code_ranges(&table->dc_codes, dc) || !make_code_ranges(&table->ac_codes, ac))
    return 0;
  make_dc(table->dc, dc);
  make_ac(table->ac, ac);
  return 1;
}
