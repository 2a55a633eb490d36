/* A tile's bits to the coefficients of its blocks. feeder/README.md, "Blob", has the layout.
 *
 * A block's *class* says how each of its coefficients is coded: not at all, or by a number of low
 * bits, and a unary quotient in *planes*. The class alone gives the length of all parts but the
 * signs and the further planes. So a tile is decoded with next to no branches that depend on data.
 *
 * Positions of coefficients are in rows (8 * row + column), unless they are called zigzag. */
#ifndef FEEDER_TILE_H
#define FEEDER_TILE_H

#include "bits.h"

#define COMPONENTS_MAX 3
#define GROUPS 2   /* of components: luma, chroma */
#define CLASSES 16 /* of luma, and as many of chroma: a block's class takes 4 bits */
#define PLANES 3   /* bits of a quotient; all of them set: an escape */
#define ESCAPE_BITS 12
#define DC_BITS_MAX 11 /* bits of a DC value; DC_MIN to DC_MAX fit */
#define LOW_BITS_MAX 7 /* of an AC coefficient, so that with its sign it fits a byte */
/* Fields of a row; a 64-bit load is left with 50 bits after two shifts of up to 7. */
#define ROW_BITS_MAX 50
#define ABSENT 15
#define TILE_BLOCKS_MAX 64
/* Bytes after a blob that must be readable, with any content. Loads are wider than the fields they
 * read, and a block's length is checked only after the block has been read. */
#define READ_SLACK_BYTES 256

/* Row and column (8 * row + column) of a coefficient, by zigzag position (T.81 figure A.6). */
extern const uint8_t NATURAL_ORDER[64];

/* Where a block goes. */
typedef struct {
  uint32_t offset; /* in bytes, from the first of the row of MCUs */
  uint16_t component, first_class; /* 0 or CLASSES */
} block_place;

typedef struct {
  size_t at_bit, end_byte;  /* the first bit of its blocks; the byte after it */
  unsigned blocks, wanted;  /* `blocks` in the tile; only the first `wanted` are decoded */
  const block_place *place; /* `place` of every block; offsets matter only for decoded ones */
} tile_span;

/* A class as it is stored. */
typedef struct {
  uint8_t low_bits[64]; /* by position; ABSENT: the coefficient is always 0 */
  unsigned dc_bits;     /* of the field of DC's difference */
} class_code;

/* The bits of an AC coefficient's field: its low bits and a sign. */
INLINE unsigned field_bits(unsigned low_bits) { return low_bits > 0 ? low_bits + 1 : 0; }

/* The lengths of a class's parts, in bits. */
typedef struct {
  uint32_t first_plane_at; /* after DC's field and the low bits */
  uint32_t length;         /* with the first plane: what the class alone determines */
  uint32_t dc_shift;       /* 63 - those of DC's field */
} class_lengths;

/* Reads a class at `from`; returns the bytes that it takes, 0 if it is invalid. */
size_t read_class(class_code *class, const uint8_t *from, size_t bytes);

/* A tile decoder. `classes` is cache-line-aligned memory of `classes_bytes`, which holds the
 * decoder's tables. */
typedef struct {
  size_t classes_bytes;
  void (*make_class)(void *classes, unsigned number, const class_code *code);
  /* Decodes the wanted blocks and updates `dc` to the last DC of each component. Returns 0 if the
   * tile is damaged. For any input, writes stay within these blocks, and reads within the tile and
   * READ_SLACK_BYTES after it. `row_bytes`: from a row of a block to its next. */
  int (*decode_tile)(const void *classes, const uint8_t *bits, const tile_span *t,
                     unsigned row_bytes, unsigned char *coefficients, int *dc);
} tile_decoder;

extern const tile_decoder tiles_portable, tiles_avx2, tiles_avx2_no_pdep, tiles_avx512,
    tiles_avx512vbmi;

#endif
