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

/* The `bits` bits (up to 57) from bit `at` on, least significant first. Reads 8 bytes. */
static inline uint64_t get_field(const unsigned char *table, size_t at, unsigned bits) {
  uint64_t word;
  memcpy(&word, table + at / 8, sizeof word);
  return word >> at % 8 & (((uint64_t)1 << bits) - 1);
}

/* Writes such a field into zeroed memory, from the low bits of `value`, and no byte after it. */
static inline void put_field(unsigned char *table, size_t at, uint64_t value, unsigned bits) {
  uint64_t word = 0;
  size_t bytes = (at % 8 + bits + 7) / 8;
  memcpy(&word, table + at / 8, bytes);
  word |= (value & (((uint64_t)1 << bits) - 1)) << at % 8;
  memcpy(table + at / 8, &word, bytes);
}

#endif
