/* The tiles of a blob, one row of MCUs after the other, to coefficients. */
#ifndef FEEDER_TILE_READER_H
#define FEEDER_TILE_READER_H

#include "blob.h"

typedef struct {
  const tiled_blob *blob;
  const tile_decoder *decoder;
  unsigned row_bytes;          /* from a row of a block to its next */
  unsigned first_column, mcus; /* what is read of each row: MCUs from the edge of this column on */
  unsigned skipped;            /* of these MCUs, before the window */
  size_t tile, at;             /* the next tile, and its first byte */
  void *classes;               /* decoder->classes_bytes, on a cache line */
  const block_place *place;    /* of the blocks of `mcus` MCUs; after them `tile_mcus` more MCUs,
                                  whose blocks are not decoded */
} tile_reader;

/* Begins to read MCUs [first_mcu, end_mcu) of rows; the fields before first_column are set. Before
 * tiles are read, load_classes must be called, and `place` set. */
void begin_tiles(tile_reader *reader, unsigned first_mcu, unsigned end_mcu);

/* The number of block_places that the reader needs. */
size_t places_of(const tile_reader *reader);

/* Prepares the blob's classes for the decoder, in memory as `classes` describes it. */
void load_classes(tile_reader *reader, void *classes);

/* Sets the coefficients of a row of MCUs, which comes after those that were read before. Returns 0
 * for damage. */
int read_tiles(tile_reader *reader, unsigned row, unsigned char *coefficients);

#endif
