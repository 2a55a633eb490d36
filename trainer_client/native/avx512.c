/* Converting with AVX-512. */
#include "normalise.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE void convert_sixteen(const unsigned char *from, __m128i to_signed, __m512 scale,
                            __m512 bias, value_type type, int streams, unsigned char *to) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)from);
  __m512 level = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_xor_si128(bytes, to_signed)));
  __m512 value = _mm512_fmadd_ps(level, scale, bias);
  if (type == FLOAT32) {
    if (streams)
      _mm512_stream_ps((float *)(void *)to, value);
    else
      _mm512_storeu_ps(to, value);
    return;
  }
  __m256i words;
  if (type == FLOAT16) {
    words = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  } else { /* as in avx2.c */
    __m512i bits = _mm512_castps_si512(value), upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    words = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
  }
  if (streams)
    _mm256_stream_si256((__m256i *)(void *)to, words);
  else
    _mm256_storeu_si256((__m256i *)(void *)to, words);
}

INLINE size_t convert_all(const normalise_job *job, const unsigned char *from, size_t count,
                          value_type type, int streams, unsigned char *to) {
  const __m128i to_signed = _mm_set1_epi8((char)(job->flip ^ 0x80));
  const size_t width = type == FLOAT32 ? 4 : 2;
  __m512 scale[3], bias[3];
  for (int v = 0; v < 3; v++) {
    scale[v] = _mm512_loadu_ps(job->scale + 16 * v);
    bias[v] = _mm512_loadu_ps(job->bias + 16 * v);
  }
  size_t i = 0;
  for (; i + PERIOD <= count; i += PERIOD, from += PERIOD, to += PERIOD * width) {
    convert_sixteen(from, to_signed, scale[0], bias[0], type, streams, to);
    convert_sixteen(from + 16, to_signed, scale[1], bias[1], type, streams, to + 16 * width);
    convert_sixteen(from + 32, to_signed, scale[2], bias[2], type, streams, to + 32 * width);
  }
  return i;
}

TARGET size_t convert_avx512(const normalise_job *job, const unsigned char *from, size_t count,
                             int streams, void *to) {
  switch (job->type) {
  case FLOAT32:
    return streams ? convert_all(job, from, count, FLOAT32, 1, to)
                   : convert_all(job, from, count, FLOAT32, 0, to);
  case FLOAT16:
    return streams ? convert_all(job, from, count, FLOAT16, 1, to)
                   : convert_all(job, from, count, FLOAT16, 0, to);
  default:
    return streams ? convert_all(job, from, count, BFLOAT16, 1, to)
                   : convert_all(job, from, count, BFLOAT16, 0, to);
  }
}
#endif
