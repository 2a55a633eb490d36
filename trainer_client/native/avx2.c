/* Gathering and converting with AVX2, FMA and F16C. */
#include "normalise.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE __m128i load(const unsigned char *from) {
  return _mm_loadu_si128((const __m128i *)(const void *)from);
}

INLINE void store(unsigned char *to, __m128i bytes) {
  _mm_storeu_si128((__m128i *)(void *)to, bytes);
}

/* Four pixels of four bytes, the last of each any, become four of three. */
INLINE __m128i drop_fourth(__m128i pixels) {
  const __m128i places = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  return _mm_shuffle_epi8(pixels, places);
}

/* The loops leave the last pixels of a block to the portable form, as far as a vector may read. */
TARGET static size_t gather_rows(const normalise_job *job, size_t first, size_t count,
                                 unsigned char *to) {
  size_t i = 0;
  if (job->stored == 3) {
    const __m128i places = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const unsigned char *from = job->from + first * 3;
    for (; i + 6 <= count; i += 4, from += 12, to += 16)
      store(to, _mm_shuffle_epi8(load(from), places));
  } else {
    const unsigned char *from = job->from + first * 4;
    for (; i + 4 <= count; i += 4, from += 16, to += 12)
      store(to, drop_fourth(load(from)));
  }
  return i;
}

TARGET static size_t gather_planes(const normalise_job *job, size_t first, size_t count,
                                   unsigned char *to) {
  const unsigned char *red = job->from + first, *green = red + job->pixels;
  const unsigned char *blue = green + job->pixels;
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m128i r = load(red + i), g = load(green + i), b = load(blue + i), zero = _mm_setzero_si128();
    __m128i rg_low = _mm_unpacklo_epi8(r, g), rg_high = _mm_unpackhi_epi8(r, g);
    __m128i b_low = _mm_unpacklo_epi8(b, zero), b_high = _mm_unpackhi_epi8(b, zero);
    __m128i quads[4] = {_mm_unpacklo_epi16(rg_low, b_low), _mm_unpackhi_epi16(rg_low, b_low),
                        _mm_unpacklo_epi16(rg_high, b_high), _mm_unpackhi_epi16(rg_high, b_high)};
    for (int q = 0; q < 4; q++, to += job->channels * 4)
      store(to, job->channels == 4 ? quads[q] : drop_fourth(quads[q]));
  }
  return i;
}

/* One channel of each pixel. A vector may read into the pixel after its last. */
TARGET static size_t gather_channel(const normalise_job *job, size_t first, size_t count,
                                    unsigned char *to) {
  const unsigned char *from = job->from + first * (size_t)job->stored;
  size_t i = 0;
  if (job->stored == 3) {
    const __m128i low = _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i mid = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1);
    const __m128i high = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13);
    for (; i + 17 <= count; i += 16, from += 48, to += 16) {
      __m128i bytes = _mm_shuffle_epi8(load(from), low);
      bytes = _mm_or_si128(bytes, _mm_shuffle_epi8(load(from + 16), mid));
      store(to, _mm_or_si128(bytes, _mm_shuffle_epi8(load(from + 32), high)));
    }
  } else {
    const __m128i mask = _mm_set1_epi32(0xFF);
    for (; i + 17 <= count; i += 16, from += 64, to += 16) {
      __m128i a = _mm_and_si128(load(from), mask), b = _mm_and_si128(load(from + 16), mask);
      __m128i c = _mm_and_si128(load(from + 32), mask), d = _mm_and_si128(load(from + 48), mask);
      store(to, _mm_packus_epi16(_mm_packus_epi32(a, b), _mm_packus_epi32(c, d)));
    }
  }
  return i;
}

TARGET void gather_avx2(const normalise_job *job, size_t first, size_t count, unsigned char *to) {
  size_t done;
  if (job->channels == 1)
    done = gather_channel(job, first, count, to);
  else
    done = (job->planar ? gather_planes : gather_rows)(job, first, count, to);
  gather_portable(job, first + done, count - done, to + done * (size_t)job->channels);
}

INLINE void store_words(unsigned char *to, __m128i words, int streams) {
  if (streams)
    _mm_stream_si128((__m128i *)(void *)to, words);
  else
    store(to, words);
}

INLINE void convert_eight(const unsigned char *from, __m128i to_signed, __m256 scale, __m256 bias,
                          value_type type, int streams, unsigned char *to) {
  __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
  __m256 level = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_xor_si128(bytes, to_signed)));
  __m256 value = _mm256_fmadd_ps(level, scale, bias);
  if (type == FLOAT32) {
    if (streams)
      _mm256_stream_ps((float *)(void *)to, value);
    else
      _mm256_storeu_ps((float *)(void *)to, value);
  } else if (type == FLOAT16) {
    store_words(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT), streams);
  } else { /* a carry into the upper half rounds it up: above the middle, or there if it is odd */
    __m256i bits = _mm256_castps_si256(value), upper = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    bits = _mm256_srli_epi32(bits, 16);
    __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
    store_words(to, _mm_packus_epi32(low, high), streams);
  }
}

INLINE size_t convert_all(const normalise_job *job, const unsigned char *from, size_t count,
                          value_type type, int streams, unsigned char *to) {
  const __m128i to_signed = _mm_set1_epi8((char)(job->flip ^ 0x80));
  const size_t width = type == FLOAT32 ? 4 : 2;
  __m256 scale[3], bias[3]; /* of 24 values, which is a period, too */
  for (int v = 0; v < 3; v++) {
    scale[v] = _mm256_loadu_ps(job->scale + 8 * v);
    bias[v] = _mm256_loadu_ps(job->bias + 8 * v);
  }
  size_t i = 0;
  for (; i + 24 <= count; i += 24, from += 24, to += 24 * width) {
    convert_eight(from, to_signed, scale[0], bias[0], type, streams, to);
    convert_eight(from + 8, to_signed, scale[1], bias[1], type, streams, to + 8 * width);
    convert_eight(from + 16, to_signed, scale[2], bias[2], type, streams, to + 16 * width);
  }
  return i;
}

TARGET size_t convert_avx2(const normalise_job *job, const unsigned char *from, size_t count,
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
