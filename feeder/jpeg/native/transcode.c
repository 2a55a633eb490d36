#include "transcode.h"

#include <jerror.h>
#include <stdarg.h>
#include <stdlib.h>

/* Coefficients take 6 bytes a pixel at 4:4:4; this bounds the memory that a header can ask for. */
#define MAX_PIXELS (100u * 1000u * 1000u)
/* A progressive file needs about 10 scans; each further one costs a pass over the coefficients. */
#define MAX_SCANS 500

void refuse(transcoder *t, const char *kind, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(t->errors.reason, sizeof t->errors.reason, format, arguments);
  va_end(arguments);
  t->errors.kind = kind;
  longjmp(t->errors.escape, 1);
}

/* Ends with libjpeg's own message. */
static _Noreturn void fail(j_common_ptr codec, const char *kind) {
  jpeg_errors *errors = (jpeg_errors *)codec->err;
  (*codec->err->format_message)(codec, errors->reason);
  errors->kind = kind;
  longjmp(errors->escape, 1);
}

static void on_error(j_common_ptr codec) {
  /* Tables may legally change between scans; a JPEG of one scan cannot hold that. */
  fail(codec, codec->err->msg_code == JERR_MISMATCHED_QUANT_TABLE ? "unsupported" : "corrupt");
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
  jpeg_errors *errors = (jpeg_errors *)codec->err;
  if (level >= 0)
    return; /* trace output */
  errors->base.num_warnings++;
  const char *kind = damage_of(errors->base.msg_code);
  if (kind != NULL) /* the image is lost, and reading on may take hundreds of scans */
    fail(codec, kind);
  if (errors->warnings < MAX_WARNINGS)
    (*codec->err->format_message)(codec, errors->warning[errors->warnings++]);
}

static void on_progress(j_common_ptr codec) {
  if (codec->is_decompressor && ((j_decompress_ptr)codec)->input_scan_number > MAX_SCANS)
    refuse(codec->client_data, "corrupt", "more than %d scans", MAX_SCANS);
}

void init_transcoder(transcoder *t) {
  jpeg_std_error(&t->errors.base);
  t->errors.base.error_exit = on_error;
  t->errors.base.emit_message = on_message;
  t->progress.progress_monitor = on_progress;
  t->source.err = t->target.err = &t->errors.base;
  t->source.client_data = t->target.client_data = t;
  t->header = t->room;
  t->header_room = sizeof t->room;
}

void destroy_transcoder(transcoder *t) {
  /* Both are no-ops on a structure that was never created. */
  jpeg_destroy_compress(&t->target);
  jpeg_destroy_decompress(&t->source);
  if (t->header != t->room)
    free(t->header);
}

jvirt_barray_ptr *read_coefficients(transcoder *t, const unsigned char *data, unsigned long bytes) {
  j_decompress_ptr source = &t->source;
  jpeg_create_decompress(source);
  source->progress = &t->progress;
  jpeg_mem_src(source, data, bytes);
  (void)jpeg_read_header(source, TRUE);

  if ((uint64_t)source->image_width * source->image_height > MAX_PIXELS)
    refuse(t, "too-large", "%u x %u pixels, more than %u million", source->image_width,
           source->image_height, MAX_PIXELS / 1000000u);
  if (source->num_components == 4)
    refuse(t, "cmyk", "four colour components");
  if (source->num_components != 1 && source->num_components != 3)
    refuse(t, "unsupported", "%d colour components", source->num_components);
  if (source->data_precision != 8)
    refuse(t, "unsupported", "%d bits a sample", source->data_precision);
  jvirt_barray_ptr *coefficients = jpeg_read_coefficients(source);
  int missing = 0;
  for (int c = 0; c < source->num_components; c++) {
    missing |= source->comp_info[c].quant_table == NULL; /* no scan of it has begun */
    for (int k = 0; source->progressive_mode && k < 10; k++) /* those that smoothing estimates */
      missing |= source->coef_bits[c][k] != 0;
  }
  if (missing) /* a cut arithmetic scan looks whole, so that the data may be cut as well */
    refuse(t, source->arith_code ? "truncated" : "incomplete", "scans are missing");
  return coefficients;
}

