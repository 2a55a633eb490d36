#include "huffman.h"

#include <stdlib.h>

#include "tile.h"

enum { SYMBOLS = 257, LONGEST = 64 };

/* Sets the lengths of the symbols' codes in a Huffman tree (T.81 figure K.1). */
static void find_lengths(const long *frequency, int *length) {
  long weight[SYMBOLS];
  int next[SYMBOLS];
  memcpy(weight, frequency, 256 * sizeof weight[0]);
  weight[256] = 1; /* takes the code of ones only */
  for (int i = 0; i < SYMBOLS; i++) {
    length[i] = 0;
    next[i] = -1;
  }
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
      return;
    weight[a] += weight[b];
    weight[b] = 0;
    int end = a;
    for (length[a]++; next[end] >= 0;)
      length[end = next[end]]++;
    next[end] = b;
    for (end = b, length[b]++; next[end] >= 0;)
      length[end = next[end]]++;
  }
}

/* Sets how many codes there are of each length, none of more than 16 bits (T.81 figure K.3). */
static void count_lengths(const int *length, int *count) {
  memset(count, 0, (LONGEST + 1) * sizeof *count);
  for (int i = 0; i < SYMBOLS; i++)
    if (length[i] > 0)
      count[length[i] > LONGEST ? LONGEST : length[i]]++;
  for (int i = LONGEST; i > 16; i--)
    while (count[i] > 0) { /* move a pair of leaves up, next to a shorter code's leaf */
      int j = i - 2;
      while (count[j] == 0)
        j--;
      count[i] -= 2;
      count[i - 1]++;
      count[j + 1] += 2;
      count[j]--;
    }
  int longest = 16;
  while (count[longest] == 0)
    longest--;
  count[longest]--; /* the code of ones only */
}

void make_best_table(huffman_table *table) {
  int length[SYMBOLS], count[LONGEST + 1];
  find_lengths(table->frequency, length);
  count_lengths(length, count);
  table->symbol_count = 0;
  for (int bits = 1; bits <= LONGEST; bits++)
    for (int symbol = 0; symbol < 256; symbol++)
      if (length[symbol] == bits)
        table->symbols[table->symbol_count++] = (unsigned char)symbol;
  memset(table->bits, 0, sizeof table->bits);
  const unsigned char *symbol = table->symbols;
  unsigned code = 0;
  for (unsigned bits = 1; bits <= 16; bits++, code <<= 1) {
    table->counts[bits - 1] = (unsigned char)count[bits];
    for (int i = 0; i < count[bits]; i++, symbol++) {
      table->code[*symbol] = (uint16_t)code++;
      table->bits[*symbol] = (uint8_t)bits;
    }
  }
}

/* Writes the whole bytes that are pending. */
static inline void flush_bytes(scan_writer *w) {
  while (w->count >= 8) {
    w->count -= 8;
    unsigned char byte = (unsigned char)(w->pending >> w->count);
    *w->out++ = byte;
    if (byte == 0xFF)
      *w->out++ = 0;
  }
}

/* Appends up to 32 bits; `value` has no others. */
static inline void put_bits(scan_writer *w, uint64_t value, unsigned bits) {
  w->pending = w->pending << bits | value;
  w->count += bits;
  if (w->count < 32)
    return;
  uint32_t word = (uint32_t)(w->pending >> (w->count - 32)), others = ~word;
  if (((others - 0x01010101u) & word & 0x80808080u) != 0) { /* perhaps one of its bytes is 0xFF */
    flush_bytes(w);
    return;
  }
  word = __builtin_bswap32(word);
  memcpy(w->out, &word, sizeof word);
  w->out += sizeof word;
  w->count -= 32;
}

void finish_scan(scan_writer *w) {
  unsigned spare = -w->count % 8;
  put_bits(w, (1u << spare) - 1, spare);
  flush_bytes(w);
}

/* The category of a coefficient or difference (T.81 F.1.2.1). */
static unsigned magnitude_bits(int value) {
  return bit_length((unsigned)abs(value));
}

/* A symbol and, after it, the low `size` bits of the value, or of one less where it is negative. */
static inline void put_symbol(scan_writer *w, const huffman_table *table, unsigned symbol,
                              int value, unsigned size) {
  unsigned low = (unsigned)(value < 0 ? value - 1 : value) & ((1u << size) - 1);
  put_bits(w, (uint64_t)table->code[symbol] << size | low, table->bits[symbol] + size);
}

#define SIXTEEN_ZEROS 0xF0

/* Which AC coefficients are not 0, by zigzag position. */
static uint64_t find_nonzero(const int16_t *block) {
  uint64_t mask = 0;
  for (unsigned k = 1; k < 64; k++)
    mask |= (uint64_t)(block[NATURAL_ORDER[k]] != 0) << k;
  return mask;
}

void count_block(const int16_t *block, int previous_dc, huffman_table *dc, huffman_table *ac) {
  unsigned last = 0;
  dc->frequency[magnitude_bits(block[0] - previous_dc)]++;
  for (uint64_t left = find_nonzero(block); left != 0; left &= left - 1) {
    unsigned k = (unsigned)__builtin_ctzll(left), run = k - last - 1;
    ac->frequency[SIXTEEN_ZEROS] += run / 16;
    ac->frequency[run % 16 << 4 | magnitude_bits(block[NATURAL_ORDER[k]])]++;
    last = k;
  }
  ac->frequency[END_OF_BLOCK] += last < 63;
}

void code_block(scan_writer *writer, const int16_t *block, int previous_dc, const huffman_table *dc,
                const huffman_table *ac) {
  scan_writer w = *writer; /* in registers: the bytes that it writes could be its own */
  unsigned last = 0, size = magnitude_bits(block[0] - previous_dc);
  put_symbol(&w, dc, size, block[0] - previous_dc, size);
  for (uint64_t left = find_nonzero(block); left != 0; left &= left - 1) {
    unsigned k = (unsigned)__builtin_ctzll(left), run = k - last - 1;
    int value = block[NATURAL_ORDER[k]];
    for (; run >= 16; run -= 16)
      put_symbol(&w, ac, SIXTEEN_ZEROS, 0, 0);
    size = magnitude_bits(value);
    put_symbol(&w, ac, run << 4 | size, value, size);
    last = k;
  }
  if (last < 63)
    put_symbol(&w, ac, END_OF_BLOCK, 0, 0);
  *writer = w;
}
