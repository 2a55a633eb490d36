/* check_blob: whether all of a blob decodes, and what its content is. */
#include "native.h"

#include "block_rows.h"
#include "content_hash.h"

static window_outcome check(block_rows *rows, const Py_buffer *data, content_hash *hash) {
  window_outcome outcome = open_block_rows(rows, data->buf, (size_t)data->len);
  if (outcome == DECODED)
    outcome = begin_block_rows(rows, 0, rows->blob.mcus);
  if (outcome != DECODED)
    return outcome;
  begin_hash(hash);
  hash_padded(hash, rows->blob.jpeg, rows->blob.header.bytes);
  for (unsigned row = 0; row < rows->blob.rows; row++) {
    if (!read_block_row(rows, row))
      return DAMAGED_BLOB;
    hash_stripes(hash, rows->block, rows->count * sizeof *rows->block / STRIPE_BYTES);
  }
  return rows->reader.at == rows->blob.tiles_bytes ? DECODED : DAMAGED_BLOB;
}

PyObject *feeder_check_blob(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer data;
  if (!PyArg_ParseTuple(args, "y*", &data))
    return NULL;
  block_rows rows;
  memset(&rows, 0, sizeof rows);
  content_hash hash;
  window_outcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome = check(&rows, &data, &hash);
  close_block_rows(&rows);
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&data);
  if (outcome != DECODED)
    return feeder_raise(outcome);
  const jpeg_header *header = &rows.blob.header;
  return Py_BuildValue("KIIIII", end_hash(&hash), header->width, header->height,
                       rows.blob.mcu_width, rows.blob.mcu_height, rows.blob.tile_mcus);
}
