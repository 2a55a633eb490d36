/* decode_window: a window of a sample's blob to RGBX pixels. */
#include "native.h"

#include "window.h"

PyObject *feeder_decode_versions(PyObject *Py_UNUSED(module), PyObject *args) {
  const decode_version *listed[DECODE_VERSIONS_MAX], *const *versions = listed;
  const char *vendor = NULL;
  unsigned family = 0;
  if (!PyArg_ParseTuple(args, "|sI", &vendor, &family))
    return NULL;
  int count = vendor == NULL ? own_versions(&versions) : list_versions(listed, vendor, family);
  PyObject *names = PyTuple_New(count);
  for (int v = 0; names != NULL && v < count; v++) {
    PyObject *name = PyUnicode_FromString(versions[v]->name);
    if (name == NULL)
      Py_CLEAR(names);
    else
      PyTuple_SET_ITEM(names, v, name);
  }
  return names;
}

PyObject *feeder_raise(window_outcome outcome) {
  if (outcome == OUT_OF_MEMORY)
    return PyErr_NoMemory();
  PyErr_SetString(PyExc_ValueError, "its blob is damaged");
  return NULL;
}

PyObject *feeder_decode_window(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer data, out;
  tile_window window;
  unsigned scale;
  Py_ssize_t blob_bytes, stride;
  const char *name;
  if (!PyArg_ParseTuple(args, "y*nIIIIIIInw*z", &data, &blob_bytes, &window.first_mcu,
                        &window.end_mcu, &window.first_row, &window.end_row, &window.width,
                        &window.height, &scale, &stride, &out, &name))
    return NULL;
  const decode_version *version = find_version(name);
  window_outcome outcome = DAMAGED_BLOB;
  if (version == NULL) {
    PyErr_Format(PyExc_ValueError, "this CPU has no version %s", name);
  } else if (blob_bytes < 0 || data.len - READ_SLACK_BYTES < blob_bytes) {
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
      tiled_blob blob;
      if (open_blob(&blob, data.buf, (size_t)blob_bytes))
        outcome = decode_window(&blob, &window, scale, version, out.buf, (size_t)stride);
      Py_END_ALLOW_THREADS;
      if (outcome == OUT_OF_MEMORY || outcome == DAMAGED_BLOB)
        feeder_raise(outcome);
    }
  }
  PyBuffer_Release(&data);
  PyBuffer_Release(&out);
  if (PyErr_Occurred() != NULL)
    return NULL;
  return PyBool_FromLong(outcome == DECODED);
}
