/* tile_jpeg: a JPEG re-coded without loss into tiles.
 *
 * libjpeg-turbo reads the coefficients and writes the header (transcode.h). Nothing is quantised
 * again. */
#include "native.h"

#include "block_limits.h"
#include "content_hash.h"
#include "transcode.h"
#include "versions.h"

/* A tile: where its bytes begin, and the DC before it. */
typedef struct {
  size_t at;
  int dc[COMPONENTS_MAX];
} coded_tile;

/* Everything that is freed after a longjmp. */
typedef struct {
  transcoder jpeg;
  const tile_encoder *encoder;
  class_set classes[GROUPS];
  tiled_blob blob; /* its header, MCUs, tiles and `dc_bits` */
  source_block *blocks; /* of the image, in coding order */
  coded_tile *tiles;    /* and one more, at their end */
  unsigned char *coded;
  content_hash hash;
} recoder;

static void recoder_free(recoder *r) {
  destroy_transcoder(&r->jpeg);
  free(r->blocks);
  free(r->tiles);
  free(r->coded);
  free(r);
}

/* Chooses the MCUs of a tile. */
static void divide_rows(tiled_blob *b, unsigned tile_width_px) {
  unsigned most = TILE_BLOCKS_MAX / b->mcu_blocks, wanted = tile_width_px / b->mcu_width;
  most = most < b->mcus ? most : b->mcus;
  b->tile_mcus = wanted < 1 ? 1 : wanted > most ? most : wanted;
  b->columns = divide_up(b->mcus, b->tile_mcus);
}

/* The rows of blocks of one row of MCUs; those past the bottom edge are NULL. */
typedef struct {
  JBLOCKROW rows[COMPONENTS_MAX][4];
  unsigned wide[COMPONENTS_MAX]; /* blocks that are within the image */
} mcu_row_blocks;

static mcu_row_blocks blocks_of(recoder *r, jvirt_barray_ptr *coefficients, unsigned mcu_row) {
  const tiled_blob *b = &r->blob;
  const jpeg_header *header = &b->header;
  mcu_row_blocks blocks;
  memset(&blocks, 0, sizeof blocks);
  j_common_ptr owner = (j_common_ptr)&r->jpeg.source;
  for (int c = 0; c < header->components; c++) {
    unsigned v = header->blocks_down[c], high = divide_up(header->height * v, b->mcu_height);
    blocks.wide[c] = divide_up(header->width * header->blocks_across[c], b->mcu_width);
    for (unsigned y = 0; y < v && mcu_row * v + y < high; y++)
      blocks.rows[c][y] = (*owner->mem->access_virt_barray)(owner, coefficients[c],
                                                            mcu_row * v + y, 1, FALSE)[0];
  }
  return blocks;
}

/* Adds one component's blocks of an MCU; `dc` is that of the component's last block. Blocks past
 * the edge repeat the last DC, which codes smallest; no decoder shows them. Refuses the image if a
 * block is out of range. */
static source_block *add_blocks(recoder *r, const mcu_row_blocks *from, int c, unsigned mcu,
                                int *dc, source_block *to) {
  static const int16_t empty[64];
  const jpeg_component_info *comp = &r->jpeg.target.comp_info[c];
  const UINT16 *quant = r->jpeg.target.quant_tbl_ptrs[comp->quant_tbl_no]->quantval;
  unsigned h = r->blob.header.blocks_across[c], v = r->blob.header.blocks_down[c];
  for (unsigned y = 0; y < v; y++)
    for (unsigned x = mcu * h; x < (mcu + 1) * h; x++, to++) {
      *to = (source_block){.values = empty, .group = c > 0};
      if (from->rows[c][y] == NULL || x >= from->wide[c]) {
        int16_t repeated[64] = {(int16_t)*dc};
        hash_stripes(&r->hash, repeated, sizeof repeated / STRIPE_BYTES);
        continue;
      }
      /* Stays valid: libjpeg-turbo keeps coefficient arrays in memory, or fails (jmemnobs.c). */
      to->values = from->rows[c][y][x];
      to->difference = to->values[0] - *dc;
      *dc = to->values[0];
      if (!block_fits(to->values, quant))
        refuse(&r->jpeg, "unsupported", "coefficients out of range for an 8-bit image");
      hash_stripes(&r->hash, to->values, sizeof(JBLOCK) / STRIPE_BYTES);
    }
  return to;
}

/* Lists the image's blocks, and the DC before each tile. */
static void list_blocks(recoder *r, jvirt_barray_ptr *coefficients) {
  const tiled_blob *b = &r->blob;
  source_block *to = r->blocks;
  coded_tile *tile = r->tiles;
  for (unsigned mcu_row = 0; mcu_row < b->rows; mcu_row++) {
    mcu_row_blocks from = blocks_of(r, coefficients, mcu_row);
    int dc[COMPONENTS_MAX] = {0};
    for (unsigned mcu = 0; mcu < b->mcus; mcu++) {
      if (mcu % b->tile_mcus == 0)
        memcpy(tile++->dc, dc, sizeof dc);
      for (int c = 0; c < b->header.components; c++)
        to = add_blocks(r, &from, c, mcu, &dc[c], to);
    }
  }
}

/* The bits of a number in two's complement; 0 of 0. */
static unsigned signed_bits(int value) {
  return value == 0 ? 0 : 1 + bit_length((unsigned)(value < 0 ? ~value : value));
}

