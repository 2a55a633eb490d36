/* decode_rgbx: a JPEG to RGBX pixels, at full or reduced size. */
#include "native.h"

#include <turbojpeg.h>

/* One decoder for the life of the process: creating and destroying one takes longer than reading a
 * header. All calls hold the GIL, so it is never used by two threads at once. */
static tjhandle decoder;

PyObject *feeder_decode_rgbx(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer jpeg, out;
  int width, height, stride;
  if (!PyArg_ParseTuple(args, "y*iiiw*", &jpeg, &width, &height, &stride, &out))
    return NULL;
  PyObject *result = NULL;
  if (decoder == NULL)
    decoder = tjInitDecompress();
  if (decoder == NULL)
    PyErr_NoMemory();
  else if (width < 1 || height < 1 || width > 65535 || height > 65535 ||
           stride < 4 * width || out.len < (Py_ssize_t)stride * (height - 1) + 4 * width)
    PyErr_SetString(PyExc_ValueError, "the output must hold height rows of the stride");
  else if (tjDecompress2(decoder, jpeg.buf, (unsigned long)jpeg.len, out.buf, width, stride,
                         height, TJPF_RGBX, 0) != 0) /* nonzero for warnings, too */
    PyErr_SetString(PyExc_ValueError, tjGetErrorStr2(decoder));
  else
    result = Py_NewRef(Py_None);
  PyBuffer_Release(&jpeg);
  PyBuffer_Release(&out);
  return result;
}
