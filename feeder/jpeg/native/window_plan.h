/* What decoding a window takes: where its blocks go, and its runs of MCUs. */
#ifndef FEEDER_WINDOW_PLAN_H
#define FEEDER_WINDOW_PLAN_H

#include "entropy.h"
#include "pixels.h"

#define BLOCKS_DOWN_MAX 2
#define RUNS_OF_A_ROW 2

/* Row and column (8 * row + column) of a coefficient, by zigzag position (T.81 figure A.6). */
extern const uint8_t NATURAL_ORDER[64];

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
  unsigned mcus, skipped;       /* in a row; and before them, from the first tile's edge on */
  size_t row_bytes;             /* of a row's coefficients, with spare ones for skipped blocks */
  size_t spare_offset;
} window_plan;

typedef enum { DECODED, UNSUPPORTED, DAMAGED_BLOB, OUT_OF_MEMORY } window_outcome;

/* Returns DECODED if all is well so far, UNSUPPORTED for a kind of image that only TurboJPEG
 * decodes. */
window_outcome plan_window(window_plan *plan, const segmented *s, const tile_window *window,
                           unsigned scale, unsigned lanes);

/* The blocks of a row, skipped ones first: their number, and `places` of them. */
size_t count_places(const window_plan *plan);
void make_places(const window_plan *plan, const entropy_table *const *table_of, unsigned lanes,
                 block_place *places);

/* Makes up to RUNS_OF_A_ROW runs for each row: of whole tiles, and of a part of one. Counts those
 * of each row. Returns their number; 0 if the blob's tables are wrong. */
unsigned make_runs(const window_plan *plan, const segmented *s, const tile_window *window,
                   const block_place *places, mcu_run *runs, unsigned *runs_left);

#endif
