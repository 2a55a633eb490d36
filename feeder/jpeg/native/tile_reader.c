#include "tile_reader.h"

void begin_tiles(tile_reader *r, unsigned first_mcu, unsigned end_mcu) {
  r->first_column = first_mcu / r->blob->tile_mcus;
  r->skipped = first_mcu % r->blob->tile_mcus;
  r->mcus = r->skipped + end_mcu - first_mcu;
  r->tile = r->at = 0;
}

size_t places_of(const tile_reader *r) {
  return (size_t)r->blob->mcu_blocks * (r->mcus + r->blob->tile_mcus);
}

void load_classes(tile_reader *r, void *classes) {
  r->classes = classes;
  for (unsigned i = 0; i < r->blob->classes; i++)
    r->decoder->make_class(classes, i, &r->blob->class[i]);
}

/* Reads the DC before a tile, which begins at bit `at`; returns the bits that it takes. */
static unsigned take_dc(const tiled_blob *blob, size_t at, int *dc) {
  unsigned taken = 0;
  for (int c = 0; c < blob->header.components; taken += blob->dc_bits[c++]) {
    unsigned bits = blob->dc_bits[c];
    int64_t field = (int64_t)(get_field(blob->tiles, at + taken, bits) << 1 << (63 - bits));
    dc[c] = (int)(field >> 1 >> (63 - bits));
  }
  return taken;
}

int read_tiles(tile_reader *r, unsigned row, unsigned char *coefficients) {
  const tiled_blob *blob = r->blob;
  for (size_t first = (size_t)row * blob->columns + r->first_column; r->tile < first; r->tile++)
    r->at += tile_bytes(blob, r->tile);
  int previous_dc[COMPONENTS_MAX] = {0};
  unsigned column = r->first_column;
  for (unsigned done = 0; done < r->mcus; done += blob->tile_mcus, column++, r->tile++) {
    unsigned mcus = mcus_of(blob, column), left = r->mcus - done;
    size_t end = r->at + tile_bytes(blob, r->tile);
    if (end > blob->tiles_bytes)
      return 0;
    int dc[COMPONENTS_MAX] = {0};
    tile_span t = {.at_bit = 8 * r->at + take_dc(blob, 8 * r->at, dc), .end_byte = end,
                   .blocks = mcus * blob->mcu_blocks,
                   .wanted = (left < mcus ? left : mcus) * blob->mcu_blocks,
                   .place = r->place + (size_t)done * blob->mcu_blocks};
    if ((column == 0 || done > 0) && memcmp(dc, previous_dc, sizeof dc) != 0)
      return 0;
    if (!r->decoder->decode_tile(r->classes, blob->tiles, &t, r->row_bytes, coefficients, dc))
      return 0;
    memcpy(previous_dc, dc, sizeof previous_dc);
    r->at = end;
  }
  return 1;
}
