/* A tile_decoder without pdep: vectors of 128 bits hold two rows of a block, a byte for each
 * coefficient. The file that includes this may set a target, and defines DECODER, the decoder's
 * name. */
#include "tile.h"

#if defined(__SSSE3__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint8_t pair_bytes __attribute__((vector_size(16), may_alias));
typedef int8_t signed_bytes __attribute__((vector_size(16), may_alias));
typedef uint16_t row_words __attribute__((vector_size(16), may_alias));
typedef int16_t row_values __attribute__((vector_size(16), may_alias));

/* Where two rows' coefficients have their bits. */
typedef struct {
  /* Of the low bits of each row: the two bytes that hold a coefficient's, and what makes its sign
   * the highest of their 16 bits, and then brings them down again: factors or shifts. */
  pair_bytes from[2];
  row_words up[2];
#if defined(__SSSE3__)
  row_words down[2];
#else
  signed_bytes down; /* the higher of the two bytes */
#endif
  pair_bytes mask_from, mask_bit; /* the byte and bit of a mask */
  pair_bytes unit;                /* what a one in a plane adds */
} row_pair;

/* Masks have the bits of coefficients in the order of their planes: those of the AC coefficients
 * that can differ from 0, by position. */
typedef struct {
  row_pair pair[4];
  uint32_t pairs, with_low_bits_pairs; /* up to the last that has any coefficients, or low bits */
  class_lengths lengths;
  uint64_t support; /* a one for each bit of a plane */
  uint64_t with_low_bits;
  uint16_t row_at[8];   /* the first low bit of each row */
  uint8_t position[64]; /* of the coefficient of each bit */
} rows_class;

#define CLASS rows_class
#include "tile_impl.h"

#define NO_BYTE 255 /* of which `shuffle` makes 0 */

static void set_field(row_pair *pair, unsigned row, unsigned column, unsigned at, unsigned size) {
  unsigned up = 16 - size - at % 8;
  pair->from[row][2 * column] = (uint8_t)(at / 8);
  pair->from[row][2 * column + 1] = (uint8_t)(at / 8 + 1);
#if defined(__SSSE3__)
  pair->up[row][column] = (uint16_t)(1u << up);
  pair->down[row][column] = (uint16_t)(1u << size);
#else
  pair->up[row][column] = (uint16_t)up;
  pair->down[8 * row + column] = (int8_t)(8 - size);
#endif
}

static void make_class(void *classes, unsigned number, const class_code *code) {
  rows_class *c = (rows_class *)classes + number;
  unsigned at = code->dc_bits, bit = 0;
  memset(c, 0, sizeof *c);
  for (unsigned row = 0; row < 8; row++) {
    row_pair *pair = &c->pair[row / 2];
    unsigned in_row = 0;
    c->row_at[row] = (uint16_t)at;
    memset(&pair->from[row % 2], NO_BYTE, sizeof pair->from[0]);
    for (unsigned column = 0; column < 8; column++) {
      unsigned position = 8 * row + column, bits = code->low_bits[position];
      if (bits == ABSENT)
        continue;
      c->pairs = row / 2 + 1;
      pair->mask_from[position % 16] = (uint8_t)(bit / 8);
      pair->mask_bit[position % 16] = (uint8_t)(1u << bit % 8);
      pair->unit[position % 16] = (uint8_t)(1u << bits);
      if (bits > 0) {
        c->with_low_bits_pairs = row / 2 + 1;
        c->with_low_bits |= (uint64_t)1 << bit;
        set_field(pair, row % 2, column, in_row, field_bits(bits));
        in_row += field_bits(bits);
      }
      c->position[bit++] = (uint8_t)position;
    }
    at += in_row;
  }
  c->support = ones(bit);
  c->lengths = (class_lengths){at, at + bit, 63 - code->dc_bits};
}

INLINE uint64_t first_plane(uint64_t word, const rows_class *class) {
  return word & class->support;
}

/* A branch-free pdep: a bit that differs from its lower neighbour flips every set bit of `mask`
 * from its own position up. */
