/* Decodes windows of damaged blobs with every version that this CPU runs, as fast as C does.
 *
 *     windows CORPUS FIRST COUNT [PLANTED]
 *
 * An input is a function of the corpus and its seed, FIRST to FIRST + COUNT - 1. What must hold:
 * the versions and a slow second reader agree on the outcome and on the pixels; nothing is written
 * outside of the rows of pixels; nothing outside of the blob, its slack and the scratch memory is
 * accessed. The sanitizers check the last; the pixels end at a page that cannot be accessed, as the
 * sanitizers do not see masked stores. PLANTED is a fault that must be found: "read" or "write".
 *
 * CORPUS has entries: 8 numbers of 32 bits (blob_bytes, tables_bytes, the six fields of the layout)
 * and the blob. Prints the counts of outcomes by scale. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "damage.h"
#include "slow_decode.h"

#define ENTRIES_MAX 4096
#define ROOM_BYTES (1u << 24) /* of pixels; more are not decoded */
#define PAGE_BYTES 4096
#define GUARD 0xA7
#define HANG_S 10

typedef struct {
  size_t blob_bytes, tables_bytes;
  segment_layout layout;
  const unsigned char *blob;
} entry;

typedef struct {
  segment_layout layout;
  tile_window window;
  unsigned scale;
  size_t blob_bytes, stride;
} sample;

static entry entries[ENTRIES_MAX];
static volatile uint64_t seed, seed_at_alarm;

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  abort();
}

static void print_seed(void) { fprintf(stderr, "FOUND at seed %llu\n", (unsigned long long)seed); }

static void on_abort(int number) {
  (void)number;
  print_seed();
  _exit(1);
}

static void on_alarm(int number) {
  (void)number;
  if (seed == seed_at_alarm)
    fail("an input hangs");
  seed_at_alarm = seed;
  alarm(HANG_S);
}

/* Of the sanitizers' runtime, where there is one. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static size_t read_corpus(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    fail("the corpus cannot be opened");
  size_t count = 0;
  for (uint32_t head[8]; fread(head, sizeof head, 1, file) == 1; count++) {
    unsigned char *blob = malloc(head[0] + 1);
    if (count == ENTRIES_MAX || blob == NULL || fread(blob, 1, head[0], file) != head[0])
      fail("the corpus is not whole");
    entries[count] = (entry){.blob_bytes = head[0],
                             .tables_bytes = head[1],
                             .layout = {head[2], head[3], head[4], head[5], head[6], head[7]},
                             .blob = blob};
  }
  fclose(file);
  if (count == 0)
    fail("the corpus is empty");
  return count;
}

static unsigned pixels_of(unsigned first, unsigned end, unsigned mcu, unsigned side) {
  return (end * mcu < side ? end * mcu : side) - first * mcu;
}

/* A window of the image that the blob's header describes. Returns 0 if there is no such image. */
static int choose_window(random_source *random, sample *input, const unsigned char *blob) {
  static const unsigned scales[] = {1, 1, 1, 1, 2, 2, 4, 8};
  tile_window *w = &input->window;
  segmented s;
  if (!open_blob(&s, blob, input->blob_bytes, &input->layout) || s.header.height == 0 ||
      s.mcus == 0)
    return 0;
  int across = 1, down = 1;
  for (int c = 0; c < s.header.components; c++) {
    across = s.header.blocks_across[c] > across ? s.header.blocks_across[c] : across;
    down = s.header.blocks_down[c] > down ? s.header.blocks_down[c] : down;
  }
  unsigned mcu_width = 8 * (unsigned)across, mcu_height = 8 * (unsigned)down;
  unsigned rows = (s.header.height + mcu_height - 1) / mcu_height;
  *w = (tile_window){.end_mcu = s.mcus, .end_row = rows};
  if (pick(random, 3) > 0) {
    w->first_mcu = (unsigned)pick(random, s.mcus);
    w->end_mcu = w->first_mcu + 1 + (unsigned)pick(random, s.mcus - w->first_mcu);
    w->first_row = (unsigned)pick(random, rows);
    w->end_row = w->first_row + 1 + (unsigned)pick(random, rows - w->first_row);
  }
  w->width = pixels_of(w->first_mcu, w->end_mcu, mcu_width, s.header.width);
  w->height = pixels_of(w->first_row, w->end_row, mcu_height, s.header.height);
  input->scale = scales[pick(random, 8)];
  return 1;
}

/* Damages a field of the layout or the window, at times, and chooses the stride. */
static void damage_fields(random_source *random, sample *input) {
  static const unsigned numbers[] = {0, 1, 2, 3, 7, 16, 255, 256, 65535, 65536, 1u << 31, ~0u};
  if (pick(random, 12) == 0) {
    int is_layout = pick(random, 2) == 0;
    unsigned *fields = is_layout ? (unsigned *)&input->layout : (unsigned *)&input->window;
    unsigned *field = fields + pick(random, 6), near = *field + (unsigned)pick(random, 5) - 2;
    *field = pick(random, 2) == 0 ? numbers[pick(random, 12)] : near;
  }
  unsigned columns = (input->window.width + input->scale - 1) / input->scale;
  input->stride = 4 * (size_t)columns + (pick(random, 2) == 0 ? 0 : pick(random, 160));
}

/* What the binding does, but for taking the arguments; with the slow reader if `is_slow`. */
static window_outcome decode(const sample *input, const unsigned char *blob,
                             const decode_version *version, unsigned char *out, int is_slow) {
  segmented s;
  if (!open_blob(&s, blob, input->blob_bytes, &input->layout) ||
      s.header.sof_offset != input->layout.sof_offset)
    return DAMAGED_BLOB;
  if (is_slow)
    return decode_slowly(&s, &input->window, input->scale, version->pixels, out, input->stride);
  return decode_window(&s, &input->window, input->scale, version, out, input->stride);
}

