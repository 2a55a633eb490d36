/* XXH64, seed 0 (github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), of whole stripes: a
 * sample's content checksum is that of its JPEG header, with zeros up to a whole stripe, and of the
 * coefficients of its blocks in coding order, each block in rows. Equal images have equal ones,
 * whatever their classes and tiles. */
#ifndef FEEDER_CONTENT_HASH_H
#define FEEDER_CONTENT_HASH_H

#include "bits.h"

#define STRIPE_BYTES 32

typedef struct {
  uint64_t lane[4], bytes;
} content_hash;

#define XXH_PRIME_1 0x9E3779B185EBCA87u
#define XXH_PRIME_2 0xC2B2AE3D27D4EB4Fu
#define XXH_PRIME_3 0x165667B19E3779F9u
#define XXH_PRIME_4 0x85EBCA77C2B2AE63u

static inline uint64_t rotate_left(uint64_t value, unsigned by) {
  return value << by | value >> (64 - by);
}

static inline uint64_t hash_round(uint64_t lane, uint64_t word) {
  return rotate_left(lane + word * XXH_PRIME_2, 31) * XXH_PRIME_1;
}

static inline void begin_hash(content_hash *h) {
  *h = (content_hash){{XXH_PRIME_1 + XXH_PRIME_2, XXH_PRIME_2, 0, -XXH_PRIME_1}, 0};
}

static inline void hash_stripes(content_hash *h, const void *data, size_t stripes) {
  const unsigned char *from = data;
  uint64_t word[4];
  for (size_t i = 0; i < stripes; i++, from += STRIPE_BYTES) {
    memcpy(word, from, sizeof word);
    for (int lane = 0; lane < 4; lane++)
      h->lane[lane] = hash_round(h->lane[lane], word[lane]);
  }
  h->bytes += stripes * STRIPE_BYTES;
}

static inline void hash_padded(content_hash *h, const unsigned char *data, size_t bytes) {
  unsigned char last[STRIPE_BYTES] = {0};
  hash_stripes(h, data, bytes / STRIPE_BYTES);
  memcpy(last, data + bytes / STRIPE_BYTES * STRIPE_BYTES, bytes % STRIPE_BYTES);
  if (bytes % STRIPE_BYTES > 0)
    hash_stripes(h, last, 1);
}

static inline uint64_t end_hash(const content_hash *h) {
  uint64_t all = rotate_left(h->lane[0], 1) + rotate_left(h->lane[1], 7) +
                 rotate_left(h->lane[2], 12) + rotate_left(h->lane[3], 18);
  for (int lane = 0; lane < 4; lane++)
    all = (all ^ hash_round(0, h->lane[lane])) * XXH_PRIME_1 + XXH_PRIME_4;
  all += h->bytes;
  all = (all ^ all >> 33) * XXH_PRIME_2;
  all = (all ^ all >> 29) * XXH_PRIME_3;
  return all ^ all >> 32;
}

#endif
