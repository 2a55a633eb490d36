/* trainer_client._native: see trainer_client/_host_normalise.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "normalise.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "trainer_client._native is written for little-endian machines"
#endif

/* A C-contiguous array of native numbers: its shape, and the single letter that is its format. */
typedef struct {
  Py_buffer view;
  char format;
} array;

/* Returns 0 with an exception set where `object` is not an array of `dimensions` in one of the
 * formats that `formats` lists. `view.obj` is set where it must be released. */
static int take_array(array *a, PyObject *object, const char *name, int dimensions,
                      const char *formats, int is_written) {
  int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object, &a->view, flags) < 0)
    return 0;
  const char *format = a->view.format == NULL ? "B" : a->view.format;
  a->format = format[0];
  if (a->view.ndim != dimensions) {
    PyErr_Format(PyExc_ValueError, "%s must have %d dimensions, it has %d", name, dimensions,
                 a->view.ndim);
    return 0;
  }
  if (strlen(format) != 1 || strchr(formats, format[0]) == NULL) {
    PyErr_Format(PyExc_TypeError, "%s must have one of the formats %s, it has %s", name, formats,
                 format);
    return 0;
  }
  return 1;
}

static int has_shape(const array *a, const char *name, Py_ssize_t first, Py_ssize_t second) {
  if (a->view.shape[0] == first && (second < 0 || a->view.shape[1] == second))
    return 1;
  PyErr_Format(PyExc_ValueError, "%s has the wrong shape: its first axis has %zd, not %zd", name,
               a->view.shape[0], first);
  return 0;
}

typedef struct {
  array pixels, table, scale, bias, out;
} arguments;

/* Fills in the scale and bias of the job's channels, the first of which is `first`. */
static void repeat(normalise_job *job, const arguments *a, int first) {
  for (int i = 0; i < PERIOD; i++) {
    job->scale[i] = ((const float *)a->scale.view.buf)[first + i % job->channels];
    job->bias[i] = ((const float *)a->bias.view.buf)[first + i % job->channels];
  }
}

/* Fills in the job of the first run. Returns 0 with an exception set where shapes disagree. */
static int plan_job(const arguments *a, int planar, int to_planes, normalise_job *job) {
  const Py_ssize_t *in = a->pixels.view.shape, *out = a->out.view.shape;
  Py_ssize_t stored = in[planar ? 1 : 3], channels = out[to_planes ? 1 : 3];
  const Py_ssize_t *sides = in + (planar ? 2 : 1), *out_sides = out + (to_planes ? 2 : 1);
  if ((stored != 3 && stored != 4) || (channels != 3 && channels != 4)) {
    PyErr_Format(PyExc_ValueError, "pixels and out must have 3 or 4 channels, not %zd and %zd",
                 stored, channels);
    return 0;
  }
  if (in[0] != out[0] || sides[0] != out_sides[0] || sides[1] != out_sides[1]) {
    PyErr_Format(PyExc_ValueError,
                 "pixels are %zd images of %zd x %zd, out has room for %zd of %zd x %zd", in[0],
                 sides[0], sides[1], out[0], out_sides[0], out_sides[1]);
    return 0;
  }
  if (a->table.format != a->out.format) {
    PyErr_SetString(PyExc_TypeError, "table must have the format of out");
    return 0;
  }
  if (!has_shape(&a->table, "table", channels, LEVELS) ||
      !has_shape(&a->scale, "scale", channels, -1) || !has_shape(&a->bias, "bias", channels, -1))
    return 0;
  job->from = a->pixels.view.buf;
  job->pixels = (size_t)sides[0] * (size_t)sides[1] * (size_t)(planar || to_planes ? 1 : in[0]);
  job->stored = (int)stored;
  job->planar = planar;
  job->channels = (int)channels;
  job->flip = a->pixels.format == 'b' ? 0x80 : 0;
  job->type = a->out.format == 'f' ? FLOAT32 : a->out.format == 'e' ? FLOAT16 : BFLOAT16;
  job->streams = a->out.view.len >= STREAM_BYTES;
  job->table = a->table.view.buf;
  repeat(job, a, 0);
  return 1;
}

