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

/* Gives the codes of a DHT's table other lengths, of all that are possible and more long ones. */
static void edit_lengths(random_source *random, unsigned char *counts) {
  unsigned codes = 0, room = 65535; /* in codes of 16 bits; that of ones only stays free */
  for (int i = 0; i < 16; i++)
    codes += counts[i];
  memset(counts, 0, 16);
  for (; codes > 0; codes--) {
    unsigned bits = 1 + (unsigned)pick(random, 16), other = 1 + (unsigned)pick(random, 16);
    bits = other > bits ? other : bits;
    while (bits < 16 && (1u << (16 - bits)) + codes - 1 > room)
      bits++;
    room -= 1u << (16 - bits);
    counts[bits - 1]++;
  }
}

/* Makes other tables of one of the header's, valid ones: the codes then mean something else. */
static void edit_table(random_source *random, unsigned char *header, size_t bytes) {
  unsigned skip = (unsigned)pick(random, 4);
  for (size_t at = 2; at + 4 <= bytes;) {
    size_t length = load_be16(header + at + 2), end = at + 2 + length;
    if (header[at] != 0xFF || length < 2 || end > bytes)
      return;
    for (size_t p = at + 4; header[at + 1] == 0xC4 && p + 17 <= end;) {
      size_t codes = 0;
      for (int i = 1; i <= 16; i++)
        codes += header[p + i];
      if (p + 17 + codes > end)
        return;
      if (skip-- == 0) {
        edit_lengths(random, header + p + 1);
        int is_ac = header[p] >> 4 != 0;
        for (size_t i = pick(random, 2) * codes; i < codes; i++)
          header[p + 17 + i] = (unsigned char)(is_ac ? next_random(random) : pick(random, 12));
        return;
      }
      p += 17 + codes;
    }
    at = end;
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
    else if (part < 7)
      edit_marker(random, header, header_bytes);
    else if (part < 9)
      edit_table(random, header, header_bytes);
    else if (part < 15)
      edit(random, scan, bytes - tables_bytes - header_bytes);
    else
      edit(random, blob, bytes);
  }
}
