/* libjpeg can find the best tables itself (optimize_coding), by coding everything twice; its first
 * pass looks at every coefficient, and nine in ten are 0. Here only the others are touched. */
#include "blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define AC_BITS_MAX 10

static const unsigned char ZIGZAG_OF[DCTSIZE2] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
    41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
    46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63};

static uint64_t nonzero_mask(const JCOEF *block) {
  uint64_t mask = 0;
#if defined(__x86_64__)
  const __m128i zero = _mm_setzero_si128();
  for (int part = 0; part < 4; part++) {
    const __m128i *at = (const __m128i *)(const void *)(block + 16 * part);
    __m128i low = _mm_cmpeq_epi16(_mm_loadu_si128(at), zero);
    __m128i high = _mm_cmpeq_epi16(_mm_loadu_si128(at + 1), zero);
    mask |= (uint64_t)(uint16_t)~_mm_movemask_epi8(_mm_packs_epi16(low, high)) << (16 * part);
  }
#else
  for (int i = 0; i < DCTSIZE2; i++)
    mask |= (uint64_t)(block[i] != 0) << i;
#endif
  return mask;
}

/* Puts the AC coefficients other than 0 into `scan`, in zigzag order; returns a mask of which. */
static inline uint64_t gather_block(const JCOEF *block, JCOEF *scan) {
  uint64_t gathered = 0;
  for (uint64_t mask = nonzero_mask(block) & ~(uint64_t)1; mask != 0; mask &= mask - 1) {
    int i = __builtin_ctzll(mask), k = ZIGZAG_OF[i];
    scan[k] = block[i];
    gathered |= (uint64_t)1 << k;
  }
  return gathered;
}

void count_block(const JCOEF *block, int previous_dc, symbol_counts *counts, int dc, int ac) {
  /* The range of an 8-bit picture's DC; within it, no difference of any two needs 12 bits. */
  counts->bad |= block[0] < -1024 || block[0] > 1023;
  unsigned bits = magnitude_bits(block[0] - previous_dc);
  counts->dc[dc][bits < DC_CATEGORIES ? bits : 0]++;
  JCOEF scan[DCTSIZE2];
  int last = 0;
  for (uint64_t mask = gather_block(block, scan); mask != 0; mask &= mask - 1) {
    int k = __builtin_ctzll(mask), run = k - last - 1;
    counts->ac[ac][0xF0] += run >> 4;
    bits = magnitude_bits(scan[k]);
    counts->bad |= bits > AC_BITS_MAX;
    counts->ac[ac][((unsigned)run & 15) << 4 | (bits & 15)]++;
    last = k;
  }
  if (last < DCTSIZE2 - 1)
    counts->ac[ac][0]++;
}

void code_block(bit_writer *w, const JCOEF *block, int previous_dc, const code_table *dc,
                const code_table *ac) {
  int difference = block[0] - previous_dc, last = 0;
  unsigned size = magnitude_bits(difference);
  put_symbol(w, dc, size, difference, size, BLOB_SCAN);
  JCOEF scan[DCTSIZE2];
  for (uint64_t mask = gather_block(block, scan); mask != 0; mask &= mask - 1) {
    int k = __builtin_ctzll(mask), run = k - last - 1;
    for (; run >= 16; run -= 16)
      put_symbol(w, ac, 0xF0, 0, 0, BLOB_SCAN);
    size = magnitude_bits(scan[k]);
    put_symbol(w, ac, (unsigned)run << 4 | size, scan[k], size, BLOB_SCAN);
    last = k;
  }
  if (last < DCTSIZE2 - 1)
    put_symbol(w, ac, 0, 0, 0, BLOB_SCAN);
}

void code_empty_block(bit_writer *w, const code_table *dc, const code_table *ac) {
  put_symbol(w, dc, 0, 0, 0, BLOB_SCAN);
  put_symbol(w, ac, 0, 0, 0, BLOB_SCAN);
}
