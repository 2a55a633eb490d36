/* join_segments: the segments of a rectangle of tiles as one small valid JPEG. */
#include "native.h"

#include <stdint.h>
#include <string.h>

typedef struct {
  unsigned columns, rows, header_bytes, sof_offset;
  unsigned first_column, end_column, first_row, end_row, width, height;
} join_request;

/* Returns the bytes written, or 0 where the blob does not hold what its record says. */
static size_t join(const unsigned char *blob, size_t blob_bytes, const join_request *q,
                   unsigned char *out, size_t room) {
  size_t segments = (size_t)q->columns * q->rows;
  if (q->first_column >= q->end_column || q->end_column > q->columns ||
      q->first_row >= q->end_row || q->end_row > q->rows || q->width > 65535 ||
      q->height > 65535 || segments * 2 > blob_bytes)
    return 0;
  const unsigned char *table = blob; /* u16 little-endian, aligned with the blob */
  const unsigned char *jpeg = blob + segments * 2;
  size_t jpeg_bytes = blob_bytes - segments * 2;
  if (q->header_bytes > jpeg_bytes || q->header_bytes > room || q->sof_offset + 9 > q->header_bytes)
    return 0;

#define SEGMENT_BYTES(i) ((size_t)(table[2 * (i)] | (unsigned)table[2 * (i) + 1] << 8))
  memcpy(out, jpeg, q->header_bytes);
  out[q->sof_offset + 5] = (unsigned char)(q->height >> 8);
  out[q->sof_offset + 6] = (unsigned char)q->height;
  out[q->sof_offset + 7] = (unsigned char)(q->width >> 8);
  out[q->sof_offset + 8] = (unsigned char)q->width;

  size_t from = q->header_bytes, to = q->header_bytes, i = 0;
  for (; i < (size_t)q->first_row * q->columns; i++)
    from += SEGMENT_BYTES(i);
  unsigned number = 0;
  for (unsigned row = q->first_row; row < q->end_row; row++) {
    unsigned column = 0;
    for (; column < q->first_column; column++, i++)
      from += SEGMENT_BYTES(i);
    size_t run = 0, mark = to;
    for (unsigned c = q->first_column; c < q->end_column; c++)
      run += SEGMENT_BYTES(i + c - q->first_column);
    if (from + run > jpeg_bytes || to + run > room)
      return 0;
    memcpy(out + to, jpeg + from, run);
    for (; column < q->end_column; column++, i++) {
      size_t length = SEGMENT_BYTES(i);
      mark += length;
      if (length < 2 || out[mark - 2] != 0xFF)
        return 0;
      out[mark - 1] = (unsigned char)(0xD0 | (number++ & 7));
    }
    from += run;
    to += run;
    for (; column < q->columns; column++, i++)
      from += SEGMENT_BYTES(i);
  }
#undef SEGMENT_BYTES
  out[to - 1] = 0xD9;
  return to;
}

PyObject *feeder_join_segments(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer blob, out;
  join_request q;
  if (!PyArg_ParseTuple(args, "y*IIIIIIIIIIw*", &blob, &q.columns, &q.rows, &q.header_bytes,
                        &q.sof_offset, &q.first_column, &q.end_column, &q.first_row, &q.end_row,
                        &q.width, &q.height, &out))
    return NULL;
  size_t written = join(blob.buf, (size_t)blob.len, &q, out.buf, (size_t)out.len);
  PyBuffer_Release(&blob);
  PyBuffer_Release(&out);
  if (written == 0) {
    PyErr_SetString(PyExc_ValueError, "the sample's segments do not fit its record");
    return NULL;
  }
  return PyLong_FromSize_t(written);
}
