/* Decoding a tile with AVX2 and BMI2. */
#if defined(__x86_64__)
#pragma GCC target("avx2,bmi,bmi2,popcnt")
#define DECODER tiles_avx2
#include "tile_pdep.h"

/* 255 for each bit that is set. */
INLINE __m256i spread(uint32_t mask) {
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                             0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201);
  __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)mask), byte_of);
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
}

INLINE __m256i load(const uint8_t *from) {
  return _mm256_load_si256((const __m256i *)(const void *)from);
}

INLINE void store(unsigned char *to, __m128i row) {
  _mm_store_si128((__m128i *)(void *)to, row);
}

/* Four rows. */
INLINE void put_half(const uint8_t *bits, size_t at, const pdep_class *class,
                     const block_masks *masks, int first, unsigned char *to, unsigned row_bytes) {
  long long row[4];
  for (int i = 0; i < 4; i++)
    row[i] = (long long)take_row(bits, at, class, first + i);
  __m256i sign = load(class->sign + 8 * first), unit = load(class->unit + 8 * first);
  __m256i value = _mm256_setr_epi64x(row[0], row[1], row[2], row[3]);
  value = _mm256_sub_epi8(_mm256_xor_si256(value, sign), sign);
  __m256i more = _mm256_setzero_si256();
  for (int p = 0; p < PLANES - 1; p++)
    more = _mm256_add_epi8(
        more, _mm256_and_si256(unit, spread((uint32_t)(masks->plane[p] >> 8 * first))));
  __m256i negative = _mm256_or_si256(_mm256_cmpgt_epi8(_mm256_setzero_si256(), value),
                                     spread((uint32_t)(masks->negative >> 8 * first)));
  more = _mm256_sub_epi8(_mm256_xor_si256(more, negative), negative);
  value = _mm256_add_epi8(value, more);
  __m256i upper = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(value));
  __m256i lower = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(value, 1));
  store(to, _mm256_castsi256_si128(upper));
  store(to + row_bytes, _mm256_extracti128_si256(upper, 1));
  store(to + 2 * row_bytes, _mm256_castsi256_si128(lower));
  store(to + 3 * row_bytes, _mm256_extracti128_si256(lower, 1));
}

INLINE void put_block(const uint8_t *bits, size_t at, const pdep_class *class,
                      const block_masks *masks, unsigned char *to, unsigned row_bytes) {
  put_half(bits, at, class, masks, 0, to, row_bytes);
  put_half(bits, at, class, masks, 4, to + 4 * row_bytes, row_bytes);
}
#endif
