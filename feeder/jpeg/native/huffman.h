/* Huffman coding of DCT blocks (T.81 F.1.2), with tables made from symbol counts (T.81 K.2).
 *
 * As in a DHT segment, a table is given as 16 counts, of the codes of 1 to 16 bits, and the symbols
 * in the order of their codes. */
#ifndef FEEDER_HUFFMAN_H
#define FEEDER_HUFFMAN_H

#include "bits.h"

#define DC_SIZE_MAX 11 /* bits of a DC difference */
#define AC_SIZE_MAX 10 /* bits of an AC coefficient */
#define DC_MIN (-1024)
#define DC_MAX 1023
#define END_OF_BLOCK 0x00
/* Most bytes of one block's codes: 16 + 11 bits per coefficient, doubled by byte stuffing. */
#define BLOCK_CODES_BYTES_MAX (2 * 64 * (16 + DC_SIZE_MAX) / 8)

typedef struct {
  long frequency[256]; /* how often each symbol is coded */
  unsigned char counts[16], symbols[256];
  unsigned symbol_count;
  uint16_t code[256]; /* by symbol */
  uint8_t bits[256];  /* of the code; 0 where there is none */
} huffman_table;

/* Makes the table of least total length for its frequencies. No code has only ones. */
void make_best_table(huffman_table *table);

/* Writes a scan's bits, most significant first, to memory that is known to have room for them, with
 * a zero byte after each 0xFF (T.81 F.1.2.3). */
typedef struct {
  unsigned char *out;
  uint64_t pending; /* in the low `count` bits, fewer than 32 between calls; others mean nothing */
  unsigned count;
} scan_writer;

/* Fills up the last byte with ones. */
void finish_scan(scan_writer *w);

/* `block` is in rows; `previous_dc` is that of the component's block before. */
void count_block(const int16_t *block, int previous_dc, huffman_table *dc, huffman_table *ac);
void code_block(scan_writer *w, const int16_t *block, int previous_dc, const huffman_table *dc,
                const huffman_table *ac);

#endif