/* Only the ratios of sampling factors, which are 1 to 4, mean anything; 2x2,2x2,2x2 is 4:4:4. */
static void reduce_sampling(jpeg_component_info *comp, int count) {
  for (int divisor = 4; divisor > 1; divisor--) {
    int across = 1, down = 1;
    for (int c = 0; c < count; c++) {
      across &= comp[c].h_samp_factor % divisor == 0;
      down &= comp[c].v_samp_factor % divisor == 0;
    }
    for (int c = 0; c < count; c++) {
      comp[c].h_samp_factor /= across ? divisor : 1;
      comp[c].v_samp_factor /= down ? divisor : 1;
    }
  }
}

void begin_target(transcoder *t) {
  j_compress_ptr target = &t->target;
  jpeg_create_compress(target);
  jpeg_mem_dest(target, &t->header, &t->header_room);
  jpeg_copy_critical_parameters(&t->source, target);
  target->optimize_coding = FALSE;
  target->arith_code = FALSE;
  reduce_sampling(target->comp_info, target->num_components);
}

int subsampling_of(const transcoder *t) {
  const jpeg_component_info *comp = t->target.comp_info;
  if (t->target.num_components == 1)
    return GREY;
  for (int c = 1; c < 3; c++)
    if (comp[c].h_samp_factor != 1 || comp[c].v_samp_factor != 1)
      return OTHER;
  static const int luma_factors[OTHER] = {[S444] = 11, [S422] = 21, [S420] = 22, [S440] = 12,
                                          [S411] = 41};
  int subsampling = S444, factors = comp[0].h_samp_factor * 10 + comp[0].v_samp_factor;
  while (subsampling < OTHER && luma_factors[subsampling] != factors)
    subsampling++;
  return subsampling;
}

/* Removes the Huffman tables from a header that libjpeg wrote; returns its bytes. */
static size_t drop_huffman_tables(unsigned char *jpeg) {
  unsigned char *to = jpeg + 2, marker = 0;
  for (size_t at = 2, bytes; marker != 0xDA; at += bytes) { /* SOS */
    bytes = 2u + load_be16(jpeg + at + 2);
    marker = jpeg[at + 1];
    if (marker != 0xC4) { /* DHT */
      memmove(to, jpeg + at, bytes);
      to += bytes;
    }
  }
  return (size_t)(to - jpeg);
}

/* libjpeg writes headers only with images: here an empty one of one MCU (chroma is 1x1). */
void write_header(transcoder *t, jpeg_header *header) {
  j_compress_ptr target = &t->target;
  jvirt_barray_ptr empty[COMPONENTS_MAX];
  for (int c = 0; c < target->num_components; c++) {
    JDIMENSION h = (JDIMENSION)target->comp_info[c].h_samp_factor;
    JDIMENSION v = (JDIMENSION)target->comp_info[c].v_samp_factor;
    empty[c] = (*target->mem->request_virt_barray)((j_common_ptr)target, JPOOL_IMAGE, TRUE, h, v, v);
  }
  target->image_width = 8 * (JDIMENSION)target->comp_info[0].h_samp_factor;
  target->image_height = 8 * (JDIMENSION)target->comp_info[0].v_samp_factor;
  jpeg_write_coefficients(target, empty);
  jpeg_finish_compress(target);
  if (!read_header(header, t->header, drop_huffman_tables(t->header)))
    refuse(t, "unsupported", "libjpeg wrote a header that Feeder cannot read");
  header->width = t->source.image_width;
  header->height = t->source.image_height;
  store_be16(t->header + header->sof_offset + 5, header->height);
  store_be16(t->header + header->sof_offset + 7, header->width);
}
