/* The versions of decoding, and of encoding, by what CPUs have. All give the same bytes. */
#ifndef FEEDER_VERSIONS_H
#define FEEDER_VERSIONS_H

#include "encode.h"
#include "pixels.h"

typedef struct {
  const char *name;
  const tile_decoder *tiles;
  const pixel_kernels *pixels;
  const tile_encoder *encoder;
} decode_version;

#define DECODE_VERSIONS_MAX 5

/* Puts those that a CPU of this maker and family runs, of those that this one has the instructions
 * for, to `versions`, slowest first; returns their number. */
int list_versions(const decode_version **versions, const char *vendor, unsigned family);

/* The same for this CPU. */
int own_versions(const decode_version *const **versions);

/* The one of this name, NULL if this CPU has none; the fastest if `name` is NULL. */
const decode_version *find_version(const char *name);

#endif
