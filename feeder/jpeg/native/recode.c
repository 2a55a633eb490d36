/* tile_jpeg: a JPEG re-coded without loss into segments that can be found.
 *
 * The blocks are coded here, segment by segment; libjpeg-turbo does the rest (transcode.h). Nothing
 * is re-quantised. */
#include "native.h"

#include "blocks.h"
#include "segments.h"
#include "transcode.h"

/* Everything that is freed after a longjmp. */
typedef struct {
  transcoder jpeg;
  symbol_counts counts;
  code_table dc_codes[NUM_HUFF_TBLS], ac_codes[NUM_HUFF_TBLS];
  unsigned char *scan;
  size_t scan_bytes;
  uint32_t *segment_bits; /* by segment */
  int16_t (*dc_after)[COMPONENTS_MAX]; /* by segment: what DC prediction has reached after it */
} recoder;

static void recoder_free(recoder *r) {
  destroy_transcoder(&r->jpeg);
  free(r->scan);
  free(r->segment_bits);
  free(r->dc_after);
  free(r);
}

/* The image as MCUs and tiles. */
typedef struct {
  unsigned width, height, mcu_width, mcu_height, mcus, mcu_rows, tile_mcus, columns;
  int components;
} tile_grid;

static unsigned ceil_div(unsigned a, unsigned b) { return (a + b - 1) / b; }

static tile_grid grid_of(const recoder *r, unsigned tile_width_px) {
  const jpeg_component_info *luma = &r->jpeg.target.comp_info[0];
  tile_grid g = {.width = r->jpeg.source.image_width,
                 .height = r->jpeg.source.image_height,
                 .mcu_width = 8u * (unsigned)luma->h_samp_factor,
                 .mcu_height = 8u * (unsigned)luma->v_samp_factor,
                 .components = r->jpeg.target.num_components};
  g.mcus = ceil_div(g.width, g.mcu_width);
  g.mcu_rows = ceil_div(g.height, g.mcu_height);
  g.tile_mcus = tile_width_px / g.mcu_width;
  g.tile_mcus = g.tile_mcus < 1 ? 1 : g.tile_mcus > g.mcus ? g.mcus : g.tile_mcus;
  g.columns = ceil_div(g.mcus, g.tile_mcus);
  return g;
}

/* The blocks of one MCU row; rows past the bottom edge are NULL. */
typedef struct {
  JBLOCKROW rows[COMPONENTS_MAX][4];
} mcu_row_blocks;

static mcu_row_blocks blocks_of(recoder *r, jvirt_barray_ptr *coefficients, const tile_grid *g,
                                unsigned mcu_row) {
  mcu_row_blocks blocks;
  memset(&blocks, 0, sizeof blocks);
  j_common_ptr owner = (j_common_ptr)&r->jpeg.source;
  for (int c = 0; c < g->components; c++) {
    unsigned v = (unsigned)r->jpeg.target.comp_info[c].v_samp_factor;
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
    const jpeg_component_info *comp = &r->jpeg.target.comp_info[c];
    unsigned h = (unsigned)comp->h_samp_factor, v = (unsigned)comp->v_samp_factor;
    unsigned wide = ceil_div(g->width * h, g->mcu_width);
    int dc_table = comp->dc_tbl_no, ac_table = comp->ac_tbl_no;
    const UINT16 *quant = r->jpeg.target.quant_tbl_ptrs[comp->quant_tbl_no]->quantval;
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
          count_block(block, quant, dc[c], &r->counts, dc_table, ac_table);
        dc[c] = block[0];
      }
  }
}

static void set_table(JHUFF_TBL *table, code_table *codes, const long *counts) {
  make_best_table(table->bits + 1, table->huffval, counts);
  make_code_table(codes, table->bits + 1, table->huffval);
  table->sent_table = FALSE;
}

