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
  int components, blocks[COMPONENTS_MAX]; /* blocks of an MCU, by component */
  code_table dc_codes[COMPONENTS_MAX];
  decode_table dc[COMPONENTS_MAX], ac[COMPONENTS_MAX];
} jpeg_header;

/* Reads a baseline JPEG's header from SOI up to and including SOS. Returns 0 if it is invalid. */
int read_header(jpeg_header *header, const unsigned char *jpeg, size_t bytes);

/* SegmentLayout of recode.py. */
typedef struct {
  unsigned columns, rows, tile_mcus, header_bytes, sof_offset, table_bits;
} segment_layout;

typedef struct {
  size_t columns, rows;
  unsigned tile_mcus; /* the last tile of a row may have fewer */
  unsigned length_bits, dc_bits[COMPONENTS_MAX], entry_bits;
  const unsigned char *lengths, *predictions, *jpeg, *scan;
  size_t scan_bits;
  jpeg_header header; /* of `jpeg` */
} segmented;

/* Returns 0 if the blob does not match the layout; the caller compares its sof_offset. */
int open_blob(segmented *s, const unsigned char *blob, size_t bytes, const segment_layout *layout);

/* Reads whole MCUs, from bit `*at` on, and adds their DC differences to `dc`; 0 if they are invalid
 * or go past `end`. */
int pass_mcus(const segmented *s, unsigned count, size_t *at, size_t end, int *dc);

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
  unsigned length, size = symbol_at(&s->header.dc[c], bits, &length);
  if (length == 0 || size >= DC_CATEGORIES)
    return 0;
  int value = size == 0 ? 0 : (int)(bits << length >> (64 - size));
  *difference = size > 0 && value >> (size - 1) == 0 ? value - (1 << size) + 1 : value;
  *at += length + size;
  return *at <= end;
}

/* Passes the 63 AC coefficients of a block; 0 if they are invalid or go past `end`. */
static inline int skip_ac(const segmented *s, int c, size_t *at, size_t end) {
  const decode_table *table = &s->header.ac[c];
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
