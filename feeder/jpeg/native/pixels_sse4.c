/* The pixel kernels with SSE4.1. */
#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("sse4.1")
#pragma GCC optimize("no-tree-slp-vectorize")
#define LANES 1
#define VERSION pixels_sse4
#define VERSION_NAME "sse4"
#include "pixels_impl.h"
#endif
