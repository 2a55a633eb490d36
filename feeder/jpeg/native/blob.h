/* A blob's parts: its JPEG header, its classes of blocks, and where its tiles are.
 * feeder/README.md, "Blob", has the layout. */
#ifndef FEEDER_BLOB_H
#define FEEDER_BLOB_H

#include "tile.h"

#define JPEG_SIDE_MAX 65535u
/* Bytes before the classes: MCUs per tile, bits per tile length, bits per initial DC of each
 * component. */
#define SIZES_BYTES (2 + COMPONENTS_MAX)

typedef struct {
  size_t bytes, sof_offset, sos_offset;
  unsigned width, height;
  int components;
  unsigned blocks_across[COMPONENTS_MAX], blocks_down[COMPONENTS_MAX]; /* of an MCU */
  int is_ycc; /* grey or YCbCr, by the rules of libjpeg (jdapimin.c) */
  unsigned dc_table[COMPONENTS_MAX], ac_table[COMPONENTS_MAX]; /* 0 to 3 */
  const unsigned char *quant[COMPONENTS_MAX]; /* 64 values in zigzag order; NULL if missing */
  int quant_bytes[COMPONENTS_MAX];            /* of a value, 1 or 2 */
} jpeg_header;

/* Parses a baseline JPEG header from SOI through SOS. Huffman tables may be missing. `header`
 * points into `jpeg`. Returns 0 if the header is invalid. */
int read_header(jpeg_header *header, const unsigned char *jpeg, size_t bytes);

typedef struct {
  jpeg_header header;
  const unsigned char *jpeg;        /* the header's bytes */
  unsigned mcu_width, mcu_height;   /* in pixels */
  unsigned mcus, rows;              /* MCUs in a row, and rows of them */
  unsigned tile_mcus, columns;      /* the last tile of a row may have fewer */
  unsigned mcu_blocks;
  unsigned classes;                 /* CLASSES for each group of the image */
  unsigned length_bits;             /* bits per entry of `lengths` */
  unsigned dc_bits[COMPONENTS_MAX]; /* of the DC before a tile, at its start */
  class_code class[GROUPS * CLASSES];
  const unsigned char *lengths, *tiles;
  size_t tiles_bytes;
} tiled_blob;

/* Returns 0 if the blob is damaged. READ_SLACK_BYTES after it must be readable. */
int open_blob(tiled_blob *blob, const unsigned char *data, size_t bytes);

/* The bytes of a tile. */
static inline size_t tile_bytes(const tiled_blob *blob, size_t tile) {
  return (size_t)get_field(blob->lengths, tile * blob->length_bits, blob->length_bits);
}

/* Width in MCUs of a column's tiles. */
static inline unsigned mcus_of(const tiled_blob *blob, unsigned column) {
  unsigned right = blob->mcus - column * blob->tile_mcus;
  return right < blob->tile_mcus ? right : blob->tile_mcus;
}

/* Derives the MCU grid from the header. Returns 0 for an image without pixels. */
int find_mcus(tiled_blob *blob);

static inline unsigned divide_up(unsigned a, unsigned b) { return (a + b - 1) / b; }

#endif
