/* The coefficients of an image's blocks to the tiles that tile.h decodes.
 *
 * Each image has classes of its own. choose_classes makes them from a sample of its blocks, and
 * gives every block the cheapest; put_tile then writes tile by tile. All versions write the same
 * bytes. */
#ifndef FEEDER_ENCODE_H
#define FEEDER_ENCODE_H

#include "tile.h"

/* Cost of an escape in bits when choosing classes. It takes only ESCAPE_BITS, but it is slow to
 * decode: at that cost, blobs would be 0.6 % smaller, and tiles take 5 % longer to decode. */
#define ESCAPE_PRICE 20

/* The most that put_tile writes: of each block, class, DC field, low bits, planes, signs, escapes;
 * before them a prediction for each of three components; after them the rest of a word. */
#define CODED_BLOCK_BITS_MAX \
  (4 + ESCAPE_BITS + 8 * ROW_BITS_MAX + 63 * (PLANES + 1 + ESCAPE_BITS) + ESCAPE_BITS)
#define CODED_TILE_BYTES_MAX(blocks) \
  ((3 * ESCAPE_BITS + (size_t)(blocks) * CODED_BLOCK_BITS_MAX) / 8 + 1 + sizeof(uint64_t))

/* A block to be coded. AC coefficients are at most 1023 in magnitude. */
typedef struct {
  const int16_t *values; /* 64, in rows */
  int difference;        /* of DC, from its component's last; -2047 to 2047 */
  uint8_t group;         /* 0: luma, 1: chroma */
  uint8_t class;         /* set by choose_classes */
} source_block;

/* What the choice of a class depends on. */
typedef struct {
  int8_t size[64];  /* magnitudes less 128, at most 127; -128 at DC */
  uint64_t nonzero; /* positions of AC coefficients */
  unsigned dc_bits; /* that the magnitude of DC's difference takes */
} block_sizes;

/* A class as blocks are measured with it and coded. */
typedef struct {
  int8_t above[PLANES][64]; /* a larger size, as in block_sizes, has a one in the plane */
  int8_t after_first[64];   /* bits after a one in the first plane: of the second, and a sign */
  uint8_t low_mask[64], sign[64]; /* of the field with a coefficient's low bits */
  uint8_t field_at[64];           /* where it begins in those of its row, in bits */
  uint8_t row_bits[8];            /* of a row's fields */
  unsigned rows;                  /* with fields: all before the first without any from there on */
  uint64_t support, with_low_bits;
  /* Bits of a block apart from what its AC coefficients add, by dc_bits. */
  uint16_t fixed_bits[ESCAPE_BITS + 1];
  uint16_t least_bits; /* no block is smaller in this class or in one after it */
  class_code code;
} encoder_class;

/* The classes of a group. Until choose_classes drops unused positions, a class's support contains
 * that of the one before it, and the last one's is complete. */
typedef encoder_class class_set[CLASSES];

/* Magnitudes that blocks are counted by: all where a quotient changes, for any low bits. */
#define STEPS 14
#define EACH_STEP {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}

/* Functions with one version per instruction set. */
typedef struct {
  void (*take_sizes)(block_sizes *sizes, const source_block *block);
  /* The class in which a block takes fewest bits. */
  unsigned (*cheapest_class)(const encoder_class *set, const block_sizes *sizes);
  /* How many of `count` blocks, which `index` picks, reach each step at each position. */
  void (*count_sizes)(uint32_t (*reached)[64], const block_sizes *blocks, const uint16_t *index,
                      size_t count);
  /* Writes a tile: `dc_before`, a field of `dc_bits` for each component, and the blocks. Returns
   * its bytes; at `out` there is room for CODED_TILE_BYTES_MAX. */
  size_t (*put_tile)(uint8_t *out, const class_set *sets, const source_block *blocks,
                     unsigned count, const int *dc_before, const unsigned *dc_bits,
                     unsigned components);
} tile_encoder;

extern const tile_encoder encoder_portable, encoder_avx2;

/* Makes the classes of each group that has blocks, and sets each block's. */
void choose_classes(const tile_encoder *encoder, class_set *sets, source_block *blocks,
                    size_t count);

/* Writes a class as read_class reads it, at most CLASS_BYTES_MAX; returns its bytes. */
#define CLASS_BYTES_MAX 33
size_t write_class(uint8_t *to, const class_code *code);

#endif
