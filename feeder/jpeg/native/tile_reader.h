/* The tiles of a blob, one row of MCUs after the other, to coefficients. */
#ifndef FEEDER_TILE_READER_H
#define FEEDER_TILE_READER_H

#include "blob.h"

typedef struct {
  const tiled_blob *blob;
  const tile_decoder *decoder;
  void *classes;            /* decoder->classes_bytes, on a cache line */
  const block_place *place; /* of the blocks of `mcus` MCUs; after them `tile_mcus` more MCUs, whose
                               blocks are not decoded */
  unsigned row_bytes;       /* from a row of a block to its next */
  unsigned first_column, mcus; /* what is read of each row: MCUs from the edge of this column on */
  size_t tile, at;          /* the next tile, and its first byte */
} tile_reader;

/* Sets up the reader for a blob; the other fields are set. */
void begin_tiles(tile_reader *reader);

/* Sets the coefficients of a row of MCUs, which comes after those that were read before. Returns 0
 * for damage. */
int read_tiles(tile_reader *reader, unsigned row, unsigned char *coefficients);

#endif