INLINE uint64_t deposit(uint64_t bits, uint64_t mask) {
  uint64_t changes = (bits ^ bits << 1) & ones(count_ones(mask)), result = 0;
  for (; changes != 0; changes >>= 1, mask &= mask - 1)
    result ^= mask & -(changes & 1);
  return result;
}

INLINE unsigned position_of(const rows_class *class, unsigned bit) { return class->position[bit]; }

INLINE pair_bytes bytes_of(uint64_t word) {
  return (pair_bytes)(uint64_t __attribute__((vector_size(16)))){word, 0};
}

/* Byte `from[i]` of `a` to byte i; 0 where that is NO_BYTE and the highest byte of `a` is 0. */
INLINE pair_bytes shuffle(pair_bytes a, pair_bytes from) {
#if defined(__SSSE3__)
  return (pair_bytes)_mm_shuffle_epi8((__m128i)a, (__m128i)from);
#elif defined(__aarch64__)
  return vqtbl1q_u8(a, from);
#else
  return __builtin_shuffle(a, from);
#endif
}

/* The low bits, with their signs, of a pair of rows, where two words begin with them. */
INLINE pair_bytes take_fields(const uint64_t *word, const row_pair *pair) {
  row_words row[2];
  for (int k = 0; k < 2; k++)
    row[k] = (row_words)shuffle(bytes_of(word[k]), pair->from[k]);
#if defined(__SSSE3__)
  for (int k = 0; k < 2; k++)
    row[k] = (row_words)_mm_mulhi_epi16((__m128i)(row[k] * pair->up[k]), (__m128i)pair->down[k]);
  return (pair_bytes)_mm_packs_epi16((__m128i)row[0], (__m128i)row[1]);
#else
  const pair_bytes high = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  pair_bytes bytes = __builtin_shuffle((pair_bytes)(row[0] << pair->up[0]),
                                       (pair_bytes)(row[1] << pair->up[1]), high);
  return (pair_bytes)((signed_bytes)bytes >> pair->down);
#endif
}

/* 255 for each coefficient of a pair of rows whose bit in a mask is set. */
INLINE pair_bytes spread(pair_bytes mask, const row_pair *pair) {
  return (pair_bytes)((shuffle(mask, pair->mask_from) & pair->mask_bit) != 0);
}

INLINE void store_pair(unsigned char *to, unsigned row_bytes, pair_bytes value) {
  const pair_bytes twice[2] = {{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7},
                               {8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15}};
  for (int k = 0; k < 2; k++) {
    row_values row = (row_values)__builtin_shuffle(value, twice[k]) >> 8;
    memcpy(to + (unsigned)k * row_bytes, &row, sizeof row);
  }
}

INLINE void put_block(const uint8_t *bits, size_t at, const rows_class *class,
                      const block_masks *masks, unsigned char *to, unsigned row_bytes) {
  const unsigned pairs = class->pairs, with_low_bits = class->with_low_bits_pairs;
  pair_bytes plane[PLANES - 1], negative = bytes_of(masks->negative);
  for (int p = 0; p < PLANES - 1; p++)
    plane[p] = bytes_of(masks->plane[p]);
  unsigned i = 0;
  for (; i < pairs; i++, to += 2 * row_bytes) {
    const row_pair *pair = &class->pair[i];
    pair_bytes value = {0}, more = {0};
    if (i < with_low_bits) {
      const uint16_t *row_at = class->row_at + 2 * i;
      value = take_fields(
          (const uint64_t[]){bits_at(bits, at + row_at[0]), bits_at(bits, at + row_at[1])}, pair);
    }
    for (int p = 0; p < PLANES - 1; p++)
      more += pair->unit & spread(plane[p], pair);
    pair_bytes sign = (pair_bytes)((signed_bytes)value < 0) | spread(negative, pair);
    store_pair(to, row_bytes, value + ((more ^ sign) - sign));
  }
  for (; i < 4; i++, to += 2 * row_bytes)
    store_pair(to, row_bytes, (pair_bytes){0});
}
