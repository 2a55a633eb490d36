#include "block_limits.h"

#include <math.h>
#include <stdlib.h>

#include "huffman.h"

#define BASIS(u, x)                                                                                \
  (float)((u == 0 ? M_SQRT1_2 : 1) / 2 * __builtin_cos((2 * x + 1) * u * M_PI / 16))
#define BASIS_ROW(u)                                                                               \
  {BASIS(u, 0), BASIS(u, 1), BASIS(u, 2), BASIS(u, 3),                                             \
   BASIS(u, 4), BASIS(u, 5), BASIS(u, 6), BASIS(u, 7)}
/* The DCT: by frequency and position. */
static const float basis[8][8] = {BASIS_ROW(0), BASIS_ROW(1), BASIS_ROW(2), BASIS_ROW(3),
                                  BASIS_ROW(4), BASIS_ROW(5), BASIS_ROW(6), BASIS_ROW(7)};

/* Whether all samples are within SAMPLE_MAX. */
static __attribute__((noinline)) int samples_fit(const int16_t *block, const uint16_t *quant) {
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

static int square(int value) { return value * value; }

/* The sum of the AC coefficients' squares, times quantisers, or one beyond NORM_MAX * NORM_MAX
 * where a coefficient is out of range. Taken of every block that is packed. */
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
static int energy_of(const int16_t *block, const uint16_t *quant) {
  int energy = 0, largest = 0;
  for (int i = 1; i < 64; i++) {
    int value = abs(block[i]), product = value * quant[i];
    largest = value > largest ? value : largest;
    product = product > NORM_MAX + 1 ? NORM_MAX + 1 : product;
    energy += square(product);
  }
  return largest >> AC_SIZE_MAX != 0 ? square(NORM_MAX + 1) : energy;
}

int block_fits(const int16_t *block, const uint16_t *quant) {
  if (block[0] < DC_MIN || block[0] > DC_MAX)
    return 0;
  int64_t energy = energy_of(block, quant), mean = llabs((int64_t)block[0] * quant[0]);
  if (energy + mean * mean > NORM_MAX * NORM_MAX)
    return 0;
  /* A sample is at most mean / 8 + sqrt(energy), which few blocks have beyond the limit. */
  int64_t left = SAMPLE_MAX - mean / 8;
  return energy <= left * left || samples_fit(block, quant);
}