static void run_job(const normalise_version *version, normalise_job *job, size_t runs,
                    unsigned char *out) {
  size_t run_bytes = job->pixels * (size_t)job->channels * size_of_value(job->type);
  for (size_t run = 0; run < runs; run++) {
    normalise_run(version, job, out + run * run_bytes);
    job->from += job->pixels * (size_t)job->stored;
  }
  finish_stores();
}

/* Each plane of the output is a run of one channel. A fourth may come from any byte. */
static void run_planes(const normalise_version *version, const normalise_job *images,
                       const arguments *a) {
  size_t width = size_of_value(images->type), stored = (size_t)images->stored;
  size_t count = (size_t)a->pixels.view.shape[0], pixels = images->pixels;
  unsigned char *out = a->out.view.buf;
  normalise_job job = *images;
  job.channels = 1;
  job.planar = 0;
  job.stored = images->planar ? 1 : images->stored;
  for (size_t image = 0; image < count; image++)
    for (int c = 0; c < images->channels; c++, out += pixels * width) {
      size_t channel = (size_t)(c < 3 ? c : 0) * (images->planar ? pixels : 1);
      job.from = images->from + image * pixels * stored + channel;
      job.table = (const unsigned char *)images->table + (size_t)c * LEVELS * width;
      repeat(&job, a, c);
      normalise_run(version, &job, out);
    }
  finish_stores();
}

static PyObject *normalise(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *pixels, *table, *scale, *bias, *out, *result = NULL;
  int planar, to_planes;
  const char *name;
  if (!PyArg_ParseTuple(args, "OpOOOOpz", &pixels, &planar, &table, &scale, &bias, &out, &to_planes,
                        &name))
    return NULL;
  const normalise_version *versions;
  int has = normalise_versions(&versions), version = has - 1;
  if (name != NULL)
    for (version = 0; version < has && strcmp(versions[version].name, name) != 0;)
      version++;
  if (version == has)
    return PyErr_Format(PyExc_ValueError, "this CPU has no version %s", name);
  arguments a = {0};
  normalise_job job;
  if (take_array(&a.pixels, pixels, "pixels", 4, "bB", 0) &&
      take_array(&a.table, table, "table", 2, "feH", 0) &&
      take_array(&a.scale, scale, "scale", 1, "f", 0) &&
      take_array(&a.bias, bias, "bias", 1, "f", 0) &&
      take_array(&a.out, out, "out", 4, "feH", 1) && plan_job(&a, planar, to_planes, &job)) {
    Py_BEGIN_ALLOW_THREADS;
    if (to_planes)
      run_planes(&versions[version], &job, &a);
    else
      run_job(&versions[version], &job, planar ? (size_t)a.pixels.view.shape[0] : 1,
              a.out.view.buf);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
  }
  array *taken[] = {&a.pixels, &a.table, &a.scale, &a.bias, &a.out};
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
    if (taken[i]->view.obj != NULL)
      PyBuffer_Release(&taken[i]->view);
  return result;
}

static PyObject *versions(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) {
  const normalise_version *known;
  int count = normalise_versions(&known);
  PyObject *names = PyTuple_New(count);
  for (int v = 0; names != NULL && v < count; v++) {
    PyObject *name = PyUnicode_FromString(known[v].name);
    if (name == NULL)
      Py_CLEAR(names);
    else
      PyTuple_SET_ITEM(names, v, name);
  }
  return names;
}

static PyMethodDef methods[] = {
    {"normalise", normalise, METH_VARARGS, "See trainer_client._host_normalise."},
    {"versions", versions, METH_NOARGS, "See trainer_client._host_normalise.VERSIONS."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        .m_name = "trainer_client._native",
                                        .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
