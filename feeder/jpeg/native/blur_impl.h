/* The whole of blur for one size of vectors. A file that includes this defines VECTOR_BYTES and BLUR,
 * the function's name, and sets the target (GCC's pragma).
 *
 * Each row is blurred across into a ring of float rows; as soon as the ring has all the rows that an
 * output row needs, they are combined down. Both passes are weighted sums of floats at equal
 * distances on both sides of a centre, so one function does both. */
#include "blur.h"

#include "bits.h"
#include "scratch.h"

#include <string.h>

typedef float floats __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#define VECTORS 4 /* that are summed at a time, in registers */
#define BLOCK (VECTORS * sizeof(floats) / sizeof(float))

/* Added to a float of 0 .. 255, it leaves the float's integer, rounded half to even, in the last
 * bits. */
#define ROUNDER 12582912.0f /* 1.5 * 2**23 */

typedef struct {
  const float *weights; /* radius + 1, from the centre on */
  int radius;
  float *sums;
  const float **before, **after; /* where the terms of distance 1 .. radius begin, from index 1 on */
} kernel;

/* sums[i] = weights[0] * centre[i] + weights[k] * (before[k][i] + after[k][i]) + …, for `count`
 * floats and up to a whole block. */
INLINE void weighted_sums(const kernel *k, const float *centre, size_t count) {
  for (size_t i = 0; i < count; i += BLOCK) {
    const floats *own = (const void *)(centre + i);
    floats sum[VECTORS];
    for (int v = 0; v < VECTORS; v++)
      sum[v] = k->weights[0] * own[v];
    for (int d = 1; d <= k->radius; d++) {
      const floats *before = (const void *)(k->before[d] + i), *after = (const void *)(k->after[d] + i);
      float weight = k->weights[d];
      for (int v = 0; v < VECTORS; v++)
        sum[v] += weight * (before[v] + after[v]);
    }
    floats *sums = (void *)(k->sums + i);
    for (int v = 0; v < VECTORS; v++)
      sums[v] = sum[v];
  }
}

/* The index within 0 .. size - 1 that the picture, mirrored about its edge pixels, has at i. */
static int mirror(int i, int size) {
  if (i < 0)
    return -i;
  return i < size ? i : 2 * (size - 1) - i;
}

int BLUR(const unsigned char *in, int width, int height, const float *weights, int radius,
         unsigned char *out) {
  static _Thread_local scratch memory;
  size_t row = (size_t)width * CHANNELS, margin = (size_t)radius * CHANNELS;
  size_t room = (row + BLOCK - 1) / BLOCK * BLOCK; /* what a row's sums write */
  size_t ring = 2 * (size_t)radius + 1, padded = room + 2 * margin;
  size_t terms = 2 * ring * sizeof(float *);
  float *rows = take_scratch(&memory, (ring * room + padded) * sizeof(float) + terms);
  if (rows == NULL)
    return 0;
  float *source = rows + ring * room; /* a row with its margins */
  memset(source, 0, padded * sizeof *source);
  kernel k = {.weights = weights, .radius = radius};
  k.before = (const float **)(void *)(source + padded);
  k.after = k.before + ring;

  for (int y = 0, made = 0; y < height; y++) {
    for (; made < height && made <= y + radius; made++) {
      const unsigned char *from = in + (size_t)made * row;
      for (size_t i = 0; i < row; i++)
        source[margin + i] = from[i];
      for (int x = -radius; x < 0; x++)
        memcpy(source + margin + CHANNELS * x, source + margin - CHANNELS * x,
               CHANNELS * sizeof *source);
      for (int x = width; x < width + radius; x++)
        memcpy(source + margin + CHANNELS * x, source + margin + CHANNELS * mirror(x, width),
               CHANNELS * sizeof *source);
      for (int d = 1; d <= radius; d++) {
        k.before[d] = source + margin - CHANNELS * d;
        k.after[d] = source + margin + CHANNELS * d;
      }
      k.sums = rows + (size_t)made % ring * room;
      weighted_sums(&k, source + margin, row);
    }
    for (int d = 1; d <= radius; d++) {
      k.before[d] = rows + (size_t)mirror(y - d, height) % ring * room;
      k.after[d] = rows + (size_t)mirror(y + d, height) % ring * room;
    }
    k.sums = source;
    weighted_sums(&k, rows + (size_t)y % ring * room, row);
    unsigned char *to = out + (size_t)y * row;
    for (size_t i = 0; i < row; i++) {
      float rounded = k.sums[i] + ROUNDER;
      uint32_t bits;
      memcpy(&bits, &rounded, sizeof bits);
      to[i] = (unsigned char)bits;
    }
  }
  return 1;
}

