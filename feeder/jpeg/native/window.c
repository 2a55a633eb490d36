#include "window.h"

#include "plane_rows.h"
#include "scratch.h"

window_outcome decode_window(const tiled_blob *blob, const tile_window *window, unsigned scale,
                             const decode_version *version, unsigned char *out, size_t stride) {
  static _Thread_local scratch scratch_memory;
  const unsigned lanes = version->pixels->lanes;
  window_plan plan;
  window_outcome outcome = plan_window(&plan, blob, window, scale, lanes);
  if (outcome != DECODED)
    return outcome;

  tile_reader reader = {.blob = blob, .decoder = version->tiles, .row_bytes = 16 * lanes};
  begin_tiles(&reader, window->first_mcu, window->end_mcu);
  size_t places = places_of(&reader);
  unsigned char *classes =
      take_scratch(&scratch_memory, version->tiles->classes_bytes + plan.row_bytes +
                                        places * sizeof(block_place) + planes_bytes(&plan, lanes));
  if (classes == NULL)
    return OUT_OF_MEMORY;
  unsigned char *coefficients = classes + version->tiles->classes_bytes;
  block_place *place = (void *)(coefficients + plan.row_bytes);
  unsigned char *planes = (void *)(place + places);

  make_places(&plan, &reader, lanes, place);
  load_classes(&reader, classes);
  row_writer writer;
  begin_rows(&writer, &plan, version->pixels, planes, out, stride);
  for (unsigned row = 0; row < plan.rows; row++) {
    if (!read_tiles(&reader, window->first_row + row, coefficients))
      return DAMAGED_BLOB;
    write_mcu_row(&writer, coefficients, row);
  }
  return DECODED;
}
