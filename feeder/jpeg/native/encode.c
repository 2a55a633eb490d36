/* The choice of an image's classes: by Lloyd's algorithm on a sample of its blocks, which go to
 * their cheapest classes and each class to the cheapest numbers of low bits, in turns. */
#include "encode.h"

#define LEVELS (CLASSES / 2) /* of a block's last coefficient; with two classes for each */
#define ROUNDS 2             /* one makes blobs 0.16 % larger, four make them 0.08 % smaller */
#define SAMPLE_BLOCKS_MAX 1500
#define IMPOSSIBLE 60000 /* bits, more than any block takes */

/* 120 KB, on the stack. */
typedef struct {
  const tile_encoder *encoder;
  size_t count;
  block_sizes block[SAMPLE_BLOCKS_MAX];
  uint8_t class[SAMPLE_BLOCKS_MAX];
} class_sample;

/* The positions after each one in zigzag order. */
static void mark_later(uint64_t *later) {
  uint64_t mask = 0;
  for (unsigned k = 64; k-- > 0; mask |= (uint64_t)1 << NATURAL_ORDER[k])
    later[k] = mask;
}

/* The zigzag position of the last coefficient that is not 0; 0 if there is none. */
static unsigned last_position(uint64_t nonzero, const uint64_t *later) {
  unsigned last = 0;
  for (unsigned step = 32; step > 0; step /= 2)
    last += (nonzero & later[last + step - 1]) != 0 ? step : 0;
  return last;
}

/* Chooses the last positions of LEVELS levels to minimise wasted first-plane bits; `with_last[k]`
 * blocks end at position k. Ascending; the last level is 63. */
static void choose_levels(const size_t *with_last, uint8_t *levels) {
  size_t least[LEVELS + 1][65]; /* bits wasted, by number of levels and of positions */
  uint8_t start_of[LEVELS + 1][65];
  for (unsigned end = 0; end <= 64; end++)
    least[0][end] = end == 0 ? 0 : SIZE_MAX / 2;
  for (unsigned level = 1; level <= LEVELS; level++)
    for (unsigned end = 0; end <= 64; end++) {
      size_t wasted = 0, best = least[level - 1][end];
      start_of[level][end] = (uint8_t)end;
      for (unsigned start = end; start > 0 && wasted < best; start--) {
        wasted += with_last[start - 1] * (end - start);
        if (least[level - 1][start - 1] + wasted < best) {
          best = least[level - 1][start - 1] + wasted;
          start_of[level][end] = (uint8_t)(start - 1);
        }
      }
      least[level][end] = best;
    }
  unsigned end = 64;
  for (unsigned level = LEVELS; level > 0; end = start_of[level--][end])
    levels[level - 1] = (uint8_t)(end > 0 ? end - 1 : 0);
}

/* The bits that a block's magnitudes take. */
static size_t activity(const block_sizes *sizes) {
  unsigned bits = sizes->dc_bits;
  for (uint64_t left = sizes->nonzero; left != 0; left &= left - 1)
    bits += bit_length((unsigned)(sizes->size[__builtin_ctzll(left)] + 128));
  return bits;
}

/* Sets the levels, and each class's first blocks: those of its level, below and above 7/8 of its
 * mean activity, which is near its median. */
static void divide_sample(class_sample *s, uint8_t *levels) {
  uint64_t later[64];
  uint16_t bits[SAMPLE_BLOCKS_MAX];
  size_t with_last[64] = {0}, sum[LEVELS] = {0}, blocks[LEVELS] = {0};
  mark_later(later);
  for (size_t i = 0; i < s->count; i++) {
    s->class[i] = (uint8_t)last_position(s->block[i].nonzero, later);
    with_last[s->class[i]]++;
  }
  choose_levels(with_last, levels);
  for (size_t i = 0; i < s->count; i++) {
    uint8_t level = 0;
    while (levels[level] < s->class[i])
      level++;
    s->class[i] = level;
    sum[level] += bits[i] = (uint16_t)activity(&s->block[i]);
    blocks[level]++;
  }
  for (size_t i = 0; i < s->count; i++) {
    unsigned level = s->class[i];
    s->class[i] = (uint8_t)(2 * level + (8 * bits[i] * blocks[level] > 7 * sum[level]));
  }
}

