/* The passes of resize_pack with AVX2. */
#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx2")
#pragma GCC optimize("no-tree-slp-vectorize") /* it would take vectors apart to build others */
#define LANES 2
#define ACROSS across_avx2
#define DOWN down_avx2
#include "resize_impl.h"
#endif
