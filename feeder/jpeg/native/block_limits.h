/* Which blocks all decoders decode to the same samples. */
#ifndef FEEDER_BLOCK_LIMITS_H
#define FEEDER_BLOCK_LIMITS_H

#include <stdint.h>

/* Blocks within these limits decode to the same samples everywhere: at any scale, in libjpeg-turbo
 * with and without vectors, and here. No IDCT overflows, saturates or wraps before it clamps, so
 * all round the same exact sums. For coefficients are taken times their quantisers, and the DCT is
 * orthonormal:
 *
 * - NORM_MAX is of a block, the square root of its squares' sum. A pass of the IDCT multiplies by
 *   sqrt(8), the first by 4 more: its results are at most 4 * sqrt(8) * 2045 = 23137, and sums of
 *   two of them, which vectors add as int16, sqrt(2) * sqrt(128) * 2045 = 32720, roundings apart.
 *   Sums of 32 bits stay below 2^30. Reduced sizes are means of these samples, with smaller sums.
 * - SAMPLE_MAX is of the samples before they are clamped, less 128: beyond -512..511 libjpeg-turbo
 *   without vectors wraps (RANGE_MASK). The fixed-point constants are good to 1.5.
 *
 * An encoder's block has a norm of at most 8 * 128 = 1024 before rounding, which adds at most half
 * of each quantiser: 8 * 127.5 with those of 8 bits. */
#define NORM_MAX 2045
#define SAMPLE_MAX 509

/* Whether a block is within the limits, and its coefficients within baseline's range: DC_MIN to
 * DC_MAX, and AC_SIZE_MAX bits. `block` and `quant` are in rows. */
int block_fits(const int16_t *block, const uint16_t *quant);

#endif
