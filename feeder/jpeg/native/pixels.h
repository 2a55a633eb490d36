/* From coefficients to RGBX pixels, with the arithmetic of libjpeg-turbo: accurate integer IDCT,
 * "fancy" upsampling, YCbCr to RGB. Kernels of every width give the same bytes.
 *
 * Kernels work on groups of `lanes` blocks at once. The coefficients of a group are 8 rows of 8
 * int16 for each of its blocks, row by row, blocks side by side: coefficient (row, column) of block
 * b is at byte 16 * (lanes * row + b) + 2 * column. */
#ifndef FEEDER_PIXELS_H
#define FEEDER_PIXELS_H

#include <stddef.h>
#include <stdint.h>

#define LANES_MAX 4
#define BLOCK_BYTES 128
/* Bytes around a row of a plane that may be read: vectors reach past its end, upsampling before its
 * start. */
#define PLANE_MARGIN 64

/* Transforms groups of blocks that lie side by side to rows of samples (0..255) of a plane. */
typedef void transform_blocks(const unsigned char *groups, unsigned count, const int16_t *quant,
                              unsigned char *out, size_t stride);

typedef struct {
  unsigned lanes;
  /* To 8, 4, 2 and 1 samples a side: full size and libjpeg's reduced ones. */
  transform_blocks *transform[4];
  /* Blocks of Y, Cb and Cr (Y alone where `groups[1]` is NULL), `count` groups of each, to `height`
   * (up to 8) rows of `width` pixels. */
  void (*convert_blocks)(const unsigned char *const *groups, unsigned count,
                         const int16_t *const *quant, unsigned char *out, size_t stride, int width,
                         int height);
  /* A row of pixels from rows of planes with the same number of samples. */
  void (*convert_row)(const unsigned char *y, const unsigned char *cb, const unsigned char *cr,
                      unsigned char *out, int width);
  /* The same with half as many samples of chroma, whose first and last are repeated around. */
  void (*convert_row_h2v1)(const unsigned char *y, const unsigned char *cb,
                           const unsigned char *cr, unsigned char *out, int width);
  /* The same where chroma has half as many rows, too: `near` has Cb and Cr of this row, `far` those
   * of the nearest other one. */
  void (*convert_row_h2v2)(const unsigned char *y, const unsigned char *const *near,
                           const unsigned char *const *far, unsigned char *out, int width);
} pixel_kernels;

extern const pixel_kernels pixels_portable, pixels_avx2, pixels_avx512;

#endif
