/* resize_pack: a box of an RGBX picture to size x size bytes or int8 (value - 128), mirrored or not.
 * The picture may be a window, from (x, y) on, of the one that the box refers to.
 *
 * Pillow's antialiased resize, to the bit of Pillow-SIMD's arithmetic (weights: resize_plan.c), each
 * pass rounded to a byte. Only the order of the work differs: source rows are resampled across into
 * a small ring of rows and combined down as soon as an output row has all that it needs, so that no
 * intermediate picture, a megabyte a sample, goes through the CPU's caches. */
#include "native.h"

#include "resize.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SIZE 2048

typedef struct {
  const char *name;
  across_pass *across;
  down_pass *down;
} resize_version;

/* Slowest first. */
static const resize_version versions[] = {
    {"portable", across_portable, down_portable},
#if defined(__x86_64__)
    {"avx2", across_avx2, down_avx2},
    {"avx512", across_avx512, down_avx512},
#endif
};

/* How many of them this CPU can run. */
static int count_versions(void) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2"))
    return 1;
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi") &&
                 __builtin_cpu_supports("avx512vnni")
             ? 3
             : 2;
#else
  return 1;
#endif
}

PyObject *feeder_resize_versions(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) {
  int count = count_versions();
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

/* The weights of output row y in pairs, for rows from an even one on; returns how many pairs. */
static int down_weights(const filter_plan *f, int y, int32_t *to) {
  const int32_t *w = f->weights + y;
  int odd = f->first[y] & 1, pairs = (odd + f->count[y] + 1) / 2;
  uint32_t before = 0;
  for (int k = 0; k < pairs; k++, w += f->outputs) {
    to[k] = odd ? (int32_t)(before >> 16 | (uint32_t)*w << 16) : *w;
    before = (uint32_t)*w;
  }
  return pairs;
}

/* Returns 0 if out of memory. The bits `sign` of every four output bytes are flipped. */
static int run_resize(resize_job *job, const resize_version *version, int32_t sign,
                      unsigned char *out) {
  static _Thread_local scratch ring_memory;
  across_pass *across = version->across;
#if defined(__x86_64__)
  static _Thread_local scratch table;
  if (across == across_avx512) {
    int prepared = prepare_across_avx512(job, &table);
    if (prepared < 0)
      return 0;
    if (prepared == 0)
      across = across_avx2;
  }
#endif
  /* The ring holds every row that one output row reads and the batch that is being made; after it
   * come a row to discard, and the pointers and weights of one output row. */
  const filter_plan *f = &job->down;
  int planes = job->planar ? job->channels : 1, size = f->outputs;
  size_t cells = (size_t)planes * job->plane_room, most = (size_t)f->pairs + 1;
  size_t ring = 1;
  while (ring < most + BATCH_PAIRS)
    ring *= 2;
  int32_t *memory = take_scratch(
      &ring_memory, (ring + 1) * cells * sizeof *memory + most * (sizeof memory + sizeof *memory));
  if (memory == NULL)
    return 0;
  int32_t *discarded = memory + ring * cells;
  const int32_t **rows = (const int32_t **)(void *)(discarded + cells);
  int32_t *weights = (int32_t *)(void *)(rows + most);

  int made = f->first[0] / 2, end = (f->first[size - 1] + f->count[size - 1] + 1) / 2;
  for (int y = 0; y < size; y++) {
    int first = f->first[y] / 2, pairs = down_weights(f, y, weights);
    while (made < first + pairs) {
      int batch = end - made < BATCH_PAIRS ? end - made : BATCH_PAIRS;
      int32_t *to[BATCH_PAIRS];
      for (int r = 0; r < BATCH_PAIRS; r++)
        to[r] = r < batch ? memory + ((size_t)(made + r) & (ring - 1)) * cells : discarded;
      across(job, 2 * made, batch, to);
      made += batch;
    }
    for (int k = 0; k < pairs; k++)
      rows[k] = memory + ((size_t)(first + k) & (ring - 1)) * cells;
    for (int plane = 0; plane < planes; plane++) {
      int32_t turn = sign;
      if (job->channels == 4)
        turn = job->planar ? (plane == 3 ? 0 : sign) : sign & 0x00FFFFFF;
      version->down(job, rows, weights, pairs, turn,
                    out + ((size_t)plane * (size_t)size + (size_t)y) * (size_t)job->plane_cells);
      for (int k = 0; k < pairs; k++)
        rows[k] += job->plane_room;
    }
  }
  return 1;
}

PyObject *feeder_resize_pack(PyObject *Py_UNUSED(module), PyObject *args) {
  static _Thread_local scratch across, down;
  Py_buffer picture, out;
  Py_ssize_t stride, width, height;
  float left, top, right, bottom;
  int x, y, size, filter, mirrored, channels, planar, is_signed;
  const char *name;
  if (!PyArg_ParseTuple(args, "y*nnn(ffff)(ii)iipw*ippz", &picture, &stride, &width, &height,
                        &left, &top, &right, &bottom, &x, &y, &filter, &size, &mirrored, &out,
                        &channels, &planar, &is_signed, &name))
    return NULL;
  PyObject *result = NULL;
  int has = count_versions(), version = has - 1;
  if (name != NULL)
    for (version = 0; version < has && strcmp(versions[version].name, name) != 0;)
      version++;
  resize_job job = {.pixels = picture.buf,
                    .stride = (size_t)stride,
                    .width = (int)width,
                    .height = (int)height,
                    .across = {.filter = filter, .outputs = size},
                    .down = {.filter = filter, .outputs = size},
                    .clip = filter == BICUBIC,
                    .channels = channels,
                    .planar = planar,
                    .plane_cells = planar ? size : size * channels};
  job.plane_room = ((size_t)job.plane_cells + 64) & ~(size_t)63;
  if (version == has)
    PyErr_Format(PyExc_ValueError, "this CPU has no version %s", name);
  else if (filter != BILINEAR && filter != BICUBIC && filter != BOX)
    PyErr_SetString(PyExc_ValueError, "the filter must be bilinear, bicubic or box");
  else if (size < 1 || size > MAX_SIZE || (channels != 3 && channels != 4) ||
           out.len != (Py_ssize_t)size * size * channels)
    PyErr_SetString(PyExc_ValueError, "the output must hold size * size * 3 or 4 bytes");
  else if (width < 1 || height < 1 || width > 65535 || height > 65535 || stride < 4 * width ||
           picture.len < stride * (height - 1) + 4 * width + 12)
    PyErr_SetString(PyExc_ValueError,
                    "the picture must hold height * stride bytes and 12 readable ones after them");
  else if (x < 0 || y < 0 || x > 65535 || y > 65535)
    PyErr_SetString(PyExc_ValueError, "the origin must be a pixel of the whole picture");
  else if (!(left >= (float)x && top >= (float)y && left < right && top < bottom &&
             right <= (float)(x + (int)width) && bottom <= (float)(y + (int)height)))
    PyErr_SetString(PyExc_ValueError, "the box must lie within the picture");
  else {
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = plan_filter(&job.across, &across, x, (int)width, left, right, mirrored, version > 0) &&
           plan_filter(&job.down, &down, y, (int)height, top, bottom, 0, version > 0) &&
           run_resize(&job, &versions[version], is_signed ? (int32_t)0x80808080 : 0, out.buf);
    Py_END_ALLOW_THREADS;
    result = done ? Py_NewRef(Py_None) : PyErr_NoMemory();
  }
  PyBuffer_Release(&picture);
  PyBuffer_Release(&out);
  return result;
}
