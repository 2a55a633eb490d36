/* The operations of vector.h with SSE2, AVX2 or AVX-512BW, by LANES. */
#include <immintrin.h>

#if LANES == 4
#define OP(name) _mm512_##name
typedef __m512i bits;
#elif LANES == 2
#define OP(name) _mm256_##name
typedef __m256i bits;
#else
#define OP(name) _mm_##name
typedef __m128i bits;
#endif

/* The low (high) half of two vectors' elements of n bits, taking turns. */
INLINE shorts low16(shorts a, shorts b) { return (shorts)OP(unpacklo_epi16)((bits)a, (bits)b); }
INLINE shorts high16(shorts a, shorts b) { return (shorts)OP(unpackhi_epi16)((bits)a, (bits)b); }
INLINE shorts low32(shorts a, shorts b) { return (shorts)OP(unpacklo_epi32)((bits)a, (bits)b); }
INLINE shorts high32(shorts a, shorts b) { return (shorts)OP(unpackhi_epi32)((bits)a, (bits)b); }
INLINE shorts low64(shorts a, shorts b) { return (shorts)OP(unpacklo_epi64)((bits)a, (bits)b); }
INLINE shorts high64(shorts a, shorts b) { return (shorts)OP(unpackhi_epi64)((bits)a, (bits)b); }

INLINE shorts clamp(shorts a, int least, int most) {
  return (shorts)OP(max_epi16)(OP(min_epi16)((bits)a, (bits)all(most)), (bits)all(least));
}

/* a * factor / 32768, rounded to nearest; a and factor are below 16384. */
INLINE shorts multiply_fraction(shorts a, int factor) {
#if LANES > 1
  return (shorts)OP(mulhrs_epi16)((bits)a, (bits)all(factor));
#else
  bits product = _mm_mulhi_epi16((bits)add(a, a), (bits)all(2 * factor));
  return (shorts)_mm_srai_epi16((bits)add((shorts)product, all(1)), 1);
#endif
}

/* a * of_a + b * of_b */
INLINE wide multiply_add(shorts a, shorts b, int of_a, int of_b) {
  bits factors = (bits)((ints){0} + (int32_t)((uint16_t)of_a | (uint32_t)(uint16_t)of_b << 16));
  return (wide){(ints)OP(madd_epi16)((bits)low16(a, b), factors),
                (ints)OP(madd_epi16)((bits)high16(a, b), factors)};
}

/* x = a * of_a + b * cross, y = a * cross + b * of_b */
INLINE void rotate(shorts a, shorts b, int of_a, int cross, int of_b, wide *x, wide *y) {
  *x = multiply_add(a, b, of_a, cross);
  *y = multiply_add(a, b, cross, of_b);
}

/* a * 8192 + round, where round is below 32768 or a multiple of 8192. */
INLINE wide scale_up(shorts a, int32_t round) {
  return round < 32768 ? multiply_add(a, all(1), 8192, round)
                       : multiply_add(a, all(round / 8192), 8192, 8192);
}

/* Shifted right and saturated to int16. */
INLINE shorts narrow(wide a, const int by) {
  return (shorts)OP(packs_epi32)(OP(srai_epi32)((bits)a.low, by), OP(srai_epi32)((bits)a.high, by));
}

/* 8 int16, repeated in every lane. */
INLINE shorts load_lane(const int16_t *from) {
  __m128i lane = _mm_loadu_si128((const __m128i *)(const void *)from);
#if LANES == 4
  return (shorts)_mm512_broadcast_i32x4(lane);
#elif LANES == 2
  return (shorts)_mm256_broadcastsi128_si256(lane);
#else
  return (shorts)lane;
#endif
}

/* SHORTS bytes to int16. */
INLINE shorts load_bytes(const unsigned char *from) {
#if LANES == 4
  return (shorts)_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)from));
#elif LANES == 2
  return (shorts)_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
#else
  bits bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
  return (shorts)_mm_unpacklo_epi8(bytes, _mm_setzero_si128());
#endif
}

/* Values of 0 to 255 to SHORTS bytes. */
INLINE void store_bytes(unsigned char *to, shorts a) {
#if LANES == 4
  _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi16_epi8((bits)a));
#elif LANES == 2
  bits packed = _mm256_permute4x64_epi64(_mm256_packus_epi16((bits)a, (bits)a), 8);
  _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(packed));
#else
  _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16((bits)a, (bits)a));
#endif
}

/* Values of 0 to 255, even ones and odd ones, to int16 in the order of a row. */
INLINE void interleave(shorts even, shorts odd, shorts *row) {
#if LANES == 4
  bits both = (bits)(even | (shorts)((ushorts)odd << 8));
  row[0] = (shorts)_mm512_cvtepu8_epi16(_mm512_castsi512_si256(both));
  row[1] = (shorts)_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(both, 1));
#elif LANES == 2
  bits both = (bits)(even | (shorts)((ushorts)odd << 8));
  row[0] = (shorts)_mm256_cvtepu8_epi16(_mm256_castsi256_si128(both));
  row[1] = (shorts)_mm256_cvtepu8_epi16(_mm256_extracti128_si256(both, 1));
#else
  row[0] = low16(even, odd);
  row[1] = high16(even, odd);
#endif
}

/* At most SHORTS pixels: red, green and blue, clamped to bytes, and 255. */
INLINE void store_rgbx(unsigned char *to, shorts red, shorts green, shorts blue, int count) {
  bits rb = OP(packus_epi16)((bits)red, (bits)blue);
  bits gx = OP(packus_epi16)((bits)green, (bits)all(255));
  bits rg = OP(unpacklo_epi8)(rb, gx), bx = OP(unpackhi_epi8)(rb, gx);
  bits low = OP(unpacklo_epi16)(rg, bx), high = OP(unpackhi_epi16)(rg, bx);
#if LANES == 4
  const bits first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const bits second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  uint32_t mask = count >= 32 ? ~(uint32_t)0 : ((uint32_t)1 << count) - 1;
  _mm512_mask_storeu_epi32(to, (__mmask16)mask, _mm512_permutex2var_epi64(low, first, high));
  _mm512_mask_storeu_epi32(to + 64, (__mmask16)(mask >> 16),
                           _mm512_permutex2var_epi64(low, second, high));
#else
#if LANES == 2
  bits part = _mm256_permute2x128_si256(low, high, 0x20);
  high = _mm256_permute2x128_si256(low, high, 0x31);
  low = part;
#endif
  if (count >= SHORTS) {
    memcpy(to, &low, sizeof low);
    memcpy(to + sizeof low, &high, sizeof high);
  } else {
    bits pixels[2] = {low, high};
    memcpy(to, pixels, 4 * (size_t)count);
  }
#endif
}
