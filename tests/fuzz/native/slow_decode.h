/* decode_window by a second reader of codes: one symbol at a time, with the tables that join and
 * check use. */
#ifndef FEEDER_FUZZ_SLOW_DECODE_H
#define FEEDER_FUZZ_SLOW_DECODE_H

#include "window.h"

/* As decode_window, with the same kernels; makes s->tables. */
window_outcome decode_slowly(segmented *s, const tile_window *window, unsigned scale,
                             const pixel_kernels *kernels, unsigned char *out, size_t stride);

#endif
