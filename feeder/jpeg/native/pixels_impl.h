/* The kernels of pixels.h, for LANES. The file that includes this defines KERNELS, their name.
 *
 * Sources of the arithmetic: libjpeg-turbo's jidctint.c, jidctred.c, jdsample.c, jdcolor.c.
 * Coefficients that no encoder writes overflow in some of its versions, and give other pixels in
 * each: packing converts such images (block_limits.h). */
#include "pixels.h"
#include "vector.h"

#define GROUP_BYTES (BLOCK_BYTES * LANES)

/* Constants of the DCT, times 8192. */
enum {
  F_0_211 = 1730, F_0_298 = 2446, F_0_390 = 3196, F_0_509 = 4176, F_0_541 = 4433, F_0_601 = 4926,
  F_0_720 = 5906, F_0_765 = 6270, F_0_850 = 6967, F_0_899 = 7373, F_1_061 = 8697, F_1_175 = 9633,
  F_1_272 = 10426, F_1_451 = 11893, F_1_501 = 12299, F_1_847 = 15137, F_1_961 = 16069,
  F_2_053 = 16819, F_2_172 = 17799, F_2_562 = 20995, F_3_072 = 25172, F_3_624 = 29692
};

/* Dequantises a group, by rows. */
INLINE void take_group(const unsigned char *group, const int16_t *quant, shorts *row) {
  for (int i = 0; i < 8; i++)
    row[i] = multiply(*(const shorts *)(const void *)(group + 16 * LANES * i),
                      load_lane(quant + 8 * i));
}

/* One pass over the columns of 8 rows; `shift` as in jidctint.c. */
INLINE void idct_pass(shorts *r, const int shift) {
  wide even0 = scale_up(add(r[0], r[4]), 1 << (shift - 1));
  wide even1 = scale_up(subtract(r[0], r[4]), 1 << (shift - 1));
  wide even2, even3, odd2, odd3, b0, b1, b2, b3;
  rotate(r[2], r[6], F_0_541 + F_0_765, F_0_541, F_0_541 - F_1_847, &even3, &even2);
  wide a0 = add_wide(even0, even3), a3 = subtract_wide(even0, even3);
  wide a1 = add_wide(even1, even2), a2 = subtract_wide(even1, even2);

  rotate(add(r[7], r[3]), add(r[5], r[1]), F_1_175 - F_1_961, F_1_175, F_1_175 - F_0_390, &odd2,
         &odd3);
  rotate(r[7], r[1], F_0_298 - F_0_899, -F_0_899, F_1_501 - F_0_899, &b0, &b3);
  rotate(r[5], r[3], F_2_053 - F_2_562, -F_2_562, F_3_072 - F_2_562, &b1, &b2);
  b0 = add_wide(b0, odd2);
  b1 = add_wide(b1, odd3);
  b2 = add_wide(b2, odd2);
  b3 = add_wide(b3, odd3);

  r[0] = narrow(add_wide(a0, b3), shift);
  r[7] = narrow(subtract_wide(a0, b3), shift);
  r[1] = narrow(add_wide(a1, b2), shift);
  r[6] = narrow(subtract_wide(a1, b2), shift);
  r[2] = narrow(add_wide(a2, b1), shift);
  r[5] = narrow(subtract_wide(a2, b1), shift);
  r[3] = narrow(add_wide(a3, b0), shift);
  r[4] = narrow(subtract_wide(a3, b0), shift);
}

INLINE void transpose(shorts *r) {
  shorts a0 = low16(r[0], r[1]), a1 = high16(r[0], r[1]);
  shorts a2 = low16(r[2], r[3]), a3 = high16(r[2], r[3]);
  shorts a4 = low16(r[4], r[5]), a5 = high16(r[4], r[5]);
  shorts a6 = low16(r[6], r[7]), a7 = high16(r[6], r[7]);
  shorts b0 = low32(a0, a2), b1 = high32(a0, a2), b2 = low32(a1, a3), b3 = high32(a1, a3);
  shorts b4 = low32(a4, a6), b5 = high32(a4, a6), b6 = low32(a5, a7), b7 = high32(a5, a7);
  r[0] = low64(b0, b4);
  r[1] = high64(b0, b4);
  r[2] = low64(b1, b5);
  r[3] = high64(b1, b5);
  r[4] = low64(b2, b6);
  r[5] = high64(b2, b6);
  r[6] = low64(b3, b7);
  r[7] = high64(b3, b7);
}

/* 8 rows of samples less 128. */
INLINE void idct(const unsigned char *group, const int16_t *quant, shorts *row) {
  take_group(group, quant, row);
  idct_pass(row, 11);
  transpose(row);
  idct_pass(row, 18);
  transpose(row);
  for (int i = 0; i < 8; i++)
    row[i] = clamp(row[i], -128, 127);
}

