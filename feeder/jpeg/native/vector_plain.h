/* The operations of vector.h in plain C, for one lane. */
_Static_assert(LANES == 1, "the plain operations are for vectors of 8 int16");

INLINE shorts low16(shorts a, shorts b) {
  return __builtin_shuffle(a, b, (shorts){0, 8, 1, 9, 2, 10, 3, 11});
}
INLINE shorts high16(shorts a, shorts b) {
  return __builtin_shuffle(a, b, (shorts){4, 12, 5, 13, 6, 14, 7, 15});
}
INLINE shorts low32(shorts a, shorts b) {
  return __builtin_shuffle(a, b, (shorts){0, 1, 8, 9, 2, 3, 10, 11});
}
INLINE shorts high32(shorts a, shorts b) {
  return __builtin_shuffle(a, b, (shorts){4, 5, 12, 13, 6, 7, 14, 15});
}
INLINE shorts low64(shorts a, shorts b) {
  return __builtin_shuffle(a, b, (shorts){0, 1, 2, 3, 8, 9, 10, 11});
}
INLINE shorts high64(shorts a, shorts b) {
  return __builtin_shuffle(a, b, (shorts){4, 5, 6, 7, 12, 13, 14, 15});
}

INLINE shorts clamp(shorts a, int least, int most) {
  shorts under = a < all(least), over = a > all(most);
  return (a & ~(under | over)) | (all(least) & under) | (all(most) & over);
}

INLINE wide widen(shorts a) {
  shorts sign = a < all(0);
  return (wide){(ints)low16(a, sign), (ints)high16(a, sign)};
}

INLINE wide times(wide a, int factor) {
  return (wide){(ints)((uints)a.low * (uint32_t)factor), (ints)((uints)a.high * (uint32_t)factor)};
}

INLINE shorts low_halves(wide a) {
  return __builtin_shuffle((shorts)a.low, (shorts)a.high, (shorts){0, 2, 4, 6, 8, 10, 12, 14});
}

INLINE shorts multiply_fraction(shorts a, int factor) {
  wide product = add_wide(times(widen(a), factor), all_wide(0x4000));
  return low_halves((wide){product.low >> 15, product.high >> 15});
}

INLINE wide multiply_add(shorts a, shorts b, int of_a, int of_b) {
  return add_wide(times(widen(a), of_a), times(widen(b), of_b));
}

INLINE void rotate(shorts a, shorts b, int of_a, int cross, int of_b, wide *x, wide *y) {
  wide p = widen(a), q = widen(b), both = times(add_wide(p, q), cross);
  *x = add_wide(both, times(p, of_a - cross));
  *y = add_wide(both, times(q, of_b - cross));
}

INLINE wide scale_up(shorts a, int32_t round) {
  return add_wide(times(widen(a), 8192), all_wide(round));
}

INLINE ints saturate_ints(ints a) {
  ints under = a < -32768, over = a > 32767;
  return (a & ~(under | over)) | (under & -32768) | (over & 32767);
}

INLINE shorts narrow(wide a, const int by) {
  return low_halves((wide){saturate_ints(a.low >> by), saturate_ints(a.high >> by)});
}

INLINE shorts load_lane(const int16_t *from) {
  shorts a;
  memcpy(&a, from, sizeof a);
  return a;
}

INLINE shorts load_bytes(const unsigned char *from) {
  unsigned char bytes[SHORTS];
  int16_t values[SHORTS];
  shorts a;
  memcpy(bytes, from, sizeof bytes);
  for (int i = 0; i < SHORTS; i++)
    values[i] = bytes[i];
  memcpy(&a, values, sizeof a);
  return a;
}

INLINE void store_bytes(unsigned char *to, shorts a) {
  unsigned char bytes[SHORTS];
  for (int i = 0; i < SHORTS; i++)
    bytes[i] = (unsigned char)a[i];
  memcpy(to, bytes, sizeof bytes);
}

INLINE void interleave(shorts even, shorts odd, shorts *row) {
  row[0] = low16(even, odd);
  row[1] = high16(even, odd);
}

INLINE void store_rgbx(unsigned char *to, shorts red, shorts green, shorts blue, int count) {
  red = clamp(red, 0, 255);
  green = clamp(green, 0, 255);
  blue = clamp(blue, 0, 255);
  shorts rg = red | (shorts)((ushorts)green << 8), bx = blue | (shorts)all(0xFF00);
  shorts pixels[2] = {low16(rg, bx), high16(rg, bx)};
  memcpy(to, pixels, 4 * (size_t)(count < SHORTS ? count : SHORTS));
}
