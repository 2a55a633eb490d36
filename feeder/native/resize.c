/* resize_pack: a box of an RGBX picture to size x size int8 RGB (value - 128), mirrored or not.
 *
 * Pillow's antialiased bilinear resize, to the bit of Pillow-SIMD's arithmetic: weights in double,
 * rounded to 16 bits with as many fractional bits as the largest allows, each pass rounded to a
 * byte. Only the order of the work is ours: source rows are resampled across into a small ring of
 * rows and combined down as soon as an output row has all it needs, which leaves the pictures in
 * between, a megabyte a sample, out of the caches. */
#include "native.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MAX_WEIGHT_BITS 15 /* of an int16 without its sign */
#define MAX_PRECISION 22
#define MAX_SIZE 2048
#define ROW_BATCH 4 /* rows that are resampled across together */

typedef struct {
  int taps;      /* places for weights of each output, even; the ones past its count are 0 */
  int precision; /* fractional bits of the weights */
  int *first;    /* of each output: its first input */
  int *count;    /* of each output: how many inputs it reads */
  int16_t *weights;
  void *memory;
} filter_plan;

static int plan_filter(filter_plan *plan, int inputs, float start, float end, int outputs) {
  double scale = (double)(end - start) / outputs;
  double support = scale < 1.0 ? 1.0 : scale;
  int taps = ((int)ceil(support) * 2 + 2) & ~1;
  size_t cells = (size_t)outputs * (size_t)taps;
  plan->memory = malloc(cells * (sizeof(double) + sizeof(int16_t)) + 2 * (size_t)outputs * sizeof(int));
  if (plan->memory == NULL)
    return 0;
  double *exact = plan->memory;
  plan->first = (int *)(void *)(exact + cells);
  plan->count = plan->first + outputs;
  plan->weights = (int16_t *)(void *)(plan->count + outputs);
  plan->taps = taps;

  double largest = 0.0, step = 1.0 / support;
  for (int i = 0; i < outputs; i++) {
    double center = start + (i + 0.5) * scale, sum = 0.0, *w = exact + (size_t)i * (size_t)taps;
    int first = (int)(center - support + 0.5), last = (int)(center + support + 0.5);
    first = first < 0 ? 0 : first;
    last = last > inputs ? inputs : last;
    int count = last - first;
    for (int t = 0; t < count; t++) {
      double distance = fabs((t + first - center + 0.5) * step);
      w[t] = distance < 1.0 ? 1.0 - distance : 0.0;
      sum += w[t];
    }
    for (int t = 0; t < count; t++) {
      if (sum != 0.0)
        w[t] /= sum;
      if (w[t] > largest)
        largest = w[t];
    }
    for (int t = count; t < taps; t++)
      w[t] = 0.0;
    plan->first[i] = first;
    plan->count[i] = count;
  }
  int precision = 0;
  while (precision < MAX_PRECISION &&
         (int)(0.5 + largest * (1 << (precision + 1))) < (1 << MAX_WEIGHT_BITS))
    precision++;
  plan->precision = precision;
  for (size_t c = 0; c < cells; c++)
    plan->weights[c] = (int16_t)(0.5 + exact[c] * (1 << precision));
  return 1;
}

typedef struct {
  const unsigned char *pixels; /* RGBX, with 12 readable bytes after the last one */
  size_t stride;
  filter_plan across, down;
  int size, mirrored;
} resize_job;

/* Between the passes, rows hold RGB in 16 bits: what the second pass multiplies. They have room for
 * the last pixel's spill and for reading whole steps of 32. */
static size_t row_cells(int size) { return ((size_t)size * 3 + 32) / 32 * 32; }

/* Resamples `count` (1 to ROW_BATCH) source rows, from `row` on, across into `out`; mirrors. */
static void resample_across(const resize_job *job, int row, int count, int16_t *const *out) {
  const filter_plan *f = &job->across;
  for (int r = 0; r < count; r++) {
    const unsigned char *in = job->pixels + (size_t)(row + r) * job->stride;
    for (int to = 0; to < job->size; to++) {
      int x = job->mirrored ? job->size - 1 - to : to;
      const int16_t *w = f->weights + x * f->taps;
      for (int channel = 0; channel < 3; channel++) {
        int sum = 1 << (f->precision - 1);
        for (int t = 0; t < f->count[x]; t++)
          sum += in[4 * (f->first[x] + t) + channel] * w[t];
        out[r][3 * to + channel] = (int16_t)(sum >> f->precision);
      }
    }
  }
}

/* Combines `count` such rows down into one row of bytes, top bits turned. No sum can leave a byte:
 * the weights of an output add up to 1 but for their rounding, which is under 0.5 / 255. */