/* Gives the target the best tables for the image. Each row of MCUs begins with a prediction of 0. */
static void set_tables(recoder *r, jvirt_barray_ptr *coefficients, const tile_grid *g) {
  for (unsigned mcu_row = 0; mcu_row < g->mcu_rows; mcu_row++) {
    mcu_row_blocks blocks = blocks_of(r, coefficients, g, mcu_row);
    int dc[COMPONENTS_MAX] = {0, 0, 0};
    for (unsigned mcu = 0; mcu < g->mcus; mcu++)
      do_mcu(r, g, &blocks, mcu, dc, NULL);
  }
  j_compress_ptr target = &r->jpeg.target;
  for (int c = 0; c < g->components; c++) {
    int dc = target->comp_info[c].dc_tbl_no, ac = target->comp_info[c].ac_tbl_no;
    /* Joining needs codes for differences that the image does not have, and so do empty blocks. */
    for (int category = 0; category < DC_CATEGORIES; category++)
      r->counts.dc[dc][category] += r->counts.dc[dc][category] == 0;
    r->counts.ac[ac][0] += r->counts.ac[ac][0] == 0;
    set_table(target->dc_huff_tbl_ptrs[dc], &r->dc_codes[dc], r->counts.dc[dc]);
    set_table(target->ac_huff_tbl_ptrs[ac], &r->ac_codes[ac], r->counts.ac[ac]);
  }
}

/* Codes all blocks and records where the segments are; 0 if out of memory. */
static int code_segments(recoder *r, jvirt_barray_ptr *coefficients, const tile_grid *g,
                         size_t source_bytes) {
  size_t segments = (size_t)g->columns * g->mcu_rows, segment = 0, mcu_blocks = 0;
  for (int c = 0; c < g->components; c++) {
    const jpeg_component_info *comp = &r->jpeg.target.comp_info[c];
    mcu_blocks += (size_t)(comp->h_samp_factor * comp->v_samp_factor);
  }
  size_t row_bytes_max = g->mcus * mcu_blocks * BLOCK_BITS_MAX / 8 + 16;
  size_t room = source_bytes + source_bytes / 4 + row_bytes_max;
  r->segment_bits = malloc(segments * sizeof *r->segment_bits);
  r->dc_after = calloc(segments, sizeof *r->dc_after);
  r->scan = malloc(room);
  if (r->segment_bits == NULL || r->dc_after == NULL || r->scan == NULL)
    return 0;
  bit_writer writer = {.out = r->scan};
  for (unsigned mcu_row = 0; mcu_row < g->mcu_rows; mcu_row++) {
    size_t used = (size_t)(writer.out - r->scan);
    if (room - used < row_bytes_max) {
      room = 2 * room + row_bytes_max;
      unsigned char *larger = realloc(r->scan, room);
      if (larger == NULL)
        return 0;
      r->scan = larger;
      writer.out = larger + used;
    }
    mcu_row_blocks blocks = blocks_of(r, coefficients, g, mcu_row);
    int dc[COMPONENTS_MAX] = {0, 0, 0};
    for (unsigned mcu = 0; mcu < g->mcus; segment++) {
      size_t before = 8 * (size_t)(writer.out - r->scan) + writer.count;
      for (unsigned end = mcu + g->tile_mcus; mcu < end && mcu < g->mcus; mcu++)
        do_mcu(r, g, &blocks, mcu, dc, &writer);
      r->segment_bits[segment] =
          (uint32_t)(8 * (size_t)(writer.out - r->scan) + writer.count - before);
      for (int c = 0; c < COMPONENTS_MAX; c++)
        r->dc_after[segment][c] = (int16_t)dc[c];
    }
  }
  finish_bits(&writer, BLOB_SCAN);
  r->scan_bytes = (size_t)(writer.out - r->scan);
  return 1;
}

/* The bits of a number in two's complement; 0 of 0. */
static unsigned signed_bits(int value) {
  return 33u - (unsigned)__builtin_clz((unsigned)(value < 0 ? ~value : value) | 1u) -
         (unsigned)(value == 0 || value == -1);
}

