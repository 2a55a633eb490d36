/* The pixel kernels in plain C, and the choice of version. */
#define PORTABLE
#define LANES 1
#define VERSION pixels_portable
#define VERSION_NAME "portable"
#include "pixels_impl.h"

int pixel_versions(const pixel_version *const **versions) {
#if defined(__x86_64__)
  static const pixel_version *const all_versions[] = {&pixels_portable, &pixels_sse4, &pixels_avx2,
                                                      &pixels_avx512};
  *versions = all_versions;
  if (!__builtin_cpu_supports("sse4.1"))
    return 1;
  if (!__builtin_cpu_supports("avx2"))
    return 2;
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq")
             ? 4
             : 3;
#else
  static const pixel_version *const all_versions[] = {&pixels_portable};
  *versions = all_versions;
  return 1;
#endif
}
