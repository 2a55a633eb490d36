/* Seeded damage to a blob. */
#ifndef FEEDER_FUZZ_DAMAGE_H
#define FEEDER_FUZZ_DAMAGE_H

#include "blob.h"

typedef struct {
  uint64_t state;
} random_source;

/* splitmix64 */
static inline uint64_t next_random(random_source *random) {
  uint64_t z = random->state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* 0 to below - 1; 0 where `below` is 0. */
static inline size_t pick(random_source *random, size_t below) {
  return below == 0 ? 0 : (size_t)(next_random(random) % below);
}

/* Edits one part of the blob, or all: header, sizes, classes, lengths, tiles. Its size stays.
 * `parts` are those of the blob as it was. */
void damage_blob(random_source *random, unsigned char *blob, size_t bytes, const tiled_blob *parts);

#endif
