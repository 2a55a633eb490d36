/* tile_jpeg, untile_jpeg, transform_jpeg: JPEGs re-coded without loss.
 *
 * Coefficients go through libjpeg-turbo's transcoding calls (jpeg_read_coefficients and
 * jpeg_write_coefficients); nothing is ever re-quantised. */
#include "native.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>
#include <turbojpeg.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif


/* Coefficients take 6 bytes a pixel at 4:4:4; a header must not be able to ask for all memory. */
#define MAX_PIXELS (100u * 1000u * 1000u)
/* A progressive file needs about 10 scans; each further one costs a pass over the coefficients. */
#define MAX_SCANS 500
#define MAX_WARNINGS 4

static void set_jpeg_error(const char *kind, const char *reason) {
  PyObject *arguments = Py_BuildValue("(ss)", kind, reason);
  if (arguments != NULL) {
    PyErr_SetObject(feeder_jpeg_error, arguments);
    Py_DECREF(arguments);
  }
}

/* ---- libjpeg's errors and warnings -------------------------------------------------------- */

typedef struct {
  struct jpeg_error_mgr base;
  jmp_buf escape;
  char error[JMSG_LENGTH_MAX];
  const char *damage_kind; /* NULL while the data is whole */
  char damage[JMSG_LENGTH_MAX];
  int warnings;
  char warning[MAX_WARNINGS][JMSG_LENGTH_MAX];
} error_state;

static void on_error(j_common_ptr codec) {
  error_state *state = (error_state *)codec->err;
  (*codec->err->format_message)(codec, state->error);
  longjmp(state->escape, 1);
}

/* libjpeg calls both "the rest of the picture is grey" and "one stray byte" a warning. The first
 * kind is damage; the second is cosmetic and leaves every pixel as its encoder meant it. */
static const char *damage_of(int code) {
  switch (code) {
  case JWRN_JPEG_EOF:
  case JWRN_HIT_MARKER:
    return "truncated";
  case JWRN_HUFF_BAD_CODE:
  case JWRN_ARITH_BAD_CODE:
  case JWRN_BOGUS_PROGRESSION:
  case JWRN_MUST_RESYNC:
    return "corrupt";
  default:
    return NULL;
  }
}

static void on_message(j_common_ptr codec, int level) {
  error_state *state = (error_state *)codec->err;
  if (level >= 0)
    return; /* trace output */
  state->base.num_warnings++;
  const char *kind = damage_of(state->base.msg_code);
  if (kind != NULL) {
    if (state->damage_kind == NULL) {
      state->damage_kind = kind;
      (*codec->err->format_message)(codec, state->damage);
    }
  } else if (state->warnings < MAX_WARNINGS) {
    (*codec->err->format_message)(codec, state->warning[state->warnings++]);
  }
}

static void on_progress(j_common_ptr codec) {
  if (codec->is_decompressor && ((j_decompress_ptr)codec)->input_scan_number > MAX_SCANS) {
    error_state *state = (error_state *)codec->err;
    snprintf(state->error, sizeof state->error, "more than %d scans", MAX_SCANS);
    longjmp(state->escape, 1);
  }
}

static void init_errors(error_state *state) {
  memset(state, 0, sizeof *state);
  jpeg_std_error(&state->base);
  state->base.error_exit = on_error;
  state->base.emit_message = on_message;
}

/* ---- re-coding ----------------------------------------------------------------------------- */

/* How often each symbol is coded, by Huffman table. */
typedef struct {
  long dc[NUM_HUFF_TBLS][256], ac[NUM_HUFF_TBLS][256];
} symbol_counts;

/* Everything that a failing libjpeg call must find again after its longjmp. */
typedef struct {
  error_state errors;
  struct jpeg_progress_mgr progress;
  struct jpeg_decompress_struct source;
  struct jpeg_compress_struct target;
  unsigned char *room;   /* ours, lent to jpeg_mem_dest so that it seldom needs to grow */
  unsigned char *output; /* room, or, once writing has finished, what libjpeg grew it into */
  unsigned long output_bytes;
  symbol_counts counts;
} recoder;

