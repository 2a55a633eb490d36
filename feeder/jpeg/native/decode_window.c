/* decode_window: a window of a sample's blob to RGBX pixels, without joining it. */
#include "native.h"

#include "window.h"

static const decode_version *find_version(const char *name) {
  const decode_version *versions;
  int count = decode_versions(&versions);
  if (name == NULL)
    return &versions[count - 1];
  for (int v = 0; v < count; v++)
    if (strcmp(versions[v].name, name) == 0)
      return &versions[v];
  PyErr_Format(PyExc_ValueError, "this CPU has no version %s", name);
  return NULL;
}

PyObject *feeder_decode_versions(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) {
  const decode_version *versions;
  int count = decode_versions(&versions);
  PyObject *names = PyTuple_New(count);
  for (int v = 0; names != NULL && v < count; v++) {
    PyObject *name = PyUnicode_FromString(versions[v].name);
    if (name == NULL)
      Py_CLEAR(names);
    else
      PyTuple_SET_ITEM(names, v, name);
  }
  return names;
}

PyObject *feeder_decode_window(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer blob, out;
  segment_layout layout;
  tile_window window;
  unsigned scale;
  Py_ssize_t blob_bytes, stride;
  const char *name;
  if (!PyArg_ParseTuple(args, "y*nIIIIIIIIIIIIInw*z", &blob, &blob_bytes, &layout.columns,
                        &layout.rows, &layout.tile_mcus, &layout.header_bytes, &layout.sof_offset,
                        &layout.table_bits, &window.first_mcu, &window.end_mcu, &window.first_row,
                        &window.end_row, &window.width, &window.height, &scale, &stride, &out,
                        &name))
    return NULL;
  const decode_version *version = find_version(name);
  window_outcome outcome = DAMAGED_BLOB;
  if (version == NULL) {
    /* the error is set */
  } else if (blob_bytes < 0 || blob.len < blob_bytes + READ_SLACK_BYTES) {
    PyErr_Format(PyExc_ValueError, "%d readable bytes must follow the blob", READ_SLACK_BYTES);
  } else if (scale != 1 && scale != 2 && scale != 4 && scale != 8) {
    PyErr_SetString(PyExc_ValueError, "the scale must be 1, 2, 4 or 8");
  } else if (window.width < 1 || window.height < 1 || window.width > JPEG_SIDE_MAX ||
             window.height > JPEG_SIDE_MAX) {
    PyErr_SetString(PyExc_ValueError, "the window must be of 1 to 65535 pixels a side");
  } else {
    Py_ssize_t width = (window.width + scale - 1) / scale;
    Py_ssize_t height = (window.height + scale - 1) / scale;
    if (stride < 4 * width || stride > PY_SSIZE_T_MAX / JPEG_SIDE_MAX ||
        out.len < stride * (height - 1) + 4 * width) {
      PyErr_SetString(PyExc_ValueError, "the output must hold height rows of the stride");
    } else {
      Py_BEGIN_ALLOW_THREADS;
      segmented s;
      if (open_blob(&s, blob.buf, (size_t)blob_bytes, &layout) &&
          s.header.sof_offset == layout.sof_offset)
        outcome = decode_window(&s, &window, scale, version, out.buf, (size_t)stride);
      Py_END_ALLOW_THREADS;
      if (outcome == OUT_OF_MEMORY)
        PyErr_NoMemory();
      else if (outcome == DAMAGED_BLOB)
        PyErr_SetString(PyExc_ValueError, "the sample's segments do not fit its record");
    }
  }
  PyBuffer_Release(&blob);
  PyBuffer_Release(&out);
  if (PyErr_Occurred() != NULL)
    return NULL;
  return PyBool_FromLong(outcome == DECODED);
}
