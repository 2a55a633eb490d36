/* Normalising packed pixels: each value of the output is fma(level - 128, scale, bias) in float32,
 * rounded to nearest even where the output is narrower.
 *
 * Pixels go through the CPU's caches in blocks. A block whose layout is not the output's is first
 * gathered into a buffer in the L1 cache; the values of a block are then one run of bytes in the
 * output's order. The scale, the bias and the layout repeat every PERIOD values, for three channels
 * as for four, so one loop converts all layouts. Where the output has a plane for each channel, each
 * plane of an image is a run of its own, of one channel: the image stays in the L2 cache meanwhile.
 *
 * Large outputs are stored past the caches, which they would only sweep: that also saves reading
 * the memory that is overwritten.
 *
 * The versions with vectors look up what is left over of a block in a table of all levels; the
 * portable version looks up everything, without blocks. The table holds what the formula gives, so
 * all versions agree to the bit. */
#ifndef TRAINER_CLIENT_NORMALISE_H
#define TRAINER_CLIENT_NORMALISE_H

#include <stddef.h>
#include <stdint.h>

#define PERIOD 48      /* values; a multiple of 3 and 4 channels, and of each version's vectors */
#define BLOCK_PX 1536  /* a multiple of PERIOD; gathered, 6 KiB */
#define SLACK_BYTES 16 /* which vectors write after a gathered block */
#define LEVELS 256
#define LINE_BYTES 64
#define STREAM_BYTES (16 << 20) /* with the reading of the output afterwards: even at 12 MB on a Xeon,
                                 * 1.5 times as fast at 50 MB, slower at 6 MB, which L2 and L3 hold */

typedef enum { FLOAT32, FLOAT16, BFLOAT16 } value_type;

/* Pixels of one run: of a batch or, where channels come first in memory, of an image, or of an
 * image's plane in the output. */
typedef struct {
  const unsigned char *from;
  size_t pixels;  /* of the run */
  int stored;     /* channels in memory, 3 or 4; for a plane, bytes from a pixel to the next */
  int planar;     /* whether each channel has `pixels` bytes of its own */
  int channels;   /* of the output, 3 or 4; for a plane 1 */
  unsigned char flip; /* what makes a stored byte a level: 0x80 where it is level - 128 */
  value_type type;
  int streams;                 /* whether to store past the caches */
  const void *table;           /* [channels][LEVELS] values of the output's type */
  float scale[PERIOD], bias[PERIOD];
} normalise_job;

/* Writes `count` pixels, from pixel `first` on, to `to` with the output's channels. A fourth
 * channel may be any byte: its scale and bias are 0. */
typedef void gather_pixels(const normalise_job *job, size_t first, size_t count, unsigned char *to);

/* Converts `count` values, or all but the last that are fewer than PERIOD; returns how many. Where
 * `streams`, `to` is at the start of a cache line, and stores may be seen out of order by other
 * threads until finish_stores. */
typedef size_t convert_values(const normalise_job *job, const unsigned char *from, size_t count,
                              int streams, void *to);

extern gather_pixels gather_portable, gather_avx2;
extern convert_values convert_avx2, convert_avx512;
void normalise_portable(const normalise_job *job, void *to);

typedef struct {
  const char *name;
  gather_pixels *gather;
  convert_values *convert; /* NULL for the portable version */
} normalise_version;

/* Those that this CPU can run, slowest first; returns how many. */
int normalise_versions(const normalise_version **versions);

size_t size_of_value(value_type type);
void finish_stores(void);
void normalise_run(const normalise_version *version, const normalise_job *job, void *to);

#endif
