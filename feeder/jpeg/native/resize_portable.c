/* The passes of resize_pack for any CPU of the architecture. */
#pragma GCC optimize("no-tree-slp-vectorize") /* it would take vectors apart to build others */
#define LANES 1
#define ACROSS across_portable
#define DOWN down_portable
#include "resize_impl.h"
