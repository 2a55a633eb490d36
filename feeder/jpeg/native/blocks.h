/* Huffman coding of DCT blocks as in T.81 F.1.2: symbols counted, and coded. */
#ifndef FEEDER_BLOCKS_H
#define FEEDER_BLOCKS_H

#include <stdio.h>

#include <jpeglib.h>

#include "huffman.h"

#define BLOCK_BITS_MAX (DCTSIZE2 * 27) /* a code of 16 and a magnitude of 11 bits for each */

/* Blocks within these limits decode to the same samples everywhere: at any scale, in libjpeg-turbo
 * with and without vectors, and here. No IDCT overflows, saturates or wraps before it clamps, so all
 * round the same exact sums. For coefficients are taken times their quantisers, and the DCT is
 * orthonormal:
 *
 * - NORM_MAX is of a block, the square root of its squares' sum. A pass of the IDCT multiplies by
 *   sqrt(8), the first by 4 more: its results are at most 4 * sqrt(8) * 2045 = 23137, and sums of
 *   two of them, which vectors add as int16, sqrt(2) * sqrt(128) * 2045 = 32720, roundings apart.
 *   Sums of 32 bits stay below 2^30. Reduced sizes are means of these samples, with smaller sums.
 * - SAMPLE_MAX is of the samples before they are clamped, less 128: beyond -512..511 libjpeg-turbo
 *   without vectors wraps (RANGE_MASK). The fixed-point constants are good to 1.5.
 *
 * An encoder's block has a norm of at most 8 * 128 = 1024 before rounding, which adds at most half
 * of each quantiser: 8 * 127.5 with those of 8 bits. */
#define NORM_MAX 2045
#define SAMPLE_MAX 509

/* How often each symbol is coded, by Huffman table; `bad`: a coefficient is out of baseline's range,
 * or a block beyond the limits above. */
typedef struct {
  long dc[NUM_HUFF_TBLS][256], ac[NUM_HUFF_TBLS][256];
  int bad;
} symbol_counts;

/* `quant` is in the order of the block. */
void count_block(const JCOEF *block, const UINT16 *quant, int previous_dc, symbol_counts *counts,
                 int dc, int ac);
void code_block(bit_writer *w, const JCOEF *block, int previous_dc, const code_table *dc,
                const code_table *ac);
void code_empty_block(bit_writer *w, const code_table *dc, const code_table *ac);

#endif
