/* A tile_encoder. The file that includes this may set a target, and defines ENCODER, the encoder's
 * name, and WIDTH, the bytes of a vector. */
#include "encode.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef int8_t bytes __attribute__((vector_size(WIDTH), may_alias));
typedef uint8_t unsigned_bytes __attribute__((vector_size(WIDTH), may_alias));
typedef int16_t shorts __attribute__((vector_size(WIDTH), may_alias));

/* Two vectors to one of bytes, by saturation; the sign bits of bytes; the sum of unsigned ones. */
#if WIDTH == 32
INLINE bytes pack(shorts a, shorts b) {
  return (bytes)_mm256_permute4x64_epi64(_mm256_packs_epi16((__m256i)a, (__m256i)b), 0xD8);
}
INLINE uint64_t sign_bits(bytes a) { return (uint32_t)_mm256_movemask_epi8((__m256i)a); }
INLINE unsigned sum(unsigned_bytes a) {
  __m256i sums = _mm256_sad_epu8((__m256i)a, _mm256_setzero_si256());
  __m128i both = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return (unsigned)(_mm_cvtsi128_si32(both) + _mm_extract_epi16(both, 4));
}
#elif defined(__SSE2__) && !defined(PLAIN_C)
INLINE bytes pack(shorts a, shorts b) { return (bytes)_mm_packs_epi16((__m128i)a, (__m128i)b); }
INLINE uint64_t sign_bits(bytes a) { return (uint64_t)_mm_movemask_epi8((__m128i)a); }
INLINE unsigned sum(unsigned_bytes a) {
  __m128i sums = _mm_sad_epu8((__m128i)a, _mm_setzero_si128());
  return (unsigned)(_mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4));
}
#else
INLINE int8_t saturate(int value) {
  return (int8_t)(value > 127 ? 127 : value < -128 ? -128 : value);
}
INLINE bytes pack(shorts a, shorts b) {
  bytes packed;
  for (int i = 0; i < WIDTH / 2; i++) {
    packed[i] = saturate(a[i]);
    packed[WIDTH / 2 + i] = saturate(b[i]);
  }
  return packed;
}
INLINE uint64_t sign_bits(bytes a) {
  uint64_t bits = 0;
  for (int i = 0; i < WIDTH; i++)
    bits |= (uint64_t)(a[i] < 0) << i;
  return bits;
}
INLINE unsigned sum(unsigned_bytes a) {
  unsigned total = 0;
  for (int i = 0; i < WIDTH; i++)
    total += a[i];
  return total;
}
#endif

INLINE bytes load(const void *from) {
  bytes vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
}

INLINE bytes all(int value) { return (bytes){0} + (int8_t)value; }

/* A vector of bytes' worth of coefficients. */
typedef struct {
  shorts low, high;
} coefficients;

INLINE coefficients load_coefficients(const int16_t *from) {
  return (coefficients){(shorts)load(from), (shorts)load(from + WIDTH / 2)};
}

INLINE bytes signs_of(coefficients c) { return pack(c.low >> 15, c.high >> 15); }

INLINE shorts magnitudes_less_128(shorts values) {
  shorts sign = values >> 15;
  return (values ^ sign) - (sign + 128);
}

INLINE bytes sizes_of(coefficients c) {
  return pack(magnitudes_less_128(c.low), magnitudes_less_128(c.high));
}

static void take_sizes(block_sizes *sizes, const source_block *block) {
  uint64_t zero = 0;
  for (int i = 0; i < 64; i += WIDTH) {
    bytes size = sizes_of(load_coefficients(block->values + i));
    memcpy(sizes->size + i, &size, sizeof size);
    zero |= sign_bits(size == all(-128)) << i;
  }
  sizes->size[0] = -128;
  sizes->nonzero = ~(zero | 1);
  sizes->dc_bits = bit_length((unsigned)abs(block->difference));
}

/* All ones for each coefficient with a one in a plane, of a vector of them from `first` on. */
INLINE bytes ones_in_plane(const encoder_class *class, int plane, bytes size, int first) {
  return size > load(class->above[plane] + first);
}

