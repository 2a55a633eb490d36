#include "slow_decode.h"

#include <stdlib.h>

#include "plane_rows.h"

/* Where the codes are, and the row's coefficients. */
typedef struct {
  const segmented *s;
  const window_plan *plan;
  unsigned lanes;
  size_t at, end; /* in bits; no code may go past the end */
  int dc[COMPONENTS_MAX];
  unsigned char *coefficients;
} row_reader;

/* The address of a coefficient, by its number in rows; see pixels.h. */
static unsigned char *place_of(const row_reader *r, int c, unsigned down, unsigned block,
                               unsigned number) {
  unsigned group = block / r->lanes, lane = block % r->lanes;
  return r->coefficients + r->plan->component[c].offset[down] +
         (size_t)group * r->lanes * BLOCK_BYTES + 16 * (r->lanes * (number / 8) + lane) +
         2 * (number % 8);
}

static void put(const row_reader *r, int c, unsigned down, long block, unsigned number, int value) {
  uint16_t low = (uint16_t)value;
  if (block >= 0)
    memcpy(place_of(r, c, down, (unsigned)block, number), &low, sizeof low);
}

/* Reads a block; its number in the window's row is negative where it is skipped. */
static int read_block(row_reader *r, int c, unsigned down, long block) {
  int difference;
  if (!read_difference(r->s, c, &r->at, r->end, &difference))
    return 0;
  r->dc[c] += difference;
  put(r, c, down, block, 0, r->dc[c]);
  for (unsigned k = 0; k < 63;) {
    if (r->at > r->end)
      return 0;
    uint64_t bits = peek_bits(r->s->scan, r->at);
    unsigned length, symbol = symbol_at(&r->s->tables.ac[c], bits, &length), size = symbol & 15;
    if (length == 0)
      return 0;
    r->at += length + size;
    if (size == 0 && symbol != 0xF0)
      break;
    k += (symbol >> 4) + 1;
    if (k > 63)
      return 0;
    int value = size == 0 ? 0 : (int)(bits << length >> (64 - size));
    if (size > 0 && value >> (size - 1) == 0)
      value -= (1 << size) - 1;
    put(r, c, down, block, NATURAL_ORDER[k], value);
  }
  return r->at <= r->end;
}

/* Reads the MCUs [first, end) of the image's row, which begins with MCU `shown` in the window. */
static int read_mcus(row_reader *r, unsigned first, unsigned end, unsigned shown) {
  for (unsigned mcu = first; mcu < end; mcu++)
    for (int c = 0; c < r->plan->components; c++) {
      const component_plan *own = &r->plan->component[c];
      for (unsigned down = 0; down < own->down; down++)
        for (unsigned across = 0; across < own->across; across++)
          if (!read_block(r, c, down, ((long)mcu - shown) * (long)own->across + across))
            return 0;
    }
  return 1;
}

/* Reads a row of the window. `first` is the number of its first segment. */
static int read_row(row_reader *r, const tile_window *w, size_t first, size_t at) {
  const segmented *s = r->s;
  size_t begin = w->first_mcu / s->tile_mcus, whole = w->end_mcu / s->tile_mcus;
  unsigned edge = (unsigned)whole * s->tile_mcus;
  int after[COMPONENTS_MAX] = {0};
  if (w->end_mcu == s->mcus) {
    whole = s->columns;
    edge = s->mcus;
  }
  memset(r->dc, 0, sizeof r->dc);
  for (size_t column = 0; column < begin; column++)
    at += length_of(s, first + column);
  if (begin > 0)
    prediction_after(s, first + begin - 1, r->dc);
  r->at = r->end = at;
  for (size_t column = begin; column < whole; column++)
    r->end += length_of(s, first + column);
  if (whole > begin) {
    prediction_after(s, first + whole - 1, after);
    if (r->end > s->scan_bits ||
        !read_mcus(r, (unsigned)begin * s->tile_mcus, edge, w->first_mcu) || r->at != r->end ||
        memcmp(r->dc, after, sizeof after) != 0)
      return 0;
  }
  if (edge == w->end_mcu)
    return 1;
  r->end += length_of(s, first + whole);
  return r->end <= s->scan_bits && read_mcus(r, edge, w->end_mcu, w->first_mcu);
}

window_outcome decode_slowly(segmented *s, const tile_window *window, unsigned scale,
                             const pixel_kernels *kernels, unsigned char *out, size_t stride) {
  tile_window w = *window;
  if (w.end_mcu > s->mcus && w.end_mcu <= s->columns * s->tile_mcus)
    w.end_mcu = s->mcus;
  window_plan plan;
  window_outcome outcome = plan_window(&plan, s, &w, scale, kernels->lanes);
  if (outcome != DECODED)
    return outcome;
  if (!make_scan_tables(s))
    return DAMAGED_BLOB;
  unsigned char *planes = calloc(1, planes_bytes(&plan, kernels->lanes) + 1), *row = NULL;
  if (planes == NULL || posix_memalign((void **)&row, 64, plan.row_bytes) != 0)
    return OUT_OF_MEMORY;
  row_reader reader = {.s = s, .plan = &plan, .lanes = kernels->lanes, .coefficients = row};
  row_writer writer;
  begin_rows(&writer, &plan, kernels, planes, out, stride);
  size_t at = 0, segment = 0;
  for (; segment < w.first_row * s->columns; segment++)
    at += length_of(s, segment);
  for (unsigned y = 0; y < plan.rows && outcome == DECODED; y++) {
    memset(row, 0, plan.row_bytes);
    if (read_row(&reader, &w, segment, at))
      write_mcu_row(&writer, row, y);
    else
      outcome = DAMAGED_BLOB;
    for (size_t next = segment + s->columns; segment < next; segment++)
      at += length_of(s, segment);
  }
  free(planes);
  free(row);
  return outcome;
}
