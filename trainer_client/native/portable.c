/* Normalising without vectors: each stored byte is looked up in a table of 64-bit words that has its
 * value where the output has it, so that a pixel takes three loads and one or two stores. */
#include "normalise.h"

#include <string.h>

/* The values of each channel, by stored byte: as they are, and for words whose place is not 0. */
typedef struct {
  uint64_t low[3][LEVELS], high[3][LEVELS];
} word_tables;

static void store_word(unsigned char *to, uint64_t word) { memcpy(to, &word, sizeof word); }

/* Two bytes a value: `high` has each channel at its place in a pixel of four. */
static uint64_t halves(const word_tables *t, const unsigned char *red, const unsigned char *green,
                       const unsigned char *blue) {
  return t->high[0][*red] | t->high[1][*green] | t->high[2][*blue];
}

static void write_halves_4(const word_tables *t, const unsigned char *const rgb[3], size_t step,
                           size_t count, unsigned char *to) {
  const unsigned char *red = rgb[0], *green = rgb[1], *blue = rgb[2];
  for (size_t i = 0; i < count; i++, red += step, green += step, blue += step, to += 8)
    store_word(to, halves(t, red, green, blue));
}

static void write_halves_3(const word_tables *t, const unsigned char *const rgb[3], size_t step,
                           size_t count, unsigned char *to) {
  const unsigned char *red = rgb[0], *green = rgb[1], *blue = rgb[2];
  size_t i = 0;
  for (; i + 4 <= count; i += 4, to += 24) {
    uint64_t pixels[4];
    for (int p = 0; p < 4; p++, red += step, green += step, blue += step)
      pixels[p] = halves(t, red, green, blue);
    store_word(to, pixels[0] | pixels[1] << 48);
    store_word(to + 8, pixels[1] >> 16 | pixels[2] << 32);
    store_word(to + 16, pixels[2] >> 32 | pixels[3] << 16);
  }
  for (; i < count; i++, red += step, green += step, blue += step, to += 6) {
    uint64_t pixel = halves(t, red, green, blue);
    memcpy(to, &pixel, 6);
  }
}

/* Four bytes a value: `high` is in the upper half of a word. */
static void write_floats_4(const word_tables *t, const unsigned char *const rgb[3], size_t step,
                           size_t count, unsigned char *to) {
  const unsigned char *red = rgb[0], *green = rgb[1], *blue = rgb[2];
  for (size_t i = 0; i < count; i++, red += step, green += step, blue += step, to += 16) {
    store_word(to, t->low[0][*red] | t->high[1][*green]);
    store_word(to + 8, t->low[2][*blue]);
  }
}

static void write_floats_3(const word_tables *t, const unsigned char *const rgb[3], size_t step,
                           size_t count, unsigned char *to) {
  const unsigned char *red = rgb[0], *green = rgb[1], *blue = rgb[2];
  size_t i = 0;
  for (; i + 2 <= count; i += 2, red += 2 * step, green += 2 * step, blue += 2 * step, to += 24) {
    store_word(to, t->low[0][*red] | t->high[1][*green]);
    store_word(to + 8, t->low[2][*blue] | t->high[0][red[step]]);
    store_word(to + 16, t->low[1][green[step]] | t->high[2][blue[step]]);
  }
  if (i < count) {
    store_word(to, t->low[0][*red] | t->high[1][*green]);
    memcpy(to + 8, &t->low[2][*blue], 4);
  }
}

void normalise_portable(const normalise_job *job, void *to) {
  word_tables t;
  int is_float = job->type == FLOAT32;
  for (size_t c = 0; c < 3; c++)
    for (size_t stored = 0; stored < LEVELS; stored++) {
      size_t place = c * LEVELS + (unsigned char)(stored ^ job->flip);
      uint64_t value = is_float ? ((const uint32_t *)job->table)[place]
                                : ((const uint16_t *)job->table)[place];
      t.low[c][stored] = value;
      t.high[c][stored] = value << (is_float ? 32 : 16 * c);
    }
  size_t step = job->planar ? 1 : (size_t)job->stored, apart = job->planar ? job->pixels : 1;
  const unsigned char *const rgb[3] = {job->from, job->from + apart, job->from + 2 * apart};
  if (is_float)
    (job->channels == 4 ? write_floats_4 : write_floats_3)(&t, rgb, step, job->pixels, to);
  else
    (job->channels == 4 ? write_halves_4 : write_halves_3)(&t, rgb, step, job->pixels, to);
}