static void transform8(const unsigned char *groups, unsigned count, const int16_t *quant,
                       unsigned char *out, size_t stride) {
  for (unsigned g = 0; g < count; g++, groups += GROUP_BYTES, out += SHORTS) {
    shorts row[8];
    idct(groups, quant, row);
    for (int i = 0; i < 8; i++)
      store_bytes(out + (size_t)i * stride, add(row[i], all(128)));
  }
}

/* One pass of the IDCT to 4 of 8 samples, which does without r[4]. */
INLINE void idct4_pass(const shorts *r, shorts *out, const int shift) {
  wide round = all_wide(1 << (shift - 1));
  wide even0 = add_wide(multiply_add(r[0], all(0), 16384, 0), round);
  wide even2 = multiply_add(r[2], r[6], F_1_847, -F_0_765);
  wide odd0 = add_wide(multiply_add(r[7], r[5], -F_0_211, F_1_451),
                       multiply_add(r[3], r[1], -F_2_172, F_1_061));
  wide odd2 = add_wide(multiply_add(r[7], r[5], -F_0_509, -F_0_601),
                       multiply_add(r[3], r[1], F_0_899, F_2_562));
  wide a = add_wide(even0, even2), b = subtract_wide(even0, even2);
  out[0] = narrow(add_wide(a, odd2), shift);
  out[3] = narrow(subtract_wide(a, odd2), shift);
  out[1] = narrow(add_wide(b, odd0), shift);
  out[2] = narrow(subtract_wide(b, odd0), shift);
}

static void transform4(const unsigned char *groups, unsigned count, const int16_t *quant,
                       unsigned char *out, size_t stride) {
  for (unsigned g = 0; g < count; g++, groups += GROUP_BYTES, out += 4 * LANES) {
    shorts row[8], part[4], column[8];
    take_group(groups, quant, row);
    idct4_pass(row, part, 12);
    /* Four values of each column, in the low halves of the lanes. */
    shorts a = low16(part[0], part[1]), b = low16(part[2], part[3]);
    shorts c = high16(part[0], part[1]), d = high16(part[2], part[3]);
    column[0] = low32(a, b);
    column[2] = high32(a, b);
    column[4] = low32(c, d);
    column[6] = high32(c, d);
    for (int i = 0; i < 8; i += 2)
      column[i + 1] = high64(column[i], column[i]);
    idct4_pass(column, part, 19);
    a = low16(part[0], part[1]);
    b = low16(part[2], part[3]);
    shorts rows[2] = {low32(a, b), high32(a, b)}; /* 0 and 1, 2 and 3 */
    unsigned char bytes[2][SHORTS];
    for (int i = 0; i < 2; i++)
      store_bytes(bytes[i], add(clamp(rows[i], -128, 127), all(128)));
    for (int i = 0; i < 4; i++)
      for (int lane = 0; lane < LANES; lane++)
        memcpy(out + (size_t)i * stride + 4 * lane, bytes[i / 2] + 8 * lane + i % 2 * 4, 4);
  }
}

/* One pass of the IDCT to 2 of 8 samples, which does without all even rows but the first. */
INLINE void idct2_pass(shorts r0, shorts r1, shorts r3, shorts r5, shorts r7, shorts *out,
                       const int shift) {
  wide even = add_wide(multiply_add(r0, r0, 16384, 16384), all_wide(1 << (shift - 1)));
  wide odd = add_wide(multiply_add(r1, r3, F_3_624, -F_1_272),
                      multiply_add(r5, r7, F_0_850, -F_0_720));
  out[0] = narrow(add_wide(even, odd), shift);
  out[1] = narrow(subtract_wide(even, odd), shift);
}

static void transform2(const unsigned char *groups, unsigned count, const int16_t *quant,
                       unsigned char *out, size_t stride) {
  for (unsigned g = 0; g < count; g++, groups += GROUP_BYTES, out += 2 * LANES) {
    shorts row[8], part[2];
    take_group(groups, quant, row);
    idct2_pass(row[0], row[1], row[3], row[5], row[7], part, 13);
    /* Two values of each column, at the start of the lanes. */
    shorts column0 = low16(part[0], part[1]), c = high16(part[0], part[1]);
    shorts a = high64(low32(column0, c), low32(column0, c)); /* columns 1 and 5 */
    shorts b = high64(high32(column0, c), high32(column0, c)); /* columns 3 and 7 */
    shorts column5 = high64(low32(a, a), a), column7 = high64(low32(b, b), b);
    idct2_pass(column0, a, b, column5, column7, part, 20);
    shorts both = low16(part[0], part[1]); /* row by row */
    unsigned char bytes[SHORTS];
    store_bytes(bytes, add(clamp(both, -128, 127), all(128)));
    for (int i = 0; i < 2; i++)
      for (int lane = 0; lane < LANES; lane++)
        memcpy(out + (size_t)i * stride + 2 * lane, bytes + 8 * lane + 2 * i, 2);
  }
}

