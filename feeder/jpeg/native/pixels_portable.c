/* The pixel kernels for any CPU of the architecture. */
#pragma GCC optimize("no-tree-slp-vectorize") /* it would take vectors apart to build others */
#define LANES 1
#define KERNELS pixels_portable
#include "pixels_impl.h"
