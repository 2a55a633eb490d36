/* Vectors of int16 and the operations on them that the pixel kernels are written in.
 *
 * A file that includes this defines LANES, the number of 128-bit lanes of a vector, and sets the
 * target (GCC's pragma). Nearly all operations work in each lane by itself, as x86's instructions
 * do, so that the same source serves vectors of 128, 256 and 512 bits. Another architecture needs a
 * table of its own beside vector_x86.h; vector_plain.h is correct on any. */
#ifndef FEEDER_VECTOR_H
#define FEEDER_VECTOR_H

#include "bits.h"

#define SHORTS (8 * LANES) /* int16 in a vector */

typedef int16_t shorts __attribute__((vector_size(16 * LANES), may_alias));
typedef uint16_t ushorts __attribute__((vector_size(16 * LANES), may_alias));
typedef int32_t ints __attribute__((vector_size(16 * LANES), may_alias));
typedef uint32_t uints __attribute__((vector_size(16 * LANES), may_alias));

/* A 32-bit value for each int16 of a vector: of the low and of the high four in every lane. */
typedef struct {
  ints low, high;
} wide;

INLINE shorts all(int value) { return (shorts){0} + (int16_t)value; }

/* Sums, differences and products wrap. */
INLINE shorts add(shorts a, shorts b) { return (shorts)((ushorts)a + (ushorts)b); }
INLINE shorts subtract(shorts a, shorts b) { return (shorts)((ushorts)a - (ushorts)b); }
INLINE shorts multiply(shorts a, shorts b) { return (shorts)((ushorts)a * (ushorts)b); }
INLINE shorts shift_right(shorts a, int by) { return (shorts)((ushorts)a >> by); }

INLINE wide add_wide(wide a, wide b) {
  return (wide){(ints)((uints)a.low + (uints)b.low), (ints)((uints)a.high + (uints)b.high)};
}

INLINE wide subtract_wide(wide a, wide b) {
  return (wide){(ints)((uints)a.low - (uints)b.low), (ints)((uints)a.high - (uints)b.high)};
}

INLINE wide all_wide(int32_t value) {
  return (wide){(ints){0} + value, (ints){0} + value};
}

#if defined(__SSE2__) && (LANES > 1 || !defined(PLAIN_C))
#define VECTOR_X86
#include "vector_x86.h"
#else
#include "vector_plain.h"
#endif

#endif
