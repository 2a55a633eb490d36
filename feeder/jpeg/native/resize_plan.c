/* Filter weights, to the bit those of Pillow-SIMD's precompute_coeffs: computed in double, summed
 * from the first input to the last, divided, then rounded to 16 bits with as many fractional bits as
 * the largest allows.
 *
 * The inner loops are over outputs, so that the compiler can vectorise them; the sum of each output
 * is in Pillow's order.
 *
 * Positions count from the whole picture's edge until the weights are made: from a window's edge
 * they would round differently, and a pixel on the edge of a box filter could come or go. */
#include "resize.h"

#include <math.h>
#include <string.h>

#define MAX_WEIGHT_BITS 15 /* of an int16 without its sign */
#define MAX_PRECISION 22

/* Positive doubles order as their bits do, and compilers vectorise comparing those. */
typedef int64_t __attribute__((may_alias)) double_bits;

typedef struct {
  filter_plan plan;
  int first_input, end_input; /* those that are present */
  int mirrored;
  int taps; /* the most that an output has */
  double start, scale, stretch, support; /* stretch: of the filter, to reach `support` inputs */
  double *restrict center, *restrict sum, *restrict exact; /* exact: [tap][output] */
} planning;

static ALWAYS_INLINE double evaluate(int filter, double x) {
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

/* Two weights as a pair of int16. */
static ALWAYS_INLINE int32_t pair_weights(double low, double high, double one) {
  int32_t first = (int32_t)(low * one + (low < 0.0 ? -0.5 : 0.5));
  int32_t second = (int32_t)(high * one + (high < 0.0 ? -0.5 : 0.5));
  return (int32_t)(((uint32_t)first & 0xFFFF) | (uint32_t)second << 16);
}

/* Returns the bits of the largest weight. */
static ALWAYS_INLINE int64_t make_exact(planning *p, int filter) {
  const int outputs = p->plan.outputs, mirrored = p->mirrored;
  const int first_input = p->first_input, end_input = p->end_input;
  const double start = p->start, scale = p->scale, support = p->support, step = 1.0 / p->stretch;
  double *restrict center = p->center, *restrict sum = p->sum;
  int32_t *restrict first = p->plan.first, *restrict count = p->plan.count;

  int taps = 0;
  for (int i = 0; i < outputs; i++) {
    int x = mirrored ? outputs - 1 - i : i;
    center[i] = start + (x + 0.5) * scale;
    int from = (int)(center[i] - support + 0.5), to = (int)(center[i] + support + 0.5);
    first[i] = from < first_input ? first_input : from;
    count[i] = (to > end_input ? end_input : to) - first[i];
    taps = taps > count[i] ? taps : count[i];
    sum[i] = 0.0;
  }
  p->taps = taps;
  for (int t = 0; t < taps; t++) {
    double *restrict w = p->exact + (size_t)t * (size_t)outputs;
    for (int i = 0; i < outputs; i++) {
      double weight = evaluate(filter, (t + first[i] - center[i] + 0.5) * step);
      w[i] = t < count[i] ? weight : 0.0;
      sum[i] += w[i];
    }
  }
  for (int i = 0; i < outputs; i++) {
    first[i] -= first_input;
    sum[i] = sum[i] != 0.0 ? sum[i] : 1.0;
  }
  int64_t largest = 0;
  for (int t = 0; t < taps; t++) {
    double *restrict w = p->exact + (size_t)t * (size_t)outputs;
    for (int i = 0; i < outputs; i++)
      w[i] /= sum[i];
    const double_bits *bits = (const double_bits *)w;
    for (int i = 0; i < outputs; i++)
      largest = largest > bits[i] ? largest : bits[i];
  }
  return largest;
}

static ALWAYS_INLINE void make_weights(planning *p, int filter) {
  int64_t bits = make_exact(p, filter);
  double largest;
  memcpy(&largest, &bits, sizeof largest);
  int precision = 0;
  while (precision < MAX_PRECISION &&
         (int)(0.5 + largest * (1 << (precision + 1))) < (1 << MAX_WEIGHT_BITS))
    precision++;
  p->plan.precision = precision;
  p->plan.pairs = (p->taps + 1) / 2;

  const size_t outputs = (size_t)p->plan.outputs;
  const double one = 1 << precision;
  for (int k = 0; k <= p->plan.pairs; k++) {
    int32_t *restrict pairs = p->plan.weights + (size_t)k * outputs;
    const double *restrict low = p->exact + (size_t)(2 * k) * outputs, *restrict high = low + outputs;
    if (2 * k >= p->taps)
      memset(pairs, 0, outputs * sizeof *pairs);
    else if (2 * k + 1 == p->taps)
      for (size_t i = 0; i < outputs; i++)
        pairs[i] = pair_weights(low[i], 0.0, one);
    else
      for (size_t i = 0; i < outputs; i++)
        pairs[i] = pair_weights(low[i], high[i], one);
  }
}

static ALWAYS_INLINE void choose_filter(planning *p) {
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

int plan_filter(filter_plan *plan, scratch *memory, int origin, int inputs, float start, float end,
                int mirrored, int has_avx2) {
  double scale = (double)(end - start) / plan->outputs;
  double stretch = scale < 1.0 ? 1.0 : scale;
  double support = stretch * (plan->filter == BICUBIC ? 2.0 : plan->filter == BOX ? 0.5 : 1.0);
  size_t outputs = (size_t)plan->outputs, most_taps = (size_t)ceil(support) * 2 + 1;
  size_t cells = outputs * most_taps;
  double *doubles = take_scratch(memory, (cells + 2 * outputs) * sizeof(double) +
                                             (most_taps / 2 + 4) * outputs * sizeof(int32_t));
  if (doubles == NULL)
    return 0;
  plan->first = (int32_t *)(void *)(doubles + cells + 2 * outputs);
  plan->count = plan->first + outputs;
  plan->weights = plan->count + outputs;
  planning work = {.plan = *plan, .first_input = origin, .end_input = origin + inputs,
                   .mirrored = mirrored, .start = start, .scale = scale, .stretch = stretch,
                   .support = support, .center = doubles, .sum = doubles + outputs,
                   .exact = doubles + 2 * outputs};
#if defined(__x86_64__)
  (has_avx2 ? plan_avx2 : plan_portable)(&work);
#else
  (void)has_avx2;
  plan_portable(&work);
#endif
  *plan = work.plan;
  return 1;
}
