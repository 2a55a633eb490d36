/* Huffman coding of DCT blocks. libjpeg can find the best tables itself (optimize_coding), by coding
 * everything twice; its first pass looks at every coefficient, of which nine in ten are 0. Here only
 * the others are touched. */
#include "huffman.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const unsigned char ZIGZAG_OF[DCTSIZE2] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
    41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
    46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63};

static int magnitude_bits(int value) {
  return value == 0 ? 0 : 32 - __builtin_clz((unsigned)(value < 0 ? -value : value));
}

static uint64_t nonzero_mask(const JCOEF *block) {
  uint64_t mask = 0;
#if defined(__x86_64__)
  const __m128i zero = _mm_setzero_si128();
  for (int part = 0; part < 4; part++) {
    const __m128i *at = (const __m128i *)(const void *)(block + 16 * part);
    __m128i low = _mm_cmpeq_epi16(_mm_loadu_si128(at), zero);
    __m128i high = _mm_cmpeq_epi16(_mm_loadu_si128(at + 1), zero);
    mask |= (uint64_t)(uint16_t)~_mm_movemask_epi8(_mm_packs_epi16(low, high)) << (16 * part);
  }
#else
  for (int i = 0; i < DCTSIZE2; i++)
    mask |= (uint64_t)(block[i] != 0) << i;
#endif
  return mask;
}

/* The coefficients other than 0 and DC: `scan` gets them in zigzag order, the bits of the result say
 * where. */
static inline uint64_t gather_block(const JCOEF *block, JCOEF *scan) {
  uint64_t places = 0;
  for (uint64_t mask = nonzero_mask(block) & ~(uint64_t)1; mask != 0; mask &= mask - 1) {
    int i = __builtin_ctzll(mask), k = ZIGZAG_OF[i];
    scan[k] = block[i];
    places |= (uint64_t)1 << k;
  }
  return places;
}

void count_block(const JCOEF *block, int previous_dc, symbol_counts *counts, int dc, int ac) {
  /* The range of an 8-bit picture's DC; within it, no difference of any two needs 12 bits. */
  counts->bad |= block[0] < -1024 || block[0] > 1023;
  int bits = magnitude_bits(block[0] - previous_dc);
  counts->dc[dc][bits < DC_CATEGORIES ? bits : 0]++;
  JCOEF scan[DCTSIZE2];
  int last = 0;
  for (uint64_t left = gather_block(block, scan); left != 0; left &= left - 1) {
    int k = __builtin_ctzll(left), run = k - last - 1;
    counts->ac[ac][0xF0] += run >> 4;
    bits = magnitude_bits(scan[k]);
    counts->bad |= bits > AC_BITS_MAX;
    counts->ac[ac][(run & 15) << 4 | (bits & 15)]++;
    last = k;
  }
  if (last < DCTSIZE2 - 1)
    counts->ac[ac][0]++;
}

/* Makes the Huffman table of least total length for the counts, with codes of at most 16 bits and
 * none of ones only: T.81 K.2. */