/* The step of a magnitude that is one; beyond 128, that of 128. */
static unsigned step_of(unsigned magnitude) {
  static const uint8_t step[] = EACH_STEP;
  unsigned s = 0;
  while (s < STEPS - 1 && step[s] < magnitude)
    s++;
  return s;
}

/* The cheapest low bits of each position, for the blocks that `reached` counts. */
static void choose_low_bits(class_code *code, unsigned last, uint32_t (*reached)[64],
                            uint32_t blocks) {
  uint32_t bits[LOW_BITS_MAX + 1][64];
  for (unsigned low = 0; low <= LOW_BITS_MAX; low++) {
    for (unsigned p = 0; p < 64; p++)
      bits[low][p] = blocks * (1 + field_bits(low));
    for (unsigned q = 1; q <= PLANES; q++) {
      unsigned price = q == PLANES ? ESCAPE_PRICE : q == 1 && low == 0 ? 2 : 1;
      const uint32_t *ones = reached[step_of(q << low)];
      for (unsigned p = 0; p < 64; p++)
        bits[low][p] += price * ones[p];
    }
  }
  unsigned of_row[8] = {0};
  memset(code->low_bits, ABSENT, sizeof code->low_bits);
  for (unsigned k = 1; k <= last; k++) {
    unsigned p = NATURAL_ORDER[k], best = 0;
    for (unsigned low = 1; low <= LOW_BITS_MAX; low++)
      if (of_row[p / 8] + field_bits(low) <= ROW_BITS_MAX && bits[low][p] < bits[best][p])
        best = low;
    of_row[p / 8] += field_bits(best);
    code->low_bits[p] = (uint8_t)best;
  }
}

/* The bits of a DC field and, if it has to, its escape; `size`: of the difference's magnitude. */
static unsigned dc_price(unsigned size, unsigned bits) {
  return bits == 0 && size > 0 ? IMPOSSIBLE : bits + (bits > 0 && size >= bits ? ESCAPE_PRICE : 0);
}

/* The cheapest DC field, of at least `least` bits, where `with_size` blocks have each size. */
static unsigned choose_dc_bits(const uint32_t *with_size, unsigned least) {
  unsigned best = least;
  uint32_t best_price = UINT32_MAX;
  for (unsigned bits = least; bits <= ESCAPE_BITS; bits++) {
    uint32_t price = 0;
    for (unsigned size = 0; size <= ESCAPE_BITS; size++)
      price += with_size[size] * dc_price(size, bits);
    if (price < best_price) {
      best = bits;
      best_price = price;
    }
  }
  return best;
}

/* Makes the tables of a class from its code. */
static void fill_class(encoder_class *class) {
  const class_code *code = &class->code;
  unsigned fixed = 0;
  memset(class, 0, offsetof(encoder_class, code));
  memset(class->above, 127, sizeof class->above);
  for (unsigned p = 1; p < 64; p++) {
    unsigned low = code->low_bits[p];
    if (low == ABSENT)
      continue;
    for (unsigned q = 0; q < PLANES; q++) {
      unsigned from = (q + 1) << low;
      class->above[q][p] = (int8_t)((int)(from < 128 ? from : 128) - 129);
    }
    class->after_first[p] = low == 0 ? 2 : 1;
    class->support |= (uint64_t)1 << p;
    fixed += 1 + field_bits(low);
    if (low == 0)
      continue;
    class->with_low_bits |= (uint64_t)1 << p;
    class->low_mask[p] = (uint8_t)((1u << low) - 1);
    class->sign[p] = (uint8_t)(1u << low);
    class->field_at[p] = class->row_bits[p / 8];
    class->row_bits[p / 8] += (uint8_t)field_bits(low);
    class->rows = p / 8 + 1;
  }
  for (unsigned size = 0; size <= ESCAPE_BITS; size++)
    class->fixed_bits[size] = (uint16_t)(fixed + dc_price(size, code->dc_bits));
  class->least_bits = (uint16_t)(fixed + code->dc_bits);
}

/* Orders a sample by class; class c's blocks are index[first[c]] to before index[first[c + 1]]. */
static void sort_sample(const class_sample *s, uint16_t *index, size_t *first) {
  size_t next[CLASSES] = {0};
  for (size_t i = 0; i < s->count; i++)
    next[s->class[i]]++;
  first[0] = 0;
  for (unsigned c = 0; c < CLASSES; c++) {
    first[c + 1] = first[c] + next[c];
    next[c] = first[c];
  }
  for (size_t i = 0; i < s->count; i++)
    index[next[s->class[i]]++] = (uint16_t)i;
}

