#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES (8u << 20) /* more than this is freed when less is needed */

/* The scratch memory of a thread is a list, which is freed when the thread ends. */
static pthread_key_t list_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_key;

static void free_list(void *first) {
  for (scratch *s = first; s != NULL; s = s->next)
    free(s->memory);
}

static void make_key(void) { has_key = pthread_key_create(&list_key, free_list) == 0; }

static int grow(scratch *s, size_t bytes) {
  if (pthread_once(&once, make_key) != 0 || !has_key)
    return 0;
  if (!s->is_listed) {
    s->next = pthread_getspecific(list_key);
    if (pthread_setspecific(list_key, s) != 0)
      return 0;
    s->is_listed = 1;
  }
  free(s->memory);
  s->size = s->zeros = 0;
  if (posix_memalign(&s->memory, 64, bytes + bytes / 4) != 0) {
    s->memory = NULL;
    return 0;
  }
  s->size = bytes + bytes / 4;
  return 1;
}

void *take_scratch(scratch *from, size_t bytes) {
  int is_giant = from->size > KEEP_BYTES && bytes <= KEEP_BYTES;
  return (bytes <= from->size && !is_giant) || grow(from, bytes) ? from->memory : NULL;
}

void *take_zeros(scratch *from, size_t bytes) {
  unsigned char *memory = take_scratch(from, bytes);
  if (memory != NULL && from->zeros < bytes) {
    memset(memory + from->zeros, 0, bytes - from->zeros);
    from->zeros = bytes;
  }
  return memory;
}