static void transform1(const unsigned char *groups, unsigned count, const int16_t *quant,
                       unsigned char *out, size_t stride) {
  (void)stride;
  for (unsigned g = 0; g < count; g++, groups += GROUP_BYTES)
    for (int lane = 0; lane < LANES; lane++) {
      int16_t coefficient;
      memcpy(&coefficient, groups + 16 * lane, sizeof coefficient);
      int32_t value = (coefficient * quant[0] + 4) >> 3;
      value = (int32_t)((uint32_t)value << 22) >> 22; /* jdct.h: & RANGE_MASK, a table of 1024 */
      *out++ = (unsigned char)((value > 127 ? 127 : value < -128 ? -128 : value) + 128);
    }
}

/* `count` pixels, at most SHORTS, of y (0..255), cb and cr (less 128). The products of red and blue
 * are those of jdcolor.c for each of the 256 values. */
INLINE void convert(shorts y, shorts cb, shorts cr, unsigned char *out, int count) {
  shorts red = add(multiply_fraction(cr, 13173), cr);
  shorts blue = add(add(multiply_fraction(cb, -7471), cb), cb);
  wide both = add_wide(multiply_add(cb, cr, -22554, 18734), all_wide(32768));
  shorts green = subtract(narrow(both, 16), cr);
  store_rgbx(out, add(y, red), add(y, green), add(y, blue), count);
}

static void convert_blocks(const unsigned char *const *groups, unsigned count,
                           const int16_t *const *quant, unsigned char *out, size_t stride,
                           int width, int height) {
  const int is_grey = groups[1] == NULL;
  for (unsigned g = 0; g < count; g++, out += 4 * SHORTS, width -= SHORTS) {
    shorts y[8], cb[8], cr[8];
    size_t at = (size_t)g * GROUP_BYTES;
    idct(groups[0] + at, quant[0], y);
    if (!is_grey) {
      idct(groups[1] + at, quant[1], cb);
      idct(groups[2] + at, quant[2], cr);
    }
    for (int i = 0; i < height; i++)
      convert(add(y[i], all(128)), is_grey ? all(0) : cb[i], is_grey ? all(0) : cr[i],
              out + (size_t)i * stride, width);
  }
}

static void convert_row(const unsigned char *y, const unsigned char *cb, const unsigned char *cr,
                        unsigned char *out, int width) {
  for (int x = 0; x < width; x += SHORTS)
    convert(load_bytes(y + x), subtract(load_bytes(cb + x), all(128)),
            subtract(load_bytes(cr + x), all(128)), out + 4 * (size_t)x, width - x);
}

/* 2 * SHORTS pixels from SHORTS samples of chroma, already brought to their width. */
INLINE void convert_two(const unsigned char *y, const shorts *cb, const shorts *cr,
                        unsigned char *out, int width) {
  for (int half = 0; half < 2 && width > 0; half++, width -= SHORTS)
    convert(load_bytes(y + half * SHORTS), subtract(cb[half], all(128)),
            subtract(cr[half], all(128)), out + 4 * half * SHORTS, width);
}

INLINE void widen_h2v1(const unsigned char *in, shorts *row) {
  shorts here = multiply(load_bytes(in), all(3));
  interleave(shift_right(add(add(here, load_bytes(in - 1)), all(1)), 2),
             shift_right(add(add(here, load_bytes(in + 1)), all(2)), 2), row);
}

static void convert_row_h2v1(const unsigned char *y, const unsigned char *cb,
                             const unsigned char *cr, unsigned char *out, int width) {
  for (int x = 0; x < width; x += 2 * SHORTS) {
    shorts wide_cb[2], wide_cr[2];
    widen_h2v1(cb + x / 2, wide_cb);
    widen_h2v1(cr + x / 2, wide_cr);
    convert_two(y + x, wide_cb, wide_cr, out + 4 * (size_t)x, width - x);
  }
}

INLINE shorts blend_rows(const unsigned char *near, const unsigned char *far) {
  return add(multiply(load_bytes(near), all(3)), load_bytes(far));
}

INLINE void widen_h2v2(const unsigned char *near, const unsigned char *far, shorts *row) {
  shorts here = multiply(blend_rows(near, far), all(3));
  interleave(shift_right(add(add(here, blend_rows(near - 1, far - 1)), all(8)), 4),
             shift_right(add(add(here, blend_rows(near + 1, far + 1)), all(7)), 4), row);
}

static void convert_row_h2v2(const unsigned char *y, const unsigned char *const *near,
                             const unsigned char *const *far, unsigned char *out, int width) {
  for (int x = 0; x < width; x += 2 * SHORTS) {
    shorts cb[2], cr[2];
    widen_h2v2(near[0] + x / 2, far[0] + x / 2, cb);
    widen_h2v2(near[1] + x / 2, far[1] + x / 2, cr);
    convert_two(y + x, cb, cr, out + 4 * (size_t)x, width - x);
  }
}

const pixel_kernels KERNELS = {.lanes = LANES,
                               .transform = {transform8, transform4, transform2, transform1},
                               .convert_blocks = convert_blocks,
                               .convert_row = convert_row,
                               .convert_row_h2v1 = convert_row_h2v1,
                               .convert_row_h2v2 = convert_row_h2v2};
