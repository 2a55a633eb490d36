/* Encoding with AVX2 and BMI2. */
#if defined(__x86_64__)
#pragma GCC target("avx2,bmi,bmi2,popcnt")
#define ENCODER encoder_avx2
#define WIDTH 32
#include "encode_impl.h"
#endif
