/* The passes of resize_pack for CPUs with AVX-512 VBMI and VNNI (Ice Lake, Zen 4 and later).
 *
 * Across: 16 cells at a time come from one window of 16 or 32 neighbouring pixels, from which a byte
 * permutation takes the two values of each cell that a pair of weights multiplies. The bytes and
 * weights are the same in every row, so a table of them is made once a picture. */
#include "resize.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vnni")))
#define VALUES 0x5555555555555555 /* the low byte of each int16: the high one is 0 */
#define SECOND_BYTES 0x2222222222222222
#define THIRD_BYTES 0x4444444444444444
#define FOURTH_BYTES 0x8888888888888888

typedef struct {
  __m512i bytes, weights; /* of each cell: two positions in the window, two weights */
} cell_pairs;

typedef struct {
  int32_t first_pixel, first_cell;
} cell_group;

/* The outputs in a group of 16 cells of a plane, from `cell` on: x..last. */
static ALWAYS_INLINE void group_outputs(const resize_job *job, int cell, int *x, int *last) {
  int together = job->planar ? 1 : job->channels;
  int end = cell + 16 < job->plane_cells ? cell + 16 : job->plane_cells;
  *x = cell / together;
  *last = (end - 1) / together;
}

static int widest_group(const resize_job *job) {
  const filter_plan *f = &job->across;
  int widest = 0;
  for (int cell = 0; cell < job->plane_cells; cell += 16) {
    int x, last;
    group_outputs(job, cell, &x, &last);
    int from = f->first[x], end = f->first[last] + f->count[last];
    if (f->first[last] < from) { /* mirrored */
      from = f->first[last];
      end = f->first[x] + f->count[x];
    }
    widest = end - from > widest ? end - from : widest;
  }
  return widest;
}

AVX512 static void lay_out_group(const resize_job *job, int plane, int cell, cell_group *group,
                                 cell_pairs *table) {
  const filter_plan *f = &job->across;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int x, last, together = job->planar ? 1 : job->channels;
  group_outputs(job, cell, &x, &last);
  int from = f->first[x] < f->first[last] ? f->first[x] : f->first[last];
  from = from < job->width - job->window ? from : job->width - job->window;
  *group = (cell_group){from, (int32_t)((size_t)plane * job->plane_room) + cell};

  /* Of each lane: its output, counted from x, and its channel. (n * ceil(256 / d)) >> 8 is n / d. */
  __m512i nth = _mm512_add_epi32(lanes, _mm512_set1_epi32(cell - x * together));
  __m512i output = _mm512_srli_epi32(
      _mm512_mullo_epi32(nth, _mm512_set1_epi32((256 + together - 1) / together)), 8);
  __m512i channel = _mm512_add_epi32(
      _mm512_sub_epi32(nth, _mm512_mullo_epi32(output, _mm512_set1_epi32(together))),
      _mm512_set1_epi32(plane));
  output = _mm512_min_epi32(output, _mm512_set1_epi32(last - x));
  __mmask16 outputs = (__mmask16)((2u << (last - x)) - 1);
  __mmask16 colours = _mm512_cmplt_epi32_mask(channel, _mm512_set1_epi32(3));

  __m512i first = _mm512_permutexvar_epi32(output, _mm512_maskz_loadu_epi32(outputs, f->first + x));
  __m512i byte = _mm512_add_epi32(
      _mm512_slli_epi32(_mm512_sub_epi32(first, _mm512_set1_epi32(from)), 2), channel);
  __m512i next = _mm512_add_epi32(byte, _mm512_set1_epi32(4));
  byte = _mm512_or_si512(byte, _mm512_slli_epi32(next, 16));
  for (int k = 0; k < f->pairs; k++) {
    const int32_t *weights = f->weights + (size_t)k * (size_t)f->outputs + x;
    table[k].bytes = byte;
    table[k].weights = _mm512_maskz_permutexvar_epi32(
        colours, output, _mm512_maskz_loadu_epi32(outputs, weights));
    byte = _mm512_add_epi32(byte, _mm512_set1_epi32(0x80008));
  }
}

