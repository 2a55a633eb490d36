#include "damage.h"

static const unsigned char BYTES[] = {0, 1, 2, 3, 8, 15, 16, 17, 34, 63, 64, 127, 128, 254, 255};
static const unsigned char MARKERS[] = {0xC0, 0xC1, 0xDA, 0xDB, 0xE0, 0xEE, 0xFE};

static void edit(random_source *random, unsigned char *part, size_t bytes) {
  if (bytes == 0)
    return;
  size_t at = pick(random, bytes), from = pick(random, bytes);
  size_t most = bytes - (at > from ? at : from);
  size_t size = 1 + pick(random, most < 16 ? most : 16);
  switch (pick(random, 6)) {
  case 0:
  case 1:
    part[at] ^= (unsigned char)(1u << pick(random, 8));
    break;
  case 2:
    part[at] = (unsigned char)next_random(random);
    break;
  case 3:
    part[at] = BYTES[pick(random, sizeof BYTES)];
    break;
  case 4: { /* swap two bytes */
    unsigned char byte = part[at];
    part[at] = part[from];
    part[from] = byte;
    break;
  }
  default:
    memmove(part + at, part + from, size);
  }
}

/* Edits the segment of a marker, mostly its first bytes: sizes, numbers of tables, precisions. */
static void edit_marker(random_source *random, unsigned char *header, size_t bytes) {
  unsigned char marker = MARKERS[pick(random, sizeof MARKERS)];
  for (size_t at = 2; at + 4 <= bytes;) {
    size_t length = load_be16(header + at + 2);
    if (header[at] != 0xFF || length < 2 || at + 2 + length > bytes)
      return;
    if (header[at + 1] == marker) {
      size_t reach = pick(random, 4) > 0 && length > 20 ? 20 : length;
      edit(random, header + at + 4, reach - 2);
      return;
    }
    at += 2 + length;
  }
}

/* Gives a coefficient of a class, or its DC field, another number of bits: mostly a valid one. */
static void edit_class(random_source *random, unsigned char *classes, size_t bytes) {
  size_t skip = pick(random, 2 * CLASSES);
  for (size_t at = 0; at < bytes; at += 1u + (classes[at] + 1u) / 2)
    if (skip-- == 0) {
      size_t k = pick(random, classes[at]), byte = at + 1 + k / 2;
      unsigned bits = pick(random, 4) == 0 ? ABSENT : (unsigned)pick(random, LOW_BITS_MAX + 2);
      if (classes[at] > 0 && byte < bytes)
        classes[byte] = (unsigned char)((classes[byte] & 0xF0 >> k % 2 * 4) | bits << k % 2 * 4);
      return;
    }
}

/* Edits the bits of a tile: of its DC, the classes of its blocks, and what follows. */
static void edit_tile(random_source *random, unsigned char *tiles, const tiled_blob *parts) {
  size_t skip = pick(random, (size_t)parts->columns * parts->rows), at = 0;
  for (size_t tile = 0; tile < skip; tile++)
    at += tile_bytes(parts, tile);
  size_t bytes = tile_bytes(parts, skip), head = bytes < 16 ? bytes : 16;
  edit(random, tiles + at, pick(random, 2) == 0 ? head : bytes);
}

void damage_blob(random_source *random, unsigned char *blob, size_t bytes, const tiled_blob *parts) {
  static const unsigned edits[] = {1, 1, 1, 2, 3, 8};
  size_t header = parts->header.bytes, lengths = (size_t)(parts->lengths - parts->jpeg);
  size_t tiles = (size_t)(parts->tiles - parts->jpeg);
  unsigned part = (unsigned)pick(random, 16);
  for (unsigned count = edits[pick(random, 6)]; count > 0; count--) {
    unsigned char *classes = blob + header + SIZES_BYTES;
    size_t classes_bytes = lengths - header - SIZES_BYTES;
    if (part < 2)
      edit_marker(random, blob, header);
    else if (part < 3)
      edit(random, blob, header);
    else if (part < 4)
      edit(random, blob + header, SIZES_BYTES);
    else if (part < 7)
      edit_class(random, classes, classes_bytes);
    else if (part < 8)
      edit(random, classes, classes_bytes);
    else if (part < 9)
      edit(random, blob + lengths, tiles - lengths);
    else if (part < 12)
      edit_tile(random, blob + tiles, parts);
    else if (part < 15)
      edit(random, blob + tiles, bytes - tiles);
    else
      edit(random, blob, bytes);
  }
}
