/* The passes of resize_pack with the vectors of vector.h. A file that includes this defines LANES,
 * and ACROSS and DOWN, the passes' names.
 *
 * Across: each lane works on a pair of rows of its own; one load of four pixels serves two pairs of
 * weights.
 *
 * Of a sum's fraction one bit is kept, and values are halved and rounded last, several in one
 * instruction: that gives the same as rounding the sums, with fewer additions. */
#include "resize.h"
#include "resize_vector.h"

INLINE const unsigned char *row_at(const resize_job *job, int row) {
  return job->pixels + (size_t)(row < job->height ? row : job->height - 1) * job->stride;
}

/* `weight_pairs` is the number of pairs of weights of each output, with none negative, a precision
 * of at most 17 and an HWC layout, as is usual; 0 handles every case. */
INLINE void resample(const resize_job *job, int row, int32_t *const *out, int weight_pairs) {
  const int outputs = job->across.outputs, precision = job->across.precision;
  const int usual = weight_pairs > 0;
  const size_t step = job->planar ? 1 : (size_t)job->channels;
  const int32_t *restrict first = job->across.first, *restrict counts = job->across.count;
  const int32_t most = (256 << precision) - 1 - (1 << (precision - 1));
  const unsigned char *upper[LANES], *lower[LANES];
  int32_t *to[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    upper[lane] = row_at(job, row + 2 * lane);
    lower[lane] = row_at(job, row + 2 * lane + 1);
    to[lane] = out[lane];
  }
  for (int x = 0; x < outputs; x++) {
    const int32_t *w = job->across.weights + x;
    size_t at = 4 * (size_t)first[x];
    ints even = {0}, odd = {0};
    const int count = usual ? weight_pairs : (counts[x] + 1) / 2;
    for (int k = 0; k < count; k += 2, at += 16, w += 2 * outputs) {
      shorts evens = load_pixels(upper, at), odds = load_pixels(lower, at);
      even = add_ints(even, multiply_pairs(first_two(evens), w[0]));
      odd = add_ints(odd, multiply_pairs(first_two(odds), w[0]));
      if (weight_pairs == 1)
        break;
      even = add_ints(even, multiply_pairs(last_two(evens), w[outputs]));
      odd = add_ints(odd, multiply_pairs(last_two(odds), w[outputs]));
    }
    if (!usual && job->clip) {
      even = clamp_ints(even, most);
      odd = clamp_ints(odd, most);
    }
    even = shift_ints(even, precision - 1);
    odd = usual ? shift_ints_left(odd, 17 - precision)
                : shift_ints_left(shift_ints(odd, precision - 1), 16);
    ints cells = (ints)halve((shorts)join_halves(even, odd));
    for (int lane = 0; lane < LANES; lane++) {
      if (!usual && job->planar) {
        for (int channel = 0; channel < job->channels; channel++)
          to[lane][(size_t)channel * job->plane_room] = cells[4 * lane + channel];
      } else { /* with 3 channels the fourth cell spills into the next pixel, written next */
        memcpy(to[lane], (const char *)&cells + 16 * lane, 16);
      }
      to[lane] += step;
    }
  }
}

void ACROSS(const resize_job *job, int row, int pairs, int32_t *const *out) {
  const filter_plan *f = &job->across;
  const int usual = !job->clip && !job->planar && f->precision <= 17;
  for (int pair = 0; pair < pairs; pair += LANES) {
    if (usual && f->pairs == 1)
      resample(job, row + 2 * pair, out + pair, 1);
    else if (usual && f->pairs == 2)
      resample(job, row + 2 * pair, out + pair, 2);
    else
      resample(job, row + 2 * pair, out + pair, 0);
  }
}

/* Combines 16 * LANES cells and stores the first `count`. */
INLINE void combine_cells(const int32_t *const *rows, const int32_t *weights, int pairs,
                          size_t cell, int precision, int32_t turn, unsigned char *restrict out,
                          size_t count) {
  ints sum[4];
  for (int part = 0; part < 4; part++) {
    size_t at = cell + 4 * LANES * (size_t)part;
    sum[part] = multiply_pairs(load_cells(rows[0] + at), weights[0]);
    for (int k = 1; k < pairs; k++)
      sum[part] = add_ints(sum[part], multiply_pairs(load_cells(rows[k] + at), weights[k]));
    sum[part] = shift_ints(sum[part], precision - 1);
  }
  shorts low = halve(narrow_positive(sum[0], sum[1]));
  shorts high = halve(narrow_positive(sum[2], sum[3]));
  store_cells(out + cell, low, high, turn, count);
}

INLINE void combine_down(const resize_job *job, const int32_t *const *rows, const int32_t *weights,
                         int pairs, int32_t turn, unsigned char *restrict out) {
  const size_t end = (size_t)job->plane_cells;
  const int precision = job->down.precision;
  size_t cell = 0;
  for (; cell + 16 * LANES <= end; cell += 16 * LANES)
    combine_cells(rows, weights, pairs, cell, precision, turn, out, 16 * LANES);
  if (cell < end)
    combine_cells(rows, weights, pairs, cell, precision, turn, out, end - cell);
}

/* `pairs` is a constant of up to 3: rows and weights stay in registers. */
INLINE void combine_few(const resize_job *job, const int32_t *const *rows, const int32_t *weights,
                        const int pairs, int32_t turn, unsigned char *restrict out) {
  const int32_t *row[3];
  int32_t weight[3];
  for (int k = 0; k < pairs; k++) {
    row[k] = rows[k];
    weight[k] = weights[k];
  }
  combine_down(job, row, weight, pairs, turn, out);
}

void DOWN(const resize_job *job, const int32_t *const *rows, const int32_t *weights, int pairs,
          int32_t turn, unsigned char *restrict out) {
  if (pairs == 1)
    combine_few(job, rows, weights, 1, turn, out);
  else if (pairs == 2)
    combine_few(job, rows, weights, 2, turn, out);
  else if (pairs == 3)
    combine_few(job, rows, weights, 3, turn, out);
  else
    combine_down(job, rows, weights, pairs, turn, out);
}