static void fit_classes(encoder_class *set, const class_sample *s, const uint8_t *levels) {
  uint16_t index[SAMPLE_BLOCKS_MAX];
  size_t first[CLASSES + 1];
  sort_sample(s, index, first);
  for (unsigned c = 0; c < CLASSES; c++) {
    const uint16_t *own = index + first[c];
    size_t blocks = first[c + 1] - first[c];
    encoder_class *class = &set[c];
    uint32_t reached[STEPS][64], with_size[ESCAPE_BITS + 1] = {0};
    s->encoder->count_sizes(reached, s->block, own, blocks);
    for (size_t i = 0; i < blocks; i++)
      with_size[s->block[own[i]].dc_bits]++;
    choose_low_bits(&class->code, levels[c / 2], reached, (uint32_t)blocks);
    /* Blocks that are not in the sample may have any DC. */
    class->code.dc_bits = choose_dc_bits(with_size, c / 2 == LEVELS - 1);
    fill_class(class);
  }
  for (unsigned c = CLASSES - 1; c-- > 0;)
    if (set[c + 1].least_bits < set[c].least_bits)
      set[c].least_bits = set[c + 1].least_bits;
}

static void make_classes(encoder_class *set, class_sample *s) {
  uint8_t levels[LEVELS];
  divide_sample(s, levels);
  fit_classes(set, s, levels);
  for (int round = 1; round < ROUNDS; round++) {
    for (size_t i = 0; i < s->count; i++)
      s->class[i] = (uint8_t)s->encoder->cheapest_class(set, &s->block[i]);
    fit_classes(set, s, levels);
  }
}

/* Takes out the positions that none of a class's blocks needs. */
static void drop_unused(encoder_class *class, uint64_t used) {
  if (used == 0)
    class->code.dc_bits = 0;
  for (unsigned p = 1; p < 64; p++)
    if ((used >> p & 1) == 0)
      class->code.low_bits[p] = ABSENT;
  fill_class(class);
}

static void take_sample(class_sample *s, const source_block *blocks, size_t count, unsigned group) {
  size_t of_group = 0, k = 0;
  for (size_t i = 0; i < count; i++)
    of_group += blocks[i].group == group;
  size_t step = of_group / SAMPLE_BLOCKS_MAX + 1;
  s->count = 0;
  for (size_t i = 0; i < count; i++)
    if (blocks[i].group == group && k++ % step == 0)
      s->encoder->take_sizes(&s->block[s->count++], &blocks[i]);
}

void choose_classes(const tile_encoder *encoder, class_set *sets, source_block *blocks,
                    size_t count) {
  class_sample sample;
  sample.encoder = encoder;
  for (unsigned group = 0; group < GROUPS; group++) {
    take_sample(&sample, blocks, count, group);
    if (sample.count > 0)
      make_classes(sets[group], &sample);
  }
  uint64_t used[GROUPS][CLASSES] = {{0}}; /* positions that a class's blocks need; DC by all */
  for (size_t i = 0; i < count; i++) {
    source_block *block = &blocks[i];
    block_sizes sizes;
    encoder->take_sizes(&sizes, block);
    block->class = (uint8_t)encoder->cheapest_class(sets[block->group], &sizes);
    used[block->group][block->class] |= sizes.nonzero | 1;
  }
  for (unsigned group = 0; group < GROUPS; group++)
    for (unsigned c = 0; c < CLASSES; c++)
      drop_unused(&sets[group][c], used[group][c]);
}

size_t write_class(uint8_t *to, const class_code *code) {
  unsigned count = code->dc_bits > 0;
  uint8_t nibble[64] = {(uint8_t)code->dc_bits};
  for (unsigned k = 1; k < 64; k++) {
    nibble[k] = code->low_bits[NATURAL_ORDER[k]];
    count = nibble[k] != ABSENT ? k + 1 : count;
  }
  *to = (uint8_t)count;
  memset(to + 1, 0, (count + 1) / 2);
  for (unsigned k = 0; k < count; k++)
    to[1 + k / 2] |= (uint8_t)(nibble[k] << k % 2 * 4);
  return 1 + (count + 1) / 2;
}
