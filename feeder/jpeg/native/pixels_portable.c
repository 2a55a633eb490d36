/* The pixel kernels for any CPU of the architecture, and the choice of version. */
#pragma GCC optimize("no-tree-slp-vectorize") /* it would take vectors apart to build others */
#define LANES 1
#define VERSION pixels_portable
#define VERSION_NAME "portable"
#include "pixels_impl.h"

int pixel_versions(const pixel_version *const **versions) {
  static const pixel_version *const all_versions[] = {
      &pixels_portable,
#if defined(__x86_64__)
      &pixels_avx2,
      &pixels_avx512,
#endif
  };
  *versions = all_versions;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2"))
    return 1;
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq")
             ? 3
             : 2;
#else
  return 1;
#endif
}
