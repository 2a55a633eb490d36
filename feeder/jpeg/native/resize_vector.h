/* The operations on vectors that only resizing needs, beside those of vector.h. */
#ifndef FEEDER_RESIZE_VECTOR_H
#define FEEDER_RESIZE_VECTOR_H

#include "vector.h"

INLINE ints all_ints(int32_t value) { return (ints){0} + value; }
INLINE ints add_ints(ints a, ints b) { return (ints)((uints)a + (uints)b); }

INLINE shorts load_cells(const int32_t *from) { return *(const shorts *)(const void *)from; }

#if LANES == 2

/* By a count known only at run time: to shift by a vector is one instruction, by a number two. */
INLINE ints shift_ints(ints a, int by) {
  return (ints)_mm256_srav_epi32((bits)a, (bits)all_ints(by));
}
INLINE ints shift_ints_left(ints a, int by) {
  return (ints)_mm256_sllv_epi32((bits)a, (bits)all_ints(by));
}

/* To between 0 and `most`. */
INLINE ints clamp_ints(ints a, int32_t most) {
  return (ints)_mm256_min_epi32(_mm256_max_epi32((bits)a, (bits)all_ints(0)), (bits)all_ints(most));
}

/* The int32 of `low`, all below 65536, with the high halves of those of `high`. */
INLINE ints join_halves(ints low, ints high) {
  return (ints)_mm256_blend_epi16((bits)low, (bits)high, 0xAA);
}

/* 16 bytes of one row for each lane. */
INLINE shorts load_pixels(const unsigned char *const *rows, size_t at) {
  __m128i first = _mm_loadu_si128((const __m128i *)(const void *)(rows[0] + at));
  __m128i second = _mm_loadu_si128((const __m128i *)(const void *)(rows[1] + at));
  return (shorts)_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

/* In each lane the pixels 0 and 1 (2 and 3) as r r g g b b 0 0. */
INLINE shorts first_two(shorts pixels) {
  const __m128i order = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, -1, -1, -1, -1);
  return (shorts)_mm256_shuffle_epi8((bits)pixels, _mm256_broadcastsi128_si256(order));
}
INLINE shorts last_two(shorts pixels) {
  const __m128i order = _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, -1, -1, -1, -1);
  return (shorts)_mm256_shuffle_epi8((bits)pixels, _mm256_broadcastsi128_si256(order));
}

#else

INLINE ints shift_ints(ints a, int by) { return a >> by; }
INLINE ints shift_ints_left(ints a, int by) { return (ints)((uints)a << by); }

INLINE ints clamp_ints(ints a, int32_t most) {
  ints over = a > most;
  return (a & (a > 0) & ~over) | (most & over);
}

INLINE ints join_halves(ints low, ints high) { return low | (high & (int32_t)0xFFFF0000); }

INLINE shorts load_pixels(const unsigned char *const *rows, size_t at) {
  shorts pixels;
  memcpy(&pixels, rows[0] + at, sizeof pixels);
  return pixels;
}

typedef uint8_t byte_vector __attribute__((vector_size(16), may_alias));

/* The low (high) halves' bytes, taking turns. */
INLINE byte_vector low8(byte_vector a, byte_vector b) {
  return __builtin_shuffle(
      a, b, (byte_vector){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
INLINE byte_vector high8(byte_vector a, byte_vector b) {
  return __builtin_shuffle(
      a, b, (byte_vector){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}

INLINE shorts first_two(shorts pixels) {
  ints colours = (ints)pixels & 0xFFFFFF, next = __builtin_shuffle(colours, (ints){1, 2, 3, 0});
  return (shorts)low8(low8((byte_vector)colours, (byte_vector)next), (byte_vector){0});
}
INLINE shorts last_two(shorts pixels) {
  ints colours = (ints)pixels & 0xFFFFFF, next = __builtin_shuffle(colours, (ints){1, 2, 3, 0});
  return (shorts)low8(high8((byte_vector)colours, (byte_vector)next), (byte_vector){0});
}

#endif

#if defined(VECTOR_X86)

/* Of each int32: its low int16 times that of `factors`, plus its high one times the other. */
INLINE ints multiply_pairs(shorts a, int32_t factors) {
  return (ints)OP(madd_epi16)((bits)a, (bits)all_ints(factors));
}

/* Values from 0 on, halved and rounded up. */
INLINE shorts halve(shorts a) { return (shorts)OP(avg_epu16)((bits)a, (bits)all(0)); }

/* Values of up to 32767 to int16; those below 0 become 0. */
INLINE shorts narrow_positive(ints low, ints high) {
#if LANES > 1
  return (shorts)OP(packus_epi32)((bits)low, (bits)high);
#else
  return (shorts)OP(max_epi16)(OP(packs_epi32)((bits)low, (bits)high), (bits)all(0));
#endif
}

/* Stores the first `count` of the values that narrow_positive made of four vectors, saturated to
 * bytes and with the bits `turn` of every four flipped. */
INLINE void store_cells(unsigned char *to, shorts low, shorts high, int32_t turn, size_t count) {
  bits bytes = OP(packus_epi16)((bits)low, (bits)high);
#if LANES == 2
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
  bytes = (bits)((ints)bytes ^ all_ints(turn));
  memcpy(to, &bytes, count);
}

#else

INLINE ints multiply_pairs(shorts a, int32_t factors) {
  ints both = (ints)a, low = (ints)((uints)both << 16) >> 16;
  return low * (int16_t)factors + (both >> 16) * (factors >> 16);
}

INLINE shorts halve(shorts a) { return (shorts)(((ushorts)a + 1) >> 1); }

INLINE shorts narrow_positive(ints low, ints high) {
  return low_halves((wide){clamp_ints(low, 32767), clamp_ints(high, 32767)});
}

INLINE void store_cells(unsigned char *to, shorts low, shorts high, int32_t turn, size_t count) {
  const byte_vector even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  byte_vector bytes = __builtin_shuffle((byte_vector)clamp(low, 0, 255),
                                        (byte_vector)clamp(high, 0, 255), even);
  ints turned = (ints)bytes ^ turn;
  memcpy(to, &turned, count);
}

#endif

#endif
