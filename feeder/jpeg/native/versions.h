/* The versions of decoding, by what CPUs have. All give the same bytes. */
#ifndef FEEDER_VERSIONS_H
#define FEEDER_VERSIONS_H

#include "entropy.h"
#include "pixels.h"

typedef struct {
  const char *name;
  runs_decoder *decode_runs;
  const pixel_kernels *pixels;
} decode_version;

/* Those that this CPU runs, slowest first; their number is returned. */
int decode_versions(const decode_version **versions);

#endif
