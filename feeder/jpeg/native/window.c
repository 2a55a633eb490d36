#include "window.h"

#include "plane_rows.h"
#include "scratch.h"

/* Rows of MCUs that have coefficients at a time. While streams decode the next rows, the first may
 * be the slowest; so more than STREAMS, but few enough for the CPU's second cache. */
#define RING_ROWS 8

/* Makes a table for each pair of specifications; `table_of` has each component's. */
static int make_tables(entropy_table *tables, const entropy_table **table_of,
                       const jpeg_header *header) {
  for (int c = 0; c < header->components; c++) {
    int same = 0;
    while (same < c && (header->ac[same].counts != header->ac[c].counts ||
                        header->dc[same].counts != header->dc[c].counts))
      same++;
    table_of[c] = same < c ? table_of[same] : &tables[c];
    if (same == c && !make_entropy_table(&tables[c], &header->dc[c], &header->ac[c]))
      return 0;
  }
  return 1;
}

/* Decodes and writes the rows of MCUs; `ring` has room for `slots` of them. */
static int decode_rows(const decode_version *version, entropy_job *job, row_writer *writer,
                       mcu_run *runs, unsigned run_count, unsigned char *ring, unsigned slots) {
  const window_plan *plan = writer->plan;
  unsigned begun = 0, written = 0;
  while (written < plan->rows) {
    while (begun < run_count && runs[begun].row < written + slots) {
      runs[begun].coefficients = ring + runs[begun].row % slots * plan->row_bytes;
      begun++;
    }
    job->runs_ready = begun;
    if (!version->decode_runs(job))
      return 0;
    for (; written < plan->rows && job->runs_left[written] == 0; written++) {
      unsigned char *coefficients = ring + written % slots * plan->row_bytes;
      write_mcu_row(writer, coefficients, written);
      if (plan->skipped > 0)
        memset(coefficients + plan->spare_offset, 0, plan->row_bytes - plan->spare_offset);
    }
  }
  return 1;
}

window_outcome decode_window(const segmented *s, const tile_window *of_tiles, unsigned scale,
                             const decode_version *version, unsigned char *out, size_t stride) {
  static _Thread_local scratch ring_memory, plan_memory;
  const unsigned lanes = version->pixels->lanes;
  tile_window window = *of_tiles;
  if (window.end_mcu > s->mcus && window.end_mcu <= s->columns * s->tile_mcus)
    window.end_mcu = s->mcus;
  window_plan plan;
  window_outcome outcome = plan_window(&plan, s, &window, scale, lanes);
  if (outcome != DECODED)
    return outcome;

  size_t tables_bytes = COMPONENTS_MAX * sizeof(entropy_table), places = count_places(&plan);
  size_t runs = RUNS_OF_A_ROW * (size_t)plan.rows;
  unsigned slots = plan.rows < RING_ROWS ? plan.rows : RING_ROWS;
  unsigned char *ring = take_zeros(&ring_memory, slots * plan.row_bytes);
  unsigned char *memory = take_scratch(
      &plan_memory, tables_bytes + runs * sizeof(mcu_run) + places * sizeof(block_place) +
                        plan.rows * sizeof(unsigned) + planes_bytes(&plan, lanes));
  if (memory == NULL || ring == NULL)
    return OUT_OF_MEMORY;
  entropy_table *tables = (void *)memory;
  mcu_run *run = (void *)(memory + tables_bytes);
  block_place *place = (void *)(run + runs);
  unsigned *runs_left = (void *)(place + places);
  unsigned char *planes = (void *)(runs_left + plan.rows);

  const entropy_table *table_of[COMPONENTS_MAX];
  if (!make_tables(tables, table_of, &s->header))
    return DAMAGED_BLOB;
  make_places(&plan, table_of, lanes, place);
  unsigned run_count = make_runs(&plan, s, &window, place, run, runs_left);
  if (run_count == 0)
    return DAMAGED_BLOB;
  entropy_job job = {.scan = s->scan, .scan_end = s->scan + s->scan_bits / 8, .runs = run,
                     .runs_left = runs_left};
  for (int k = 0; k < 64; k++)
    job.order[k] = (uint16_t)(NATURAL_ORDER[k] / 8 * 16u * lanes + NATURAL_ORDER[k] % 8 * 2u);
  row_writer writer;
  begin_rows(&writer, &plan, version->pixels, planes, out, stride);
  if (!decode_rows(version, &job, &writer, run, run_count, ring, slots)) {
    memset(ring, 0, slots * plan.row_bytes);
    return DAMAGED_BLOB;
  }
  return DECODED;
}
