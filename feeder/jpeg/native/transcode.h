/* libjpeg-turbo's part of re-coding: it reads a JPEG's coefficients and writes the new header.
 *
 * Functions that fail end with a longjmp to errors.escape, with a kind and a reason. */
#ifndef FEEDER_TRANSCODE_H
#define FEEDER_TRANSCODE_H

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include "blob.h"

#define MAX_WARNINGS 4

typedef struct {
  struct jpeg_error_mgr base;
  jmp_buf escape;
  const char *kind; /* of RecodeError in recode.py */
  char reason[JMSG_LENGTH_MAX];
  int warnings;
  char warning[MAX_WARNINGS][JMSG_LENGTH_MAX];
} jpeg_errors;

typedef struct {
  jpeg_errors errors;
  struct jpeg_progress_mgr progress;
  struct jpeg_decompress_struct source;
  struct jpeg_compress_struct target;
  unsigned char room[4096]; /* lent to jpeg_mem_dest; a header takes less */
  unsigned char *header;    /* room, or what libjpeg grew it into, once it has finished writing */
  unsigned long header_room;
} transcoder;

/* Numbered as Subsampling of recode.py. */
enum { S444, S422, S420, S440, S411, GREY, OTHER };

/* Takes zeroed memory. */
void init_transcoder(transcoder *t);
void destroy_transcoder(transcoder *t);

_Noreturn void refuse(transcoder *t, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

jvirt_barray_ptr *read_coefficients(transcoder *t, const unsigned char *data, unsigned long bytes);

/* Sets up the target as a sequential Huffman JPEG with the source's tables and sampling. */
void begin_target(transcoder *t);
int subsampling_of(const transcoder *t);

/* Writes the target's header, with the source's size and without Huffman tables, to t->header, and
 * parses it. */
void write_header(transcoder *t, jpeg_header *header);

#endif