static void resample_down(const resize_job *job, int16_t *const *rows, const int16_t *w, int count,
                          unsigned char *out) {
  for (int cell = 0; cell < 3 * job->size; cell++) {
    int sum = 1 << (job->down.precision - 1);
    for (int t = 0; t < count; t++)
      sum += rows[t][cell] * w[t];
    out[cell] = (unsigned char)((sum >> job->down.precision) ^ 0x80);
  }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))

/* Two weights as the pair of int16 that multiplies a pair of values. */
static inline int weight_pair(const int16_t *w) {
  int pair;
  memcpy(&pair, w, sizeof pair);
  return pair;
}

/* The low 16 bytes from one row, the high 16 from another. */
AVX2 static inline __m256i load_rows(const unsigned char *low, const unsigned char *high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
      _mm_loadu_si128((const __m128i *)(const void *)high), 1);
}

/* Two rows in each register. Always makes ROW_BATCH rows: those past `count` repeat the last, into
 * rows nobody looks at. A pixel's store spills its X into the next pixel, which is written next. */
AVX2 static void resample_across_avx2(const resize_job *job, int row, int count,
                                      int16_t *const *out) {
  const filter_plan *f = &job->across;
  const unsigned char *in[ROW_BATCH];
  for (int r = 0; r < ROW_BATCH; r++)
    in[r] = job->pixels + (size_t)(row + (r < count ? r : count - 1)) * job->stride;
  /* Pixels 0 and 1 (2 and 3) of 16 bytes as r0 r1 g0 g1 b0 b1 x0 x1 in 16 bits each. */
  const __m256i first_two = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
  const __m256i last_two = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
  const __m256i half = _mm256_set1_epi32(1 << (f->precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(f->precision);
  for (int to = 0; to < job->size; to++) {
    int x = job->mirrored ? job->size - 1 - to : to;
    const int16_t *w = f->weights + x * f->taps;
    size_t at = 4 * (size_t)f->first[x];
    __m256i sum01 = half, sum23 = half;
    int taps = f->count[x];
    for (int t = 0; t < taps; t += 4, at += 16) {
      __m256i rows01 = load_rows(in[0] + at, in[1] + at);
      __m256i rows23 = load_rows(in[2] + at, in[3] + at);
      __m256i pair = _mm256_set1_epi32(weight_pair(w + t));
      sum01 = _mm256_add_epi32(
          sum01, _mm256_madd_epi16(_mm256_shuffle_epi8(rows01, first_two), pair));
      sum23 = _mm256_add_epi32(
          sum23, _mm256_madd_epi16(_mm256_shuffle_epi8(rows23, first_two), pair));
      if (t + 2 >= taps)
        break;
      pair = _mm256_set1_epi32(weight_pair(w + t + 2));
      sum01 = _mm256_add_epi32(
          sum01, _mm256_madd_epi16(_mm256_shuffle_epi8(rows01, last_two), pair));
      sum23 = _mm256_add_epi32(
          sum23, _mm256_madd_epi16(_mm256_shuffle_epi8(rows23, last_two), pair));
    }
    __m256i pixels = _mm256_packs_epi32(_mm256_sra_epi32(sum01, shift),
                                        _mm256_sra_epi32(sum23, shift)); /* rows 0, 2 | 1, 3 */
    __m128i even = _mm256_castsi256_si128(pixels), odd = _mm256_extracti128_si256(pixels, 1);
    _mm_storel_epi64((__m128i *)(void *)(out[0] + 3 * to), even);
    _mm_storel_epi64((__m128i *)(void *)(out[1] + 3 * to), odd);
    _mm_storeh_pd((double *)(void *)(out[2] + 3 * to), _mm_castsi128_pd(even));
    _mm_storeh_pd((double *)(void *)(out[3] + 3 * to), _mm_castsi128_pd(odd));
  }
}

AVX2 static void resample_down_avx2(const resize_job *job, int16_t *const *rows, const int16_t *w,
                                    int count, unsigned char *out) {
  const __m256i half = _mm256_set1_epi32(1 << (job->down.precision - 1));
  const __m128i shift = _mm_cvtsi32_si128(job->down.precision);
  const __m256i turn = _mm256_set1_epi8((char)0x80);
  int cells = 3 * job->size;
  for (int cell = 0; cell < cells; cell += 32) {
    __m256i sum[4] = {half, half, half, half};
    for (int t = 0; t < count; t += 2) {
      const __m256i *one = (const __m256i *)(const void *)(rows[t] + cell);
      const __m256i *two =
          (const __m256i *)(const void *)(rows[t + 1 < count ? t + 1 : t] + cell);
      __m256i pair = _mm256_set1_epi32(weight_pair(w + t));
      for (int half_row = 0; half_row < 2; half_row++) {
        __m256i a = _mm256_loadu_si256(one + half_row), b = _mm256_loadu_si256(two + half_row);
        sum[2 * half_row] = _mm256_add_epi32(
            sum[2 * half_row], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
        sum[2 * half_row + 1] = _mm256_add_epi32(
            sum[2 * half_row + 1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
      }
    }
    __m256i left = _mm256_packs_epi32(_mm256_sra_epi32(sum[0], shift),
                                      _mm256_sra_epi32(sum[1], shift));
    __m256i right = _mm256_packs_epi32(_mm256_sra_epi32(sum[2], shift),
                                       _mm256_sra_epi32(sum[3], shift));
    __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(left, right), 0xD8);
    bytes = _mm256_xor_si256(bytes, turn);
    if (cell + 32 <= cells) {
      _mm256_storeu_si256((__m256i *)(void *)(out + cell), bytes);
    } else {
      unsigned char rest[32];
      _mm256_storeu_si256((__m256i *)(void *)rest, bytes);
      memcpy(out + cell, rest, (size_t)(cells - cell));
    }
  }
}
#endif

static int has_avx2(void) {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2");
#else
  return 0;
#endif
}

/* Returns 0 where memory is short. */
static int run_resize(const resize_job *job, unsigned char *out) {
  void (*across)(const resize_job *, int, int, int16_t *const *) = resample_across;
  void (*down)(const resize_job *, int16_t *const *, const int16_t *, int, unsigned char *) =
      resample_down;
#if defined(__x86_64__)
  if (has_avx2()) {
    across = resample_across_avx2;
    down = resample_down_avx2;
  }
#endif
  /* The ring holds every row that one output row reads and the batch that is being made; after it
   * come the rows of a batch that nobody looks at. */
  int size = job->size, ring = job->down.taps + ROW_BATCH;
  size_t cells = row_cells(size);
  int16_t *memory = calloc((size_t)(ring + ROW_BATCH) * cells, sizeof *memory);
  int16_t **rows = malloc((size_t)job->down.taps * sizeof *rows);
  if (memory == NULL || rows == NULL) {
    free(memory);
    free(rows);
    return 0;
  }
  int made = job->down.first[0];
  int last = job->down.first[size - 1] + job->down.count[size - 1];
  for (int y = 0; y < size; y++) {
    int first = job->down.first[y], count = job->down.count[y];
    while (made < first + count) {
      int batch = last - made < ROW_BATCH ? last - made : ROW_BATCH;
      int16_t *to[ROW_BATCH];
      for (int r = 0; r < ROW_BATCH; r++)
        to[r] = memory + (size_t)(r < batch ? (made + r) % ring : ring + r) * cells;
      across(job, made, batch, to);
      made += batch;
    }
    for (int t = 0; t < count; t++)
      rows[t] = memory + (size_t)((first + t) % ring) * cells;
    down(job, rows, job->down.weights + y * job->down.taps, count, out + (size_t)y * 3 * (size_t)size);
  }
  free(memory);
  free(rows);
  return 1;
}

PyObject *feeder_resize_pack(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer picture, out;
  Py_ssize_t stride, width, height;
  float left, top, right, bottom;
  int size, mirrored;
  if (!PyArg_ParseTuple(args, "y*nnn(ffff)ipw*", &picture, &stride, &width, &height, &left, &top,
                        &right, &bottom, &size, &mirrored, &out))
    return NULL;
  PyObject *result = NULL;
  resize_job job = {.pixels = picture.buf, .stride = (size_t)stride, .size = size, .mirrored = mirrored};
  if (size < 1 || size > MAX_SIZE || out.len != (Py_ssize_t)size * size * 3)
    PyErr_SetString(PyExc_ValueError, "the output must hold size * size * 3 bytes");
  else if (width < 1 || height < 1 || width > 65535 || height > 65535 || stride < 4 * width ||
           picture.len < stride * (height - 1) + 4 * width + 12)
    PyErr_SetString(PyExc_ValueError,
                    "the picture must hold height * stride bytes and 12 readable ones after them");
  else if (!(left >= 0 && top >= 0 && left < right && top < bottom && right <= (float)width &&
             bottom <= (float)height))
    PyErr_SetString(PyExc_ValueError, "the box must lie within the picture");
  else if (!plan_filter(&job.across, (int)width, left, right, size) ||
           !plan_filter(&job.down, (int)height, top, bottom, size) || !run_resize(&job, out.buf))
    PyErr_NoMemory();
  else
    result = Py_NewRef(Py_None);
  free(job.across.memory);
  free(job.down.memory);
  PyBuffer_Release(&picture);
  PyBuffer_Release(&out);
  return result;
}
