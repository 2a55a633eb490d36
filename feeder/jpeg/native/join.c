/* join_segments: the segments of a rectangle of tiles as one small valid JPEG.
 *
 * A row of MCUs is one run of Huffman codes, as in any JPEG, so the tiles of one row that a crop
 * touches are neighbouring bits. A run depends on its surroundings only because each MCU's first DC
 * coefficients are coded as differences from those before; the blob has for each segment what they
 * have reached after it. So joining is, for each row: code the DC differences of the first MCU
 * again, then shift the other bits into place. Reading codes without decoding them takes half of
 * what decoding does, so the MCUs of the outer tiles that a crop does not touch are left out as
 * well. The result has no restart markers, which would make libjpeg-turbo take the slower of its two
 * Huffman decoders (decode_mcu_slow in jdhuff.c).
 *
 * Whatever the bytes are, nothing outside of the blob is read or outside of the output written. */
#include "native.h"
#include "segments.h"

/* Zero bytes after a joined JPEG: libjpeg-turbo takes its fast Huffman decoder only while at least
 * 512 bytes for each block of an MCU, at most ten, remain (jdhuff.c). */
#define DECODER_SLACK_BYTES 5120
/* Most bytes that a row takes beyond its own bits: longer codes, pending bits, stuffing, EOI. */
#define ROW_ROOM_BYTES 64

static inline void copy_few(bit_writer *w, const unsigned char *data, size_t at, size_t end) {
  while (at < end) {
    unsigned bits = end - at < 24 ? (unsigned)(end - at) : 24;
    put_bits(w, peek_bits(data, at) >> (64 - bits), bits, JPEG_SCAN);
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

/* Appends the bits [at, end): 16 bytes at a time, fewer where one of them is 0xFF. */
static void copy_bits(bit_writer *w, const unsigned char *data, size_t at, size_t end) {
  if (end - at >= 8 * 32) {
    unsigned lead = (8 - w->count) % 8;
    copy_few(w, data, at, at + lead);
    at += lead;
    const unsigned char *from = data + at / 8, *stop = data + end / 8 - 16;
    unsigned char *out = w->out;
    unsigned up = at % 8, down = 8 - up;
    const bytes16 none = {0}, stuffed = none - 1;
    const bytes16 keep_up = none + (uint8_t)(0xFFu << up);
    const bytes16 keep_down = none + (uint8_t)(0xFFu >> down);
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
      int first = hit[0] != 0 ? __builtin_ctzll(hit[0]) / 8 : 8 + __builtin_ctzll(hit[1]) / 8;
      from += first + 1;
      out += first + 1;
      *out++ = 0;
    }
    at = 8 * (size_t)(from - data) + up;
    w->out = out;
  }
  copy_few(w, data, at, end);
}

static inline int put_difference(const segmented *s, int c, bit_writer *w, int difference) {
  unsigned size = magnitude_bits(difference);
  if (size >= DC_CATEGORIES || s->tables.dc_codes[c].bits[size] == 0)
    return 0;
  put_symbol(w, &s->tables.dc_codes[c], size, difference, size, JPEG_SCAN);
  return 1;
}

/* Appends one row's run, the bits [at, end), whose first differences are `shift` more than coded. */
static int join_run(const segmented *s, bit_writer *w, size_t at, size_t end, const int *shift) {
  size_t copied = at;
  int last = s->header.components - 1;
  while (last >= 0 && shift[last] == 0)
    last--;
  for (int c = 0; c <= last; c++) {
    int difference;
    copy_few(w, s->scan, copied, at);
    if (!read_difference(s, c, &at, end, &difference) ||
        !put_difference(s, c, w, difference + shift[c]))
      return 0;
    copied = at;
    for (int block = 0; c < last && block < mcu_blocks(s, c); block++)
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
 * `segment` and begins at `at`. The tables lead to a tile's edge; from there codes are read. */
static int find_run(const segmented *s, const tile_window *window, size_t segment, size_t at,
                    row_run *run) {
  size_t first = window->first_mcu / s->tile_mcus, last = (window->end_mcu - 1) / s->tile_mcus;
  unsigned skip = window->first_mcu % s->tile_mcus;
  unsigned cut = window->end_mcu == s->mcus ? 0 : window->end_mcu % s->tile_mcus;
  size_t column = 0;
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

/* Returns the bytes written, or 0 if the blob does not match its record. */
static size_t join(const segmented *s, const tile_window *window, unsigned char *out, size_t room) {
  if (window->first_mcu >= window->end_mcu || window->end_mcu > s->columns * s->tile_mcus ||
      window->first_row >= window->end_row || window->end_row > s->rows ||
      window->width > JPEG_SIDE_MAX || window->height > JPEG_SIDE_MAX || s->header.bytes > room)
    return 0;
  memcpy(out, s->jpeg, s->header.bytes);
  store_be16(out + s->header.sof_offset + 5, window->height);
  store_be16(out + s->header.sof_offset + 7, window->width);

  bit_writer writer = {.out = out + s->header.bytes};
  size_t at = 0, segment = 0;
  int reached[COMPONENTS_MAX] = {0, 0, 0};
  for (; segment < window->first_row * s->columns; segment++)
    at += length_of(s, segment);
  for (unsigned row = window->first_row; row < window->end_row; row++) {
    row_run run;
    if (!find_run(s, window, segment, at, &run))
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
  finish_bits(&writer, JPEG_SCAN);
  store_be16(writer.out, 0xFFD9); /* EOI */
  return (size_t)(writer.out + 2 - out);
}

PyObject *feeder_join_segments(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer blob, out;
  segment_layout layout;
  tile_window window;
  if (!PyArg_ParseTuple(args, "y*IIIIIIIIIIIIw*", &blob, &layout.columns, &layout.rows,
                        &layout.tile_mcus, &layout.header_bytes, &layout.sof_offset,
                        &layout.table_bits, &window.first_mcu, &window.end_mcu, &window.first_row,
                        &window.end_row, &window.width, &window.height, &out))
    return NULL;
  segmented s;
  size_t room = (size_t)out.len, written = 0;
  if (room >= DECODER_SLACK_BYTES && open_blob(&s, blob.buf, (size_t)blob.len, &layout) &&
      s.header.sof_offset == layout.sof_offset && make_scan_tables(&s))
    written = join(&s, &window, out.buf, room - DECODER_SLACK_BYTES);
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
