/* decode_runs of entropy.h. The file that includes this may set a target (GCC's pragma), and
 * defines DECODE_RUNS, the function's name. */
#include "entropy.h"

#define INLINE static inline __attribute__((always_inline))
#define RARELY(condition) __builtin_expect(!!(condition), 0)

/* Loads the bits after those that were consumed: at least 56. The lowest one of `bits` is the
 * single one below the valid bits, so its position is the number that were consumed. */
INLINE void refill(bit_cursor *c) {
  unsigned consumed = (unsigned)__builtin_ctzll(c->bits);
  c->from += consumed / 8;
  c->bits = (peek_bits(c->from, 0) | 1) << consumed % 8;
}

INLINE void store(unsigned char *to, uint32_t value) {
  uint16_t low = (uint16_t)value;
  memcpy(to, &low, sizeof low);
}

/* The value of a magnitude of `size` (0 to 15) bits at the top of `bits` (T.81 F.2.2.1, EXTEND). */
INLINE int32_t extend(uint64_t bits, unsigned size) {
  int32_t magnitude = (int32_t)(bits >> 1 >> (63 - size));
  int32_t is_negative = (int32_t)(~(int64_t)bits >> 63);
  return magnitude + (is_negative & (1 - (1 << size)));
}

/* Begins the block at s->place: reads its DC coefficient. Leaves bits for three symbols. */
INLINE int begin_block(bit_cursor *c, entropy_stream *s, const entropy_job *job) {
  block_place place = *s->place;
  refill(c);
  if (RARELY(c->from > job->scan_end))
    return 0;
  uint32_t entry = place.table->dc[c->bits >> (64 - DC_BITS)];
  int32_t difference = (int32_t)entry >> 16;
  if (RARELY(entry == 0)) {
    unsigned length, size = find_symbol(&place.table->dc_codes, c->bits, 1, &length);
    if (length == 0 || size >= DC_CATEGORIES)
      return 0;
    difference = extend(c->bits << length, size);
    c->bits <<= length + size;
    refill(c);
  }
  c->bits <<= entry & 63;
  c->lookup = place.table->ac;
  c->block = s->coefficients + place.offset;
  c->k = 0;
  s->dc[place.component] += difference;
  store(c->block, (uint32_t)s->dc[place.component]);
  return 1;
}

static int begin_run(entropy_stream *s, entropy_job *job) {
  s->run = &job->runs[job->next_run++];
  s->place = s->run->first;
  s->last = s->run->last;
  s->coefficients = s->run->coefficients;
  memcpy(s->dc, s->run->dc, sizeof s->dc);
  s->cursor.from = job->scan + s->run->at / 8;
  s->cursor.bits = (uint64_t)1 << s->run->at % 8; /* so many bits of it are consumed */
  return begin_block(&s->cursor, s, job);
}

static int ended_rightly(const entropy_stream *s, const entropy_job *job) {
  size_t at = 8 * (size_t)(s->cursor.from - job->scan) + (size_t)__builtin_ctzll(s->cursor.bits);
  if (!s->run->to_edge)
    return at <= s->run->end;
  return at == s->run->end && memcmp(s->dc, s->run->dc_after, sizeof s->dc) == 0;
}

enum { GO_ON, NO_RUN, DAMAGED };

/* What `step` does not do itself: codes that are longer than the look-up, a coefficient at the last
 * position, the end of a run. */
static __attribute__((noinline)) int step_rarely(entropy_stream *s, entropy_job *job,
                                                 uint32_t entry) {
  bit_cursor *c = &s->cursor;
  uint32_t advance = entry >> 8 & 255, value = entry >> 16;
  if (advance == TO_SEARCH) {
    unsigned length = value & 255, symbol = value >> 8;
    refill(c);
    if (length == 0)
      symbol = find_symbol(&s->place->table->ac_codes, c->bits, AC_BITS + 1, &length);
    if (length == 0)
      return DAMAGED;
    unsigned size = symbol & 15;
    value = (uint32_t)extend(c->bits << length, size);
    advance = size == 0 && symbol != 0xF0 ? END_OF_BLOCK : (symbol >> 4) + 1;
    entry = length + size;
  }
  c->bits <<= entry & 63;
  if (advance != END_OF_BLOCK) {
    uint32_t k = c->k + advance;
    if (k > 63)
      return DAMAGED;
    store(c->block + job->order[k], value);
    c->k = k;
    refill(c);
    if (k < 63)
      return GO_ON;
  }
  if (++s->place < s->last)
    return begin_block(c, s, job) ? GO_ON : DAMAGED;
  if (!ended_rightly(s, job))
    return DAMAGED;
  job->runs_left[s->run->row]--;
  if (job->next_run == job->runs_ready)
    return NO_RUN;
  return begin_run(s, job) ? GO_ON : DAMAGED;
}

