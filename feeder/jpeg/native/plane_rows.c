#include "plane_rows.h"

#define SIDE(size) (8u >> (size))
#define GREY_CHROMA 128
#define ROWS_ABOVE 1 /* kept of the row of MCUs above */

/* A plane's row: a margin, samples of whole groups, and what vectors may read past them. */
static size_t stride_of(const component_plan *own, unsigned lanes) {
  return 3 * PLANE_MARGIN + (size_t)own->groups * lanes * SIDE(own->size);
}

/* Rows above, of the MCUs, and one for a copy of the last at the bottom edge. */
static size_t rows_of(const component_plan *own) {
  return ROWS_ABOVE + own->down * SIDE(own->size) + 1;
}

static int needs_planes(const window_plan *p) {
  return p->upsampling != SAME_SIZE || p->component[0].size != 0;
}

size_t planes_bytes(const window_plan *p, unsigned lanes) {
  size_t bytes = 0;
  for (int c = 0; c < p->components && needs_planes(p); c++)
    bytes += stride_of(&p->component[c], lanes) * rows_of(&p->component[c]);
  if (needs_planes(p) && p->components == 1)
    bytes += stride_of(&p->component[0], lanes);
  return bytes;
}

void begin_rows(row_writer *w, const window_plan *p, const pixel_kernels *kernels,
                unsigned char *memory, unsigned char *out, size_t out_stride) {
  *w = (row_writer){.plan = p, .kernels = kernels, .out = out, .out_stride = out_stride};
  if (!needs_planes(p))
    return;
  for (int c = 0; c < p->components; c++) {
    w->stride[c] = stride_of(&p->component[c], kernels->lanes);
    w->plane[c] = memory + ROWS_ABOVE * w->stride[c] + PLANE_MARGIN;
    memory += w->stride[c] * rows_of(&p->component[c]);
  }
  if (p->components == 1) {
    memset(memory, GREY_CHROMA, w->stride[0]);
    w->plane[1] = w->plane[2] = memory + PLANE_MARGIN;
  }
}

static void transform_planes(row_writer *w, const unsigned char *coefficients) {
  for (int c = 0; c < w->plan->components; c++) {
    const component_plan *own = &w->plan->component[c];
    for (unsigned down = 0; down < own->down; down++)
      w->kernels->transform[own->size](coefficients + own->offset[down], own->groups, own->quant,
                                       w->plane[c] + down * SIDE(own->size) * w->stride[c],
                                       w->stride[c]);
  }
}

/* Repeats the first and the last of `count` samples of chroma around them, in `rows` rows. */
static void widen_edges(row_writer *w, unsigned count, unsigned rows) {
  for (int c = 1; c < COMPONENTS_MAX; c++)
    for (unsigned row = 0; row < rows; row++) {
      unsigned char *samples = w->plane[c] + row * w->stride[c];
      samples[-1] = samples[0];
      samples[count] = samples[count - 1];
    }
}

static void copy_chroma_row(row_writer *w, long to, long from) {
  for (int c = 1; c < COMPONENTS_MAX; c++) {
    unsigned char *first = w->plane[c] - PLANE_MARGIN;
    long stride = (long)w->stride[c];
    memcpy(first + to * stride, first + from * stride, w->stride[c]);
  }
}

/* A row of pixels, counted from this row of MCUs; -1 is the last of the one above. */
static void write_h2v2(row_writer *w, long line, unsigned char *out) {
  const unsigned char *near[2], *far[2];
  long row = line < 0 ? -1 : line / 2, other = line & 1 ? row + 1 : row - 1;
  for (int c = 0; c < 2; c++) {
    near[c] = w->plane[1 + c] + row * (long)w->stride[1 + c];
    far[c] = w->plane[1 + c] + other * (long)w->stride[1 + c];
  }
  w->kernels->convert_row_h2v2(w->plane[0] + line * (long)w->stride[0], near, far, out,
                               (int)w->plan->width);
}

static void write_upsampled(row_writer *w, unsigned row, unsigned height, unsigned char *out) {
  unsigned chroma = (height + 1) / 2;
  int is_last = row + 1 == w->plan->rows;
  widen_edges(w, (w->plan->width + 1) / 2, 8);
  if (row == 0)
    copy_chroma_row(w, -1, 0);
  if (is_last)
    copy_chroma_row(w, (long)chroma, (long)chroma - 1);
  for (long line = row == 0 ? 0 : -1; line < (long)height - !is_last; line++)
    write_h2v2(w, line, out + line * (long)w->out_stride);
  copy_chroma_row(w, -1, 7);
  memcpy(w->plane[0] - w->stride[0] - PLANE_MARGIN, w->plane[0] + 15 * w->stride[0] - PLANE_MARGIN,
         w->stride[0]);
}

static void write_planes(row_writer *w, unsigned height, unsigned char *out) {
  const pixel_kernels *kernels = w->kernels;
  if (w->plan->upsampling == H2V1)
    widen_edges(w, (w->plan->width + 1) / 2, height);
  for (unsigned line = 0; line < height; line++) {
    const unsigned char *plane[COMPONENTS_MAX];
    for (int c = 0; c < COMPONENTS_MAX; c++)
      plane[c] = w->plane[c] + line * w->stride[c];
    (w->plan->upsampling == H2V1 ? kernels->convert_row_h2v1 : kernels->convert_row)(
        plane[0], plane[1], plane[2], out + line * w->out_stride, (int)w->plan->width);
  }
}

void write_mcu_row(row_writer *w, const unsigned char *coefficients, unsigned row) {
  const window_plan *p = w->plan;
  const component_plan *luma = &p->component[0];
  unsigned lines = luma->down * SIDE(luma->size), first = row * lines;
  unsigned height = p->height - first < lines ? p->height - first : lines;
  unsigned char *out = w->out + first * w->out_stride;
  if (!needs_planes(p)) {
    const unsigned char *groups[COMPONENTS_MAX] = {NULL};
    const int16_t *quant[COMPONENTS_MAX] = {NULL};
    for (int c = 0; c < p->components; c++) {
      groups[c] = coefficients + p->component[c].offset[0];
      quant[c] = p->component[c].quant;
    }
    w->kernels->convert_blocks(groups, luma->groups, quant, out, w->out_stride, (int)p->width,
                               (int)height);
    return;
  }
  transform_planes(w, coefficients);
  if (p->upsampling == H2V2)
    write_upsampled(w, row, height, out);
  else
    write_planes(w, height, out);
}
