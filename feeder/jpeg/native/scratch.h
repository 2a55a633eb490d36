/* Memory that is kept from call to call, by each thread for itself. */
#ifndef FEEDER_SCRATCH_H
#define FEEDER_SCRATCH_H

#include <stddef.h>

/* Declared as static _Thread_local; freed when the thread ends. */
typedef struct scratch {
  void *memory;
  size_t size;
  struct scratch *next;
  int is_listed;
} scratch;

/* Returns `bytes` bytes with any content, aligned to 64; NULL if out of memory. */
void *take_scratch(scratch *from, size_t bytes);

#endif
