#include "huffman.h"

void make_best_table(unsigned char *counts, unsigned char *symbols, const long *frequencies) {
  enum { SYMBOLS = 257, LONGEST = 64 };
  long weight[SYMBOLS];
  int length[SYMBOLS] = {0}, next[SYMBOLS], bits[LONGEST + 1] = {0};
  memcpy(weight, frequencies, 256 * sizeof weight[0]);
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

  for (int i = 0; i < 16; i++)
    counts[i] = (unsigned char)bits[i + 1];
  for (int wanted = 1; wanted <= LONGEST; wanted++)
    for (int symbol = 0; symbol < 256; symbol++)
      if (length[symbol] == wanted)
        *symbols++ = (unsigned char)symbol;
}

void make_code_table(code_table *codes, const unsigned char *counts, const unsigned char *symbols) {
  memset(codes, 0, sizeof *codes);
  unsigned code = 0;
  for (unsigned bits = 1; bits <= 16; bits++, code <<= 1)
    for (unsigned i = 0; i < counts[bits - 1]; i++, symbols++) {
      codes->code[*symbols] = (uint16_t)code++;
      codes->bits[*symbols] = (uint8_t)bits;
    }
}

int make_code_ranges(code_ranges *ranges, const huffman_spec *spec) {
  uint32_t code = 0, position = 0;
  ranges->symbols = spec->symbols;
  for (unsigned bits = 1; bits <= 16; bits++, code <<= 1) {
    ranges->offset[bits] = (int32_t)position - (int32_t)code;
    code += spec->counts[bits - 1];
    position += spec->counts[bits - 1];
    if (position > spec->symbol_count || code > 1u << bits)
      return 0;
    ranges->end[bits] = code << (16 - bits);
  }
  return 1;
}

int make_decode_table(decode_table *table, const huffman_spec *spec) {
  memset(table->quick, 0, sizeof table->quick);
  memset(table->steps, 0, sizeof table->steps);
  if (!make_code_ranges(&table->ranges, spec))
    return 0;
  const unsigned char *symbols = spec->symbols;
  uint16_t *quick = table->quick, *steps = table->steps;
  for (unsigned bits = 1; bits <= 8; bits++)
    for (unsigned i = 0; i < spec->counts[bits - 1]; i++) {
      unsigned symbol = *symbols++; /* once: the compiler must assume that the table is there */
      for (unsigned fill = 0; fill < 1u << (8 - bits); fill++) {
        *quick++ = (uint16_t)(bits << 8 | symbol);
        *steps++ = (uint16_t)step_of(symbol, bits);
      }
    }
  return 1;
}
