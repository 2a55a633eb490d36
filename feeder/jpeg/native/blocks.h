/* Huffman coding of DCT blocks as in T.81 F.1.2: symbols counted, and coded. */
#ifndef FEEDER_BLOCKS_H
#define FEEDER_BLOCKS_H

#include <stdio.h>

#include <jpeglib.h>

#include "huffman.h"

#define BLOCK_BITS_MAX (DCTSIZE2 * 27) /* a code of 16 and a magnitude of 11 bits for each */

/* How often each symbol is coded, by Huffman table; `bad`: a value is out of baseline's range. */
typedef struct {
  long dc[NUM_HUFF_TBLS][256], ac[NUM_HUFF_TBLS][256];
  int bad;
} symbol_counts;

void count_block(const JCOEF *block, int previous_dc, symbol_counts *counts, int dc, int ac);
void code_block(bit_writer *w, const JCOEF *block, int previous_dc, const code_table *dc,
                const code_table *ac);
void code_empty_block(bit_writer *w, const code_table *dc, const code_table *ac);

#endif
