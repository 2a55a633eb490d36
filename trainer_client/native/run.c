/* The versions, the loop over blocks, and what is left over of them. */
#include "normalise.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const normalise_version all[] = {
    {"portable", gather_portable, NULL},
#if defined(__x86_64__)
    {"avx2", gather_avx2, convert_avx2},
    {"avx512", gather_avx2, convert_avx512},
#endif
};

#if defined(__x86_64__)
/* Older compilers' __builtin_cpu_supports does not know it. That the system saves the registers is
 * part of the answer for AVX2. */
static int has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

int normalise_versions(const normalise_version **versions) {
  *versions = all;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
    return 1;
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? 3 : 2;
#else
  return 1;
#endif
}

void finish_stores(void) {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

size_t size_of_value(value_type type) {
  return type == FLOAT32 ? sizeof(uint32_t) : sizeof(uint16_t);
}

void gather_portable(const normalise_job *job, size_t first, size_t count, unsigned char *to) {
  size_t pixel_step = job->planar ? 1 : (size_t)job->stored;
  size_t channel_step = job->planar ? job->pixels : 1;
  const unsigned char *from = job->from + first * pixel_step;
  for (size_t i = 0; i < count; i++, from += pixel_step) {
    for (int c = 0; c < 3 && c < job->channels; c++)
      *to++ = from[(size_t)c * channel_step];
    if (job->channels == 4)
      *to++ = 0;
  }
}

/* Looks up whole pixels. */
static void look_up(const normalise_job *job, const unsigned char *from, size_t count, void *to) {
  size_t channels = (size_t)job->channels;
  unsigned char flip = job->flip;
  if (job->type == FLOAT32) {
    const uint32_t *table = job->table;
    uint32_t *words = to;
    for (size_t i = 0; i < count; i += channels)
      for (size_t c = 0; c < channels; c++)
        words[i + c] = table[c * LEVELS + (unsigned char)(from[i + c] ^ flip)];
  } else {
    const uint16_t *table = job->table;
    uint16_t *words = to;
    for (size_t i = 0; i < count; i += channels)
      for (size_t c = 0; c < channels; c++)
        words[i + c] = table[c * LEVELS + (unsigned char)(from[i + c] ^ flip)];
  }
}

/* How many pixels come before one that starts a cache line; 0 where none does. */
static size_t pixels_to_line(const unsigned char *out, size_t pixel_bytes) {
  for (size_t count = 0; count < LINE_BYTES; count++)
    if ((uintptr_t)(out + count * pixel_bytes) % LINE_BYTES == 0)
      return count;
  return 0;
}

void normalise_run(const normalise_version *version, const normalise_job *job, void *to) {
  if (version->convert == NULL && job->channels > 1) {
    normalise_portable(job, to);
    return;
  }
  unsigned char gathered[BLOCK_PX * 4 + SLACK_BYTES];
  size_t channels = (size_t)job->channels, width = size_of_value(job->type);
  int is_gathered = job->planar || job->stored != job->channels;
  unsigned char *out = to;
  size_t most = job->streams ? pixels_to_line(out, channels * width) : 0;
  for (size_t first = 0, count; first < job->pixels; first += count, most = 0) {
    if (most == 0)
      most = BLOCK_PX;
    count = job->pixels - first < most ? job->pixels - first : most;
    int streams = job->streams && (uintptr_t)out % LINE_BYTES == 0;
    size_t values = count * channels;
    const unsigned char *from = job->from + first * channels;
    if (is_gathered) {
      version->gather(job, first, count, gathered);
      from = gathered;
    }
    size_t done = 0;
    if (version->convert != NULL)
      done = version->convert(job, from, values, streams, out);
    look_up(job, from + done, values - done, out + done * width);
    out += values * width;
  }
}