/* The bits that a block's AC coefficients add to the fixed ones. No byte overflows. */
INLINE unsigned added_bits(const encoder_class *class, const bytes *size) {
  unsigned_bytes added = {0};
  for (int i = 0; i < 64; i += WIDTH, size++) {
    added += (unsigned_bytes)(ones_in_plane(class, 0, *size, i) & load(class->after_first + i));
    for (int p = 1; p < PLANES - 1; p++)
      added -= (unsigned_bytes)ones_in_plane(class, p, *size, i);
    added += (unsigned_bytes)(ones_in_plane(class, PLANES - 1, *size, i) & ESCAPE_PRICE);
  }
  return sum(added);
}

static unsigned cheapest_class(const encoder_class *set, const block_sizes *sizes) {
  bytes size[64 / WIDTH];
  memcpy(size, sizes->size, sizeof size);
  const encoder_class *class = set, *end = class + CLASSES;
  while ((sizes->nonzero & ~class->support) != 0)
    class++;
  unsigned least = ~0u; /* bits, and class */
  for (; class < end && class->least_bits * CLASSES < least; class++) {
    unsigned bits = class->fixed_bits[sizes->dc_bits] + added_bits(class, size);
    unsigned choice = bits * CLASSES + (unsigned)(class - set);
    least = choice < least ? choice : least;
  }
  return least % CLASSES;
}

static void count_sizes(uint32_t (*reached)[64], const block_sizes *blocks, const uint16_t *index,
                        size_t count) {
  static const int step[] = EACH_STEP;
  memset(reached, 0, STEPS * sizeof *reached);
  for (int i = 0; i < 64; i += WIDTH)
    for (size_t from = 0; from < count; from += 255) { /* as far as a byte counts */
      unsigned_bytes part[STEPS] = {{0}};
      for (size_t k = from; k < count && k < from + 255; k++) {
        bytes size = load(blocks[index[k]].size + i);
        for (int s = 0; s < STEPS; s++)
          part[s] -= (unsigned_bytes)(size > all(step[s] - 129));
      }
      for (int s = 0; s < STEPS; s++)
        for (int k = 0; k < WIDTH; k++)
          reached[s][i + k] += part[s][k];
    }
}

/* The bits of `value` where the mask has ones, next to each other. */
INLINE uint64_t gather(uint64_t value, uint64_t mask) {
#if defined(__BMI2__)
  return _pext_u64(value, mask);
#else
  uint64_t gathered = 0;
  for (unsigned at = 0; mask != 0; mask &= mask - 1, at++)
    gathered |= (value >> __builtin_ctzll(mask) & 1) << at;
  return gathered;
#endif
}

/* Writes bits, lowest first. */
typedef struct {
  uint8_t *out;
  uint64_t word;  /* what `out` begins with */
  unsigned count; /* bits of it, under 8 */
} low_bit_writer;

/* Appends up to 56 bits; `value` has no others. */
INLINE void put(low_bit_writer *w, uint64_t value, unsigned bits) {
  w->word |= value << w->count;
  memcpy(w->out, &w->word, sizeof w->word);
  w->count += bits;
  w->out += w->count / 8;
  w->word >>= w->count / 8 * 8;
  w->count %= 8;
}

INLINE void put_gathered(low_bit_writer *w, uint64_t value, uint64_t mask) {
  uint64_t bits = gather(value, mask);
  unsigned count = count_ones(mask);
  if (RARELY(count > 56)) {
    put(w, bits & 0xFFFFFFFF, 32);
    bits >>= 32;
    count -= 32;
  }
  put(w, bits, count);
}

INLINE void put_signed(low_bit_writer *w, int value, unsigned bits) {
  put(w, (uint64_t)value & ones(bits), bits);
}

/* Whether DC's field cannot hold the difference: its least value stands for an escape. */
INLINE int dc_escapes(int difference, unsigned bits) {
  int end = 1 << bits >> 1;
  return bits > 0 && (difference <= -end || difference >= end);
}

/* Which of a block's coefficients have a one in each plane, and which are negative. */
typedef struct {
  uint64_t plane[PLANES], negative;
} block_masks;

