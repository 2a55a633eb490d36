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

#define INLINE static inline __attribute__((always_inline))
#define RARELY(condition) __builtin_expect(!!(condition), 0)

INLINE unsigned count_ones(uint64_t mask) { return (unsigned)__builtin_popcountll(mask); }

/* The bits of a number without leading zeros. */
INLINE unsigned bit_length(unsigned value) {
  return value == 0 ? 0 : 32 - (unsigned)__builtin_clz(value);
}

/* A mask of up to 63 low bits. */
INLINE uint64_t ones(unsigned count) { return ((uint64_t)1 << count) - 1; }

static inline unsigned load_be16(const unsigned char *from) {
  return (unsigned)from[0] << 8 | from[1];
}

static inline void store_be16(unsigned char *to, unsigned value) {
  to[0] = (unsigned char)(value >> 8);
  to[1] = (unsigned char)value;
}

/* At least 57 bits from bit `at` on, least significant first. Reads 8 bytes. */
INLINE uint64_t bits_at(const uint8_t *bits, size_t at) {
  uint64_t word;
  memcpy(&word, bits + at / 8, sizeof word);
  return word >> at % 8;
}

/* The `bits` bits (up to 57) from bit `at` on. */
static inline uint64_t get_field(const unsigned char *table, size_t at, unsigned bits) {
  return bits_at(table, at) & ones(bits);
}

/* Writes such a field into zeroed memory, from the low bits of `value`, and no byte after it. */
static inline void put_field(unsigned char *table, size_t at, uint64_t value, unsigned bits) {
  uint64_t word = 0;
  size_t bytes = (at % 8 + bits + 7) / 8;
  memcpy(&word, table + at / 8, bytes);
  word |= (value & ones(bits)) << at % 8;
  memcpy(table + at / 8, &word, bytes);
}

#endif