static void check_guards(const unsigned char *room, const unsigned char *out, const sample *input,
                         size_t row_bytes, size_t rows, int is_written) {
  for (const unsigned char *p = room; p < out; p++)
    if (*p != GUARD)
      fail("written before the pixels");
  for (size_t row = 0; row < rows; row++)
    for (size_t at = is_written ? row_bytes : 0; at < input->stride; at++)
      if ((row + 1 < rows || at < row_bytes) && out[row * input->stride + at] != GUARD)
        fail(is_written ? "written between the rows" : "written, and refused");
}

/* Decodes with all versions; returns their outcome, or -1 where the output would be huge. */
static int decode_all(const sample *input, const unsigned char *damaged, unsigned char *room_end,
                      const char *planted) {
  size_t row_bytes = 4 * (((size_t)input->window.width + input->scale - 1) / input->scale);
  size_t rows = ((size_t)input->window.height + input->scale - 1) / input->scale;
  if (rows == 0 || row_bytes == 0 || input->window.width > JPEG_SIDE_MAX ||
      input->window.height > JPEG_SIDE_MAX || rows * input->stride > ROOM_BYTES / 4)
    return -1;
  size_t size = input->stride * (rows - 1) + row_bytes;
  size_t reserve = size + 256;
  static unsigned char *first; /* pixels of the version before */
  first = realloc(first, size);
  const decode_version *versions;
  int count = decode_versions(&versions), outcome = -1;
  for (int v = -1; v < count; v++) { /* the slow reader first */
    const decode_version *version = &versions[v < 0 ? 0 : v];
    unsigned char *blob = malloc(input->blob_bytes + READ_SLACK_BYTES);
    memcpy(blob, damaged, input->blob_bytes);
    memset(blob + input->blob_bytes, (v + 1) * 85, READ_SLACK_BYTES);
    unsigned char *out = room_end - size, *room = room_end - reserve;
    memset(room, GUARD, reserve);
    int own = (int)decode(input, blob, version, out, v < 0);
    if (planted != NULL && strcmp(planted, "write") == 0)
      *(volatile unsigned char *)(out + size) = 0;
    if (planted != NULL && strcmp(planted, "read") == 0)
      own += *(volatile unsigned char *)(blob + input->blob_bytes + READ_SLACK_BYTES) != 0;
    free(blob);
    if (own == OUT_OF_MEMORY)
      fail("out of memory");
    /* What was decoded before damage was met is written. */
    int is_written = own == DECODED || own == DAMAGED_BLOB;
    check_guards(room, out, input, row_bytes, rows, is_written);
    if (v >= 0 && (own != outcome || (own == DECODED && memcmp(out, first, size) != 0))) {
      fprintf(stderr, "outcome %d, of version %s: %d\n", outcome, version->name, own);
      fail("the versions differ");
    }
    memcpy(first, out, size);
    outcome = own;
  }
  return outcome;
}

int main(int count, char **arguments) {
  if (count < 4)
    fail("windows CORPUS FIRST COUNT [PLANTED]");
  size_t known = read_corpus(arguments[1]);
  uint64_t from = strtoull(arguments[2], NULL, 10), inputs = strtoull(arguments[3], NULL, 10);
  const char *planted = count > 4 ? arguments[4] : NULL;
  unsigned char *room = mmap(NULL, ROOM_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED || mprotect(room + ROOM_BYTES, PAGE_BYTES, PROT_NONE) != 0)
    fail("no memory for pixels");
  signal(SIGABRT, on_abort);
  if (__sanitizer_set_death_callback != NULL)
    __sanitizer_set_death_callback(print_seed);
  else
    signal(SIGSEGV, on_abort);
  signal(SIGALRM, on_alarm);
  seed_at_alarm = ~(uint64_t)0;
  alarm(HANG_S);

  size_t outcomes[9][4] = {{0}}, too_large = 0;
  for (seed = from; seed < from + inputs; seed++) {
    random_source random = {seed * 0xD1342543DE82EF95u + 1};
    const entry *of = &entries[pick(&random, known)];
    sample input = {.layout = of->layout, .blob_bytes = of->blob_bytes};
    unsigned char *blob = malloc(of->blob_bytes);
    memcpy(blob, of->blob, of->blob_bytes);
    damage_blob(&random, blob, of->blob_bytes, of->tables_bytes, of->layout.header_bytes);
    if (pick(&random, 40) == 0)
      input.blob_bytes -= pick(&random, pick(&random, 2) == 0 ? 20 : of->blob_bytes);
    if (!choose_window(&random, &input, blob)) {
      input.blob_bytes = of->blob_bytes;
      choose_window(&random, &input, of->blob);
    }
    damage_fields(&random, &input);
    int outcome = decode_all(&input, blob, room + ROOM_BYTES, planted);
    free(blob);
    if (outcome < 0)
      too_large++;
    else
      outcomes[input.scale][outcome]++;
  }
  printf("scale      decoded  left to TurboJPEG      refused\n");
  for (unsigned scale = 1; scale <= 8; scale *= 2)
    printf("1/%u  %14zu  %17zu  %11zu\n", scale, outcomes[scale][DECODED],
           outcomes[scale][UNSUPPORTED], outcomes[scale][DAMAGED_BLOB]);
  printf("too many pixels: %zu\n", too_large);
  return 0;
}
