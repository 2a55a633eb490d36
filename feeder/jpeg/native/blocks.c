/* libjpeg can find the best tables itself (optimize_coding), by coding everything twice; its first
 * pass looks at every coefficient, and nine in ten are 0. Here only the others are touched. */
#include "blocks.h"

#include <math.h>
#include <stdlib.h>

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

static inline uint64_t square(int64_t value) { return (uint64_t)(value * value); }

/* Puts the AC coefficients other than 0 into `scan`, in zigzag order; returns a mask of which. Adds
 * their squares, times quantisers, to `energy`, which only wraps where one is out of range. */
static inline uint64_t gather_block(const JCOEF *block, const UINT16 *quant, JCOEF *scan,
                                    uint64_t *energy) {
  uint64_t gathered = 0;
  for (uint64_t mask = nonzero_mask(block) & ~(uint64_t)1; mask != 0; mask &= mask - 1) {
    int i = __builtin_ctzll(mask), k = ZIGZAG_OF[i];
    scan[k] = block[i];
    gathered |= (uint64_t)1 << k;
    if (energy != NULL)
      *energy += square(block[i] * quant[i]);
  }
  return gathered;
}

#define BASIS(u, x) (float)((u == 0 ? M_SQRT1_2 : 1) / 2 * __builtin_cos((2 * x + 1) * u * M_PI / 16))
#define BASIS_ROW(u)                                                                               \
  {BASIS(u, 0), BASIS(u, 1), BASIS(u, 2), BASIS(u, 3),                                             \
   BASIS(u, 4), BASIS(u, 5), BASIS(u, 6), BASIS(u, 7)}
/* The DCT: by frequency and position. */
static const float basis[8][8] = {BASIS_ROW(0), BASIS_ROW(1), BASIS_ROW(2), BASIS_ROW(3),
                                  BASIS_ROW(4), BASIS_ROW(5), BASIS_ROW(6), BASIS_ROW(7)};

/* Whether all samples are within SAMPLE_MAX. */
static __attribute__((noinline)) int samples_fit(const JCOEF *block, const UINT16 *quant) {
  float rows[8][8] = {{0}}, largest = 0;
  for (int v = 0; v < 8; v++)
    for (int u = 0; u < 8; u++)
      for (int x = 0; x < 8; x++)
        rows[v][x] += (float)(block[8 * v + u] * quant[8 * v + u]) * basis[u][x];
  for (int y = 0; y < 8; y++) {
    float samples[8] = {0};
    for (int v = 0; v < 8; v++)
      for (int x = 0; x < 8; x++)
        samples[x] += rows[v][x] * basis[v][y];
    for (int x = 0; x < 8; x++)
      largest = fmaxf(largest, fabsf(samples[x]));
  }
  return largest <= SAMPLE_MAX;
}

void count_block(const JCOEF *block, const UINT16 *quant, int previous_dc, symbol_counts *counts,
                 int dc, int ac) {
  /* The range of an 8-bit picture's DC; within it, no difference of any two needs 12 bits. */
  counts->bad |= block[0] < -1024 || block[0] > 1023;
  unsigned bits = magnitude_bits(block[0] - previous_dc);
  counts->dc[dc][bits < DC_CATEGORIES ? bits : 0]++;
  JCOEF scan[DCTSIZE2];
  uint64_t energy = 0, mask = gather_block(block, quant, scan, &energy);
  int64_t mean = llabs((int64_t)block[0] * quant[0]);
  counts->bad |= energy + square(mean) > NORM_MAX * NORM_MAX;
  /* A sample is at most mean / 8 + sqrt(energy), which few blocks have beyond the limit. */
  if (energy > square(SAMPLE_MAX - mean / 8) && !counts->bad)
    counts->bad = !samples_fit(block, quant);
  int last = 0;
  unsigned widest = 0;
  for (; mask != 0; mask &= mask - 1) {
    int k = __builtin_ctzll(mask), run = k - last - 1;
    counts->ac[ac][0xF0] += run >> 4;
    bits = magnitude_bits(scan[k]);
    widest = bits > widest ? bits : widest;
    counts->ac[ac][((unsigned)run & 15) << 4 | (bits & 15)]++;
    last = k;
  }
  counts->bad |= widest > AC_BITS_MAX;
  if (last < DCTSIZE2 - 1)
    counts->ac[ac][0]++;
}

void code_block(bit_writer *w, const JCOEF *block, int previous_dc, const code_table *dc,
                const code_table *ac) {
  int difference = block[0] - previous_dc, last = 0;
  unsigned size = magnitude_bits(difference);
  put_symbol(w, dc, size, difference, size, BLOB_SCAN);
  JCOEF scan[DCTSIZE2];
  for (uint64_t mask = gather_block(block, NULL, scan, NULL); mask != 0; mask &= mask - 1) {
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
