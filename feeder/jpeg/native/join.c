/* join_segments, check_segments: the segments of a rectangle of tiles as one small valid JPEG.
 *
 * A row of MCUs is one run of Huffman codes, as in any JPEG, so the tiles of one row that a crop
 * touches are neighbouring bits. What ties a run to its surroundings is that each MCU's first DC
 * coefficients are coded as differences from those before; the blob says for each segment what they
 * have reached after it. So joining is, for each row: code the DC differences of the first MCU anew,
 * then shift the other bits into place. Reading codes without decoding them takes half of what
 * decoding does, so the MCUs of the outer tiles that a crop does not touch are left out as well. The result has no restart markers, which would make
 * libjpeg-turbo take the slower of its two Huffman decoders (decode_mcu_slow in jdhuff.c).
 *
 * Whatever the bytes are, nothing outside of the blob is read or outside of the output written. */
#include "native.h"

#include <stdint.h>
#include <string.h>

#define DC_CATEGORIES 12
#define COMPONENTS_MAX 3
#define JPEG_SIDE_MAX 65535u
/* What one row adds to its own bits at most: longer codes, the bits before it, byte stuffing, EOI. */
#define ROW_ROOM_BYTES 64

/* ---- reading bits -------------------------------------------------------------------------- */

/* At least 57 bits from bit `at` on, at the top of a word. Reads 8 bytes. */
static inline uint64_t peek(const unsigned char *data, size_t at) {
  uint64_t word;
  memcpy(&word, data + at / 8, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word << at % 8;
}

/* The `bits` (up to 33) bits from bit `at` on of the tables, least significant first. */
static inline uint64_t get_field(const unsigned char *table, size_t at, unsigned bits) {
  uint64_t word;
  memcpy(&word, table + at / 8, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word >> at % 8 & (((uint64_t)1 << bits) - 1);
}

/* ---- Huffman codes ------------------------------------------------------------------------- */

typedef struct {
  uint16_t quick[256]; /* by the next 8 bits: length << 8 | symbol; 0 where the code is longer */
  uint16_t steps[256]; /* likewise, for AC: what step_of says */
  uint32_t end[17];    /* by length: codes of it, followed by any bits, are below this 16-bit value */
  int32_t offset[17];  /* by length: what makes such a code a place in `symbols` */
  const unsigned char *symbols;
  uint16_t code[DC_CATEGORIES]; /* the way back, for DC */
  uint8_t code_bits[DC_CATEGORIES];
} huffman_table;

/* The bits of an AC symbol's code and magnitude, and << 8 how many coefficients it stands for. */
static inline unsigned step_of(unsigned symbol, unsigned length) {
  unsigned size = symbol & 15, coefficients = (symbol >> 4) + 1;
  return (length + size) | (size == 0 && symbol != 0xF0 ? 64 : coefficients) << 8;
}

/* From the 16 counts and the symbols of a DHT segment (T.81 B.2.4.2); 0 where they are no code. */
static int read_table(huffman_table *table, const unsigned char *counts, size_t symbols) {
  memset(table->quick, 0, sizeof table->quick);
  memset(table->steps, 0, sizeof table->steps);
  memset(table->code_bits, 0, sizeof table->code_bits);
  table->symbols = counts + 16;
  uint32_t code = 0, place = 0;
  for (unsigned bits = 1; bits <= 16; bits++, code <<= 1) {
    table->offset[bits] = (int32_t)place - (int32_t)code;
    for (unsigned i = 0; i < counts[bits - 1]; i++, code++, place++) {
      if (place >= symbols || code >= 1u << bits)
        return 0;
      unsigned symbol = table->symbols[place];
      if (bits <= 8)
        for (unsigned fill = 0; fill < 1u << (8 - bits); fill++) {
          table->quick[(code << (8 - bits)) + fill] = (uint16_t)(bits << 8 | symbol);
          table->steps[(code << (8 - bits)) + fill] = (uint16_t)step_of(symbol, bits);
        }
      if (symbol < DC_CATEGORIES) {
        table->code[symbol] = (uint16_t)code;
        table->code_bits[symbol] = (uint8_t)bits;
      }
    }
    table->end[bits] = code << (16 - bits);
  }
  return 1;
}

/* The symbol at the top of `bits`; its code's length goes to `length`, 0 where there is none. */
static inline unsigned symbol_at(const huffman_table *table, uint64_t bits, unsigned *length) {
  unsigned next = (unsigned)(bits >> 48), quick = table->quick[next >> 8];
  if (quick != 0) {
    *length = quick >> 8;
    return quick & 255;
  }
  for (unsigned n = 9; n <= 16; n++)
    if (next < table->end[n]) {
      *length = n;
      return table->symbols[(int32_t)(next >> (16 - n)) + table->offset[n]];
    }
  *length = 0;
  return 0;
}

/* ---- the blob ------------------------------------------------------------------------------ */

typedef struct {
  size_t columns, rows;
  unsigned tile_mcus; /* the last tile of a row may have fewer */
  unsigned length_bits, dc_bits[COMPONENTS_MAX], entry_bits;
  const unsigned char *lengths, *predictions, *header, *scan;
  size_t header_bytes, sof_offset, scan_bits;
  int components, blocks[COMPONENTS_MAX]; /* of an MCU */
  huffman_table dc[COMPONENTS_MAX], ac[COMPONENTS_MAX];
} segmented;

/* Takes the sampling and the Huffman tables from the header. */
static int read_header(segmented *s) {
  const unsigned char *header = s->header, *dht[2][4] = {{NULL}};
  size_t symbols[2][4] = {{0}};
  unsigned char id[COMPONENTS_MAX] = {0};
  for (size_t at = 2; at + 4 <= s->header_bytes;) {
    size_t length = (size_t)header[at + 2] << 8 | header[at + 3], end = at + 2 + length;
    const unsigned char *p = header + at + 4;
    if (header[at] != 0xFF || length < 2 || end > s->header_bytes)
      return 0;
    switch (header[at + 1]) {
    case 0xC0: /* SOF0 and SOF1 */
    case 0xC1:
      if (length < 8 || (p[5] != 1 && p[5] != 3) || length < 8 + 3u * p[5])
        return 0;
      s->components = p[5];
      s->sof_offset = at;
      for (int c = 0; c < s->components; c++) {
        id[c] = p[6 + 3 * c];
        int h = p[7 + 3 * c] >> 4, v = p[7 + 3 * c] & 15;
        s->blocks[c] = s->components == 1 ? 1 : h * v;
        if (h < 1 || v < 1 || h > 4 || v > 4)
          return 0;
      }
      break;
    case 0xC4: /* DHT: any number of tables */
      for (const unsigned char *stop = header + end; p < stop;) {
        size_t count = 0, left = (size_t)(stop - p);
        if (left < 17 || *p >> 4 > 1 || (*p & 15) > 3)
          return 0;
        for (int bits = 1; bits <= 16; bits++)
          count += p[bits];
        if (left < 17 + count)
          return 0;
        dht[*p >> 4][*p & 15] = p + 1;
        symbols[*p >> 4][*p & 15] = count;
        p += 17 + count;
      }
      break;
    case 0xDA: /* SOS: the header ends with it */
      if (s->components == 0 || end != s->header_bytes || *p != s->components ||
          length < 6 + 2u * *p)
        return 0;
      for (int c = 0; c < s->components; c++) {
        unsigned dc = p[2 + 2 * c] >> 4, ac = p[2 + 2 * c] & 15;
        if (p[1 + 2 * c] != id[c] || dc > 3 || ac > 3 || dht[0][dc] == NULL || dht[1][ac] == NULL ||
            !read_table(&s->dc[c], dht[0][dc], symbols[0][dc]) ||
            !read_table(&s->ac[c], dht[1][ac], symbols[1][ac]))
          return 0;
      }
      return 1;
    default:
      break;
    }
    at = end;
  }
  return 0;
}

/* `table_bits` holds the bits of a length and of each component's prediction, a byte each. */
static int open_blob(segmented *s, const unsigned char *blob, size_t bytes, unsigned columns,
                     unsigned rows, unsigned tile_mcus, unsigned header_bytes,
                     unsigned table_bits) {
  s->columns = columns;
  s->rows = rows;
  s->tile_mcus = tile_mcus;
  s->length_bits = table_bits & 255;
  s->entry_bits = 0;
  s->components = 0;
  for (int c = 0; c < COMPONENTS_MAX; c++) {
    s->dc_bits[c] = table_bits >> (8 * (c + 1)) & 255;
    s->entry_bits += s->dc_bits[c];
    if (s->dc_bits[c] > DC_CATEGORIES - 1)
      return 0;
  }
  if (columns < 1 || columns > JPEG_SIDE_MAX || rows < 1 || rows > JPEG_SIDE_MAX ||
      tile_mcus < 1 || tile_mcus > JPEG_SIDE_MAX || s->length_bits < 1 || s->length_bits > 24)
    return 0;
  size_t segments = s->columns * s->rows;
  size_t lengths_bytes = (segments * s->length_bits + 7) / 8;
  size_t tables_bytes = lengths_bytes + (segments * s->entry_bits + 7) / 8;
  if (tables_bytes + header_bytes + SCAN_SLACK_BYTES > bytes)
    return 0;
  s->lengths = blob;
  s->predictions = blob + lengths_bytes;
  s->header = blob + tables_bytes;
  s->header_bytes = header_bytes;
  s->scan = s->header + header_bytes;
  s->scan_bits = 8 * (bytes - tables_bytes - header_bytes - SCAN_SLACK_BYTES);
  return read_header(s);
}

static inline size_t length_of(const segmented *s, size_t segment) {
  return (size_t)get_field(s->lengths, segment * s->length_bits, s->length_bits);
}

/* What DC prediction has reached after a segment. */
static inline void prediction_after(const segmented *s, size_t segment, int *dc) {
  size_t at = segment * s->entry_bits;
  for (int c = 0; c < s->components; at += s->dc_bits[c++]) {
    unsigned bits = s->dc_bits[c];
    int value = (int)get_field(s->predictions, at, bits);
    dc[c] = bits > 0 && value >> (bits - 1) != 0 ? value - (1 << bits) : value;
  }
}

/* Reads a DC difference at `*at`; 0 where there is none before `end`. */
static inline int read_difference(const segmented *s, int c, size_t *at, size_t end,
                                  int *difference) {
  uint64_t bits = peek(s->scan, *at);
  unsigned length, size = symbol_at(&s->dc[c], bits, &length);
  if (length == 0 || size >= DC_CATEGORIES)
    return 0;
  int value = size == 0 ? 0 : (int)(bits << length >> (64 - size));
  *difference = size > 0 && value >> (size - 1) == 0 ? value - (1 << size) + 1 : value;
  *at += length + size;
  return *at <= end;
}

/* How far the symbol at the top of `bits` leads: bits | coefficients << 8, 0 where there is none. */
static inline unsigned step_at(const huffman_table *table, uint64_t bits) {
  unsigned step = table->steps[bits >> 56];
  if (__builtin_expect(step == 0, 0)) {
    unsigned length, symbol = symbol_at(table, bits, &length);
    step = length == 0 ? 0 : step_of(symbol, length);
  }
  return step;
}

/* Passes the 63 AC coefficients of a block; 0 where they are no such thing or go past `end`. */
static inline int skip_ac(const segmented *s, int c, size_t *at, size_t end) {
  const huffman_table *table = &s->ac[c];
  size_t place = *at;
  for (unsigned k = 1; k < 64;) {
    if (place > end)
      return 0;
    uint64_t bits = peek(s->scan, place); /* enough for two symbols of up to 16 + 15 and 16 bits */
    unsigned step = step_at(table, bits);
    if (step == 0)
      return 0;
    place += step & 255;
    k += step >> 8;
    if (k >= 64)
      break;
    step = step_at(table, bits << (step & 255));
    if (step == 0)
      return 0;
    place += step & 255;
    k += step >> 8;
  }
  *at = place;
  return place <= end;
}

/* Passes whole MCUs and brings the DC prediction along; 0 where they are none or go past `end`. */
static int pass_mcus(const segmented *s, unsigned count, size_t *at, size_t end, int *dc) {
  for (; count > 0; count--)
    for (int c = 0; c < s->components; c++)
      for (int block = 0; block < s->blocks[c]; block++) {
        int difference;
        if (!read_difference(s, c, at, end, &difference) || !skip_ac(s, c, at, end))
          return 0;
        dc[c] += difference;
      }
  return 1;
}

/* ---- writing bits -------------------------------------------------------------------------- */

typedef struct {
  unsigned char *out;
  unsigned pending, count; /* the last 0 to 7 bits, not yet a byte */
} stuffed_writer;

/* Writes up to 24 bits, with the zero byte that must follow 0xFF (T.81 F.1.2.3). */
static inline void put_bits(stuffed_writer *w, unsigned value, unsigned bits) {
  w->pending = w->pending << bits | value;
  for (w->count += bits; w->count >= 8;) {
    w->count -= 8;
    unsigned char byte = (unsigned char)(w->pending >> w->count);
    *w->out++ = byte;
    if (byte == 0xFF)
      *w->out++ = 0;
  }
  w->pending &= (1u << w->count) - 1;
}

static inline void copy_few(stuffed_writer *w, const unsigned char *data, size_t at, size_t end) {
  while (at < end) {
    unsigned bits = end - at < 24 ? (unsigned)(end - at) : 24;
    put_bits(w, (unsigned)(peek(data, at) >> (64 - bits)), bits);
    at += bits;
  }
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t pairs16 __attribute__((vector_size(16)));

static inline bytes16 load16(const unsigned char *data) {
  bytes16 v;
  memcpy(&v, data, sizeof v);
  return v;
}

/* Appends the bits [at, end): 16 bytes at a time, less where one of them is 0xFF. */
static void copy_bits(stuffed_writer *w, const unsigned char *data, size_t at, size_t end) {
  if (end - at >= 8 * 32) {
    unsigned lead = (8 - w->count) % 8;
    copy_few(w, data, at, at + lead);
    at += lead;
    const unsigned char *from = data + at / 8, *stop = data + end / 8 - 16;
    unsigned char *out = w->out;
    unsigned up = at % 8, down = 8 - up;
    const bytes16 none = {0}, stuffed = none - 1;
    const bytes16 keep_up = none + (uint8_t)(0xFFu << up), keep_down = none + (uint8_t)(0xFFu >> down);
    while (from < stop) { /* so the byte after the 16 is within the data */
      bytes16 v = ((bytes16)((pairs16)load16(from) << up) & keep_up) |
                  ((bytes16)((pairs16)load16(from + 1) >> down) & keep_down);
      memcpy(out, &v, sizeof v);
      bytes16 hits = (bytes16)(v == stuffed);
      uint64_t hit[2];
      memcpy(hit, &hits, sizeof hit);
      if ((hit[0] | hit[1]) == 0) {
        from += 16;
        out += 16;
        continue;
      }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
      int first = hit[0] != 0 ? __builtin_ctzll(hit[0]) / 8 : 8 + __builtin_ctzll(hit[1]) / 8;
#else
      int first = hit[0] != 0 ? __builtin_clzll(hit[0]) / 8 : 8 + __builtin_clzll(hit[1]) / 8;
#endif
      from += first + 1;
      out += first + 1;
      *out++ = 0;
    }
    at = 8 * (size_t)(from - data) + up;
    w->out = out;
  }
  copy_few(w, data, at, end);
}

/* ---- joining ------------------------------------------------------------------------------- */

typedef struct {
  unsigned sof_offset, first_mcu, end_mcu, first_row, end_row, width, height;
} window;

static inline int put_difference(const segmented *s, int c, stuffed_writer *w, int difference) {
  unsigned magnitude = (unsigned)(difference < 0 ? -difference : difference);
  unsigned size = magnitude == 0 ? 0 : 32 - (unsigned)__builtin_clz(magnitude);
  if (size >= DC_CATEGORIES || s->dc[c].code_bits[size] == 0)
    return 0;
  unsigned low = (unsigned)(difference < 0 ? difference - 1 : difference) & ((1u << size) - 1);
  put_bits(w, s->dc[c].code[size], s->dc[c].code_bits[size]);
  put_bits(w, low, size);
  return 1;
}

/* Appends one row's run, the bits [at, end), whose first differences are `shift` more than coded. */
static int join_run(const segmented *s, stuffed_writer *w, size_t at, size_t end, const int *shift) {
  size_t copied = at;
  int last = s->components - 1;
  while (last >= 0 && shift[last] == 0)
    last--;
  for (int c = 0; c <= last; c++) {
    int difference;
    copy_few(w, s->scan, copied, at);
    if (!read_difference(s, c, &at, end, &difference) ||
        !put_difference(s, c, w, difference + shift[c]))
      return 0;
    copied = at;
    for (int block = 0; c < last && block < s->blocks[c]; block++)
      if ((block > 0 && !read_difference(s, c, &at, end, &difference)) || !skip_ac(s, c, &at, end))
        return 0;
  }
  copy_bits(w, s->scan, copied, end);
  return 1;
}

/* One row's run of bits, and the DC prediction before and after it. */
typedef struct {
  size_t at, end;
  int before[COMPONENTS_MAX], after[COMPONENTS_MAX];
} row_run;

/* Finds the run of the MCUs [first_mcu, end_mcu) in a row whose first segment has the number
 * `segment` and begins at `at`. The tables lead to a tile's edge, its own codes further. */
static int find_run(const segmented *s, const window *q, size_t segment, size_t at, row_run *run) {
  size_t first = q->first_mcu / s->tile_mcus, last = (q->end_mcu - 1) / s->tile_mcus, column = 0;
  unsigned skip = q->first_mcu % s->tile_mcus, cut = q->end_mcu % s->tile_mcus;
  memset(run->before, 0, sizeof run->before);
  memset(run->after, 0, sizeof run->after);
  for (; column < first; column++)
    at += length_of(s, segment + column);
  if (first > 0)
    prediction_after(s, segment + first - 1, run->before);
  run->at = run->end = at;
  for (; column < last; column++)
    run->end += length_of(s, segment + column);
  if (last > 0)
    prediction_after(s, segment + last - 1, run->after);
  size_t end = run->end + length_of(s, segment + last);
  if (end > s->scan_bits || !pass_mcus(s, skip, &run->at, end, run->before))
    return 0;
  if (cut > 0)
    return pass_mcus(s, cut, &run->end, end, run->after);
  run->end = end;
  prediction_after(s, segment + last, run->after);
  return 1;
}

/* Returns the bytes written, or 0 where the blob does not hold what its record says. */
static size_t join(const segmented *s, const window *q, unsigned char *out, size_t room) {
  if (q->first_mcu >= q->end_mcu || q->end_mcu > s->columns * s->tile_mcus ||
      q->first_row >= q->end_row || q->end_row > s->rows || q->width > JPEG_SIDE_MAX ||
      q->height > JPEG_SIDE_MAX || s->header_bytes > room || q->sof_offset != s->sof_offset)
    return 0;
  memcpy(out, s->header, s->header_bytes);
  out[q->sof_offset + 5] = (unsigned char)(q->height >> 8);
  out[q->sof_offset + 6] = (unsigned char)q->height;
  out[q->sof_offset + 7] = (unsigned char)(q->width >> 8);
  out[q->sof_offset + 8] = (unsigned char)q->width;

  stuffed_writer writer = {.out = out + s->header_bytes};
  size_t at = 0, segment = 0;
  int reached[COMPONENTS_MAX] = {0, 0, 0};
  for (; segment < q->first_row * s->columns; segment++)
    at += length_of(s, segment);
  for (unsigned row = q->first_row; row < q->end_row; row++) {
    row_run run;
    if (!find_run(s, q, segment, at, &run))
      return 0;
    size_t used = (size_t)(writer.out - out);
    int shift[COMPONENTS_MAX];
    for (int c = 0; c < COMPONENTS_MAX; c++)
      shift[c] = run.before[c] - reached[c];
    if (run.end < run.at || room - used < (run.end - run.at) / 4 + ROW_ROOM_BYTES ||
        !join_run(s, &writer, run.at, run.end, shift))
      return 0;
    memcpy(reached, run.after, sizeof reached);
    for (size_t next = segment + s->columns; segment < next; segment++)
      at += length_of(s, segment);
  }
  if (writer.count > 0)
    put_bits(&writer, 0xFFu >> writer.count, 8 - writer.count);
  *writer.out++ = 0xFF;
  *writer.out++ = 0xD9;
  return (size_t)(writer.out - out);
}

PyObject *feeder_join_segments(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer blob, out;
  unsigned columns, rows, tile_mcus, header_bytes, table_bits;
  window q;
  if (!PyArg_ParseTuple(args, "y*IIIIIIIIIIIIw*", &blob, &columns, &rows, &tile_mcus, &header_bytes,
                        &q.sof_offset, &table_bits, &q.first_mcu, &q.end_mcu, &q.first_row,
                        &q.end_row, &q.width, &q.height, &out))
    return NULL;
  segmented s;
  size_t room = (size_t)out.len, written = 0;
  if (room >= DECODER_SLACK_BYTES &&
      open_blob(&s, blob.buf, (size_t)blob.len, columns, rows, tile_mcus, header_bytes,
                table_bits))
    written = join(&s, &q, out.buf, room - DECODER_SLACK_BYTES);
  if (written != 0)
    memset((unsigned char *)out.buf + written, 0, DECODER_SLACK_BYTES);
  PyBuffer_Release(&blob);
  PyBuffer_Release(&out);
  if (written == 0) {
    PyErr_SetString(PyExc_ValueError, "the sample's segments do not fit its record");
    return NULL;
  }
  return PyLong_FromSize_t(written);
}

/* ---- checking ------------------------------------------------------------------------------ */

/* Reads every code of the scan. Returns the number of the first segment that is not as long as its
 * table says or does not leave DC prediction where it says, or -1. */
static Py_ssize_t find_bad_segment(const segmented *s, unsigned mcus) {
  size_t at = 0, segment = 0;
  for (size_t row = 0; row < s->rows; row++) {
    int dc[COMPONENTS_MAX] = {0, 0, 0};
    for (unsigned mcu = 0; mcu < mcus; mcu += s->tile_mcus, segment++) {
      size_t end = at + length_of(s, segment);
      unsigned count = mcus - mcu < s->tile_mcus ? mcus - mcu : s->tile_mcus;
      int after[COMPONENTS_MAX] = {0, 0, 0};
      prediction_after(s, segment, after);
      if (end > s->scan_bits || !pass_mcus(s, count, &at, end, dc) || at != end ||
          memcmp(after, dc, sizeof dc) != 0)
        return (Py_ssize_t)segment;
    }
  }
  /* What is left: bits up to a whole byte, then the slack, all zero. */
  uint64_t rest = 0;
  if (8 * ((at + 7) / 8) != s->scan_bits)
    return (Py_ssize_t)segment - 1;
  for (; at < s->scan_bits + 8 * SCAN_SLACK_BYTES; at++)
    rest |= s->scan[at / 8] >> (7 - at % 8) & 1u;
  return rest != 0 ? (Py_ssize_t)segment - 1 : -1;
}

PyObject *feeder_check_segments(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer blob;
  unsigned columns, rows, tile_mcus, header_bytes, sof_offset, table_bits, mcus;
  if (!PyArg_ParseTuple(args, "y*IIIIIII", &blob, &columns, &rows, &tile_mcus, &header_bytes,
                        &sof_offset, &table_bits, &mcus))
    return NULL;
  segmented s;
  Py_ssize_t bad = -2;
  if (mcus > 0 && mcus <= JPEG_SIDE_MAX &&
      open_blob(&s, blob.buf, (size_t)blob.len, columns, rows, tile_mcus, header_bytes,
                table_bits) &&
      ((size_t)mcus + tile_mcus - 1) / tile_mcus == columns)
    bad = find_bad_segment(&s, mcus);
  PyBuffer_Release(&blob);
  if (bad == -2)
    PyErr_SetString(PyExc_ValueError, "its tables or its JPEG header make no sense");
  else if (bad >= 0)
    PyErr_Format(PyExc_ValueError, "segment %zd is not what its tables say", bad);
  else
    Py_RETURN_NONE;
  return NULL;
}
