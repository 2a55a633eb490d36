/* tile_jpeg, transform_jpeg: JPEGs re-coded without loss.
 *
 * libjpeg-turbo reads the coefficients (jpeg_read_coefficients) and writes the new header; the blocks
 * are coded here, segment by segment. Nothing is ever re-quantised. */
#include "native.h"
#include "huffman.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>
#include <turbojpeg.h>


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
  const char *damage_kind; /* NULL while the data is whole; else `error` says more */
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
  if (kind != NULL) { /* nothing can come of it, and reading on may take hundreds of scans */
    state->damage_kind = kind;
    (*codec->err->format_message)(codec, state->error);
    longjmp(state->escape, 1);
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
  code_table dc_codes[NUM_HUFF_TBLS], ac_codes[NUM_HUFF_TBLS];
  unsigned char *scan; /* the coded blocks, without byte stuffing */
  size_t scan_bytes, scan_room;
  uint32_t *segment_bits; /* by segment */
  int16_t (*dc_after)[3]; /* by segment: what DC prediction has reached after it */
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
  free(r->scan);
  free(r->segment_bits);
  free(r->dc_after);
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
          snprintf(r->errors.error, JMSG_LENGTH_MAX, "progressive scans are missing");
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

static unsigned ceil_div(unsigned a, unsigned b) { return (a + b - 1) / b; }

/* ---- coding the blocks --------------------------------------------------------------------- */

/* The image as MCUs and tiles. */
typedef struct {
  unsigned width, height, mcu_width, mcu_height, mcus, mcu_rows, tile_mcus, columns;
  int components;
} tile_grid;

static tile_grid grid_of(const recoder *r, unsigned tile_width_px) {
  const jpeg_component_info *luma = &r->target.comp_info[0];
  tile_grid g = {.width = r->source.image_width,
                 .height = r->source.image_height,
                 .mcu_width = 8u * (unsigned)luma->h_samp_factor,
                 .mcu_height = 8u * (unsigned)luma->v_samp_factor,
                 .components = r->target.num_components};
  g.mcus = ceil_div(g.width, g.mcu_width);
  g.mcu_rows = ceil_div(g.height, g.mcu_height);
  g.tile_mcus = tile_width_px / g.mcu_width;
  g.tile_mcus = g.tile_mcus < 1 ? 1 : g.tile_mcus > g.mcus ? g.mcus : g.tile_mcus;
  g.columns = ceil_div(g.mcus, g.tile_mcus);
  return g;
}

/* The blocks of one MCU row; rows past the bottom edge are NULL. */
typedef struct {
  JBLOCKROW rows[3][4];
} mcu_row_blocks;

static mcu_row_blocks blocks_of(recoder *r, jvirt_barray_ptr *coefficients, const tile_grid *g,
                                unsigned mcu_row) {
  mcu_row_blocks blocks;
  memset(&blocks, 0, sizeof blocks);
  j_common_ptr owner = (j_common_ptr)&r->source;
  for (int c = 0; c < g->components; c++) {
    unsigned v = (unsigned)r->target.comp_info[c].v_samp_factor;
    unsigned high = ceil_div(g->height * v, g->mcu_height);
    for (unsigned y = 0; y < v && mcu_row * v + y < high; y++)
      blocks.rows[c][y] = (*owner->mem->access_virt_barray)(owner, coefficients[c],
                                                            mcu_row * v + y, 1, FALSE)[0];
  }
  return blocks;
}

/* Codes one MCU, or counts its symbols where `writer` is NULL; `dc` is the prediction. */
static inline void do_mcu(recoder *r, const tile_grid *g, const mcu_row_blocks *blocks,
                          unsigned mcu, int *dc, bit_writer *writer) {
  for (int c = 0; c < g->components; c++) {
    const jpeg_component_info *comp = &r->target.comp_info[c];
    unsigned h = (unsigned)comp->h_samp_factor, v = (unsigned)comp->v_samp_factor;
    unsigned wide = ceil_div(g->width * h, g->mcu_width);
    int dc_table = comp->dc_tbl_no, ac_table = comp->ac_tbl_no;
    for (unsigned y = 0; y < v; y++)
      for (unsigned x = mcu * h; x < (mcu + 1) * h; x++) {
        if (blocks->rows[c][y] == NULL || x >= wide) { /* past the edge: fewest bits, never seen */
          if (writer != NULL)
            code_empty_block(writer, &r->dc_codes[dc_table], &r->ac_codes[ac_table]);
          else {
            r->counts.dc[dc_table][0]++;
            r->counts.ac[ac_table][0]++;
          }
          continue;
        }
        const JCOEF *block = blocks->rows[c][y][x];
        if (writer != NULL)
          code_block(writer, block, dc[c], &r->dc_codes[dc_table], &r->ac_codes[ac_table]);
        else
          count_block(block, dc[c], &r->counts, dc_table, ac_table);
        dc[c] = block[0];
      }
  }
}

/* Gives the target the best tables for the image. Each row of MCUs begins with a prediction of 0. */
static void set_tables(recoder *r, jvirt_barray_ptr *coefficients, const tile_grid *g) {
  memset(&r->counts, 0, sizeof r->counts);
  for (unsigned mcu_row = 0; mcu_row < g->mcu_rows; mcu_row++) {
    mcu_row_blocks blocks = blocks_of(r, coefficients, g, mcu_row);
    int dc[3] = {0, 0, 0};
    for (unsigned mcu = 0; mcu < g->mcus; mcu++)
      do_mcu(r, g, &blocks, mcu, dc, NULL);
  }
  j_compress_ptr target = &r->target;
  for (int c = 0; c < g->components; c++) {
    int dc = target->comp_info[c].dc_tbl_no, ac = target->comp_info[c].ac_tbl_no;
    /* Joining tiles makes differences that the image has not, and empty blocks must have a code. */
    for (int category = 0; category < DC_CATEGORIES; category++)
      r->counts.dc[dc][category] += r->counts.dc[dc][category] == 0;
    r->counts.ac[ac][0] += r->counts.ac[ac][0] == 0;
    best_table(target->dc_huff_tbl_ptrs[dc], r->counts.dc[dc]);
    best_table(target->ac_huff_tbl_ptrs[ac], r->counts.ac[ac]);
    make_code_table(&r->dc_codes[dc], target->dc_huff_tbl_ptrs[dc]);
    make_code_table(&r->ac_codes[ac], target->ac_huff_tbl_ptrs[ac]);
  }
  target->optimize_coding = FALSE;
}

/* Codes all blocks and notes where the segments are; 0 where memory is short. */
static int code_segments(recoder *r, jvirt_barray_ptr *coefficients, const tile_grid *g) {
  size_t segments = (size_t)g->columns * g->mcu_rows, segment = 0;
  r->segment_bits = malloc(segments * sizeof *r->segment_bits);
  r->dc_after = calloc(segments, sizeof *r->dc_after);
  r->scan_room = r->output_bytes;
  r->scan = malloc(r->scan_room);
  if (r->segment_bits == NULL || r->dc_after == NULL || r->scan == NULL)
    return 0;
  size_t mcu_blocks = 0;
  for (int c = 0; c < g->components; c++)
    mcu_blocks += (size_t)(r->target.comp_info[c].h_samp_factor * r->target.comp_info[c].v_samp_factor);
  size_t row_bytes_max = g->mcus * mcu_blocks * BLOCK_BITS_MAX / 8 + 16;
  bit_writer writer = {.out = r->scan};
  for (unsigned mcu_row = 0; mcu_row < g->mcu_rows; mcu_row++) {
    size_t used = (size_t)(writer.out - r->scan);
    if (r->scan_room - used < row_bytes_max) {
      unsigned char *larger = realloc(r->scan, 2 * r->scan_room + row_bytes_max);
      if (larger == NULL)
        return 0;
      r->scan_room = 2 * r->scan_room + row_bytes_max;
      r->scan = larger;
      writer.out = larger + used;
    }
    mcu_row_blocks blocks = blocks_of(r, coefficients, g, mcu_row);
    int dc[3] = {0, 0, 0};
    for (unsigned mcu = 0; mcu < g->mcus; segment++) {
      size_t before = 8 * (size_t)(writer.out - r->scan) + writer.count;
      for (unsigned end = mcu + g->tile_mcus; mcu < end && mcu < g->mcus; mcu++)
        do_mcu(r, g, &blocks, mcu, dc, &writer);
      r->segment_bits[segment] =
          (uint32_t)(8 * (size_t)(writer.out - r->scan) + writer.count - before);
      for (int c = 0; c < 3; c++)
        r->dc_after[segment][c] = (int16_t)dc[c];
    }
  }
  flush_bits(&writer);
  r->scan_bytes = (size_t)(writer.out - r->scan);
  return 1;
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

/* Lets libjpeg write the header: for an empty image of one MCU, whose size is then put right. */
static int write_header(recoder *r, const tile_grid *g, size_t *sof, size_t *header_bytes) {
  j_compress_ptr target = &r->target;
  j_common_ptr pool = (j_common_ptr)target;
  jvirt_barray_ptr empty[3];
  for (int c = 0; c < g->components; c++) {
    JDIMENSION h = (JDIMENSION)target->comp_info[c].h_samp_factor;
    JDIMENSION v = (JDIMENSION)target->comp_info[c].v_samp_factor;
    empty[c] = (*target->mem->request_virt_barray)(pool, JPOOL_IMAGE, TRUE, h, v, v);
  }
  target->image_width = g->mcu_width;
  target->image_height = g->mcu_height;
  jpeg_write_coefficients(target, empty);
  jpeg_finish_compress(target);
  if (!find_header(r->output, r->output_bytes, sof, header_bytes))
    return 0;
  unsigned char *size = r->output + *sof + 5;
  size[0] = (unsigned char)(g->height >> 8);
  size[1] = (unsigned char)g->height;
  size[2] = (unsigned char)(g->width >> 8);
  size[3] = (unsigned char)g->width;
  return 1;
}

/* ---- the blob ------------------------------------------------------------------------------ */

/* Writes the low `bits` bits of `value` at bit `at` of zeroed memory, least significant bit first;
 * touches 8 bytes. */
static void put_field(unsigned char *memory, size_t at, uint64_t value, unsigned bits) {
  uint64_t word;
  memcpy(&word, memory + at / 8, sizeof word);
  word |= (value & (((uint64_t)1 << bits) - 1)) << at % 8;
  memcpy(memory + at / 8, &word, sizeof word);
}

static unsigned signed_bits(int value) {
  return 33u - (unsigned)__builtin_clz((unsigned)(value < 0 ? ~value : value) | 1u) -
         (unsigned)(value == 0 || value == -1);
}

/* Puts segment table, predictions, header and scan together (feeder/README.md, "Blob"). */
static PyObject *make_blob(const recoder *r, const tile_grid *g, size_t header_bytes,
                           unsigned *table_bits) {
  size_t segments = (size_t)g->columns * g->mcu_rows;
  unsigned length_bits = 1, dc_bits[3] = {0, 0, 0};
  for (size_t s = 0; s < segments; s++) {
    while (r->segment_bits[s] >> length_bits != 0)
      length_bits++;
    for (int c = 0; c < g->components; c++) {
      unsigned bits = signed_bits(r->dc_after[s][c]);
      dc_bits[c] = bits > dc_bits[c] ? bits : dc_bits[c];
    }
  }
  unsigned entry_bits = dc_bits[0] + dc_bits[1] + dc_bits[2];
  size_t lengths_bytes = (segments * length_bits + 7) / 8;
  size_t predictions_bytes = (segments * entry_bits + 7) / 8;
  size_t bytes = lengths_bytes + predictions_bytes + header_bytes + r->scan_bytes + SCAN_SLACK_BYTES;
  PyObject *blob = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
  if (blob == NULL)
    return NULL;
  unsigned char *to = (unsigned char *)PyBytes_AS_STRING(blob);
  memset(to, 0, bytes);
  for (size_t s = 0; s < segments; s++) {
    put_field(to, s * length_bits, r->segment_bits[s], length_bits);
    size_t at = 8 * lengths_bytes + s * entry_bits;
    for (int c = 0; c < g->components; at += dc_bits[c++])
      put_field(to, at, (uint64_t)(int64_t)r->dc_after[s][c], dc_bits[c]);
  }
  to += lengths_bytes + predictions_bytes;
  memcpy(to, r->output, header_bytes);
  memcpy(to + header_bytes, r->scan, r->scan_bytes);
  *table_bits = length_bits | dc_bits[0] << 8 | dc_bits[1] << 16 | dc_bits[2] << 24;
  return blob;
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
    set_jpeg_error(r->errors.damage_kind, r->errors.error);
    goto done;
  }

  begin_target(r);
  int subsampling = subsampling_of(&r->target);
  if (subsampling == OTHER) {
    set_jpeg_error("unsupported", "a chroma subsampling that TurboJPEG does not decode");
    goto done;
  }
  tile_grid grid = grid_of(r, tile_width_px);
  set_tables(r, coefficients, &grid);
  if (r->counts.bad) {
    set_jpeg_error("unsupported", "coefficients beyond what a baseline JPEG of 8 bits holds");
    goto done;
  }
  size_t sof, header_bytes;
  if (!write_header(r, &grid, &sof, &header_bytes)) {
    set_jpeg_error("unsupported", "libjpeg wrote a header that is none");
    goto done;
  }
  if (!code_segments(r, coefficients, &grid)) {
    PyErr_NoMemory();
    goto done;
  }
  jpeg_finish_decompress(&r->source);

  unsigned table_bits;
  PyObject *blob = make_blob(r, &grid, header_bytes, &table_bits);
  PyObject *warnings = blob == NULL ? NULL : warnings_tuple(&r->errors);
  if (warnings == NULL)
    Py_XDECREF(blob);
  else
    result = Py_BuildValue("(NIIIIIIIIIIiNNN)", blob, (unsigned)header_bytes, (unsigned)sof,
                           table_bits, grid.width, grid.height, grid.mcu_width, grid.mcu_height,
                           grid.tile_mcus, grid.columns, grid.mcu_rows, subsampling,
                           PyBool_FromLong(r->source.progressive_mode),
                           PyBool_FromLong(r->source.arith_code), warnings);
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
