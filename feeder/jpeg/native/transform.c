/* transform_jpeg: rotates and mirrors a JPEG by its EXIF orientation, without loss. */
#include "native.h"

#include <string.h>

#include <turbojpeg.h>

PyObject *feeder_transform_jpeg(PyObject *Py_UNUSED(module), PyObject *args) {
  static const int operations[9] = {0,           TJXOP_NONE,       TJXOP_HFLIP,
                                    TJXOP_ROT180, TJXOP_VFLIP,      TJXOP_TRANSPOSE,
                                    TJXOP_ROT90,  TJXOP_TRANSVERSE, TJXOP_ROT270};
  Py_buffer data;
  int orientation;
  if (!PyArg_ParseTuple(args, "y*i", &data, &orientation))
    return NULL;
  PyObject *result = NULL;
  tjhandle handle = NULL;
  if (orientation < 1 || orientation > 8) {
    PyErr_Format(PyExc_ValueError, "EXIF orientation %d is not within 1..8", orientation);
  } else if ((handle = tjInitTransform()) == NULL) {
    PyErr_NoMemory();
  } else {
    tjtransform transform;
    memset(&transform, 0, sizeof transform);
    transform.op = operations[orientation];
    transform.options = TJXOPT_PERFECT | TJXOPT_COPYNONE;
    unsigned char *output = NULL;
    unsigned long bytes = 0;
    if (tjTransform(handle, data.buf, (unsigned long)data.len, 1, &output, &bytes, &transform, 0) ==
        0)
      result = PyBytes_FromStringAndSize((const char *)output, (Py_ssize_t)bytes);
    else
      result = Py_NewRef(Py_None); /* not possible without loss, or damaged: the caller decides */
    tjFree(output);
    tjDestroy(handle);
  }
  PyBuffer_Release(&data);
  return result;
}
