#include "versions.h"

#include <string.h>

static const decode_version portable = {"portable", &tiles_portable, &pixels_portable,
                                        &encoder_portable};
static const decode_version *own[DECODE_VERSIONS_MAX];
static int own_count;

#if defined(__x86_64__)
#include <cpuid.h>

/* Zen 1 and 2 run pdep and pext in microcode; so do Hygon's, which are Zen 1. */
static int runs_fast_pdep(const char *vendor, unsigned family) {
  if (!__builtin_cpu_supports("bmi2"))
    return 0;
  if (strcmp(vendor, "AuthenticAMD") == 0)
    return family >= 0x19;
  return strcmp(vendor, "HygonGenuine") != 0 || family > 0x18;
}

int list_versions(const decode_version **versions, const char *vendor, unsigned family) {
  static const decode_version
      no_pdep = {"avx2-no-pdep", &tiles_avx2_no_pdep, &pixels_avx2, &encoder_portable},
      avx2 = {"avx2", &tiles_avx2, &pixels_avx2, &encoder_avx2},
      avx512 = {"avx512", &tiles_avx512, &pixels_avx512, &encoder_avx2},
      vbmi = {"avx512vbmi", &tiles_avx512vbmi, &pixels_avx512, &encoder_avx2};
  int count = 0;
  versions[count++] = &portable;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("popcnt"))
    return count;
  versions[count++] = &no_pdep;
  if (!runs_fast_pdep(vendor, family))
    return count;
  versions[count++] = &avx2;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq"))
    return count;
  versions[count++] = &avx512;
  if (__builtin_cpu_supports("avx512vbmi"))
    versions[count++] = &vbmi;
  return count;
}

/* Once, when the module is loaded: on a virtual machine, CPUID takes microseconds. */
static __attribute__((constructor)) void find_own(void) {
  char vendor[13] = {0};
  unsigned family = 0, eax, ebx, ecx, edx;
  __builtin_cpu_init();
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) {
    const unsigned parts[] = {ebx, edx, ecx};
    memcpy(vendor, parts, sizeof parts);
  }
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
    family = (eax >> 8 & 15) + ((eax >> 8 & 15) == 15 ? eax >> 20 & 255 : 0);
  own_count = list_versions(own, vendor, family);
}
#else
int list_versions(const decode_version **versions, const char *vendor, unsigned family) {
  (void)vendor;
  (void)family;
  versions[0] = &portable;
  return 1;
}

static __attribute__((constructor)) void find_own(void) { own_count = list_versions(own, "", 0); }
#endif

int own_versions(const decode_version *const **versions) {
  *versions = own;
  return own_count;
}

const decode_version *find_version(const char *name) {
  if (name == NULL)
    return own[own_count - 1];
  for (int v = 0; v < own_count; v++)
    if (strcmp(own[v]->name, name) == 0)
      return own[v];
  return NULL;
}