int prepare_across_avx512(resize_job *job, scratch *memory) {
  int widest = widest_group(job), planes = job->planar ? job->channels : 1;
  job->window = widest <= 16 ? 16 : 32;
  if (widest > job->window || job->width < job->window)
    return 0;
  size_t groups = (size_t)planes * (size_t)((job->plane_cells + 15) / 16);
  size_t pairs = (size_t)job->across.pairs;
  cell_pairs *table =
      take_scratch(memory, groups * (pairs * sizeof(cell_pairs) + sizeof(cell_group)));
  if (table == NULL)
    return -1;
  cell_group *group = (void *)(table + groups * pairs);
  job->table = table;
  job->groups = groups;
  for (int plane = 0; plane < planes; plane++)
    for (int cell = 0; cell < job->plane_cells; cell += 16, table += pairs)
      lay_out_group(job, plane, cell, group++, table);
  return 1;
}

/* For multishift: puts into all bytes of an int32 its byte above the `precision` bits of fraction,
 * which is the sum's whole part. */
static ALWAYS_INLINE int64_t whole_parts(int precision) {
  return precision * 0x0101010101010101 + 0x2020202000000000;
}

/* Keeps sums within what multishift takes whole parts of. */
AVX512 static ALWAYS_INLINE __m512i clip_sum(__m512i sum, int precision) {
  sum = _mm512_max_epi32(sum, _mm512_setzero_si512());
  return _mm512_min_epi32(sum, _mm512_set1_epi32((256 << precision) - 1));
}

/* Adds the products of one pair of weights with a row's window. */
AVX512 static ALWAYS_INLINE __m512i add_pair(__m512i sum, __m512i low, __m512i high, int wide,
                                             cell_pairs of) {
  __m512i values = wide ? _mm512_maskz_permutex2var_epi8(VALUES, low, of.bytes, high)
                        : _mm512_maskz_permutexvar_epi8(VALUES, of.bytes, low);
  return _mm512_dpwssd_epi32(sum, values, of.weights);
}

/* The first two pairs of weights stay in registers from row to row; more are rare. */
AVX512 static ALWAYS_INLINE __m512i resample(const unsigned char *pixels, cell_pairs one,
                                             cell_pairs two, const cell_pairs *table, int pairs,
                                             int wide, __m512i half) {
  __m512i low = _mm512_loadu_si512(pixels);
  __m512i high = wide ? _mm512_loadu_si512(pixels + 64) : low;
  __m512i sum = add_pair(half, low, high, wide, one);
  if (pairs > 1)
    sum = add_pair(sum, low, high, wide, two);
  for (int k = 2; k < pairs; k++)
    sum = add_pair(sum, low, high, wide, table[k]);
  return sum;
}

AVX512 static ALWAYS_INLINE void resample_groups(const resize_job *job, int row, int row_pairs,
                                                 int32_t *const *out, int pairs, int wide,
                                                 int clip) {
  const __m512i half = _mm512_set1_epi32(1 << (job->across.precision - 1));
  const __m128i down = _mm_cvtsi32_si128(job->across.precision);
  const __m512i up = _mm512_set1_epi64(whole_parts(job->across.precision));
  const cell_pairs *table = job->table;
  const cell_group *group = (const void *)(table + job->groups * (size_t)pairs);
  const size_t stride = job->stride, groups = job->groups;
  const int last = job->height - 1 - row;
  const unsigned char *top = job->pixels + (size_t)row * stride;
  for (size_t g = 0; g < groups; g++, table += pairs) {
    const unsigned char *even = top + 4 * (size_t)group[g].first_pixel;
    const cell_pairs one = table[0], two = table[pairs > 1];
    for (int pair = 0; pair < row_pairs; pair++, even += 2 * stride) {
      const unsigned char *odd = 2 * pair < last ? even + stride : even;
      __m512i low = resample(even, one, two, table, pairs, wide, half);
      __m512i high = resample(odd, one, two, table, pairs, wide, half);
      if (clip) {
        low = clip_sum(low, job->across.precision);
        high = clip_sum(high, job->across.precision);
      }
      low = _mm512_srl_epi32(low, down);
      _mm512_store_si512(out[pair] + group[g].first_cell,
                         _mm512_mask_multishift_epi64_epi8(low, THIRD_BYTES, up, high));
    }
  }
}

