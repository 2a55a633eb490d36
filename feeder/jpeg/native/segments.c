#include "segments.h"

int read_header(jpeg_header *header, const unsigned char *jpeg, size_t bytes) {
  const unsigned char *dht[2][4] = {{NULL}};
  size_t symbols[2][4] = {{0}};
  unsigned char id[COMPONENTS_MAX] = {0};
  header->components = 0;
  for (size_t at = 2; at + 4 <= bytes;) {
    size_t length = load_be16(jpeg + at + 2), end = at + 2 + length;
    const unsigned char *p = jpeg + at + 4;
    if (jpeg[at] != 0xFF || length < 2 || end > bytes)
      return 0;
    switch (jpeg[at + 1]) {
    case 0xC0: /* SOF0 and SOF1 */
    case 0xC1:
      if (length < 8 || (p[5] != 1 && p[5] != 3) || length < 8 + 3u * p[5])
        return 0;
      header->components = p[5];
      header->sof_offset = at;
      for (int c = 0; c < header->components; c++) {
        id[c] = p[6 + 3 * c];
        int h = p[7 + 3 * c] >> 4, v = p[7 + 3 * c] & 15;
        header->blocks[c] = header->components == 1 ? 1 : h * v;
        if (h < 1 || v < 1 || h > 4 || v > 4)
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
        dht[*p >> 4][*p & 15] = p + 1;
        symbols[*p >> 4][*p & 15] = count;
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
        const unsigned char *of_dc = dht[0][dc], *of_ac = dht[1][ac];
        if (of_dc == NULL || of_ac == NULL ||
            !make_decode_table(&header->dc[c], of_dc, of_dc + 16, symbols[0][dc]) ||
            !make_decode_table(&header->ac[c], of_ac, of_ac + 16, symbols[1][ac]))
          return 0;
        make_code_table(&header->dc_codes[c], of_dc, of_dc + 16);
      }
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
  return read_header(&s->header, s->jpeg, header_bytes) && s->header.bytes == header_bytes;
}

int pass_mcus(const segmented *s, unsigned count, size_t *at, size_t end, int *dc) {
  for (; count > 0; count--)
    for (int c = 0; c < s->header.components; c++)
      for (int block = 0; block < s->header.blocks[c]; block++) {
        int difference;
        if (!read_difference(s, c, at, end, &difference) || !skip_ac(s, c, at, end))
          return 0;
        dc[c] += difference;
      }
  return 1;
}
