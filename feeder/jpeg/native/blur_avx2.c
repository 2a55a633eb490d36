/* blur with AVX2, but no fused multiply-add, which rounds otherwise. */
#if defined(__x86_64__)
#pragma GCC target("avx2")
#define VECTOR_BYTES 32
#define BLUR blur_avx2
#include "blur_impl.h"
#endif