AVX512 void across_avx512(const resize_job *job, int row, int pairs, int32_t *const *out) {
  int steps = job->across.pairs, wide = job->window == 32;
  if (job->clip)
    resample_groups(job, row, pairs, out, steps, wide, 1);
  else if (wide && steps == 2)
    resample_groups(job, row, pairs, out, 2, 1, 0);
  else if (wide)
    resample_groups(job, row, pairs, out, steps, 1, 0);
  else if (steps == 1)
    resample_groups(job, row, pairs, out, 1, 0, 0);
  else if (steps == 2)
    resample_groups(job, row, pairs, out, 2, 0, 0);
  else
    resample_groups(job, row, pairs, out, steps, 0, 0);
}

AVX512 static ALWAYS_INLINE void combine_down(const resize_job *job, const int32_t *const *rows,
                                              const int32_t *weights, int pairs, int clip,
                                              int32_t turn, unsigned char *restrict out) {
  const __m512i half = _mm512_set1_epi32(1 << (job->down.precision - 1));
  const __m512i turns = _mm512_set1_epi32(turn);
  const __m512i shifts = _mm512_set1_epi64(whole_parts(job->down.precision));
  /* Byte i of part k, which is byte k of int32 i. */
  const __m512i order = _mm512_add_epi32(
      _mm512_set1_epi32(0x0C080400),
      _mm512_setr_epi32(0x00000000, 0x10101010, 0x20202020, 0x30303030, 0x01010101, 0x11111111,
                        0x21212121, 0x31313131, 0x02020202, 0x12121212, 0x22222222, 0x32323232,
                        0x03030303, 0x13131313, 0x23232323, 0x33333333));
  for (int cell = 0; cell < job->plane_cells; cell += 64) {
    __m512i sum[4] = {half, half, half, half};
    for (int k = 0; k < pairs; k++) {
      __m512i w = _mm512_set1_epi32(weights[k]);
      for (int part = 0; part < 4; part++)
        sum[part] =
            _mm512_dpwssd_epi32(sum[part], _mm512_load_si512(rows[k] + cell + 16 * part), w);
    }
    if (clip)
      for (int part = 0; part < 4; part++)
        sum[part] = clip_sum(sum[part], job->down.precision);
    __m512i bytes = _mm512_multishift_epi64_epi8(shifts, sum[0]);
    bytes = _mm512_mask_multishift_epi64_epi8(bytes, SECOND_BYTES, shifts, sum[1]);
    bytes = _mm512_mask_multishift_epi64_epi8(bytes, THIRD_BYTES, shifts, sum[2]);
    bytes = _mm512_mask_multishift_epi64_epi8(bytes, FOURTH_BYTES, shifts, sum[3]);
    bytes = _mm512_permutexvar_epi8(order, bytes);
    bytes = _mm512_xor_si512(bytes, turns);
    int rest = job->plane_cells - cell;
    if (rest >= 64)
      _mm512_storeu_si512(out + cell, bytes);
    else
      _mm512_mask_storeu_epi8(out + cell, ((__mmask64)1 << rest) - 1, bytes);
  }
}

AVX512 void down_avx512(const resize_job *job, const int32_t *const *rows, const int32_t *weights,
                        int pairs, int32_t turn, unsigned char *restrict out) {
  if (job->clip)
    combine_down(job, rows, weights, pairs, 1, turn, out);
  else if (pairs == 1)
    combine_down(job, rows, weights, 1, 0, turn, out);
  else if (pairs == 2)
    combine_down(job, rows, weights, 2, 0, turn, out);
  else if (pairs == 3)
    combine_down(job, rows, weights, 3, 0, turn, out);
  else
    combine_down(job, rows, weights, pairs, 0, turn, out);
}
#endif