/* Decodes one symbol, and what it takes to decode another. A refill must leave bits for four. */
INLINE int step(bit_cursor *c, entropy_stream *s, entropy_job *job) {
  uint32_t entry = c->lookup[c->bits >> (64 - AC_BITS)], k = c->k + (entry >> 8 & 255);
  if (__builtin_expect(k < 63, 1)) {
    c->bits <<= entry & 63;
    c->k = k;
    store(c->block + job->order[k], entry >> 16);
    return GO_ON;
  }
  if ((entry >> 8 & 255) == END_OF_BLOCK && s->place + 1 != s->last) {
    s->place++;
    c->bits <<= entry & 63;
    return begin_block(c, s, job) ? GO_ON : DAMAGED;
  }
  s->cursor = *c;
  int outcome = step_rarely(s, job, entry);
  *c = s->cursor;
  return outcome;
}

/* A symbol of each of `count` streams. Returns 0, or what stopped one: its outcome + 4 * its
 * number. */
INLINE int step_each(bit_cursor *a, bit_cursor *b, bit_cursor *c, bit_cursor *d, entropy_job *job,
                     const int count) {
  entropy_stream *s = job->streams;
  int outcome;
  if (RARELY((outcome = step(a, &s[0], job)) != GO_ON))
    return outcome;
  if (count > 1 && RARELY((outcome = step(b, &s[1], job)) != GO_ON))
    return outcome + 4;
  if (count > 2 && RARELY((outcome = step(c, &s[2], job)) != GO_ON))
    return outcome + 8;
  if (count > 3 && RARELY((outcome = step(d, &s[3], job)) != GO_ON))
    return outcome + 12;
  return 0;
}

/* The loop for `count` streams, with the cursors in registers. Returns the number of the stream
 * that has no run to begin, -1 for damage. */
INLINE int decode_streams(entropy_job *job, const int count) {
  entropy_stream *s = job->streams;
  bit_cursor a = s[0].cursor, b = s[1].cursor, c = s[2].cursor, d = s[3].cursor;
  int stopped;
  do {
    refill(&a);
    if (count > 1)
      refill(&b);
    if (count > 2)
      refill(&c);
    if (count > 3)
      refill(&d);
    if ((stopped = step_each(&a, &b, &c, &d, job, count)) != 0 ||
        (stopped = step_each(&a, &b, &c, &d, job, count)) != 0 ||
        (stopped = step_each(&a, &b, &c, &d, job, count)) != 0)
      break;
    stopped = step_each(&a, &b, &c, &d, job, count);
  } while (stopped == 0);
  s[0].cursor = a;
  s[1].cursor = b;
  s[2].cursor = c;
  s[3].cursor = d;
  return stopped % 4 == NO_RUN ? stopped / 4 : -1;
}

static int decode_1(entropy_job *job) { return decode_streams(job, 1); }
static int decode_2(entropy_job *job) { return decode_streams(job, 2); }
static int decode_3(entropy_job *job) { return decode_streams(job, 3); }
static int decode_4(entropy_job *job) { return decode_streams(job, 4); }

int DECODE_RUNS(entropy_job *job) {
  static int (*const decode[STREAMS])(entropy_job *) = {decode_1, decode_2, decode_3, decode_4};
  while (job->active < STREAMS && job->next_run < job->runs_ready)
    if (!begin_run(&job->streams[job->active++], job))
      return 0;
  if (job->active == 0)
    return 0;
  int stopped = decode[job->active - 1](job);
  if (stopped < 0)
    return 0;
  job->streams[stopped] = job->streams[--job->active];
  return 1;
}
