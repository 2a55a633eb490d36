#include "versions.h"

static const decode_version all[] = {
    {"portable", decode_runs, &pixels_portable},
#if defined(__x86_64__)
    {"avx2", decode_runs_bmi2, &pixels_avx2},
    {"avx512", decode_runs_bmi2, &pixels_avx512},
#endif
};

int decode_versions(const decode_version **versions) {
  *versions = all;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2"))
    return 1;
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq")
             ? 3
             : 2;
#else
  return 1;
#endif
}
