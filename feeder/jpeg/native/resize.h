/* The plan of a filter, the job, and the versions of the two passes of resize_pack.
 *
 * Between the passes rows lie in pairs: a cell holds one value (0..255) of an even source row in its
 * low 16 bits and that of the odd row below it in its high ones, which is what the second pass
 * multiplies. The order of a row's cells is that of the output's layout. */
#ifndef FEEDER_RESIZE_H
#define FEEDER_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "scratch.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define BATCH_PAIRS 4 /* pairs of rows that are resampled across together */

/* Numbered as PIL.Image.Resampling. */
enum { BILINEAR = 2, BICUBIC = 3, BOX = 4 };

typedef struct {
  int filter; /* one of the above */
  int outputs;
  int pairs;     /* of weights of each output; those past its count are 0 */
  int precision; /* fractional bits of the weights */
  int32_t *first; /* of each output: its first input */
  int32_t *count; /* of each output: how many inputs it reads */
  /* [pair][output], two int16 each, the first input's in the low half; one more pair of zeros. */
  int32_t *weights;
} filter_plan;

/* Plans the resampling of `start`..`end` to plan->outputs outputs, in reverse order if mirrored.
 * `start` and `end` count from the edge of the whole picture, of which the inputs `origin` to
 * `origin + inputs` are present; the planned ones count from `origin`. Returns 0 if out of memory. */
int plan_filter(filter_plan *plan, scratch *memory, int origin, int inputs, float start, float end,
                int mirrored, int has_avx2);

typedef struct {
  const unsigned char *pixels; /* RGBX, with 12 readable bytes after the last one */
  size_t stride;
  int width, height; /* of the picture */
  filter_plan across, down;
  /* Whether sums can exceed a byte. Where no weight is negative they cannot: those of an output add
   * up to 1 but for their rounding, which is under 0.5 / 255. */
  int clip;
  int channels, planar; /* 3 or 4, the fourth all zero; CHW or HWC */
  int plane_cells;      /* of each plane, without its padding; HWC is one plane */
  size_t plane_room;    /* cells from plane to plane: a multiple of 64, with room for a spill */
  /* Used by across_avx512. */
  const void *table;
  size_t groups;
  int window; /* pixels that a group of cells comes from */
} resize_job;

/* Resamples `pairs` (1 to BATCH_PAIRS) pairs of source rows, from the even `row` on, across into
 * `out`, which has BATCH_PAIRS rows; those past `pairs` get undefined content. A last row that the
 * picture does not have repeats the one above it. */
typedef void across_pass(const resize_job *job, int row, int pairs, int32_t *const *out);

/* Combines `pairs` such rows down into `job->plane_cells` bytes, and flips the bits `turn` in every
 * four of them. */
typedef void down_pass(const resize_job *job, const int32_t *const *rows, const int32_t *weights,
                       int pairs, int32_t turn, unsigned char *restrict out);

across_pass across_portable, across_avx2, across_avx512;
down_pass down_portable, down_avx2, down_avx512;

/* Makes the table of across_avx512. Returns 1; 0 where across_avx512 cannot do the job (a narrow
 * picture, or a much smaller output); -1 if out of memory. */
int prepare_across_avx512(resize_job *job, scratch *memory);

#endif
