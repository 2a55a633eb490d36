/* A rectangle of MCUs of a blob, decoded to RGBX pixels. */
#ifndef FEEDER_WINDOW_H
#define FEEDER_WINDOW_H

#include "versions.h"
#include "window_plan.h"

/* Decodes at 1/`scale` size (1, 2, 4 or 8) to ceil(height / scale) rows of 4 * ceil(width / scale)
 * bytes. READ_SLACK_BYTES after the blob must be readable. The pixels are those that TurboJPEG
 * makes of the window's joined JPEG. Its end_mcu may be the end of a tile that is cut off at the
 * image's edge. */
window_outcome decode_window(const segmented *s, const tile_window *window, unsigned scale,
                             const decode_version *version, unsigned char *out, size_t stride);

#endif
