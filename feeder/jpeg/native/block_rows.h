/* Rows of a blob's MCUs as blocks in coding order: for what reads all of a blob, or makes a JPEG of
 * a part of it. */
#ifndef FEEDER_BLOCK_ROWS_H
#define FEEDER_BLOCK_ROWS_H

#include "tile_reader.h"
#include "window_plan.h"

typedef struct {
  tiled_blob blob;
  size_t count;               /* blocks of a row */
  const int16_t (*block)[64]; /* those of the row that was read last, each in rows */
  const block_place *place;   /* their components */
  tile_reader reader;
  unsigned char *data, *memory;
} block_rows;

/* Copies the blob, and reads its parts. Returns DECODED if all is well so far. `rows` is zeroed
 * before, and closed whatever the outcome. */
window_outcome open_block_rows(block_rows *rows, const unsigned char *data, size_t bytes);

/* Begins to read MCUs [first, end) of rows, from any row on. Only once. */
window_outcome begin_block_rows(block_rows *rows, unsigned first, unsigned end);

/* Reads a row after those that were read before. Returns 0 for damage, and for coefficients that
 * baseline JPEG has no codes for. */
int read_block_row(block_rows *rows, unsigned row);

void close_block_rows(block_rows *rows);

#endif
