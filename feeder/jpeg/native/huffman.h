/* Huffman coding of DCT blocks as T.81 F.1.2 has it: counting, the best tables, and coding. */
#ifndef FEEDER_HUFFMAN_H
#define FEEDER_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#define DC_CATEGORIES 12 /* of a difference: 0 to 11 bits */
#define AC_BITS_MAX 10
#define BLOCK_BITS_MAX (DCTSIZE2 * 27) /* a code of 16 and a magnitude of 11 bits for each */

/* How often each symbol is coded, by Huffman table; `bad` once a value is out of baseline's range. */
typedef struct {
  long dc[NUM_HUFF_TBLS][256], ac[NUM_HUFF_TBLS][256];
  int bad;
} symbol_counts;

/* A Huffman table the way a coder wants it. */
typedef struct {
  uint16_t code[256];
  uint8_t bits[256];
} code_table;

/* Bits, most significant first, written to memory that is known to have room for them. */
typedef struct {
  unsigned char *out;
  uint64_t pending; /* the low `count` bits, under 32 between calls */
  unsigned count;
} bit_writer;

void count_block(const JCOEF *block, int previous_dc, symbol_counts *counts, int dc, int ac);
void best_table(JHUFF_TBL *table, const long *counts);
void make_code_table(code_table *codes, const JHUFF_TBL *table);
void code_block(bit_writer *writer, const JCOEF *block, int previous_dc, const code_table *dc,
                const code_table *ac);
void code_empty_block(bit_writer *writer, const code_table *dc, const code_table *ac);
/* Writes what is pending, zeros up to a whole byte after it. */
void flush_bits(bit_writer *writer);

#endif
