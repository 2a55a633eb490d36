#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES (8u << 20) /* more than this is freed when less is needed */

/* For the sanitizers, which find accesses outside of a block: each call gets a new one of exactly
 * the size that it asks for. Its content differs from call to call, so that what depends on it
 * shows. */
#ifdef FEEDER_EXACT_SCRATCH
enum { IS_EXACT = 1 };
#else
enum { IS_EXACT = 0 };
#endif

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
  s->size = 0;
  size_t room = IS_EXACT ? bytes : bytes + bytes / 4;
  if (posix_memalign(&s->memory, 64, room) != 0) {
    s->memory = NULL;
    return 0;
  }
  s->size = room;
  if (IS_EXACT) {
    static _Thread_local unsigned char content;
    memset(s->memory, content += 77, room);
  }
  return 1;
}

void *take_scratch(scratch *from, size_t bytes) {
  int is_giant = from->size > KEEP_BYTES && bytes <= KEEP_BYTES;
  return (bytes <= from->size && !is_giant && !IS_EXACT) || grow(from, bytes) ? from->memory : NULL;
}
