#include "window_plan.h"

#define SIDE(size) (8u >> (size))
/* A block that is skipped is decoded to memory of its own: as far as a block of a group reaches. */
#define SPARE_BYTES (BLOCK_BYTES * LANES_MAX)

const uint8_t NATURAL_ORDER[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

static unsigned divide_up(unsigned a, unsigned b) { return (a + b - 1) / b; }

/* The pixels of MCUs first to end, clipped to the image. */
static unsigned pixels_of(unsigned first, unsigned end, unsigned mcu_pixels, unsigned image) {
  unsigned right = end * mcu_pixels;
  return (right < image ? right : image) - first * mcu_pixels;
}

/* Whether the image has the blob's tiles, and the window's MCUs and pixels. */
static int window_fits(const segmented *s, const tile_window *w) {
  unsigned across = 1, down = 1;
  for (int c = 0; c < s->header.components; c++) {
    unsigned blocks_across = (unsigned)s->header.blocks_across[c];
    unsigned blocks_down = (unsigned)s->header.blocks_down[c];
    across = blocks_across > across ? blocks_across : across;
    down = blocks_down > down ? blocks_down : down;
  }
  unsigned width = s->header.width, height = s->header.height;
  return width >= 1 && height >= 1 && s->columns == divide_up(s->mcus, s->tile_mcus) &&
         s->rows == divide_up(height, 8 * down) && w->first_mcu < w->end_mcu &&
         w->end_mcu <= s->mcus && w->first_row < w->end_row && w->end_row <= s->rows &&
         w->width == pixels_of(w->first_mcu, w->end_mcu, 8 * across, width) &&
         w->height == pixels_of(w->first_row, w->end_row, 8 * down, height);
}

/* Chooses the size of each component's IDCT as libjpeg does (jdmaster.c): where output is reduced,
 * chroma may be reduced less, which spares upsampling it. */
static void choose_sizes(window_plan *p, unsigned scale) {
  const component_plan *luma = &p->component[0];
  unsigned least = 8 / scale;
  for (int c = 0; c < p->components; c++) {
    component_plan *own = &p->component[c];
    unsigned side = least;
    while (side < 8 && luma->across * least % (own->across * side * 2) == 0 &&
           luma->down * least % (own->down * side * 2) == 0)
      side *= 2;
    own->size = (unsigned)__builtin_ctz(8 / side);
  }
}

static int read_quant(component_plan *own, const unsigned char *values, int bytes) {
  if (values == NULL)
    return 0;
  for (int k = 0; k < 64; k++, values += bytes)
    own->quant[NATURAL_ORDER[k]] = (int16_t)(bytes == 1 ? *values : load_be16(values));
  return 1;
}

window_outcome plan_window(window_plan *p, const segmented *s, const tile_window *window,
                           unsigned scale, unsigned lanes) {
  const jpeg_header *header = &s->header;
  p->components = header->components;
  for (int c = 0; c < p->components; c++) {
    component_plan *own = &p->component[c];
    own->across = (unsigned)header->blocks_across[c];
    own->down = (unsigned)header->blocks_down[c];
    if (own->across > (c == 0 ? 2 : 1) || own->down > own->across ||
        !read_quant(own, header->quant[c], header->quant_bytes[c]))
      return UNSUPPORTED;
  }
  if (!header->is_ycc)
    return UNSUPPORTED;
  if (!window_fits(s, window))
    return DAMAGED_BLOB;
  choose_sizes(p, scale);
  const component_plan *luma = &p->component[0], *chroma = &p->component[p->components - 1];
  unsigned across = luma->across * SIDE(luma->size) / (chroma->across * SIDE(chroma->size));
  unsigned down = luma->down * SIDE(luma->size) / (chroma->down * SIDE(chroma->size));
  p->upsampling = across == 1 ? SAME_SIZE : down == 1 ? H2V1 : H2V2;
  p->width = (window->width + scale - 1) / scale;
  p->height = (window->height + scale - 1) / scale;
  /* Chroma of one or two samples a row, and at 1/8 size, is repeated as it is (jdsample.c). */
  if (p->upsampling != SAME_SIZE && ((p->width + 1) / 2 <= 2 || scale == 8))
    return UNSUPPORTED;

  p->rows = window->end_row - window->first_row;
  p->mcus = window->end_mcu - window->first_mcu;
  p->skipped = window->first_mcu % s->tile_mcus;
  p->row_bytes = 0;
  for (int c = 0; c < p->components; c++) {
    component_plan *own = &p->component[c];
    own->groups = (p->mcus * own->across + lanes - 1) / lanes;
    for (unsigned row = 0; row < own->down; row++) {
      own->offset[row] = p->row_bytes;
      p->row_bytes += (size_t)own->groups * lanes * BLOCK_BYTES;
    }
  }
  p->spare_offset = p->row_bytes;
  p->row_bytes += SPARE_BYTES;
  return DECODED;
}

size_t count_places(const window_plan *p) {
  size_t blocks = 0;
  for (int c = 0; c < p->components; c++)
    blocks += p->component[c].across * p->component[c].down;
  return blocks * (p->skipped + p->mcus);
}

void make_places(const window_plan *p, const entropy_table *const *table_of, unsigned lanes,
                 block_place *places) {
  for (unsigned mcu = 0; mcu < p->skipped + p->mcus; mcu++)
    for (int c = 0; c < p->components; c++) {
      const component_plan *own = &p->component[c];
      for (unsigned down = 0; down < own->down; down++)
        for (unsigned across = 0; across < own->across; across++) {
          size_t offset = p->spare_offset;
          if (mcu >= p->skipped) {
            unsigned block = (mcu - p->skipped) * own->across + across;
            offset = own->offset[down] + (size_t)(block / lanes) * lanes * BLOCK_BYTES +
                     block % lanes * 16;
          }
          *places++ = (block_place){table_of[c], (uint32_t)offset, (uint32_t)c};
        }
    }
}

/* Reads the codes' end after the tiles [first, last] of a row, from `run->at` on. */
static int end_run(mcu_run *run, const segmented *s, size_t row, size_t first, size_t last) {
  run->end = run->at;
  for (size_t column = first; column <= last; column++)
    run->end += length_of(s, row * s->columns + column);
  memset(run->dc_after, 0, sizeof run->dc_after);
  prediction_after(s, row * s->columns + last, run->dc_after);
  return run->end <= s->scan_bits;
}

unsigned make_runs(const window_plan *p, const segmented *s, const tile_window *window,
                   const block_place *places, mcu_run *runs, unsigned *runs_left) {
  size_t first = window->first_mcu / s->tile_mcus, whole = window->end_mcu / s->tile_mcus;
  size_t at = 0, places_in_mcu = count_places(p) / (p->skipped + p->mcus);
  const block_place *end = places + count_places(p);
  const block_place *edge = places + (whole - first) * s->tile_mcus * places_in_mcu;
  if (window->end_mcu == s->mcus) { /* the last tile is whole even where it is narrower */
    whole = s->columns;
    edge = end;
  }
  mcu_run *run = runs;
  for (size_t segment = 0; segment < window->first_row * s->columns; segment++)
    at += length_of(s, segment);
  for (unsigned row = 0; row < p->rows; row++) {
    size_t of = window->first_row + row, column = 0;
    for (; column < first; column++)
      at += length_of(s, of * s->columns + column);
    mcu_run here = {.at = at, .row = row, .first = places, .last = edge, .to_edge = 1};
    if (first > 0)
      prediction_after(s, of * s->columns + first - 1, here.dc);
    runs_left[row] = 0;
    if (whole > first) {
      if (!end_run(&here, s, of, first, whole - 1))
        return 0;
      *run++ = here;
      runs_left[row]++;
      here.at = here.end;
      memcpy(here.dc, here.dc_after, sizeof here.dc);
    }
    if (edge < end) {
      here.first = edge;
      here.last = end;
      here.to_edge = 0;
      if (!end_run(&here, s, of, whole, whole))
        return 0;
      *run++ = here;
      runs_left[row]++;
    }
    for (; column < s->columns; column++)
      at += length_of(s, of * s->columns + column);
  }
  return (unsigned)(run - runs);
}
