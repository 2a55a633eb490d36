#include "blob.h"

#define LENGTH_BITS_MAX 24

/* Reads a frame header (T.81 B.2.2). */
static int read_sof(jpeg_header *header, const unsigned char *p, size_t length, unsigned char *id,
                    unsigned char *quant) {
  if (length < 8 || *p != 8 || (p[5] != 1 && p[5] != 3) || length < 8 + 3u * p[5])
    return 0;
  header->components = p[5];
  header->height = load_be16(p + 1);
  header->width = load_be16(p + 3);
  for (int c = 0; c < header->components; c++) {
    id[c] = p[6 + 3 * c];
    unsigned h = p[7 + 3 * c] >> 4, v = p[7 + 3 * c] & 15;
    header->blocks_across[c] = header->components == 1 ? 1 : h;
    header->blocks_down[c] = header->components == 1 ? 1 : v;
    quant[c] = p[8 + 3 * c];
    if (h < 1 || v < 1 || h > 4 || v > 4 || quant[c] > 3)
      return 0;
  }
  return 1;
}

/* Reads a scan header (T.81 B.2.3) of all components, all coefficients and all of their bits. */
static int read_sos(jpeg_header *header, const unsigned char *p, size_t length,
                    const unsigned char *id) {
  if (header->components == 0 || length < 6 + 2u * (unsigned)header->components ||
      *p != header->components)
    return 0;
  for (int c = 0; c < header->components; c++) {
    header->dc_table[c] = p[2 + 2 * c] >> 4;
    header->ac_table[c] = p[2 + 2 * c] & 15;
    if (p[1 + 2 * c] != id[c] || header->dc_table[c] > 3 || header->ac_table[c] > 3)
      return 0;
  }
  p += 1 + 2 * header->components;
  return p[0] == 0 && p[1] == 63 && p[2] == 0;
}

int read_header(jpeg_header *header, const unsigned char *jpeg, size_t bytes) {
  const unsigned char *dqt[4] = {NULL};
  int dqt_bytes[4] = {0}, has_jfif = 0, adobe_transform = -1;
  unsigned char id[COMPONENTS_MAX] = {0}, quant[COMPONENTS_MAX] = {0};
  header->components = 0;
  if (bytes < 2 || load_be16(jpeg) != 0xFFD8) /* SOI */
    return 0;
  for (size_t at = 2; at + 4 <= bytes;) {
    size_t length = load_be16(jpeg + at + 2), end = at + 2 + length;
    const unsigned char *p = jpeg + at + 4;
    if (jpeg[at] != 0xFF || length < 2 || end > bytes)
      return 0;
    switch (jpeg[at + 1]) {
    case 0xE0: /* APP0 and APP14: which colours three components are */
      has_jfif |= length >= 16 && memcmp(p, "JFIF", 5) == 0;
      break;
    case 0xEE:
      if (length >= 14 && memcmp(p, "Adobe", 5) == 0)
        adobe_transform = p[11];
      break;
    case 0xDB: /* DQT: any number of tables */
      for (const unsigned char *stop = jpeg + end; p < stop;) {
        int wide = *p >> 4, table = *p & 15;
        if (wide > 1 || table > 3 || stop - p < 1 + 64 * (wide + 1))
          return 0;
        dqt[table] = p + 1;
        dqt_bytes[table] = wide + 1;
        p += 1 + 64 * (wide + 1);
      }
      break;
    case 0xC0: /* SOF0 and SOF1 */
    case 0xC1:
      header->sof_offset = at;
      if (header->components != 0 || !read_sof(header, p, length, id, quant))
        return 0;
      break;
    case 0xDA: /* SOS */
      if (!read_sos(header, p, length, id))
        return 0;
      for (int c = 0; c < header->components; c++) {
        header->quant[c] = dqt[quant[c]];
        header->quant_bytes[c] = dqt_bytes[quant[c]];
      }
      header->is_ycc = header->components == 1 || has_jfif ||
                       (adobe_transform >= 0 ? adobe_transform != 0
                                             : id[0] != 'R' || id[1] != 'G' || id[2] != 'B');
      header->sos_offset = at;
      header->bytes = end;
      return 1;
    case 0xC4: /* DHT and COM */
    case 0xFE:
      break;
    default: /* APPn, but nothing that libjpeg refuses, nor DRI: rebuilt scans have no markers */
      if (jpeg[at + 1] >> 4 != 0xE)
        return 0;
    }
    at = end;
  }
  return 0;
}

int find_mcus(tiled_blob *b) {
  const jpeg_header *header = &b->header;
  unsigned across = 1, down = 1;
  b->mcu_blocks = 0;
  b->classes = (header->components == 1 ? 1 : GROUPS) * CLASSES;
  for (int c = 0; c < header->components; c++) {
    unsigned h = header->blocks_across[c], v = header->blocks_down[c];
    across = h > across ? h : across;
    down = v > down ? v : down;
    b->mcu_blocks += h * v;
  }
  b->mcu_width = 8 * across;
  b->mcu_height = 8 * down;
  b->mcus = divide_up(header->width, b->mcu_width);
  b->rows = divide_up(header->height, b->mcu_height);
  return b->mcus > 0 && b->rows > 0;
}

int open_blob(tiled_blob *b, const unsigned char *data, size_t bytes) {
  const unsigned char *end = data + bytes;
  b->jpeg = data;
  if (!read_header(&b->header, data, bytes) || !find_mcus(b))
    return 0;
  const unsigned char *at = data + b->header.bytes;
  if (end - at < SIZES_BYTES)
    return 0;
  b->tile_mcus = *at++;
  b->length_bits = *at++;
  if (b->tile_mcus < 1 || b->tile_mcus * b->mcu_blocks > TILE_BLOCKS_MAX || b->length_bits < 1 ||
      b->length_bits > LENGTH_BITS_MAX)
    return 0;
  b->columns = divide_up(b->mcus, b->tile_mcus);
  for (int c = 0; c < COMPONENTS_MAX; c++) {
    b->dc_bits[c] = *at++;
    if (b->dc_bits[c] > DC_BITS_MAX || (c >= b->header.components && b->dc_bits[c] != 0))
      return 0;
  }
  for (unsigned i = 0; i < b->classes; i++) {
    size_t taken = read_class(&b->class[i], at, (size_t)(end - at));
    if (taken == 0)
      return 0;
    at += taken;
  }
  size_t lengths_bytes = ((size_t)b->columns * b->rows * b->length_bits + 7) / 8;
  if ((size_t)(end - at) < lengths_bytes)
    return 0;
  b->lengths = at;
  b->tiles = at + lengths_bytes;
  b->tiles_bytes = (size_t)(end - b->tiles);
  return 1;
}
