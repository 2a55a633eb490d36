#include "damage.h"

static const unsigned char BYTES[] = {0, 1, 2, 3, 8, 15, 16, 17, 34, 63, 64, 127, 128, 254, 255};
static const unsigned char MARKERS[] = {0xC0, 0xC1, 0xC4, 0xDA, 0xDB, 0xE0, 0xEE, 0xFE};

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

void damage_blob(random_source *random, unsigned char *blob, size_t bytes, size_t tables_bytes,
                 size_t header_bytes) {
  static const unsigned edits[] = {1, 1, 1, 2, 3, 8};
  unsigned part = (unsigned)pick(random, 16);
  for (unsigned count = edits[pick(random, 6)]; count > 0; count--) {
    unsigned char *header = blob + tables_bytes, *scan = header + header_bytes;
    if (part < 2)
      edit(random, blob, tables_bytes);
    else if (part < 5)
      edit(random, header, header_bytes);
    else if (part < 8)
      edit_marker(random, header, header_bytes);
    else if (part < 15)
      edit(random, scan, bytes - tables_bytes - header_bytes);
    else
      edit(random, blob, bytes);
  }
}
