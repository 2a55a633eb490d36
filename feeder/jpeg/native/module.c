/* The parts of the sample path, and of packing, for which Python is too slow. */
#include "native.h"

#include <stdio.h>

#include <jpeglib.h>
#include <turbojpeg.h>

PyObject *feeder_jpeg_error;

static PyMethodDef methods[] = {
    {"tile_jpeg", feeder_tile_jpeg, METH_VARARGS, "See feeder.jpeg.recode.tile_jpeg."},
    {"transform_jpeg", feeder_transform_jpeg, METH_VARARGS, "See feeder.jpeg.recode.transform_jpeg."},
    {"check_blob", feeder_check_blob, METH_VARARGS, "See feeder.jpeg.crop_decode.check_blob."},
    {"rebuild_jpeg", feeder_rebuild_jpeg, METH_VARARGS, "See feeder.jpeg.crop_decode.rebuild_jpeg."},
    {"decode_rgbx", feeder_decode_rgbx, METH_VARARGS, "See feeder.jpeg.decode.decode_rgbx."},
    {"decode_window", feeder_decode_window, METH_VARARGS, "See feeder.jpeg.decode.decode_window."},
    {"decode_versions", feeder_decode_versions, METH_VARARGS, "See feeder.jpeg.decode.VERSIONS."},
    {"resize_pack", feeder_resize_pack, METH_VARARGS, "See feeder.jpeg.resize.resize_pack."},
    {"resize_versions", feeder_resize_versions, METH_NOARGS, "See feeder.jpeg.resize.VERSIONS."},
    {"blur", feeder_blur, METH_VARARGS, "See feeder.jpeg.blur.blur."},
    {"find_offsets", feeder_find_offsets, METH_VARARGS, "See feeder.sample.cache_file.DecodedCache."},
    {"store_word", feeder_store_word, METH_VARARGS, "See feeder.sample.cache_file.DecodedCache."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "feeder.jpeg._native", .m_size = -1, .m_methods = methods};

static int add_address(PyObject *module, const char *name, uintptr_t address) {
  PyObject *number = PyLong_FromUnsignedLongLong(address);
  int status = number == NULL ? -1 : PyModule_AddObjectRef(module, name, number);
  Py_XDECREF(number);
  return status;
}

#define TEXT_OF(macro) #macro
#define TEXT(macro) TEXT_OF(macro)

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL)
    return NULL;
  feeder_jpeg_error = PyErr_NewException("feeder.jpeg._native.JpegError", PyExc_ValueError, NULL);
  /* feeder.jpeg.loaded_libraries finds the versions of the loaded libraries by the addresses. */
  if (feeder_jpeg_error == NULL ||
      PyModule_AddObjectRef(module, "JpegError", feeder_jpeg_error) < 0 ||
      PyModule_AddStringConstant(module, "LIBJPEG_TURBO_VERSION", TEXT(LIBJPEG_TURBO_VERSION)) < 0 ||
      add_address(module, "LIBJPEG_ADDRESS", (uintptr_t)jpeg_CreateDecompress) < 0 ||
      add_address(module, "TURBOJPEG_ADDRESS", (uintptr_t)tjDecompress2) < 0)
    Py_CLEAR(module);
  return module;
}
