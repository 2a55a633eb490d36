/* find_offsets and store_word: the directory of the decoded cache, read without a lock.
 *
 * Its entries are four words of 64 bits: source, sample id + 1, bytes, offset. The last is written
 * last, with release, so a reader that loads it with acquire and sees PUBLISHED sees the pixels. */
#include "native.h"

#include <stdint.h>

enum { SOURCE, SAMPLE, BYTES, OFFSET, ENTRY_WORDS };
#define PUBLISHED 1 /* lowest bit of the offset, which is a multiple of 64 otherwise */

PyObject *feeder_find_offsets(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer directory, hashes, samples, offsets;
  unsigned long long source;
  int probes;
  if (!PyArg_ParseTuple(args, "y*Ky*y*iw*", &directory, &source, &hashes, &samples, &probes,
                        &offsets))
    return NULL;
  PyObject *result = NULL;
  size_t entries = (size_t)directory.len / (ENTRY_WORDS * 8), count = (size_t)samples.len / 8;
  if (entries == 0 || (entries & (entries - 1)) != 0 || (uintptr_t)directory.buf % 8 != 0 ||
      hashes.len != samples.len || offsets.len != samples.len) {
    PyErr_SetString(PyExc_ValueError,
                    "the directory must have 2**k aligned entries, the others one word a sample");
  } else {
    const uint64_t *words = directory.buf, *hash = hashes.buf, *sample = samples.buf;
    int64_t *offset = offsets.buf;
    for (size_t i = 0; i < count; i++) {
      offset[i] = -1;
      for (size_t probe = 0; probe < (size_t)probes; probe++) {
        const uint64_t *entry = words + ENTRY_WORDS * ((hash[i] + probe) & (entries - 1));
        uint64_t key = __atomic_load_n(entry + SAMPLE, __ATOMIC_ACQUIRE);
        if (key == 0)
          break;
        if (key == sample[i] + 1 && entry[SOURCE] == source) {
          uint64_t found = __atomic_load_n(entry + OFFSET, __ATOMIC_ACQUIRE);
          if (found & PUBLISHED)
            offset[i] = (int64_t)(found - PUBLISHED);
          break;
        }
      }
    }
    result = Py_NewRef(Py_None);
  }
  PyBuffer_Release(&directory);
  PyBuffer_Release(&hashes);
  PyBuffer_Release(&samples);
  PyBuffer_Release(&offsets);
  return result;
}

PyObject *feeder_store_word(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer words;
  Py_ssize_t index;
  unsigned long long value;
  if (!PyArg_ParseTuple(args, "w*nK", &words, &index, &value))
    return NULL;
  PyObject *result = NULL;
  if (index < 0 || index >= words.len / 8 || (uintptr_t)words.buf % 8 != 0) {
    PyErr_SetString(PyExc_ValueError, "there is no such word");
  } else {
    __atomic_store_n((uint64_t *)words.buf + index, (uint64_t)value, __ATOMIC_RELEASE);
    result = Py_NewRef(Py_None);
  }
  PyBuffer_Release(&words);
  return result;
}
