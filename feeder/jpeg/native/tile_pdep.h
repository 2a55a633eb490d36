/* A tile_decoder with pdep, which puts a plane's bits to their coefficients. The file that includes
 * this sets a target, and defines DECODER, the decoder's name, and put_block. */
#include <immintrin.h>

#include "tile.h"

/* Bytes by position. */
typedef struct {
  _Alignas(64) uint8_t mask[64]; /* of low bits and sign; 0 where there are none, and at DC */
  uint8_t sign[64];
  uint8_t unit[64];      /* what a one in a plane adds */
  uint8_t row_from[64];  /* for vpermb: the bytes that hold each row's low bits */
  uint8_t field_at[64];  /* for vpmultishiftqb: where a coefficient's low bits begin in them */
  uint64_t row_shift[8]; /* bits before a row's first in its first byte */
  uint16_t row_at[8];    /* the first low bit of each row */
  uint64_t support;      /* which AC coefficients can differ from 0 */
  uint64_t with_low_bits;
  class_lengths lengths;
} pdep_class;

#define CLASS pdep_class
#include "tile_impl.h"

#define EACH_BYTE 0x0101010101010101u

/* Looks 32 numbers up in a table of 16. */
INLINE __m256i look_up(const uint8_t *table, __m256i numbers) {
  __m128i half = _mm_loadu_si128((const __m128i *)(const void *)table);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), numbers);
}

/* Which of 32 bytes are the same. */
INLINE uint64_t equal_bytes(__m256i a, __m256i b) {
  return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b));
}

static void make_class(void *classes, unsigned number, const class_code *code) {
  /* By low bits, the last for ABSENT. */
  static const uint8_t units[16] = {1, 2, 4, 8, 16, 32, 64, 128};
  static const uint8_t signs[16] = {0, 2, 4, 8, 16, 32, 64, 128};
  static const uint8_t masks[16] = {0, 3, 7, 15, 31, 63, 127, 255};
  static const uint8_t widths[16] = {0, 2, 3, 4, 5, 6, 7, 8};
  pdep_class *c = (pdep_class *)classes + number;
  uint64_t sizes[8]; /* of a row's fields, a byte each */
  uint64_t absent = 0, without = 0;
  for (int i = 0; i < 64; i += 32) {
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(code->low_bits + i));
    _mm256_store_si256((__m256i *)(void *)(c->mask + i), look_up(masks, bits));
    _mm256_store_si256((__m256i *)(void *)(c->sign + i), look_up(signs, bits));
    _mm256_store_si256((__m256i *)(void *)(c->unit + i), look_up(units, bits));
    _mm256_storeu_si256((__m256i *)(void *)(sizes + i / 8), look_up(widths, bits));
    absent |= equal_bytes(bits, _mm256_set1_epi8(ABSENT)) << i;
    without |= equal_bytes(bits, _mm256_setzero_si256()) << i;
  }
  c->support = ~absent;
  c->with_low_bits = ~(absent | without);
  unsigned at = code->dc_bits;
  for (unsigned row = 0; row < 8; row++) {
    uint64_t sums = sizes[row] * EACH_BYTE, before = sums << 8;
    uint64_t bytes = at / 8 * EACH_BYTE + 0x0706050403020100u;
    c->row_at[row] = (uint16_t)at;
    c->row_shift[row] = at % 8;
    memcpy(c->field_at + 8 * row, &before, 8);
    memcpy(c->row_from + 8 * row, &bytes, 8);
    at += (unsigned)(sums >> 56);
  }
  c->lengths.first_plane_at = at;
  c->lengths.length = at + count_ones(c->support);
  c->lengths.dc_shift = 63 - code->dc_bits;
}

/* Masks have a coefficient's bit by its position. */
INLINE uint64_t first_plane(uint64_t word, const pdep_class *class) {
  return _pdep_u64(word, class->support);
}
INLINE uint64_t deposit(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }
INLINE unsigned position_of(const pdep_class *class, unsigned bit) {
  (void)class;
  return bit;
}

/* The low bits and signs of a row's coefficients, a byte each. */
INLINE uint64_t take_row(const uint8_t *bits, size_t at, const pdep_class *class, int row) {
  uint64_t mask;
  memcpy(&mask, class->mask + 8 * row, sizeof mask);
  return _pdep_u64(bits_at(bits, at + class->row_at[row]), mask);
}
