/* A window's rows of MCUs, one after the other, from coefficients to rows of pixels. */
#ifndef FEEDER_PLANE_ROWS_H
#define FEEDER_PLANE_ROWS_H

#include "window_plan.h"

/* Planes of one row of MCUs. With H2V2 a pixel's colour comes from two rows of chroma, so the last
 * rows of the row of MCUs above are kept before them, and its last row of pixels is written with
 * the next one's. */
typedef struct {
  const window_plan *plan;
  const pixel_kernels *kernels;
  unsigned char *out;
  size_t out_stride;
  unsigned char *plane[COMPONENTS_MAX]; /* its first sample of this row of MCUs */
  size_t stride[COMPONENTS_MAX];
} row_writer;

/* The bytes of memory that the planes take. */
size_t planes_bytes(const window_plan *plan, unsigned lanes);

void begin_rows(row_writer *writer, const window_plan *plan, const pixel_kernels *kernels,
                unsigned char *memory, unsigned char *out, size_t out_stride);

/* Writes the pixels of row of MCUs `row`. */
void write_mcu_row(row_writer *writer, const unsigned char *coefficients, unsigned row);

#endif