static recoder *recoder_new(size_t source_bytes) {
  recoder *r = calloc(1, sizeof *r);
  if (r != NULL) {
    r->output_bytes = source_bytes + source_bytes / 4 + 4096;
    r->output = r->room = malloc(r->output_bytes);
  }
  if (r == NULL || r->room == NULL) {
    free(r);
    PyErr_NoMemory();
    return NULL;
  }
  init_errors(&r->errors);
  r->source.err = &r->errors.base;
  r->target.err = &r->errors.base;
  return r;
}

static void recoder_free(recoder *r) {
  /* Both are no-ops on a structure that was never created. */
  jpeg_destroy_compress(&r->target);
  jpeg_destroy_decompress(&r->source);
  if (r->output != r->room)
    free(r->output);
  free(r->room);
  free(r);
}

static int gcd3(int a, int b, int c) {
  int parts[2] = {b, c};
  for (int i = 0; i < 2; i++)
    for (int other = parts[i]; other != 0;) {
      int rest = a % other;
      a = other;
      other = rest;
    }
  return a;
}

/* Reads header and coefficients; longjmps on errors. Returns NULL with `kind` and r->errors.error
 * set where the file is one that we do not re-code. */
static jvirt_barray_ptr *read_coefficients(recoder *r, const unsigned char *data,
                                           unsigned long bytes, const char **kind) {
  j_decompress_ptr source = &r->source;
  jpeg_create_decompress(source);
  r->progress.progress_monitor = on_progress;
  source->progress = &r->progress;
  jpeg_mem_src(source, data, bytes);
  (void)jpeg_read_header(source, TRUE);

  char *why = r->errors.error;
  *kind = "unsupported";
  if ((uint64_t)source->image_width * source->image_height > MAX_PIXELS) {
    *kind = "too-large";
    snprintf(why, JMSG_LENGTH_MAX, "%u x %u pixels, more than %u million", source->image_width,
             source->image_height, MAX_PIXELS / 1000000u);
    return NULL;
  }
  if (source->num_components == 4) {
    *kind = "cmyk";
    snprintf(why, JMSG_LENGTH_MAX, "four colour components");
    return NULL;
  }
  if (source->num_components != 1 && source->num_components != 3) {
    snprintf(why, JMSG_LENGTH_MAX, "%d colour components", source->num_components);
    return NULL;
  }
  if (source->data_precision != 8) {
    snprintf(why, JMSG_LENGTH_MAX, "%d bits a sample", source->data_precision);
    return NULL;
  }
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(source);
  if (source->progressive_mode && r->errors.damage_kind == NULL)
    for (int c = 0; c < source->num_components; c++)
      for (int k = 0; k < 10; k++) /* those that libjpeg's smoothing would make up */
        if (source->coef_bits[c][k] != 0) {
          r->errors.damage_kind = "truncated";
          snprintf(r->errors.damage, JMSG_LENGTH_MAX, "progressive scans are missing");
        }
  return coefficients;
}

/* Sets up the target as a sequential Huffman JPEG with the source's tables and sampling. */
static void begin_target(recoder *r) {
  j_compress_ptr target = &r->target;
  jpeg_create_compress(target);
  jpeg_mem_dest(target, &r->output, &r->output_bytes);
  jpeg_copy_critical_parameters(&r->source, target);
  target->optimize_coding = TRUE;
  target->arith_code = FALSE;

  /* Only the ratios of the sampling factors mean anything; 2x2,2x2,2x2 is 4:4:4. */
  jpeg_component_info *comp = target->comp_info;
  int n = target->num_components;
  int across = n == 1 ? comp[0].h_samp_factor
                      : gcd3(comp[0].h_samp_factor, comp[1].h_samp_factor, comp[2].h_samp_factor);
  int down = n == 1 ? comp[0].v_samp_factor
                    : gcd3(comp[0].v_samp_factor, comp[1].v_samp_factor, comp[2].v_samp_factor);
  for (int c = 0; c < n; c++) {
    comp[c].h_samp_factor /= across;
    comp[c].v_samp_factor /= down;
  }
}

