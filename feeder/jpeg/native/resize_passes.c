/* The two passes of resize_pack in plain C, and with AVX2. */
#include "resize.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const unsigned char *row_at(const resize_job *job, int row) {
  return job->pixels + (size_t)(row < job->height ? row : job->height - 1) * job->stride;
}

/* A sum without its fraction: a byte. */
static inline int32_t whole_part(int32_t sum, int precision) {
  sum >>= precision;
  return sum < 0 ? 0 : sum > 255 ? 255 : sum;
}

void across_portable(const resize_job *job, int row, int pairs, int32_t *const *out) {
  const filter_plan *f = &job->across;
  const size_t pixel_step = job->planar ? 1 : (size_t)job->channels;
  const size_t channel_step = job->planar ? job->plane_room : 1;
  for (int pair = 0; pair < pairs; pair++) {
    const unsigned char *even = row_at(job, row + 2 * pair), *odd = row_at(job, row + 2 * pair + 1);
    for (int x = 0; x < f->outputs; x++) {
      int32_t half = 1 << (f->precision - 1);
      int32_t low[4] = {half, half, half, 0}, high[4] = {half, half, half, 0};
      for (int t = 0; t < f->count[x]; t++) {
        int32_t w = (int16_t)(f->weights[(t / 2) * f->outputs + x] >> (t % 2 * 16));
        size_t at = 4 * (size_t)(f->first[x] + t);
        for (int channel = 0; channel < 3; channel++) {
          low[channel] += even[at + (size_t)channel] * w;
          high[channel] += odd[at + (size_t)channel] * w;
        }
      }
      int32_t *cell = out[pair] + (size_t)x * pixel_step;
      for (int channel = 0; channel < job->channels; channel++)
        cell[(size_t)channel * channel_step] =
            whole_part(low[channel], f->precision) | whole_part(high[channel], f->precision) << 16;
    }
  }
}

void down_portable(const resize_job *job, const int32_t *const *rows, const int32_t *weights,
                   int pairs, int32_t turn, unsigned char *restrict out) {
  enum { CELLS = 64 }; /* few enough for their sums to stay in vector registers */
  unsigned char turns[4];
  memcpy(turns, &turn, sizeof turns);
  for (int cell = 0; cell < job->plane_cells; cell += CELLS) {
    int32_t sum[CELLS];
    for (int i = 0; i < CELLS; i++)
      sum[i] = 1 << (job->down.precision - 1);
    for (int k = 0; k < pairs; k++) {
      const int32_t *row = rows[k] + cell;
      int32_t low = (int16_t)weights[k], high = weights[k] >> 16;
      for (int i = 0; i < CELLS; i++)
        sum[i] += (row[i] & 0xFFFF) * low + (row[i] >> 16) * high;
    }
    int rest = job->plane_cells - cell;
    for (int i = 0; i < (rest < CELLS ? rest : CELLS); i++)
      out[cell + i] = (unsigned char)whole_part(sum[i], job->down.precision) ^ turns[i % 4];
  }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))

/* The low 16 bytes from one row, the high 16 from another. */
AVX2 static ALWAYS_INLINE __m256i load_rows(const unsigned char *low, const unsigned char *high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
      _mm_loadu_si128((const __m128i *)(const void *)high), 1);
}

/* A pixel's cells into planes. */
AVX2 static ALWAYS_INLINE void store_planar(const resize_job *job, int32_t *cell, __m128i cells) {
  cell[0] = _mm_cvtsi128_si32(cells);
  cell[job->plane_room] = _mm_extract_epi32(cells, 1);
  cell[2 * job->plane_room] = _mm_extract_epi32(cells, 2);
  if (job->channels == 4)
    cell[3 * job->plane_room] = 0;
}

/* Two pairs of rows. `weight_pairs` is the number of pairs of weights of each output, with none
 * negative and an HWC layout, as is usual; 0 handles every case. */
