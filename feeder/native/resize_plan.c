/* Filter weights, to the bit those of Pillow-SIMD's precompute_coeffs: made in double, summed from
 * the first input to the last, divided, then rounded to 16 bits with as many fractional bits as the
 * largest allows.
 *
 * Outputs are the inner loops, so that the compiler can take several at a time; within one, nothing
 * is added up in another order than Pillow's. */
#include "resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WEIGHT_BITS 15 /* of an int16 without its sign */
#define MAX_PRECISION 22
#define KEEP_BYTES (4u << 20) /* more than this is given back when less is asked for */

void *take_scratch(scratch *from, size_t bytes) {
  bytes = (bytes + 63) & ~(size_t)63;
  if (bytes > from->size || (from->size > KEEP_BYTES && bytes <= KEEP_BYTES)) {
    free(from->memory);
    from->memory = aligned_alloc(64, bytes);
    from->size = from->memory == NULL ? 0 : bytes;
  }
  return from->memory;
}

/* Positive doubles are in the order of their bits, which compilers compare in vectors. */
typedef int64_t __attribute__((may_alias)) double_bits;

typedef struct {
  filter_plan plan;
  int inputs, mirrored;
  double start, scale, stretch, support; /* stretch: of the filter, to reach `support` inputs */
  double *restrict center, *restrict sum, *restrict exact; /* exact: [tap][output] */
} planning;

static inline __attribute__((always_inline)) double evaluate(int filter, double x) {
  double d = fabs(x), weight = 0.0;
  if (filter == BOX)
    return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
  if (filter == BICUBIC) {
    double inner = (1.5 * d - 2.5) * d * d + 1.0, outer = (((d - 5.0) * d + 8.0) * d - 4.0) * -0.5;
    weight = d < 2.0 ? outer : 0.0;
    return d < 1.0 ? inner : weight;
  }
  weight = 1.0 - d;
  return weight > 0.0 ? weight : 0.0;
}

static inline __attribute__((always_inline)) int32_t round_weight(double weight, double one) {
  return (int32_t)(weight * one + (weight < 0.0 ? -0.5 : 0.5));
}

static inline __attribute__((always_inline)) void make_weights(planning *p, int filter) {
  const int outputs = p->plan.outputs, inputs = p->inputs;
  const double start = p->start, scale = p->scale, support = p->support, step = 1.0 / p->stretch;
  double *restrict center = p->center, *restrict sum = p->sum, *restrict exact = p->exact;
  int32_t *restrict first = p->plan.first, *restrict count = p->plan.count;
  int32_t *restrict weights = p->plan.weights;

  int taps = 0;
  for (int i = 0; i < outputs; i++) {
    int x = p->mirrored ? outputs - 1 - i : i;
    center[i] = start + (x + 0.5) * scale;
    int from = (int)(center[i] - support + 0.5), to = (int)(center[i] + support + 0.5);
    first[i] = from < 0 ? 0 : from;
    count[i] = (to > inputs ? inputs : to) - first[i];
    taps = taps > count[i] ? taps : count[i];
    sum[i] = 0.0;
  }
  for (int t = 0; t < taps; t++) {
    double *restrict w = exact + (size_t)t * (size_t)outputs;
    for (int i = 0; i < outputs; i++) {
      double weight = evaluate(filter, (t + first[i] - center[i] + 0.5) * step);
      w[i] = t < count[i] ? weight : 0.0;
      sum[i] += w[i];
    }
  }
  for (int i = 0; i < outputs; i++)
    sum[i] = sum[i] != 0.0 ? sum[i] : 1.0;
  int64_t largest_bits = 0;
  for (int t = 0; t < taps; t++) {
    double *restrict w = exact + (size_t)t * (size_t)outputs;
    for (int i = 0; i < outputs; i++)
      w[i] /= sum[i];
    const double_bits *bits = (const double_bits *)w;
    for (int i = 0; i < outputs; i++)
      largest_bits = largest_bits > bits[i] ? largest_bits : bits[i];
  }
  double largest;
  memcpy(&largest, &largest_bits, sizeof largest);
  int precision = 0;
  while (precision < MAX_PRECISION &&
         (int)(0.5 + largest * (1 << (precision + 1))) < (1 << MAX_WEIGHT_BITS))
    precision++;
  p->plan.precision = precision;
  p->plan.pairs = (taps + 1) / 2;

  double one = 1 << precision;
  for (int t = 0; t < 2 * p->plan.pairs + 2; t += 2) {
    const double *restrict low = exact + (size_t)t * (size_t)outputs, *restrict high = low + outputs;
    int32_t *restrict pairs = weights + (size_t)(t / 2) * (size_t)outputs;
    if (t >= taps)
      memset(pairs, 0, (size_t)outputs * sizeof *pairs);
    else if (t + 1 == taps)
      for (int i = 0; i < outputs; i++)
        pairs[i] = round_weight(low[i], one) & 0xFFFF;
    else
      for (int i = 0; i < outputs; i++)
        pairs[i] = (round_weight(low[i], one) & 0xFFFF) | round_weight(high[i], one) << 16;
  }
}

static inline __attribute__((always_inline)) void choose_filter(planning *p) {
  if (p->plan.filter == BICUBIC)
    make_weights(p, BICUBIC);
  else if (p->plan.filter == BOX)
    make_weights(p, BOX);
  else
    make_weights(p, BILINEAR);
}

static void plan_portable(planning *p) { choose_filter(p); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void plan_avx2(planning *p) { choose_filter(p); }
#endif

int plan_filter(filter_plan *plan, scratch *memory, int inputs, float start, float end, int mirrored,
                int has_avx2) {
  double scale = (double)(end - start) / plan->outputs;
  double stretch = scale < 1.0 ? 1.0 : scale;
  double support = stretch * (plan->filter == BICUBIC ? 2.0 : plan->filter == BOX ? 0.5 : 1.0);
  int most_taps = (int)ceil(support) * 2 + 1;
  size_t outputs = (size_t)plan->outputs, cells = outputs * (size_t)most_taps;
  double *doubles = take_scratch(memory, (cells + 2 * outputs) * sizeof(double) +
                                             (2 + (size_t)most_taps / 2 + 2) * outputs * sizeof(int32_t));
  if (doubles == NULL)
    return 0;
  plan->first = (int32_t *)(void *)(doubles + cells + 2 * outputs);
  plan->count = plan->first + outputs;
  plan->weights = plan->count + outputs;
  planning work = {.plan = *plan, .inputs = inputs, .mirrored = mirrored, .start = start,
                   .scale = scale, .stretch = stretch, .support = support, .center = doubles,
                   .sum = doubles + outputs, .exact = doubles + 2 * outputs};
#if defined(__x86_64__)
  (has_avx2 ? plan_avx2 : plan_portable)(&work);
#else
  (void)has_avx2;
  plan_portable(&work);
#endif
  *plan = work.plan;
  return 1;
}