/* Codes the tiles; 0 if out of memory. */
static int code_tiles(recoder *r, size_t source_bytes) {
  tiled_blob *b = &r->blob;
  size_t tiles = (size_t)b->columns * b->rows, at = 0, room = 0;
  size_t tile_bytes_max = CODED_TILE_BYTES_MAX(b->tile_mcus * b->mcu_blocks);
  for (size_t t = 0; t < tiles; t++)
    for (int c = 0; c < b->header.components; c++) {
      unsigned bits = signed_bits(r->tiles[t].dc[c]);
      b->dc_bits[c] = bits > b->dc_bits[c] ? bits : b->dc_bits[c];
    }
  const source_block *block = r->blocks;
  for (size_t t = 0; t < tiles; t++) {
    if (room - at < tile_bytes_max) {
      room += room / 2 + source_bytes + tile_bytes_max;
      unsigned char *larger = realloc(r->coded, room);
      if (larger == NULL)
        return 0;
      r->coded = larger;
    }
    unsigned count = mcus_of(b, (unsigned)(t % b->columns)) * b->mcu_blocks;
    r->tiles[t].at = at;
    at += r->encoder->put_tile(r->coded + at, r->classes, block, count, r->tiles[t].dc, b->dc_bits,
                               (unsigned)b->header.components);
    block += count;
  }
  r->tiles[tiles].at = at;
  return 1;
}

/* Puts header, sizes, classes, tiles' lengths and tiles together (feeder/README.md, "Blob"). */
static PyObject *make_blob(const recoder *r) {
  const tiled_blob *b = &r->blob;
  size_t tiles = (size_t)b->columns * b->rows, header_bytes = b->header.bytes;
  unsigned length_bits = 1;
  for (size_t t = 0; t < tiles; t++)
    while ((r->tiles[t + 1].at - r->tiles[t].at) >> length_bits != 0)
      length_bits++;
  unsigned char head[SIZES_BYTES + GROUPS * CLASSES * CLASS_BYTES_MAX] = {
      (unsigned char)b->tile_mcus, (unsigned char)length_bits};
  unsigned char *to = head + 2;
  for (int c = 0; c < COMPONENTS_MAX; c++)
    *to++ = (unsigned char)b->dc_bits[c];
  for (unsigned i = 0; i < b->classes; i++)
    to += write_class(to, &r->classes[i / CLASSES][i % CLASSES].code);
  size_t head_bytes = (size_t)(to - head), lengths_bytes = (tiles * length_bits + 7) / 8;
  size_t coded_bytes = r->tiles[tiles].at;
  PyObject *blob = PyBytes_FromStringAndSize(
      NULL, (Py_ssize_t)(header_bytes + head_bytes + lengths_bytes + coded_bytes));
  if (blob == NULL)
    return NULL;
  to = memcpy(PyBytes_AS_STRING(blob), r->jpeg.header, header_bytes);
  to = memcpy(to + header_bytes, head, head_bytes);
  to = memset(to + head_bytes, 0, lengths_bytes);
  for (size_t t = 0; t < tiles; t++)
    put_field(to, t * length_bits, r->tiles[t + 1].at - r->tiles[t].at, length_bits);
  memcpy(to + lengths_bytes, r->coded, coded_bytes);
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
static PyObject *recode(recoder *r, const Py_buffer *data, unsigned tile_width_px) {
  transcoder *jpeg = &r->jpeg;
  jvirt_barray_ptr *coefficients =
      read_coefficients(jpeg, data->buf, (unsigned long)data->len);
  begin_target(jpeg);
  int subsampling = subsampling_of(jpeg);
  if (subsampling == OTHER)
    refuse(jpeg, "unsupported", "a chroma subsampling that TurboJPEG does not decode");
  tiled_blob *b = &r->blob;
  write_header(jpeg, &b->header);
  find_mcus(b);
  divide_rows(b, tile_width_px);
  size_t blocks = (size_t)b->mcus * b->rows * b->mcu_blocks;
  r->blocks = malloc(blocks * sizeof *r->blocks);
  r->tiles = malloc(((size_t)b->columns * b->rows + 1) * sizeof *r->tiles);
  if (r->blocks == NULL || r->tiles == NULL)
    return PyErr_NoMemory();
  begin_hash(&r->hash);
  hash_padded(&r->hash, jpeg->header, b->header.bytes);
  list_blocks(r, coefficients);
  choose_classes(r->encoder, r->classes, r->blocks, blocks);
  if (!code_tiles(r, (size_t)data->len))
    return PyErr_NoMemory();
  jpeg_finish_decompress(&jpeg->source);

  PyObject *blob = make_blob(r);
  PyObject *warnings = blob == NULL ? NULL : warnings_tuple(&jpeg->errors);
  if (warnings == NULL) {
    Py_XDECREF(blob);
    return NULL;
  }
  return Py_BuildValue("(NKIIiNNN)", blob, end_hash(&r->hash), b->header.width, b->header.height,
                       subsampling, PyBool_FromLong(jpeg->source.progressive_mode),
                       PyBool_FromLong(jpeg->source.arith_code), warnings);
}

PyObject *feeder_tile_jpeg(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer data;
  unsigned tile_width_px;
  int is_portable = 0; /* tests of the portable encoder on CPUs that have a faster one */
  if (!PyArg_ParseTuple(args, "y*I|p", &data, &tile_width_px, &is_portable))
    return NULL;
  PyObject *volatile result = NULL;
  recoder *r = calloc(1, sizeof *r);
  if (r == NULL) {
    PyErr_NoMemory();
  } else {
    init_transcoder(&r->jpeg);
    r->encoder = find_version(is_portable ? "portable" : NULL)->encoder;
    if (setjmp(r->jpeg.errors.escape) == 0) {
      result = recode(r, &data, tile_width_px);
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
