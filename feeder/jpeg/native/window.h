/* A rectangle of MCUs of a blob, decoded to RGBX pixels. */
#ifndef FEEDER_WINDOW_H
#define FEEDER_WINDOW_H

#include "versions.h"
#include "window_plan.h"

/* Decodes at 1/`scale` size (1, 2, 4 or 8) to ceil(height / scale) rows of 4 * ceil(width / scale)
 * bytes. The pixels are those that TurboJPEG makes of the window's JPEG (rebuild.c). */
window_outcome decode_window(const tiled_blob *blob, const tile_window *window, unsigned scale,
                             const decode_version *version, unsigned char *out, size_t stride);

#endif
