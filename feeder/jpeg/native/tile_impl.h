/* What all versions of tile_decoder share. The file that includes this defines CLASS, what it makes
 * of a class, before, and after it the functions that are only declared here. */
#include "tile.h"

/* 64 bits from bit `at` on. Reads 9 bytes. */
INLINE uint64_t word_at(const uint8_t *bits, size_t at) {
  uint64_t next;
  memcpy(&next, bits + at / 8 + 1, sizeof next);
  return bits_at(bits, at) | next << (8 - at % 8);
}

/* An escaped value. */
INLINE int16_t escape_at(const uint8_t *bits, size_t at) {
  return (int16_t)((int64_t)(bits_at(bits, at) << (64 - ESCAPE_BITS)) >> (64 - ESCAPE_BITS));
}

INLINE void put_value(unsigned char *block, unsigned position, unsigned row_bytes, int16_t value) {
  memcpy(block + position / 8 * row_bytes + position % 8 * 2, &value, sizeof value);
}

typedef struct {
  const CLASS *class;
  size_t at;
} located_block;

/* Reads the blocks' classes and computes where each block starts. Returns the start of the
 * variable-length parts, or a position past the end if the tile is too short. */
INLINE size_t locate_blocks(const CLASS *classes, const uint8_t *bits, const tile_span *t,
                            located_block *block) {
  size_t code_at = t->at_bit, at = code_at + 4 * (size_t)t->blocks;
  if (RARELY(at > 8 * t->end_byte))
    return at;
  const block_place *place = t->place;
  for (located_block *stop = block + t->blocks; block < stop; block++, place++, code_at += 4) {
    unsigned code = (unsigned)bits_at(bits, code_at) & 15;
    *block = (located_block){classes + place->first_class + code, at};
    at += block->class->lengths.length;
  }
  return at;
}

/* Adds the block's DC difference to `dc` and stores the sum as coefficient 0. If the field holds
 * its least value, the difference is an escape at `*at`, which advances past it. */
INLINE void put_dc(const uint8_t *bits, const located_block *b, size_t *at, int *dc,
                   unsigned char *to) {
  unsigned shift = b->class->lengths.dc_shift;
  uint64_t field = bits_at(bits, b->at) << 1 << shift; /* two shifts: by 64 in all, at most */
  int difference = (int)((int64_t)field >> 1 >> shift);
  if (RARELY(field == (uint64_t)1 << 63)) {
    difference = escape_at(bits, *at);
    *at += ESCAPE_BITS;
  }
  int16_t value = (int16_t)(*dc += difference);
  memcpy(to, &value, sizeof value);
}

/* Which AC coefficients of a block have each bit of their quotient set, and which of those without
 * low bits are negative. Each version has its own order of coefficients in a mask. */
typedef struct {
  uint64_t plane[PLANES], negative;
} block_masks;

static void make_class(void *classes, unsigned number, const class_code *code);

/* The first plane of a block, where `word` begins with it. */
INLINE uint64_t first_plane(uint64_t word, const CLASS *class);

/* Scatters the low bits of `bits` to the set bits of `mask`, as pdep does. */
INLINE uint64_t deposit(uint64_t bits, uint64_t mask);

/* Of the coefficient that has this bit of masks. */
INLINE unsigned position_of(const CLASS *class, unsigned bit);

/* Sets 64 coefficients but for DC and escapes; the block begins at bit `at`. */
INLINE void put_block(const uint8_t *bits, size_t at, const CLASS *class, const block_masks *masks,
                      unsigned char *to, unsigned row_bytes);

/* Reads the signs and the second and third planes from bit `at`; returns their length in bits.
 * `is_long`: they may exceed the 57 bits that one load gives. */
INLINE unsigned take_masks(const uint8_t *bits, size_t at, const CLASS *class, block_masks *masks,
                           const int is_long) {
  uint64_t word = bits_at(bits, at), with_sign = masks->plane[0] & ~class->with_low_bits;
  masks->negative = deposit(is_long ? word_at(bits, at) : word, with_sign);
  unsigned taken = count_ones(with_sign);
#pragma GCC unroll 2
  for (int p = 1; p < PLANES; p++) {
    uint64_t plane = is_long ? word_at(bits, at + taken) : word >> taken % 64;
    masks->plane[p] = deposit(plane, masks->plane[p - 1]);
    taken += count_ones(masks->plane[p - 1]);
  }
  return taken;
}

static __attribute__((noinline)) void put_escapes(const uint8_t *bits, size_t at,
                                                  const CLASS *class, uint64_t escapes,
                                                  unsigned char *to, unsigned row_bytes) {
  for (; escapes != 0; escapes &= escapes - 1, at += ESCAPE_BITS)
    put_value(to, position_of(class, (unsigned)__builtin_ctzll(escapes)), row_bytes,
              escape_at(bits, at));
}

INLINE int ends_with_blocks(const tile_span *t, size_t at) {
  return t->wanted < t->blocks ? at <= 8 * t->end_byte : (at + 7) / 8 == t->end_byte;
}

static int decode_tile(const void *classes, const uint8_t *bits, const tile_span *t,
                       unsigned row_bytes, unsigned char *coefficients, int *dc) {
  located_block block[TILE_BLOCKS_MAX];
  size_t at = locate_blocks(classes, bits, t, block), end = 8 * t->end_byte;
  const block_place *place = t->place;
  for (const located_block *b = block, *stop = b + t->wanted; b < stop; b++, place++) {
    if (RARELY(at > end))
      return 0;
    const CLASS *class = b->class;
    unsigned char *to = coefficients + place->offset;
    block_masks masks;
    masks.plane[0] = first_plane(word_at(bits, b->at + class->lengths.first_plane_at), class);
    unsigned taken = take_masks(bits, at, class, &masks, 0);
    if (RARELY(taken > 57))
      taken = take_masks(bits, at, class, &masks, 1);
    at += taken;
    put_block(bits, b->at, class, &masks, to, row_bytes);
    uint64_t escapes = masks.plane[PLANES - 1];
    if (RARELY(escapes != 0)) {
      put_escapes(bits, at, class, escapes, to, row_bytes);
      at += ESCAPE_BITS * count_ones(escapes);
    }
    put_dc(bits, b, &at, &dc[place->component], to);
  }
  return ends_with_blocks(t, at);
}

const tile_decoder DECODER = {GROUPS * CLASSES * sizeof(CLASS), make_class, decode_tile};
