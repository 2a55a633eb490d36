/* The pixel kernels with AVX-512. */
#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#pragma GCC optimize("no-tree-slp-vectorize") /* it would take vectors apart to build others */
#define LANES 4
#define KERNELS pixels_avx512
#include "pixels_impl.h"
#endif