void best_table(JHUFF_TBL *table, const long *counts) {
  enum { SYMBOLS = 257, LONGEST = 64 };
  long weight[SYMBOLS];
  int length[SYMBOLS] = {0}, next[SYMBOLS], bits[LONGEST + 1] = {0};
  memcpy(weight, counts, 256 * sizeof weight[0]);
  weight[256] = 1; /* takes the code of ones only */
  for (int i = 0; i < SYMBOLS; i++)
    next[i] = -1;
  for (;;) {
    int a = -1, b = -1; /* the two lightest trees, a not heavier; of equals the later ones */
    for (int i = 0; i < SYMBOLS; i++) {
      if (weight[i] == 0)
        continue;
      if (a < 0 || weight[i] <= weight[a]) {
        b = a;
        a = i;
      } else if (b < 0 || weight[i] <= weight[b]) {
        b = i;
      }
    }
    if (b < 0)
      break;
    weight[a] += weight[b];
    weight[b] = 0;
    int end = a;
    for (length[a]++; next[end] >= 0;)
      length[end = next[end]]++;
    next[end] = b;
    for (end = b, length[b]++; next[end] >= 0;)
      length[end = next[end]]++;
  }
  for (int i = 0; i < SYMBOLS; i++)
    if (length[i] > 0)
      bits[length[i] > LONGEST ? LONGEST : length[i]]++;
  for (int i = LONGEST; i > 16; i--)
    while (bits[i] > 0) { /* move a pair of leaves up, next to a shorter code's leaf */
      int j = i - 2;
      while (bits[j] == 0)
        j--;
      bits[i] -= 2;
      bits[i - 1]++;
      bits[j + 1] += 2;
      bits[j]--;
    }
  int longest = 16;
  while (bits[longest] == 0)
    longest--;
  bits[longest]--; /* the code of ones only */

  memset(table->bits, 0, sizeof table->bits);
  for (int i = 1; i <= 16; i++)
    table->bits[i] = (UINT8)bits[i];
  int place = 0;
  for (int wanted = 1; wanted <= LONGEST; wanted++)
    for (int symbol = 0; symbol < 256; symbol++)
      if (length[symbol] == wanted)
        table->huffval[place++] = (UINT8)symbol;
  table->sent_table = FALSE;
}

void make_code_table(code_table *codes, const JHUFF_TBL *table) {
  memset(codes, 0, sizeof *codes);
  unsigned code = 0, place = 0;
  for (unsigned bits = 1; bits <= 16; bits++, code <<= 1)
    for (unsigned i = 0; i < table->bits[bits]; i++, place++) {
      codes->code[table->huffval[place]] = (uint16_t)code++;
      codes->bits[table->huffval[place]] = (uint8_t)bits;
    }
}

static inline void put_bits(bit_writer *w, uint64_t value, unsigned bits) {
  w->pending = w->pending << bits | value;
  w->count += bits;
  if (w->count >= 32) {
    w->count -= 32;
    uint32_t word = __builtin_bswap32((uint32_t)(w->pending >> w->count));
    memcpy(w->out, &word, sizeof word);
    w->out += sizeof word;
  }
}

/* A symbol and, after it, the low `size` bits of the value, or of one less where it is negative. */
static inline void put_symbol(bit_writer *w, const code_table *codes, int symbol, int value,
                              int size) {
  unsigned low = (unsigned)(value < 0 ? value - 1 : value) & ((1u << size) - 1);
  put_bits(w, (uint64_t)codes->code[symbol] << size | low, codes->bits[symbol] + (unsigned)size);
}

void code_block(bit_writer *w, const JCOEF *block, int previous_dc, const code_table *dc,
                const code_table *ac) {
  int difference = block[0] - previous_dc, size = magnitude_bits(difference);
  put_symbol(w, dc, size, difference, size);
  JCOEF scan[DCTSIZE2];
  int last = 0;
  for (uint64_t left = gather_block(block, scan); left != 0; left &= left - 1) {
    int k = __builtin_ctzll(left), run = k - last - 1;
    for (; run >= 16; run -= 16)
      put_symbol(w, ac, 0xF0, 0, 0);
    size = magnitude_bits(scan[k]);
    put_symbol(w, ac, run << 4 | size, scan[k], size);
    last = k;
  }
  if (last < DCTSIZE2 - 1)
    put_symbol(w, ac, 0, 0, 0);
}

void code_empty_block(bit_writer *w, const code_table *dc, const code_table *ac) {
  put_symbol(w, dc, 0, 0, 0);
  put_symbol(w, ac, 0, 0, 0);
}

void flush_bits(bit_writer *w) {
  for (; w->count > 0; w->count -= w->count < 8 ? w->count : 8)
    *w->out++ = (unsigned char)(w->count >= 8 ? w->pending >> (w->count - 8)
                                              : w->pending << (8 - w->count));
}
