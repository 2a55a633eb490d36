/* Huffman decoding of a blob's segments to coefficients, four runs of MCUs at a time.
 *
 * Decoding symbols is one chain of shift, load, shift, in which nothing overlaps with the next
 * symbol of the same run. So four runs are decoded in turns, in one loop. One look-up by the next
 * bits gives all of a symbol that fits them: the bits to consume (of code and magnitude), how far
 * the position in the block advances, and the value.
 *
 * Whatever the bytes are, writes stay within the blocks that are given and reads within the blob
 * and READ_SLACK_BYTES after it. */
#ifndef FEEDER_ENTROPY_H
#define FEEDER_ENTROPY_H

#include "segments.h"

/* What a block's codes can take: 31 bits for each of 63 coefficients, 27 for the first, and two
 * words. */
#define READ_SLACK_BYTES 272

#define AC_BITS 12 /* 11 and 13 are slower or no faster */
#define DC_BITS 11

/* An entry of `ac`: what to consume | advance << 8 | value << 16. Two advances are beyond any
 * block, so that one test finds a block's end and them: END_OF_BLOCK, and TO_SEARCH where the
 * look-up's bits are too few; then bits 16 to 23 are the code's length (0: it is not known) and 24
 * to 31 the symbol.
 *
 * An entry of `dc`: what to consume | difference << 16; 0 where the bits are too few. */
#define END_OF_BLOCK 0x80u
#define TO_SEARCH 0xC0u

typedef struct {
  uint32_t ac[1 << AC_BITS], dc[1 << DC_BITS];
  code_ranges ac_codes, dc_codes;
} entropy_table;

/* Returns 0 if the specifications are invalid. */
int make_entropy_table(entropy_table *table, const huffman_spec *dc, const huffman_spec *ac);

/* Where a block of a row of MCUs goes. */
typedef struct {
  const entropy_table *table;
  uint32_t offset; /* in bytes, from the row's first */
  uint32_t component;
} block_place;

/* MCUs of one row, from the left edge of a tile on. */
typedef struct {
  size_t at, end;      /* its first bit, and the end of its last tile */
  int dc[COMPONENTS_MAX], dc_after[COMPONENTS_MAX]; /* predictions before it and at `end` */
  int to_edge;         /* whether it ends there, or within the tile */
  unsigned row;
  unsigned char *coefficients; /* of the row; those of its blocks are zero */
  const block_place *first, *last;
} mcu_run;

typedef struct {
  uint64_t bits; /* the next ones at the top; below them a single one, and zeros */
  const unsigned char *from; /* where these bits were loaded */
  const uint32_t *lookup;
  unsigned char *block;
  uint32_t k; /* zigzag position of the last coefficient */
} bit_cursor;

typedef struct {
  bit_cursor cursor;
  const mcu_run *run;
  const block_place *place, *last; /* of the block that is being decoded; of the run */
  unsigned char *coefficients;
  int dc[COMPONENTS_MAX];
} entropy_stream;

#define STREAMS 4

typedef struct {
  const unsigned char *scan, *scan_end;
  uint16_t order[64]; /* offset of a coefficient in its block, in bytes, by zigzag position */
  const mcu_run *runs;
  unsigned next_run, runs_ready; /* the next to begin; those before `runs_ready` may be begun */
  unsigned *runs_left;           /* of each row; counted down as they end */
  entropy_stream streams[STREAMS];
  unsigned active; /* streams that are decoding; 0 at first */
} entropy_job;

/* Decodes until a stream has no run to begin. Returns 0 for damage. */
typedef int runs_decoder(entropy_job *job);

extern runs_decoder decode_runs, decode_runs_bmi2;

#endif
