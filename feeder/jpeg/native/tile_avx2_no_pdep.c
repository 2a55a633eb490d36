/* Decoding a tile with AVX2 where pdep takes a hundred cycles (Zen 1 and 2). */
#if defined(__x86_64__)
#pragma GCC target("avx2,bmi,popcnt")
#define DECODER tiles_avx2_no_pdep
#include "tile_rows.h"
#endif