INLINE void split_block(const encoder_class *class, const int16_t *values, block_masks *masks,
                        uint8_t *fields) {
  memset(masks, 0, sizeof *masks);
  for (int i = 0; i < 64; i += WIDTH) {
    coefficients c = load_coefficients(values + i);
    bytes negative = signs_of(c), low = pack(c.low << 8 >> 8, c.high << 8 >> 8);
    bytes sign = load(class->sign + i);
    low = (low & load(class->low_mask + i)) | (negative & sign);
    memcpy(fields + i, &low, sizeof low);
    /* With low bits, -1 has the quotient of 0. */
    bytes size = sizes_of(c) + (negative & (sign != 0));
    for (int p = 0; p < PLANES; p++)
      masks->plane[p] |= sign_bits(ones_in_plane(class, p, size, i)) << i;
    masks->negative |= sign_bits(negative) << i;
  }
}

/* The fields of a row's coefficients, next to each other. */
INLINE uint64_t join_fields(const encoder_class *class, const uint8_t *fields, unsigned row) {
#if defined(__BMI2__)
  uint64_t word, low, sign;
  memcpy(&word, fields + 8 * row, sizeof word);
  memcpy(&low, class->low_mask + 8 * row, sizeof low);
  memcpy(&sign, class->sign + 8 * row, sizeof sign);
  return gather(word, low | sign);
#else
  uint64_t word = 0;
  for (unsigned p = 8 * row; p < 8 * row + 8; p++)
    word |= (uint64_t)fields[p] << class->field_at[p];
  return word;
#endif
}

/* What the class alone gives the length of: DC field, low bits and first plane. */
INLINE void put_fixed_part(low_bit_writer *w, const encoder_class *class, const source_block *block,
                           block_masks *masks) {
  uint8_t fields[64];
  split_block(class, block->values, masks, fields);
  unsigned dc_bits = class->code.dc_bits;
  int escapes = dc_escapes(block->difference, dc_bits);
  put_signed(w, escapes ? -(1 << dc_bits >> 1) : block->difference, dc_bits);
  for (unsigned row = 0; row < class->rows; row++)
    put(w, join_fields(class, fields, row), class->row_bits[row]);
  put_gathered(w, masks->plane[0], class->support);
}

INLINE void put_varying_part(low_bit_writer *w, const encoder_class *class,
                             const source_block *block, const block_masks *masks) {
  put_gathered(w, masks->negative, masks->plane[0] & ~class->with_low_bits);
  for (int p = 1; p < PLANES; p++)
    put_gathered(w, masks->plane[p], masks->plane[p - 1]);
  for (uint64_t left = masks->plane[PLANES - 1]; RARELY(left != 0); left &= left - 1)
    put_signed(w, block->values[__builtin_ctzll(left)], ESCAPE_BITS);
  if (RARELY(dc_escapes(block->difference, class->code.dc_bits)))
    put_signed(w, block->difference, ESCAPE_BITS);
}

static size_t put_tile(uint8_t *out, const class_set *sets, const source_block *blocks,
                       unsigned count, const int *dc_before, const unsigned *dc_bits,
                       unsigned components) {
  low_bit_writer w = {out, 0, 0};
  const encoder_class *class[TILE_BLOCKS_MAX];
  block_masks masks[TILE_BLOCKS_MAX];
  for (unsigned c = 0; c < components; c++)
    put_signed(&w, dc_before[c], dc_bits[c]);
  for (unsigned i = 0; i < count; i++) {
    class[i] = &sets[blocks[i].group][blocks[i].class];
    put(&w, blocks[i].class, 4);
  }
  for (unsigned i = 0; i < count; i++)
    put_fixed_part(&w, class[i], &blocks[i], &masks[i]);
  for (unsigned i = 0; i < count; i++)
    put_varying_part(&w, class[i], &blocks[i], &masks[i]);
  return (size_t)(w.out - out) + (w.count > 0);
}

const tile_encoder ENCODER = {take_sizes, cheapest_class, count_sizes, put_tile};