/* ---- Huffman tables of our own ------------------------------------------------------------- */

/* libjpeg can find the best tables itself (optimize_coding), by coding everything twice; its first
 * pass looks at every coefficient, of which nine in ten are 0. Here only the others are touched. */

static const unsigned char ZIGZAG_OF[DCTSIZE2] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
    41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
    46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63};

static int magnitude_bits(int value) {
  return value == 0 ? 0 : 32 - __builtin_clz((unsigned)(value < 0 ? -value : value));
}

static uint64_t nonzero_mask(const JCOEF *block) {
  uint64_t mask = 0;
#if defined(__x86_64__)
  const __m128i zero = _mm_setzero_si128();
  for (int part = 0; part < 4; part++) {
    const __m128i *at = (const __m128i *)(const void *)(block + 16 * part);
    __m128i low = _mm_cmpeq_epi16(_mm_loadu_si128(at), zero);
    __m128i high = _mm_cmpeq_epi16(_mm_loadu_si128(at + 1), zero);
    mask |= (uint64_t)(uint16_t)~_mm_movemask_epi8(_mm_packs_epi16(low, high)) << (16 * part);
  }
#else
  for (int i = 0; i < DCTSIZE2; i++)
    mask |= (uint64_t)(block[i] != 0) << i;
#endif
  return mask;
}

/* Counts a block's symbols as T.81 F.1.2 codes them. Values too large for baseline count as the
 * largest; libjpeg refuses them when it codes. */
static void count_block(const JCOEF *block, int previous_dc, long *dc, long *ac) {
  int bits = magnitude_bits(block[0] - previous_dc);
  dc[bits > 11 ? 11 : bits]++;
  JCOEF scan[DCTSIZE2];
  uint64_t left = 0;
  for (uint64_t mask = nonzero_mask(block) & ~(uint64_t)1; mask != 0; mask &= mask - 1) {
    int i = __builtin_ctzll(mask), k = ZIGZAG_OF[i];
    scan[k] = block[i];
    left |= (uint64_t)1 << k;
  }
  int last = 0;
  for (; left != 0; left &= left - 1) {
    int k = __builtin_ctzll(left), run = k - last - 1;
    ac[0xF0] += run >> 4;
    bits = magnitude_bits(scan[k]);
    ac[(run & 15) << 4 | (bits > 10 ? 10 : bits)]++;
    last = k;
  }
  if (last < DCTSIZE2 - 1)
    ac[0]++;
}

static unsigned ceil_div(unsigned a, unsigned b) { return (a + b - 1) / b; }

/* Counts what jpeg_write_coefficients will code from arrays that belong to `owner`. */
static void count_symbols(j_compress_ptr target, j_common_ptr owner,
                          jvirt_barray_ptr *coefficients, symbol_counts *counts) {
  int n = target->num_components, single = n == 1;
  unsigned across = 8, down = 8;
  for (int c = 0; c < n && !single; c++) {
    unsigned h = 8u * (unsigned)target->comp_info[c].h_samp_factor;
    unsigned v = 8u * (unsigned)target->comp_info[c].v_samp_factor;
    across = h > across ? h : across;
    down = v > down ? v : down;
  }
  unsigned mcus = ceil_div(target->image_width, across);
  unsigned mcu_rows = ceil_div(target->image_height, down);
  unsigned until_restart = 0;
  int dc[3] = {0, 0, 0};
  for (unsigned mcu_row = 0; mcu_row < mcu_rows; mcu_row++) {
    JBLOCKROW rows[3][4] = {{NULL}};
    for (int c = 0; c < n; c++) {
      unsigned v = single ? 1 : (unsigned)target->comp_info[c].v_samp_factor;
      unsigned high = ceil_div(target->image_height * v, down);
      for (unsigned y = 0; y < v && mcu_row * v + y < high; y++)
        rows[c][y] = (*owner->mem->access_virt_barray)(owner, coefficients[c], mcu_row * v + y, 1,
                                                       FALSE)[0];
    }
    for (unsigned mcu = 0; mcu < mcus; mcu++) {
      if (target->restart_interval != 0 && until_restart-- == 0) {
        until_restart = target->restart_interval - 1;
        dc[0] = dc[1] = dc[2] = 0;
      }
      for (int c = 0; c < n; c++) {
        jpeg_component_info *comp = &target->comp_info[c];
        unsigned h = single ? 1 : (unsigned)comp->h_samp_factor;
        unsigned v = single ? 1 : (unsigned)comp->v_samp_factor;
        unsigned wide = ceil_div(target->image_width * h, across);
        long *dc_counts = counts->dc[comp->dc_tbl_no], *ac_counts = counts->ac[comp->ac_tbl_no];
        for (unsigned y = 0; y < v; y++)
          for (unsigned x = mcu * h; x < (mcu + 1) * h; x++) {
            if (rows[c][y] == NULL || x >= wide) { /* past the edge: the last DC again, no AC */
              dc_counts[0]++;
              ac_counts[0]++;
            } else {
              count_block(rows[c][y][x], dc[c], dc_counts, ac_counts);
              dc[c] = rows[c][y][x][0];
            }
          }
      }
    }
  }
}

