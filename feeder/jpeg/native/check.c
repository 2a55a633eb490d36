/* check_segments: whether a blob's tables are correct, found by reading every code of its scan. */
#include "native.h"
#include "segments.h"

/* Returns the number of the first segment whose length or DC prediction differs from the tables, or
 * -1. */
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
  /* The remaining bits, up to a whole byte, and the slack after them must be zero. */
  uint64_t rest = 0;
  if (8 * ((at + 7) / 8) != s->scan_bits)
    return (Py_ssize_t)segment - 1;
  for (; at < s->scan_bits + 8 * SCAN_SLACK_BYTES; at++)
    rest |= s->scan[at / 8] >> (7 - at % 8) & 1u;
  return rest != 0 ? (Py_ssize_t)segment - 1 : -1;
}

PyObject *feeder_check_segments(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer blob;
  segment_layout layout;
  unsigned mcus;
  if (!PyArg_ParseTuple(args, "y*IIIIIII", &blob, &layout.columns, &layout.rows, &layout.tile_mcus,
                        &layout.header_bytes, &layout.sof_offset, &layout.table_bits, &mcus))
    return NULL;
  segmented s;
  Py_ssize_t bad = -2;
  if (mcus > 0 && mcus <= JPEG_SIDE_MAX && open_blob(&s, blob.buf, (size_t)blob.len, &layout) &&
      make_scan_tables(&s) &&
      ((size_t)mcus + s.tile_mcus - 1) / s.tile_mcus == s.columns)
    bad = find_bad_segment(&s, mcus);
  PyBuffer_Release(&blob);
  if (bad == -2)
    PyErr_SetString(PyExc_ValueError, "its tables or its JPEG header make no sense");
  else if (bad >= 0)
    PyErr_Format(PyExc_ValueError, "segment %zd differs from its tables", bad);
  else
    Py_RETURN_NONE;
  return NULL;
}