/* Puts segment table, predictions, header and scan together (feeder/README.md, "Blob"). */
static PyObject *make_blob(const recoder *r, const tile_grid *g, size_t header_bytes,
                           unsigned *table_bits) {
  size_t segments = (size_t)g->columns * g->mcu_rows;
  unsigned length_bits = 1, dc_bits[COMPONENTS_MAX] = {0, 0, 0};
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
  memcpy(to, r->jpeg.header, header_bytes);
  memcpy(to + header_bytes, r->scan, r->scan_bytes);
  *table_bits = length_bits | dc_bits[0] << 8 | dc_bits[1] << 16 | dc_bits[2] << 24;
  return blob;
}

static PyObject *warnings_tuple(const jpeg_errors *errors) {
  PyObject *all = PyTuple_New(errors->warnings);
  for (int i = 0; all != NULL && i < errors->warnings; i++) {
    const char *warning = errors->warning[i];
    PyObject *text = PyUnicode_DecodeLatin1(warning, (Py_ssize_t)strlen(warning), NULL);
    if (text == NULL)
      Py_CLEAR(all);
    else
      PyTuple_SET_ITEM(all, i, text);
  }
  return all;
}

/* Ends with a longjmp if the file cannot be re-coded. */
static PyObject *tile(recoder *r, const Py_buffer *data, unsigned tile_width_px) {
  transcoder *jpeg = &r->jpeg;
  jvirt_barray_ptr *coefficients =
      read_coefficients(jpeg, data->buf, (unsigned long)data->len);
  begin_target(jpeg);
  int subsampling = subsampling_of(jpeg);
  if (subsampling == OTHER)
    refuse(jpeg, "unsupported", "a chroma subsampling that TurboJPEG does not decode");
  tile_grid grid = grid_of(r, tile_width_px);
  set_tables(r, coefficients, &grid);
  if (r->counts.bad)
    refuse(jpeg, "unsupported", "coefficients beyond those of a picture of 8 bits");
  unsigned sof_offset, table_bits;
  unsigned header_bytes = write_header(jpeg, grid.mcu_width, grid.mcu_height, &sof_offset);
  if (!code_segments(r, coefficients, &grid, (size_t)data->len))
    return PyErr_NoMemory();
  jpeg_finish_decompress(&jpeg->source);

  PyObject *blob = make_blob(r, &grid, header_bytes, &table_bits);
  PyObject *warnings = blob == NULL ? NULL : warnings_tuple(&jpeg->errors);
  if (warnings == NULL) {
    Py_XDECREF(blob);
    return NULL;
  }
  return Py_BuildValue("(NIIIIIIIIIIiNNN)", blob, header_bytes, sof_offset, table_bits, grid.width,
                       grid.height, grid.mcu_width, grid.mcu_height, grid.tile_mcus, grid.columns,
                       grid.mcu_rows, subsampling, PyBool_FromLong(jpeg->source.progressive_mode),
                       PyBool_FromLong(jpeg->source.arith_code), warnings);
}

PyObject *feeder_tile_jpeg(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer data;
  unsigned tile_width_px;
  if (!PyArg_ParseTuple(args, "y*I", &data, &tile_width_px))
    return NULL;
  PyObject *volatile result = NULL;
  recoder *r = calloc(1, sizeof *r);
  if (r == NULL) {
    PyErr_NoMemory();
  } else {
    init_transcoder(&r->jpeg);
    if (setjmp(r->jpeg.errors.escape) == 0) {
      result = tile(r, &data, tile_width_px);
    } else {
      PyObject *reasons = Py_BuildValue("(ss)", r->jpeg.errors.kind, r->jpeg.errors.reason);
      if (reasons != NULL)
        PyErr_SetObject(feeder_jpeg_error, reasons);
      Py_XDECREF(reasons);
    }
    recoder_free(r);
  }
  PyBuffer_Release(&data);
  return result;
}
