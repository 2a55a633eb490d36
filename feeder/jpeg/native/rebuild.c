/* A window of a blob as a baseline JPEG. Its Huffman tables are near-optimal, not optimal: they are
 * those that format 2 stored, counted with DC prediction reset in each MCU row and with codes for
 * every DC size and for EOB, so that `feeder unpack` still writes the same bytes. */
#include "native.h"

#include <stdlib.h>

#include "block_rows.h"
#include "huffman.h"

#define TABLES 4 /* of DC, and of AC */
#define DHT 0xFFC4
#define EOI 0xFFD9
#define TABLE_BYTES_MAX (2 + 2 + 1 + 16 + 256) /* of a DHT segment */
#define END_BYTES_MAX 12 /* of bits that are pending, and EOI */

typedef struct {
  block_rows rows;
  huffman_table dc[TABLES], ac[TABLES];
  unsigned char *out;
} rebuilder;

static huffman_table *dc_table(rebuilder *r, unsigned component) {
  return &r->dc[r->rows.blob.header.dc_table[component]];
}

static huffman_table *ac_table(rebuilder *r, unsigned component) {
  return &r->ac[r->rows.blob.header.ac_table[component]];
}

static window_outcome count_symbols(rebuilder *r, const tile_window *w) {
  window_outcome outcome = begin_block_rows(&r->rows, w->first_mcu, w->end_mcu);
  for (unsigned row = w->first_row; outcome == DECODED && row < w->end_row; row++) {
    int dc[COMPONENTS_MAX] = {0};
    if (!read_block_row(&r->rows, row))
      return DAMAGED_BLOB;
    for (size_t i = 0; i < r->rows.count; i++) {
      unsigned c = r->rows.place[i].component;
      count_block(r->rows.block[i], dc[c], dc_table(r, c), ac_table(r, c));
      dc[c] = r->rows.block[i][0];
    }
  }
  return outcome;
}

/* Writes a DHT segment, unless the table has been written; `id`: Tc and Th of the segment (T.81
 * B.2.4.2). */
static unsigned char *write_table(unsigned char *to, huffman_table *table, unsigned id) {
  if (table->symbol_count > 0)
    return to;
  unsigned always = id < 16 ? DC_SIZE_MAX : END_OF_BLOCK; /* symbols up to it have codes */
  for (unsigned symbol = 0; symbol <= always; symbol++)
    table->frequency[symbol] += table->frequency[symbol] == 0;
  make_best_table(table);
  store_be16(to, DHT);
  store_be16(to + 2, 2 + 1 + 16 + table->symbol_count);
  to[4] = (unsigned char)id;
  memcpy(to + 5, table->counts, 16);
  memcpy(to + 21, table->symbols, table->symbol_count);
  return to + 21 + table->symbol_count;
}

/* Writes the header, with the window's size, and its tables in libjpeg's order; returns its end. */
static unsigned char *write_head(rebuilder *r, const tile_window *w) {
  const jpeg_header *header = &r->rows.blob.header;
  const unsigned char *jpeg = r->rows.blob.jpeg;
  unsigned char *to = r->out + header->sos_offset;
  memcpy(r->out, jpeg, header->sos_offset);
  store_be16(r->out + header->sof_offset + 5, w->height);
  store_be16(r->out + header->sof_offset + 7, w->width);
  for (int c = 0; c < header->components; c++) {
    to = write_table(to, dc_table(r, c), header->dc_table[c]);
    to = write_table(to, ac_table(r, c), 16 + header->ac_table[c]);
  }
  memcpy(to, jpeg + header->sos_offset, header->bytes - header->sos_offset);
  return to + header->bytes - header->sos_offset;
}

/* Writes the JPEG; returns its bytes, 0 for lack of memory. */
static size_t write_jpeg(rebuilder *r, const tile_window *w) {
  size_t row_bytes_max = r->rows.count * BLOCK_CODES_BYTES_MAX + END_BYTES_MAX;
  size_t room = r->rows.blob.header.bytes + 2 * TABLES * TABLE_BYTES_MAX + row_bytes_max;
  r->out = malloc(room);
  if (r->out == NULL)
    return 0;
  r->rows.reader.tile = r->rows.reader.at = 0; /* again from the first row on */
  scan_writer scan = {.out = write_head(r, w)};
  int dc[COMPONENTS_MAX] = {0};
  for (unsigned row = w->first_row; row < w->end_row; row++) {
    size_t used = (size_t)(scan.out - r->out);
    if (room - used < row_bytes_max) {
      room *= 2;
      unsigned char *larger = realloc(r->out, room);
      if (larger == NULL)
        return 0;
      r->out = larger;
      scan.out = larger + used;
    }
    /* Cannot fail: count_symbols has read this row of the same copy. */
    read_block_row(&r->rows, row);
    for (size_t i = 0; i < r->rows.count; i++) {
      unsigned c = r->rows.place[i].component;
      code_block(&scan, r->rows.block[i], dc[c], dc_table(r, c), ac_table(r, c));
      dc[c] = r->rows.block[i][0];
    }
  }
  finish_scan(&scan);
  store_be16(scan.out, EOI);
  return (size_t)(scan.out + 2 - r->out);
}

PyObject *feeder_rebuild_jpeg(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer data;
  tile_window w;
  if (!PyArg_ParseTuple(args, "y*IIIIII", &data, &w.first_mcu, &w.end_mcu, &w.first_row,
                        &w.end_row, &w.width, &w.height))
    return NULL;
  rebuilder *r = calloc(1, sizeof *r);
  window_outcome outcome = OUT_OF_MEMORY;
  size_t bytes = 0;
  if (r != NULL) {
    Py_BEGIN_ALLOW_THREADS;
    outcome = open_block_rows(&r->rows, data.buf, (size_t)data.len);
    if (outcome == DECODED)
      outcome = window_fits(&r->rows.blob, &w) ? count_symbols(r, &w) : DAMAGED_BLOB;
    if (outcome == DECODED) {
      bytes = write_jpeg(r, &w);
      outcome = bytes == 0 ? OUT_OF_MEMORY : DECODED;
    }
    Py_END_ALLOW_THREADS;
  }
  PyObject *jpeg = NULL;
  if (outcome == DECODED)
    jpeg = PyBytes_FromStringAndSize((const char *)r->out, (Py_ssize_t)bytes);
  else
    feeder_raise(outcome);
  if (r != NULL) {
    close_block_rows(&r->rows);
    free(r->out);
  }
  free(r);
  PyBuffer_Release(&data);
  return jpeg;
}
