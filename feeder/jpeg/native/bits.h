/* Bits and big-endian numbers in memory. */
#ifndef FEEDER_BITS_H
#define FEEDER_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bits are loaded and stored in words, and resize.c flips bits in words of four output bytes. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "feeder.jpeg._native is written for little-endian machines"
#endif
_Static_assert(sizeof(size_t) == 8, "a blob's bits are counted in 64 bits, which cannot overflow");

static inline unsigned load_be16(const unsigned char *from) {
  return (unsigned)from[0] << 8 | from[1];
}

static inline void store_be16(unsigned char *to, unsigned value) {
  to[0] = (unsigned char)(value >> 8);
  to[1] = (unsigned char)value;
}

static inline void store_be32(unsigned char *to, uint32_t value) {
  value = __builtin_bswap32(value);
  memcpy(to, &value, sizeof value);
}

/* At least 57 bits from bit `at` on, most significant first, at the top of a word. Reads 8 bytes. */
static inline uint64_t peek_bits(const unsigned char *data, size_t at) {
  uint64_t word;
  memcpy(&word, data + at / 8, sizeof word);
  return __builtin_bswap64(word) << at % 8;
}

/* The `bits` bits (up to 57) from bit `at` on, least significant first. Reads 8 bytes. */
static inline uint64_t get_field(const unsigned char *table, size_t at, unsigned bits) {
  uint64_t word;
  memcpy(&word, table + at / 8, sizeof word);
  return word >> at % 8 & (((uint64_t)1 << bits) - 1);
}

/* Writes such a field into zeroed memory, from the low bits of `value`. Writes 8 bytes. */
static inline void put_field(unsigned char *table, size_t at, uint64_t value, unsigned bits) {
  uint64_t word;
  memcpy(&word, table + at / 8, sizeof word);
  word |= (value & (((uint64_t)1 << bits) - 1)) << at % 8;
  memcpy(table + at / 8, &word, sizeof word);
}

/* A JPEG's scan has a zero byte after each 0xFF (T.81 F.1.2.3) and ones up to a whole byte at its
 * end; a blob's scan has no byte stuffing, and zeros at its end. */
typedef enum { BLOB_SCAN, JPEG_SCAN } scan_form;

/* Writes bits, most significant first, to memory that is known to have room for them. */
typedef struct {
  unsigned char *out;
  uint64_t pending; /* in the low `count` bits; those above are of no meaning */
  unsigned count;   /* between calls under 32, and under 8 for a JPEG's scan */
} bit_writer;

/* Writes the whole bytes that are pending. */
static inline void flush_bytes(bit_writer *w, scan_form form) {
  while (w->count >= 8) {
    w->count -= 8;
    unsigned char byte = (unsigned char)(w->pending >> w->count);
    *w->out++ = byte;
    if (form == JPEG_SCAN && byte == 0xFF)
      *w->out++ = 0;
  }
}

/* Appends up to 32 bits; `value` has no others. */
static inline void put_bits(bit_writer *w, uint64_t value, unsigned bits, scan_form form) {
  w->pending = w->pending << bits | value;
  w->count += bits;
  if (form == JPEG_SCAN) {
    flush_bytes(w, form);
  } else if (w->count >= 32) {
    w->count -= 32;
    store_be32(w->out, (uint32_t)(w->pending >> w->count));
    w->out += 4;
  }
}

/* Fills up the last byte and writes it. */
static inline void finish_bits(bit_writer *w, scan_form form) {
  unsigned spare = -w->count % 8;
  put_bits(w, form == JPEG_SCAN ? (1u << spare) - 1 : 0, spare, form);
  flush_bytes(w, form);
}

#endif
