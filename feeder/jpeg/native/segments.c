#include "segments.h"

int read_header(jpeg_header *header, const unsigned char *jpeg, size_t bytes) {
  huffman_spec dht[2][4] = {{{NULL, NULL, 0}}};
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
      if (length < 8 || *p != 8 || (p[5] != 1 && p[5] != 3) || length < 8 + 3u * p[5])
        return 0;
      header->components = p[5];
      header->sof_offset = at;
      header->height = load_be16(p + 1);
      header->width = load_be16(p + 3);
      for (int c = 0; c < header->components; c++) {
        id[c] = p[6 + 3 * c];
        int h = p[7 + 3 * c] >> 4, v = p[7 + 3 * c] & 15;
        header->blocks_across[c] = header->components == 1 ? 1 : h;
        header->blocks_down[c] = header->components == 1 ? 1 : v;
        quant[c] = p[8 + 3 * c];
        if (h < 1 || v < 1 || h > 4 || v > 4 || quant[c] > 3)
          return 0;
      }
      break;
    case 0xC4: /* DHT: any number of tables */
      for (const unsigned char *stop = jpeg + end; p < stop;) {
        size_t count = 0, remaining = (size_t)(stop - p);
        if (remaining < 17 || *p >> 4 > 1 || (*p & 15) > 3)
          return 0;
        for (int bits = 1; bits <= 16; bits++)
          count += p[bits];
        if (remaining < 17 + count)
          return 0;
        dht[*p >> 4][*p & 15] = (huffman_spec){p + 1, p + 17, count};
        p += 17 + count;
      }
      break;
    case 0xDA: /* SOS */
      if (header->components == 0 || length < 6 + 2u * (unsigned)header->components ||
          *p != header->components)
        return 0;
      for (int c = 0; c < header->components; c++) {
        unsigned dc = p[2 + 2 * c] >> 4, ac = p[2 + 2 * c] & 15;
        if (p[1 + 2 * c] != id[c] || dc > 3 || ac > 3)
          return 0;
        header->dc[c] = dht[0][dc];
        header->ac[c] = dht[1][ac];
        header->quant[c] = dqt[quant[c]];
        header->quant_bytes[c] = dqt_bytes[quant[c]];
        if (header->dc[c].counts == NULL || header->ac[c].counts == NULL)
          return 0;
      }
      p += 1 + 2 * header->components;
      if (p[0] != 0 || p[1] != 63 || p[2] != 0) /* all coefficients, all of their bits */
        return 0;
      header->is_ycc = header->components == 1 || has_jfif ||
                       (adobe_transform >= 0 ? adobe_transform != 0
                                             : id[0] != 'R' || id[1] != 'G' || id[2] != 'B');
      header->bytes = end;
      return 1;
    default:
      break;
    }
    at = end;
  }
  return 0;
}

int open_blob(segmented *s, const unsigned char *blob, size_t bytes, const segment_layout *layout) {
  s->columns = layout->columns;
  s->rows = layout->rows;
  s->tile_mcus = layout->tile_mcus;
  s->length_bits = layout->table_bits & 255;
  s->entry_bits = 0;
  for (int c = 0; c < COMPONENTS_MAX; c++) {
    s->dc_bits[c] = layout->table_bits >> (8 * (c + 1)) & 255;
    s->entry_bits += s->dc_bits[c];
    if (s->dc_bits[c] > DC_CATEGORIES - 1)
      return 0;
  }
  if (s->columns < 1 || s->columns > JPEG_SIDE_MAX || s->rows < 1 || s->rows > JPEG_SIDE_MAX ||
      s->tile_mcus < 1 || s->tile_mcus > JPEG_SIDE_MAX || s->length_bits < 1 ||
      s->length_bits > 24)
    return 0;
  size_t segments = s->columns * s->rows, header_bytes = layout->header_bytes;
  size_t lengths_bytes = (segments * s->length_bits + 7) / 8;
  size_t tables_bytes = lengths_bytes + (segments * s->entry_bits + 7) / 8;
  if (tables_bytes + header_bytes + SCAN_SLACK_BYTES > bytes)
    return 0;
  s->lengths = blob;
  s->predictions = blob + lengths_bytes;
  s->jpeg = blob + tables_bytes;
  s->scan = s->jpeg + header_bytes;
  s->scan_bits = 8 * (bytes - tables_bytes - header_bytes - SCAN_SLACK_BYTES);
  if (!read_header(&s->header, s->jpeg, header_bytes) || s->header.bytes != header_bytes)
    return 0;
  unsigned across = 1;
  for (int c = 0; c < s->header.components; c++)
    if (s->header.blocks_across[c] > (int)across)
      across = (unsigned)s->header.blocks_across[c];
  s->mcus = (s->header.width + 8 * across - 1) / (8 * across);
  return 1;
}

int make_scan_tables(segmented *s) {
  const jpeg_header *header = &s->header;
  for (int c = 0; c < header->components; c++) {
    if (!make_decode_table(&s->tables.dc[c], &header->dc[c]) ||
        !make_decode_table(&s->tables.ac[c], &header->ac[c]))
      return 0;
    make_code_table(&s->tables.dc_codes[c], header->dc[c].counts, header->dc[c].symbols);
  }
  return 1;
}

int pass_mcus(const segmented *s, unsigned count, size_t *at, size_t end, int *dc) {
  for (; count > 0; count--)
    for (int c = 0; c < s->header.components; c++)
      for (int block = 0; block < mcu_blocks(s, c); block++) {
        int difference;
        if (!read_difference(s, c, at, end, &difference) || !skip_ac(s, c, at, end))
          return 0;
        dc[c] += difference;
      }
  return 1;
}
