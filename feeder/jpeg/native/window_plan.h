/* What decoding a window takes: which kind of image it is of, and where its blocks go. */
#ifndef FEEDER_WINDOW_PLAN_H
#define FEEDER_WINDOW_PLAN_H

#include "pixels.h"
#include "tile_reader.h"

#define BLOCKS_DOWN_MAX 2

/* TileWindows of crop_decode.py, for one sample. */
typedef struct {
  unsigned first_mcu, end_mcu, first_row, end_row;
  unsigned width, height; /* in pixels of the image at full size */
} tile_window;

/* Whether the image has the window's MCUs and pixels. */
int window_fits(const tiled_blob *blob, const tile_window *window);

/* How a component lies in a row of MCUs, and as a plane. */
typedef struct {
  unsigned across, down; /* blocks in an MCU */
  unsigned size;         /* 0 to 3: of 8, 4, 2 or 1 samples a side */
  unsigned groups;       /* of a row of blocks; see pixels.h */
  size_t offset[BLOCKS_DOWN_MAX]; /* of each row of blocks, in a row's coefficients */
  int16_t quant[64];              /* in rows */
} component_plan;

typedef enum { SAME_SIZE, H2V1, H2V2 } upsampling;

typedef struct {
  int components;
  component_plan component[COMPONENTS_MAX];
  upsampling upsampling;        /* of chroma, after the IDCT */
  unsigned width, height, rows; /* in pixels of the output; rows of MCUs */
  size_t row_bytes;             /* of a row's coefficients, with spare ones for skipped blocks */
  size_t spare_offset;
} window_plan;

typedef enum { DECODED, UNSUPPORTED, DAMAGED_BLOB, OUT_OF_MEMORY } window_outcome;

/* Returns DECODED if all is well so far, UNSUPPORTED for a kind of image that only TurboJPEG
 * decodes. */
window_outcome plan_window(window_plan *plan, const tiled_blob *blob, const tile_window *window,
                           unsigned scale, unsigned lanes);

/* Sets the reader's places, at `place`. */
void make_places(const window_plan *plan, tile_reader *reader, unsigned lanes, block_place *place);

#endif
