/* blur: a Gaussian blur of a picture of three bytes a pixel. */
#include "native.h"

#include "blur.h"

#define MAX_SIDE 65535

PyObject *feeder_blur(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer in, weights, out;
  Py_ssize_t width, height;
  int portable;
  if (!PyArg_ParseTuple(args, "y*nny*w*p", &in, &width, &height, &weights, &out, &portable))
    return NULL;
  PyObject *result = NULL;
  Py_ssize_t count = weights.len / (Py_ssize_t)sizeof(float);
  if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE ||
      in.len != width * height * CHANNELS || out.len != in.len)
    PyErr_SetString(PyExc_ValueError, "the pictures must hold height * width * 3 bytes");
  else if (count < 1 || weights.len % (Py_ssize_t)sizeof(float) || count > width || count > height)
    PyErr_SetString(PyExc_ValueError, "the weights must be float32, 1 to as many as a side's pixels");
  else {
    blur_picture *run = blur_portable;
#if defined(__x86_64__)
    if (!portable && __builtin_cpu_supports("avx2"))
      run = blur_avx2;
#endif
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = run(in.buf, (int)width, (int)height, weights.buf, (int)count - 1, out.buf);
    Py_END_ALLOW_THREADS;
    result = done ? Py_NewRef(Py_None) : PyErr_NoMemory();
  }
  PyBuffer_Release(&in);
  PyBuffer_Release(&weights);
  PyBuffer_Release(&out);
  return result;
}