/* Makes the Huffman table of least total length for the counts, with codes of at most 16 bits and
 * none of ones only: T.81 K.2. */
static void build_table(JHUFF_TBL *table, const long *counts) {
  enum { SYMBOLS = 257, LONGEST = 64 };
  long weight[SYMBOLS];
  int length[SYMBOLS] = {0}, next[SYMBOLS], bits[LONGEST + 1] = {0};
  memcpy(weight, counts, 256 * sizeof weight[0]);
  weight[256] = 1; /* takes the code of ones only */
  for (int i = 0; i < SYMBOLS; i++)
    next[i] = -1;
  for (;;) {
    int a = -1, b = -1; /* the two lightest trees, a not heavier; of equals the later ones */
    for (int i = 0; i < SYMBOLS; i++) {
      if (weight[i] == 0)
        continue;
      if (a < 0 || weight[i] <= weight[a]) {
        b = a;
        a = i;
      } else if (b < 0 || weight[i] <= weight[b]) {
        b = i;
      }
    }
    if (b < 0)
      break;
    weight[a] += weight[b];
    weight[b] = 0;
    int end = a;
    for (length[a]++; next[end] >= 0;)
      length[end = next[end]]++;
    next[end] = b;
    for (end = b, length[b]++; next[end] >= 0;)
      length[end = next[end]]++;
  }
  for (int i = 0; i < SYMBOLS; i++)
    if (length[i] > 0)
      bits[length[i] > LONGEST ? LONGEST : length[i]]++;
  for (int i = LONGEST; i > 16; i--)
    while (bits[i] > 0) { /* move a pair of leaves up, next to a shorter code's leaf */
      int j = i - 2;
      while (bits[j] == 0)
        j--;
      bits[i] -= 2;
      bits[i - 1]++;
      bits[j + 1] += 2;
      bits[j]--;
    }
  int longest = 16;
  while (bits[longest] == 0)
    longest--;
  bits[longest]--; /* the code of ones only */

  memset(table->bits, 0, sizeof table->bits);
  for (int i = 1; i <= 16; i++)
    table->bits[i] = (UINT8)bits[i];
  int place = 0;
  for (int wanted = 1; wanted <= LONGEST; wanted++)
    for (int symbol = 0; symbol < 256; symbol++)
      if (length[symbol] == wanted)
        table->huffval[place++] = (UINT8)symbol;
  table->sent_table = FALSE;
}

/* Gives the target the best tables for what it is about to write. */
static void set_tables(j_compress_ptr target, j_common_ptr owner, jvirt_barray_ptr *coefficients,
                       symbol_counts *counts) {
  memset(counts, 0, sizeof *counts);
  count_symbols(target, owner, coefficients, counts);
  for (int c = 0; c < target->num_components; c++) {
    int dc = target->comp_info[c].dc_tbl_no, ac = target->comp_info[c].ac_tbl_no;
    build_table(target->dc_huff_tbl_ptrs[dc], counts->dc[dc]);
    build_table(target->ac_huff_tbl_ptrs[ac], counts->ac[ac]);
  }
  target->optimize_coding = FALSE;
}

