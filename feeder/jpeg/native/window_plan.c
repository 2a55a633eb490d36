#include "window_plan.h"

#define SIDE(size) (8u >> (size))
/* A block that is skipped is decoded to memory of its own: as far as a block of a group reaches. */
#define SPARE_BYTES (BLOCK_BYTES * LANES_MAX)

/* The pixels of MCUs first to end, clipped to the image. */
static unsigned pixels_of(unsigned first, unsigned end, unsigned mcu_pixels, unsigned image) {
  unsigned right = end * mcu_pixels;
  return (right < image ? right : image) - first * mcu_pixels;
}

int window_fits(const tiled_blob *blob, const tile_window *w) {
  return w->first_mcu < w->end_mcu && w->end_mcu <= blob->mcus && w->first_row < w->end_row &&
         w->end_row <= blob->rows &&
         w->width == pixels_of(w->first_mcu, w->end_mcu, blob->mcu_width, blob->header.width) &&
         w->height == pixels_of(w->first_row, w->end_row, blob->mcu_height, blob->header.height);
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

window_outcome plan_window(window_plan *p, const tiled_blob *blob, const tile_window *window,
                           unsigned scale, unsigned lanes) {
  const jpeg_header *header = &blob->header;
  p->components = header->components;
  for (int c = 0; c < p->components; c++) {
    component_plan *own = &p->component[c];
    own->across = header->blocks_across[c];
    own->down = header->blocks_down[c];
    if (own->across > (c == 0 ? 2 : 1) || own->down > own->across ||
        !read_quant(own, header->quant[c], header->quant_bytes[c]))
      return UNSUPPORTED;
  }
  if (!header->is_ycc)
    return UNSUPPORTED;
  if (!window_fits(blob, window))
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
  unsigned mcus = window->end_mcu - window->first_mcu;
  p->row_bytes = 0;
  for (int c = 0; c < p->components; c++) {
    component_plan *own = &p->component[c];
    own->groups = (mcus * own->across + lanes - 1) / lanes;
    for (unsigned row = 0; row < own->down; row++) {
      own->offset[row] = p->row_bytes;
      p->row_bytes += (size_t)own->groups * lanes * BLOCK_BYTES;
    }
  }
  p->spare_offset = p->row_bytes;
  p->row_bytes += SPARE_BYTES;
  return DECODED;
}

void make_places(const window_plan *p, tile_reader *reader, unsigned lanes, block_place *place) {
  const block_place *end = place + places_of(reader);
  reader->place = place;
  for (unsigned mcu = 0; place < end; mcu++)
    for (int c = 0; c < p->components; c++) {
      const component_plan *own = &p->component[c];
      int is_in_window = mcu >= reader->skipped && mcu < reader->mcus;
      for (unsigned down = 0; down < own->down; down++)
        for (unsigned across = 0; across < own->across; across++) {
          size_t offset = p->spare_offset;
          if (is_in_window) {
            unsigned block = (mcu - reader->skipped) * own->across + across;
            offset = own->offset[down] + (size_t)(block / lanes) * lanes * BLOCK_BYTES +
                     block % lanes * 16;
          }
          *place++ = (block_place){(uint32_t)offset, (uint16_t)c, c == 0 ? 0 : CLASSES};
        }
    }
}
