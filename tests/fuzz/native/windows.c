/* Decodes windows of damaged blobs with every version that this CPU runs, as fast as C does.
 *
 *     windows CORPUS FIRST COUNT [PLANTED]
 *
 * An input is a function of the corpus and its seed, FIRST to FIRST + COUNT - 1. What must hold:
 * the versions agree on the outcome and on the pixels; where all blocks of the window are read as
 * block_rows.h does, no version refuses it; nothing is written outside of the rows of pixels;
 * nothing outside of the blob, its slack and the scratch memory is accessed. The sanitizers check
 * the last; the pixels end at a page that cannot be accessed, as the sanitizers do not see masked
 * stores. PLANTED is a fault that must be found: "read" or "write".
 *
 * CORPUS has entries: a number of 32 bits, and a blob of so many bytes. Prints the counts of
 * outcomes by scale. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "block_rows.h"
#include "damage.h"
#include "window.h"

#define ENTRIES_MAX 4096
#define ROOM_BYTES (1u << 24) /* of pixels; more are not decoded */
#define PAGE_BYTES 4096
#define GUARD 0xA7
#define HANG_S 10

typedef struct {
  size_t blob_bytes;
  const unsigned char *blob;
  tiled_blob parts;
} entry;

typedef struct {
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
  for (uint32_t bytes; fread(&bytes, sizeof bytes, 1, file) == 1; count++) {
    unsigned char *blob = calloc(1, bytes + READ_SLACK_BYTES);
    if (count == ENTRIES_MAX || blob == NULL || fread(blob, 1, bytes, file) != bytes)
      fail("the corpus is not whole");
    entries[count] = (entry){.blob_bytes = bytes, .blob = blob};
    if (!open_blob(&entries[count].parts, blob, bytes))
      fail("the corpus has a damaged blob");
  }
  fclose(file);
  if (count == 0)
    fail("the corpus is empty");
  return count;
}

static unsigned pixels_of(unsigned first, unsigned end, unsigned mcu, unsigned side) {
  return (end * mcu < side ? end * mcu : side) - first * mcu;
}

/* A window of an image, or all of it. */
static void choose_window(random_source *random, sample *input, const tiled_blob *blob) {
  static const unsigned scales[] = {1, 1, 1, 1, 2, 2, 4, 8};
  tile_window *w = &input->window;
  *w = (tile_window){.end_mcu = blob->mcus, .end_row = blob->rows};
  if (pick(random, 3) > 0) {
    w->first_mcu = (unsigned)pick(random, blob->mcus);
    w->end_mcu = w->first_mcu + 1 + (unsigned)pick(random, blob->mcus - w->first_mcu);
    w->first_row = (unsigned)pick(random, blob->rows);
    w->end_row = w->first_row + 1 + (unsigned)pick(random, blob->rows - w->first_row);
  }
  w->width = pixels_of(w->first_mcu, w->end_mcu, blob->mcu_width, blob->header.width);
  w->height = pixels_of(w->first_row, w->end_row, blob->mcu_height, blob->header.height);
  input->scale = scales[pick(random, 8)];
}

/* Damages a field of the window, at times, and chooses the stride. */
static void damage_fields(random_source *random, sample *input) {
  static const unsigned numbers[] = {0, 1, 2, 3, 7, 16, 255, 256, 65535, 65536, 1u << 31, ~0u};
  if (pick(random, 20) == 0) {
    unsigned *field = (unsigned *)&input->window + pick(random, 6);
    unsigned near = *field + (unsigned)pick(random, 5) - 2;
    *field = pick(random, 2) == 0 ? numbers[pick(random, 12)] : near;
  }
  unsigned columns = (input->window.width + input->scale - 1) / input->scale;
  input->stride = 4 * (size_t)columns + (pick(random, 2) == 0 ? 0 : pick(random, 160));
}

/* What the binding does, but for taking the arguments. */
static window_outcome decode(const sample *input, const unsigned char *data,
                             const decode_version *version, unsigned char *out) {
  tiled_blob blob;
  if (!open_blob(&blob, data, input->blob_bytes))
    return DAMAGED_BLOB;
  return decode_window(&blob, &input->window, input->scale, version, out, input->stride);
}

/* Whether all blocks of the window are read. */
static int reads_blocks(const sample *input, const unsigned char *data) {
  const tile_window *w = &input->window;
  block_rows rows;
  memset(&rows, 0, sizeof rows);
  int is_read = open_block_rows(&rows, data, input->blob_bytes) == DECODED &&
                window_fits(&rows.blob, w) &&
                begin_block_rows(&rows, w->first_mcu, w->end_mcu) == DECODED;
  for (unsigned row = w->first_row; is_read && row < w->end_row; row++)
    is_read = read_block_row(&rows, row);
  close_block_rows(&rows);
  return is_read;
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
  const decode_version *const *versions;
  int count = own_versions(&versions), outcome = -1;
  for (int v = 0; v < count; v++) {
    unsigned char *blob = malloc(input->blob_bytes + READ_SLACK_BYTES);
    memcpy(blob, damaged, input->blob_bytes);
    memset(blob + input->blob_bytes, v * 85, READ_SLACK_BYTES);
    unsigned char *out = room_end - size, *room = room_end - reserve;
    memset(room, GUARD, reserve);
    int own = (int)decode(input, blob, versions[v], out);
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
    if (v > 0 && (own != outcome || (own == DECODED && memcmp(out, first, size) != 0))) {
      fprintf(stderr, "outcome %d, of version %s: %d\n", outcome, versions[v]->name, own);
      fail("the versions differ");
    }
    memcpy(first, out, size);
    outcome = own;
  }
  if (reads_blocks(input, damaged) && outcome == DAMAGED_BLOB)
    fail("the blocks are read, and not decoded");
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
    sample input = {.blob_bytes = of->blob_bytes};
    unsigned char *blob = malloc(of->blob_bytes + READ_SLACK_BYTES);
    memcpy(blob, of->blob, of->blob_bytes + READ_SLACK_BYTES);
    damage_blob(&random, blob, of->blob_bytes, &of->parts);
    if (pick(&random, 40) == 0)
      input.blob_bytes -= pick(&random, pick(&random, 2) == 0 ? 20 : of->blob_bytes);
    tiled_blob opened;
    int is_open = open_blob(&opened, blob, input.blob_bytes);
    choose_window(&random, &input, is_open ? &opened : &of->parts);
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
