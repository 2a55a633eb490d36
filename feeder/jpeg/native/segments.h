/* Reads a blob: the tables of its segments, its JPEG header, and the codes of its scan.
 *
 * Whatever the bytes are, nothing outside of the blob is read. */
#ifndef FEEDER_SEGMENTS_H
#define FEEDER_SEGMENTS_H

#include "huffman.h"

#define COMPONENTS_MAX 3
#define JPEG_SIDE_MAX 65535u
/* Zero bytes that end a blob, so that its scan can be read in words. */
#define SCAN_SLACK_BYTES 8

typedef struct {
  size_t bytes, sof_offset;
  unsigned width, height;
  int components;
  int blocks_across[COMPONENTS_MAX], blocks_down[COMPONENTS_MAX]; /* of an MCU, by component */
  int is_ycc; /* grey or YCbCr, by the rules of libjpeg (jdapimin.c) */
  huffman_spec dc[COMPONENTS_MAX], ac[COMPONENTS_MAX];
  const unsigned char *quant[COMPONENTS_MAX]; /* 64 values in zigzag order; NULL if missing */
  int quant_bytes[COMPONENTS_MAX];            /* of a value, 1 or 2 */
} jpeg_header;

/* Reads a baseline JPEG's header from SOI up to and including SOS, and points into it. Returns 0 if
 * it is invalid. */
int read_header(jpeg_header *header, const unsigned char *jpeg, size_t bytes);

/* What reading, and writing, a scan's codes without decoding them takes. */
typedef struct {
  code_table dc_codes[COMPONENTS_MAX];
  decode_table dc[COMPONENTS_MAX], ac[COMPONENTS_MAX];
} scan_tables;

/* SegmentLayout of recode.py. */
typedef struct {
  unsigned columns, rows, tile_mcus, header_bytes, sof_offset, table_bits;
} segment_layout;

/* TileWindows of crop_decode.py, for one sample. */
typedef struct {
  unsigned first_mcu, end_mcu, first_row, end_row;
  unsigned width, height; /* in pixels of the image at full size */
} tile_window;

typedef struct {
  size_t columns, rows;
  unsigned tile_mcus; /* the last tile of a row may have fewer */
  unsigned mcus;      /* in a row, by the JPEG header */
  unsigned length_bits, dc_bits[COMPONENTS_MAX], entry_bits;
  const unsigned char *lengths, *predictions, *jpeg, *scan;
  size_t scan_bits;
  jpeg_header header; /* of `jpeg` */
  scan_tables tables;
} segmented;

/* Returns 0 if the blob does not match the layout; the caller compares its sof_offset. */
int open_blob(segmented *s, const unsigned char *blob, size_t bytes, const segment_layout *layout);

/* Makes `tables`, which the functions below need. Returns 0 if the header's are invalid. */
int make_scan_tables(segmented *s);

/* Reads whole MCUs, from bit `*at` on, and adds their DC differences to `dc`; 0 if they are invalid
 * or go past `end`. */
int pass_mcus(const segmented *s, unsigned count, size_t *at, size_t end, int *dc);

/* The blocks of an MCU. */
static inline int mcu_blocks(const segmented *s, int c) {
  return s->header.blocks_across[c] * s->header.blocks_down[c];
}

/* The bits of a segment. */
static inline size_t length_of(const segmented *s, size_t segment) {
  return (size_t)get_field(s->lengths, segment * s->length_bits, s->length_bits);
}

/* What DC prediction has reached after a segment. */
static inline void prediction_after(const segmented *s, size_t segment, int *dc) {
  size_t at = segment * s->entry_bits;
  for (int c = 0; c < s->header.components; at += s->dc_bits[c++]) {
    unsigned bits = s->dc_bits[c];
    int value = (int)get_field(s->predictions, at, bits);
    dc[c] = bits > 0 && value >> (bits - 1) != 0 ? value - (1 << bits) : value;
  }
}

/* Reads a DC difference at `*at`; 0 where there is none before `end`. */
static inline int read_difference(const segmented *s, int c, size_t *at, size_t end,
                                  int *difference) {
  uint64_t bits = peek_bits(s->scan, *at);
  unsigned length, size = symbol_at(&s->tables.dc[c], bits, &length);
  if (length == 0 || size >= DC_CATEGORIES)
    return 0;
  int value = size == 0 ? 0 : (int)(bits << length >> (64 - size));
  *difference = size > 0 && value >> (size - 1) == 0 ? value - (1 << size) + 1 : value;
  *at += length + size;
  return *at <= end;
}

/* Passes the 63 AC coefficients of a block; 0 if they are invalid or go past `end`. */
static inline int skip_ac(const segmented *s, int c, size_t *at, size_t end) {
  const decode_table *table = &s->tables.ac[c];
  size_t position = *at;
  for (unsigned k = 1; k < 64;) {
    if (position > end)
      return 0;
    /* Enough for two symbols of up to 16 + 15 and 16 bits. */
    uint64_t bits = peek_bits(s->scan, position);
    unsigned step = step_at(table, bits);
    if (step == 0)
      return 0;
    position += step & 255;
    k += step >> 8;
    if (k >= 64)
      break;
    step = step_at(table, bits << (step & 255));
    if (step == 0)
      return 0;
    position += step & 255;
    k += step >> 8;
  }
  *at = position;
  return position <= end;
}

#endif
