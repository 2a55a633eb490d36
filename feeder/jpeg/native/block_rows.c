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
  unsigned skipped = first % blob->tile_mcus, mcus = skipped + end - first;
  size_t read = (size_t)mcus * blob->blocks;
  size_t places = read + (size_t)blob->tile_mcus * blob->blocks;
  size_t bytes = decoder->classes_bytes + read * BLOCK_BYTES_IN_ROWS + places * sizeof(block_place);
  free(r->memory);
  r->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (r->memory == NULL)
    return OUT_OF_MEMORY;
  unsigned char *blocks = r->memory + decoder->classes_bytes;
  block_place *place = (void *)(blocks + read * BLOCK_BYTES_IN_ROWS);
  r->count = (size_t)(end - first) * blob->blocks;
  r->block = (const int16_t(*)[64])(void *)blocks + (size_t)skipped * blob->blocks;
  r->place = place + (size_t)skipped * blob->blocks;
  r->reader = (tile_reader){.blob = blob, .decoder = decoder, .classes = r->memory, .place = place,
                            .row_bytes = 16, .first_column = first / blob->tile_mcus, .mcus = mcus};
  begin_tiles(&r->reader);
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
