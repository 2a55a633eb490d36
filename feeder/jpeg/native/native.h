/* The functions of feeder.jpeg._native. Their types, documentation and the reference versions that
 * tests compare them with are in recode.py, crop_decode.py, decode.py, resize.py and blur.py of
 * feeder/jpeg, and in feeder/sample/cache_file.py. */
#ifndef FEEDER_NATIVE_H
#define FEEDER_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "window_plan.h"

extern PyObject *feeder_jpeg_error; /* feeder.jpeg._native.JpegError; args: (kind, reason) */

/* Sets the error of DAMAGED_BLOB or OUT_OF_MEMORY; returns NULL. */
PyObject *feeder_raise(window_outcome outcome);

PyObject *feeder_tile_jpeg(PyObject *module, PyObject *args);
PyObject *feeder_transform_jpeg(PyObject *module, PyObject *args);
PyObject *feeder_check_blob(PyObject *module, PyObject *args);
PyObject *feeder_rebuild_jpeg(PyObject *module, PyObject *args);
PyObject *feeder_decode_rgbx(PyObject *module, PyObject *args);
PyObject *feeder_decode_window(PyObject *module, PyObject *args);
PyObject *feeder_decode_versions(PyObject *module, PyObject *args);
PyObject *feeder_resize_pack(PyObject *module, PyObject *args);
PyObject *feeder_resize_versions(PyObject *module, PyObject *args);
PyObject *feeder_blur(PyObject *module, PyObject *args);
PyObject *feeder_find_offsets(PyObject *module, PyObject *args);
PyObject *feeder_store_word(PyObject *module, PyObject *args);

#endif