AVX2 static ALWAYS_INLINE void across_two(const resize_job *job, int row, int32_t *restrict upper,
                                          int32_t *restrict lower, int weight_pairs) {
  const int outputs = job->across.outputs, precision = job->across.precision;
  const int usual = weight_pairs > 0, step = job->planar ? 1 : job->channels;
  const int32_t *restrict first = job->across.first, *restrict counts = job->across.count;
  const int32_t *restrict weights = job->across.weights;
  const unsigned char *in[4];
  for (int r = 0; r < 4; r++)
    in[r] = row_at(job, row + r);
  /* Pixels 0 and 1 (2 and 3) of 16 bytes as r0 r1 g0 g1 b0 b1 0 0 in 16 bits each. */
  const __m256i first_two = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, -1, -1, -1, -1));
  const __m256i last_two = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, -1, -1, -1, -1));
  const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
  const __m256i most = _mm256_set1_epi32((256 << precision) - 1);
  const __m128i shift = _mm_cvtsi32_si128(precision);
  for (int x = 0; x < outputs; x++, upper += step, lower += step) {
    const int32_t *w = weights + x;
    size_t at = 4 * (size_t)first[x];
    __m256i even = half, odd = half; /* of the upper pair, then of the lower one */
    int count = usual ? 1 : counts[x];
    for (int t = 0; t < count; t += 4, at += 16, w += 2 * outputs) {
      __m256i evens = load_rows(in[0] + at, in[2] + at), odds = load_rows(in[1] + at, in[3] + at);
      __m256i pair = _mm256_set1_epi32(w[0]);
      even = _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_shuffle_epi8(evens, first_two), pair));
      odd = _mm256_add_epi32(odd, _mm256_madd_epi16(_mm256_shuffle_epi8(odds, first_two), pair));
      if (weight_pairs == 1)
        break;
      pair = _mm256_set1_epi32(w[outputs]);
      even = _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_shuffle_epi8(evens, last_two), pair));
      odd = _mm256_add_epi32(odd, _mm256_madd_epi16(_mm256_shuffle_epi8(odds, last_two), pair));
    }
    if (!usual && job->clip) {
      even = _mm256_max_epi32(_mm256_min_epi32(even, most), _mm256_setzero_si256());
      odd = _mm256_max_epi32(_mm256_min_epi32(odd, most), _mm256_setzero_si256());
    }
    __m256i cells = _mm256_or_si256(_mm256_srl_epi32(even, shift),
                                    _mm256_slli_epi32(_mm256_srl_epi32(odd, shift), 16));
    __m128i first_pair = _mm256_castsi256_si128(cells), second = _mm256_extracti128_si256(cells, 1);
    if (!usual && job->planar) {
      store_planar(job, upper, first_pair);
      store_planar(job, lower, second);
    } else { /* with 3 channels the fourth cell spills into the next pixel, written next */
      _mm_storeu_si128((__m128i *)(void *)upper, first_pair);
      _mm_storeu_si128((__m128i *)(void *)lower, second);
    }
  }
}

AVX2 void across_avx2(const resize_job *job, int row, int pairs, int32_t *const *out) {
  int usual = !job->clip && !job->planar;
  for (int pair = 0; pair < pairs; pair += 2) {
    if (usual && job->across.pairs == 1)
      across_two(job, row + 2 * pair, out[pair], out[pair + 1], 1);
    else if (usual && job->across.pairs == 2)
      across_two(job, row + 2 * pair, out[pair], out[pair + 1], 2);
    else
      across_two(job, row + 2 * pair, out[pair], out[pair + 1], 0);
  }
}

AVX2 static ALWAYS_INLINE void combine_down(const resize_job *job, const int32_t *const *rows,
                                            const int32_t *weights, int pairs, int32_t turn,
                                            unsigned char *restrict out) {
  const __m256i half = _mm256_set1_epi32(1 << (job->down.precision - 1));
  const __m256i turns = _mm256_set1_epi32(turn);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m128i shift = _mm_cvtsi32_si128(job->down.precision);
  for (int cell = 0; cell < job->plane_cells; cell += 32) {
    __m256i sum[4] = {half, half, half, half};
    for (int k = 0; k < pairs; k++) {
      __m256i w = _mm256_set1_epi32(weights[k]);
      for (int part = 0; part < 4; part++)
        sum[part] = _mm256_add_epi32(
            sum[part],
            _mm256_madd_epi16(
                _mm256_load_si256((const __m256i *)(const void *)(rows[k] + cell + 8 * part)), w));
    }
    __m256i left = _mm256_packs_epi32(_mm256_sra_epi32(sum[0], shift),
                                      _mm256_sra_epi32(sum[1], shift));
    __m256i right = _mm256_packs_epi32(_mm256_sra_epi32(sum[2], shift),
                                       _mm256_sra_epi32(sum[3], shift));
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(left, right), order);
    bytes = _mm256_xor_si256(bytes, turns);
    if (cell + 32 <= job->plane_cells) {
      _mm256_storeu_si256((__m256i *)(void *)(out + cell), bytes);
    } else {
      unsigned char rest[32];
      _mm256_storeu_si256((__m256i *)(void *)rest, bytes);
      memcpy(out + cell, rest, (size_t)(job->plane_cells - cell));
    }
  }
}

AVX2 void down_avx2(const resize_job *job, const int32_t *const *rows, const int32_t *weights,
                    int pairs, int32_t turn, unsigned char *restrict out) {
  if (pairs == 1)
    combine_down(job, rows, weights, 1, turn, out);
  else if (pairs == 2)
    combine_down(job, rows, weights, 2, turn, out);
  else if (pairs == 3)
    combine_down(job, rows, weights, 3, turn, out);
  else
    combine_down(job, rows, weights, pairs, turn, out);
}
#endif