enum { S444, S422, S420, S440, S411, GREY, OTHER };

static int subsampling_of(j_compress_ptr target) {
  jpeg_component_info *comp = target->comp_info;
  if (target->num_components == 1)
    return GREY;
  for (int c = 1; c < 3; c++)
    if (comp[c].h_samp_factor != 1 || comp[c].v_samp_factor != 1)
      return OTHER;
  switch (comp[0].h_samp_factor * 10 + comp[0].v_samp_factor) {
  case 11:
    return S444;
  case 21:
    return S422;
  case 22:
    return S420;
  case 12:
    return S440;
  case 41:
    return S411;
  default:
    return OTHER;
  }
}

/* Copies the coefficients into arrays that are wide enough for `mcus_across`. The blocks past the
 * source's edge carry its last block's DC and no AC: the fewest bits, and never visible. */
static jvirt_barray_ptr *widen(recoder *r, jvirt_barray_ptr *coefficients, unsigned mcus_across) {
  j_decompress_ptr source = &r->source;
  j_compress_ptr target = &r->target;
  j_common_ptr pool = (j_common_ptr)target;
  jvirt_barray_ptr *wide = (*target->mem->alloc_small)(
      pool, JPOOL_IMAGE, sizeof(jvirt_barray_ptr) * (size_t)target->num_components);
  for (int c = 0; c < target->num_components; c++) {
    int h = target->comp_info[c].h_samp_factor, v = target->comp_info[c].v_samp_factor;
    JDIMENSION rows = source->comp_info[c].height_in_blocks;
    rows = (rows + (JDIMENSION)v - 1) / (JDIMENSION)v * (JDIMENSION)v;
    wide[c] = (*target->mem->request_virt_barray)(pool, JPOOL_IMAGE, TRUE,
                                                  mcus_across * (JDIMENSION)h, rows, (JDIMENSION)v);
  }
  (*target->mem->realize_virt_arrays)(pool);
  for (int c = 0; c < target->num_components; c++) {
    JDIMENSION have = source->comp_info[c].width_in_blocks;
    JDIMENSION want = mcus_across * (JDIMENSION)target->comp_info[c].h_samp_factor;
    for (JDIMENSION row = 0; row < source->comp_info[c].height_in_blocks; row++) {
      JBLOCKROW from = (*source->mem->access_virt_barray)((j_common_ptr)source, coefficients[c],
                                                          row, 1, FALSE)[0];
      JBLOCKROW to = (*target->mem->access_virt_barray)(pool, wide[c], row, 1, TRUE)[0];
      memcpy(to, from, have * sizeof(JBLOCK));
      for (JDIMENSION column = have; column < want; column++)
        to[column][0] = from[have - 1][0];
    }
  }
  return wide;
}

/* Walks the marker segments of our own output up to and including SOS. */
static int find_header(const unsigned char *jpeg, size_t bytes, size_t *sof, size_t *end) {
  size_t at = 2;
  *sof = 0;
  while (at + 4 <= bytes && jpeg[at] == 0xFF) {
    unsigned marker = jpeg[at + 1];
    size_t length = (size_t)jpeg[at + 2] << 8 | jpeg[at + 3];
    if (marker == 0xC0 || marker == 0xC1)
      *sof = at;
    at += 2 + length;
    if (marker == 0xDA) {
      *end = at;
      return *sof != 0 && at <= bytes;
    }
  }
  return 0;
}

/* Writes the length of each restart segment, its closing marker included. Returns the count. */
static size_t measure_segments(const unsigned char *jpeg, size_t begin, size_t bytes,
                               uint16_t *lengths, size_t room) {
  size_t count = 0, start = begin, at = begin;
  while (at + 1 < bytes) {
    const unsigned char *hit = memchr(jpeg + at, 0xFF, bytes - 1 - at);
    if (hit == NULL)
      return 0;
    at = (size_t)(hit - jpeg) + 2;
    if (hit[1] == 0)
      continue;
    if (count == room || at - start > UINT16_MAX)
      return 0;
    lengths[count++] = (uint16_t)(at - start);
    start = at;
    if (hit[1] == 0xD9)
      return at == bytes ? count : 0;
  }
  return 0;
}

