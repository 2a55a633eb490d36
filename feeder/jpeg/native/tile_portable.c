/* Decoding a tile on any CPU: on x86 any since 2009, as Pillow-SIMD needs SSE4 anyway. */
#if defined(__x86_64__) && !defined(PLAIN_C)
#pragma GCC target("ssse3,popcnt")
#endif
#define DECODER tiles_portable
#include "tile_rows.h"
