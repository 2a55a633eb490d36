/* The operations of vector.h in plain C, for one lane: the compiler makes of the loops what the CPU
 * has. */
_Static_assert(LANES == 1, "the portable operations are for vectors of 8 int16");

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
  shorts low = all(least), high = all(most);
  shorts under = a < low, over = a > high;
  return (a & ~(under | over)) | (low & under) | (high & over);
}

INLINE shorts multiply_fraction(shorts a, int factor) {
  int16_t x[SHORTS];
  memcpy(x, &a, sizeof x);
  for (int i = 0; i < SHORTS; i++)
    x[i] = (int16_t)((x[i] * factor + 0x4000) >> 15);
  memcpy(&a, x, sizeof x);
  return a;
}

INLINE wide multiply_add(shorts a, shorts b, int of_a, int of_b) {
  int16_t x[SHORTS], y[SHORTS];
  int32_t sum[SHORTS];
  wide both;
  memcpy(x, &a, sizeof x);
  memcpy(y, &b, sizeof y);
  for (int i = 0; i < SHORTS; i++)
    sum[i] = (int32_t)((uint32_t)(x[i] * of_a) + (uint32_t)(y[i] * of_b));
  memcpy(&both, sum, sizeof both);
  return both;
}

INLINE wide scale_up(shorts a, int32_t round) {
  return add_wide(multiply_add(a, a, 8192, 0), all_wide(round));
}

INLINE shorts narrow(wide a, const int by) {
  int32_t x[SHORTS];
  int16_t y[SHORTS];
  shorts narrowed;
  memcpy(x, &a, sizeof x);
  for (int i = 0; i < SHORTS; i++) {
    int32_t value = x[i] >> by;
    y[i] = (int16_t)(value < -32768 ? -32768 : value > 32767 ? 32767 : value);
  }
  memcpy(&narrowed, y, sizeof y);
  return narrowed;
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