static PyObject *warnings_tuple(const error_state *errors) {
  PyObject *all = PyTuple_New(errors->warnings);
  for (int i = 0; all != NULL && i < errors->warnings; i++) {
    PyObject *text = PyUnicode_DecodeLatin1(errors->warning[i], (Py_ssize_t)strlen(errors->warning[i]), NULL);
    if (text == NULL) {
      Py_CLEAR(all);
      break;
    }
    PyTuple_SET_ITEM(all, i, text);
  }
  return all;
}

PyObject *feeder_tile_jpeg(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer data;
  unsigned tile_width_px;
  if (!PyArg_ParseTuple(args, "y*I", &data, &tile_width_px))
    return NULL;
  PyObject *volatile result = NULL;
  PyObject *volatile table = NULL;
  recoder *r = recoder_new((size_t)data.len);
  if (r == NULL) {
    PyBuffer_Release(&data);
    return NULL;
  }
  if (setjmp(r->errors.escape) != 0) {
    set_jpeg_error(r->errors.damage_kind ? r->errors.damage_kind : "corrupt", r->errors.error);
    goto done;
  }
  const char *kind;
  jvirt_barray_ptr *coefficients =
      read_coefficients(r, data.buf, (unsigned long)data.len, &kind);
  if (coefficients == NULL) {
    set_jpeg_error(kind, r->errors.error);
    goto done;
  }
  if (r->errors.damage_kind != NULL) {
    set_jpeg_error(r->errors.damage_kind, r->errors.damage);
    goto done;
  }

  begin_target(r);
  j_compress_ptr target = &r->target;
  int subsampling = subsampling_of(target);
  if (subsampling == OTHER) {
    set_jpeg_error("unsupported", "a chroma subsampling that TurboJPEG does not decode");
    goto done;
  }
  unsigned width = r->source.image_width, height = r->source.image_height;
  unsigned mcu_width = 8u * (unsigned)target->comp_info[0].h_samp_factor;
  unsigned mcu_height = 8u * (unsigned)target->comp_info[0].v_samp_factor;
  unsigned mcus = (width + mcu_width - 1) / mcu_width;
  unsigned tile_mcus = tile_width_px / mcu_width;
  if (tile_mcus < 1)
    tile_mcus = 1;
  if (tile_mcus > mcus)
    tile_mcus = mcus;
  /* With 2:1 chroma across, the last column's pixels depend on the decoder knowing the true width
   * (it replicates the last chroma sample there), so the header must carry it, so the rows must
   * divide into whole tiles without padding. Others are padded to whole tiles: no pixel of theirs
   * depends on its right neighbour. */
  if (subsampling == S422 || subsampling == S420)
    while (mcus % tile_mcus != 0)
      tile_mcus--;
  unsigned columns = (mcus + tile_mcus - 1) / tile_mcus;
  unsigned rows = (height + mcu_height - 1) / mcu_height;

  target->restart_interval = tile_mcus;
  j_common_ptr owner = (j_common_ptr)&r->source;
  if (columns * tile_mcus != mcus) {
    unsigned padded = columns * tile_mcus * mcu_width;
    if (padded > JPEG_MAX_DIMENSION) {
      set_jpeg_error("too-large", "too wide to be padded to whole tiles");
      goto done;
    }
    target->image_width = padded;
    coefficients = widen(r, coefficients, columns * tile_mcus);
    owner = (j_common_ptr)target;
  }
  set_tables(target, owner, coefficients, &r->counts);
  jpeg_write_coefficients(target, coefficients);
  jpeg_finish_compress(target);
  jpeg_finish_decompress(&r->source);

  size_t sof, header_bytes, segments = (size_t)columns * rows;
  table = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(segments * sizeof(uint16_t)));
  if (table == NULL)
    goto done;
  if (!find_header(r->output, r->output_bytes, &sof, &header_bytes) ||
      measure_segments(r->output, header_bytes, r->output_bytes,
                       (uint16_t *)(void *)PyBytes_AS_STRING(table), segments) != segments) {
    set_jpeg_error("unsupported", "libjpeg wrote other restart segments than were asked for");
    goto done;
  }
  PyObject *warnings = warnings_tuple(&r->errors);
  if (warnings != NULL)
    result = Py_BuildValue("(y#OIIIIIIIIIiNNN)", r->output, (Py_ssize_t)r->output_bytes, table,
                           (unsigned)header_bytes, (unsigned)sof, width, height, mcu_width,
                           mcu_height, tile_mcus, columns, rows, subsampling,
                           PyBool_FromLong(r->source.progressive_mode),
                           PyBool_FromLong(r->source.arith_code), warnings);
