/* Huffman tables of JPEG (T.81 annex C) for writing and for reading codes, and the best ones (K.2).
 *
 * As in a DHT segment, a table is given as 16 counts, of the codes of 1 to 16 bits, and the symbols
 * in the order of their codes. */
#ifndef FEEDER_HUFFMAN_H
#define FEEDER_HUFFMAN_H

#include "bits.h"

#define DC_CATEGORIES 12 /* of a difference: 0 to 11 bits */

/* By symbol; a symbol without a code has 0 bits. */
typedef struct {
  uint16_t code[256];
  uint8_t bits[256];
} code_table;

/* A table as it is given. */
typedef struct {
  const unsigned char *counts, *symbols;
  size_t symbol_count;
} huffman_spec;

/* Where the codes of each length lie: codes of any length can be found by them. */
typedef struct {
  uint32_t end[17];   /* by length: its codes, followed by any bits, are below this 16-bit value */
  int32_t offset[17]; /* by length: added to such a code, gives its position in `symbols` */
  const unsigned char *symbols;
} code_ranges;

typedef struct {
  uint16_t quick[256]; /* by the next 8 bits: length << 8 | symbol; 0 where the code is longer */
  uint16_t steps[256]; /* likewise what `step_of` returns for an AC symbol */
  code_ranges ranges;
} decode_table;

/* Makes the counts and symbols of the table of least total length for how often each of 256 symbols
 * is coded. No code has only ones. */
void make_best_table(unsigned char *counts, unsigned char *symbols, const long *frequencies);

void make_code_table(code_table *codes, const unsigned char *counts, const unsigned char *symbols);

/* Keep a pointer to the symbols. Return 0 if the counts have too many codes. */
int make_code_ranges(code_ranges *ranges, const huffman_spec *spec);
int make_decode_table(decode_table *table, const huffman_spec *spec);

/* The category of a coefficient or difference (T.81 F.1.2.1). */
static inline unsigned magnitude_bits(int value) {
  return value == 0 ? 0 : 32 - (unsigned)__builtin_clz((unsigned)(value < 0 ? -value : value));
}

/* A symbol and, after it, the low `size` bits of the value, or of one less where it is negative. */
static inline void put_symbol(bit_writer *w, const code_table *codes, unsigned symbol, int value,
                              unsigned size, scan_form form) {
  unsigned low = (unsigned)(value < 0 ? value - 1 : value) & ((1u << size) - 1);
  put_bits(w, (uint64_t)codes->code[symbol] << size | low, codes->bits[symbol] + size, form);
}

/* The symbol at the top of `bits`, of a code of `least` bits or more; the code's length goes to
 * `length`, 0 where there is none. */
static inline unsigned find_symbol(const code_ranges *ranges, uint64_t bits, unsigned least,
                                   unsigned *length) {
  unsigned next = (unsigned)(bits >> 48);
  for (unsigned n = least; n <= 16; n++)
    if (next < ranges->end[n]) {
      *length = n;
      return ranges->symbols[(int32_t)(next >> (16 - n)) + ranges->offset[n]];
    }
  *length = 0;
  return 0;
}

/* The same for a code of any length. */
static inline unsigned symbol_at(const decode_table *table, uint64_t bits, unsigned *length) {
  unsigned quick = table->quick[bits >> 56];
  if (quick != 0) {
    *length = quick >> 8;
    return quick & 255;
  }
  return find_symbol(&table->ranges, bits, 9, length);
}

/* The bits of an AC symbol's code and magnitude, and << 8 how many coefficients it stands for. */
static inline unsigned step_of(unsigned symbol, unsigned length) {
  unsigned size = symbol & 15, coefficients = (symbol >> 4) + 1;
  return (length + size) | (size == 0 && symbol != 0xF0 ? 64 : coefficients) << 8;
}

/* The step of the AC symbol at the top of `bits`; 0 where there is none. */
static inline unsigned step_at(const decode_table *table, uint64_t bits) {
  unsigned step = table->steps[bits >> 56];
  if (__builtin_expect(step == 0, 0)) {
    unsigned length, symbol = symbol_at(table, bits, &length);
    step = length == 0 ? 0 : step_of(symbol, length);
  }
  return step;
}

#endif
