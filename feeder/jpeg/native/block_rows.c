#include "block_rows.h"

#include <stdlib.h>

#include "huffman.h"
#include "versions.h"

#define BLOCK_BYTES_IN_ROWS (64 * sizeof(int16_t))

window_outcome open_block_rows(block_rows *r, const unsigned char *data, size_t bytes) {
  r->data = calloc(1, bytes + READ_SLACK_BYTES);
  if (r->data == NULL)
    return OUT_OF_MEMORY;
  memcpy(r->data, data, bytes);
  return open_blob(&r->blob, r->data, bytes) ? DECODED : DAMAGED_BLOB;
}

window_outcome begin_block_rows(block_rows *r, unsigned first, unsigned end) {
  const tiled_blob *blob = &r->blob;
  const tile_decoder *decoder = find_version(NULL)->tiles;
  r->reader = (tile_reader){.blob = blob, .decoder = decoder, .row_bytes = 16};
  begin_tiles(&r->reader, first, end);
  size_t decoded_blocks = (size_t)r->reader.mcus * blob->mcu_blocks;
  size_t places = places_of(&r->reader);
  size_t bytes = decoder->classes_bytes + decoded_blocks * BLOCK_BYTES_IN_ROWS +
                 places * sizeof(block_place);
  r->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (r->memory == NULL)
    return OUT_OF_MEMORY;
  load_classes(&r->reader, r->memory);
  unsigned char *blocks = r->memory + decoder->classes_bytes;
  block_place *place = (void *)(blocks + decoded_blocks * BLOCK_BYTES_IN_ROWS);
  size_t skipped = (size_t)r->reader.skipped * blob->mcu_blocks;
  r->count = decoded_blocks - skipped;
  r->block = (const int16_t(*)[64])(void *)blocks + skipped;
  r->place = place + skipped;
  r->reader.place = place;
  uint32_t offset = 0;
  for (size_t i = 0; i < places;)
    for (int c = 0; c < blob->header.components; c++)
      for (unsigned b = 0; b < blob->header.blocks_across[c] * blob->header.blocks_down[c]; b++) {
        place[i++] = (block_place){offset, (uint16_t)c, c == 0 ? 0 : CLASSES};
        offset += BLOCK_BYTES_IN_ROWS;
      }
  return DECODED;
}

/* Whether baseline JPEG has codes for all of the row's coefficients. */
static int fits_baseline(const block_rows *r) {
  int outside = 0;
  for (size_t i = 0; i < r->count; i++) {
    outside |= r->block[i][0] < DC_MIN || r->block[i][0] > DC_MAX;
    for (int k = 1; k < 64; k++)
      outside |= abs(r->block[i][k]) >> AC_SIZE_MAX;
  }
  return outside == 0;
}

int read_block_row(block_rows *r, unsigned row) {
  unsigned char *blocks = r->memory + r->reader.decoder->classes_bytes;
  return read_tiles(&r->reader, row, blocks) && fits_baseline(r);
}

void close_block_rows(block_rows *r) {
  free(r->data);
  free(r->memory);
}