done:
  Py_XDECREF(table);
  recoder_free(r);
  PyBuffer_Release(&data);
  return result;
}

PyObject *feeder_untile_jpeg(PyObject *module, PyObject *args) {
  (void)module;
  Py_buffer data;
  unsigned width, height;
  if (!PyArg_ParseTuple(args, "y*II", &data, &width, &height))
    return NULL;
  PyObject *volatile result = NULL;
  recoder *r = recoder_new((size_t)data.len);
  if (r == NULL) {
    PyBuffer_Release(&data);
    return NULL;
  }
  if (setjmp(r->errors.escape) != 0) {
    set_jpeg_error("corrupt", r->errors.error);
    goto done;
  }
  const char *kind;
  jvirt_barray_ptr *coefficients =
      read_coefficients(r, data.buf, (unsigned long)data.len, &kind);
  if (coefficients == NULL) {
    set_jpeg_error(kind, r->errors.error);
    goto done;
  }
  if (r->errors.damage_kind != NULL) {
    set_jpeg_error(r->errors.damage_kind, r->errors.damage);
    goto done;
  }
  if (width == 0 || height == 0 || width > r->source.image_width ||
      height > r->source.image_height) {
    set_jpeg_error("corrupt", "the tiled JPEG is smaller than its record says");
    goto done;
  }
  begin_target(r);
  r->target.image_width = width;
  r->target.image_height = height;
  r->target.restart_interval = 0;
  jpeg_write_coefficients(&r->target, coefficients);
  jpeg_finish_compress(&r->target);
  jpeg_finish_decompress(&r->source);
  result = PyBytes_FromStringAndSize((const char *)r->output, (Py_ssize_t)r->output_bytes);
done:
  recoder_free(r);
  PyBuffer_Release(&data);
  return result;
}

PyObject *feeder_transform_jpeg(PyObject *module, PyObject *args) {
  (void)module;
  static const int operations[9] = {0,           TJXOP_NONE,       TJXOP_HFLIP,
                                    TJXOP_ROT180, TJXOP_VFLIP,      TJXOP_TRANSPOSE,
                                    TJXOP_ROT90,  TJXOP_TRANSVERSE, TJXOP_ROT270};
  Py_buffer data;
  int orientation;
  if (!PyArg_ParseTuple(args, "y*i", &data, &orientation))
    return NULL;
  PyObject *result = NULL;
  tjhandle handle = NULL;
  if (orientation < 1 || orientation > 8) {
    PyErr_Format(PyExc_ValueError, "EXIF orientation %d is not within 1..8", orientation);
    goto done;
  }
  handle = tjInitTransform();
  if (handle == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  tjtransform transform;
  memset(&transform, 0, sizeof transform);
  transform.op = operations[orientation];
  transform.options = TJXOPT_PERFECT | TJXOPT_COPYNONE;
  unsigned char *output = NULL;
  unsigned long bytes = 0;
  if (tjTransform(handle, data.buf, (unsigned long)data.len, 1, &output, &bytes, &transform, 0) == 0)
    result = PyBytes_FromStringAndSize((const char *)output, (Py_ssize_t)bytes);
  else
    result = Py_NewRef(Py_None); /* not possible without loss, or not whole: the caller decides */
  tjFree(output);
done:
  if (handle != NULL)
    tjDestroy(handle);
  PyBuffer_Release(&data);
  return result;
}
