/* Encoding for any CPU of the architecture. */
#if defined(__x86_64__) && !defined(PLAIN_C)
#pragma GCC target("ssse3,popcnt")
#endif
#define ENCODER encoder_portable
#define WIDTH 16
#include "encode_impl.h"
