/* Making a block's coefficients with AVX-512; `fields`: the low bits and sign of each, with others
 * above them. */
INLINE void put_values(const pdep_class *class, const block_masks *masks, __m512i fields,
                       unsigned char *to, unsigned row_bytes) {
  __m512i sign = _mm512_load_si512(class->sign), unit = _mm512_load_si512(class->unit);
  __m512i value = _mm512_and_si512(fields, _mm512_load_si512(class->mask));
  value = _mm512_sub_epi8(_mm512_xor_si512(value, sign), sign);
  __mmask64 negative = masks->negative | _mm512_movepi8_mask(value);
  __m512i more = _mm512_maskz_mov_epi8(masks->plane[0], unit);
  for (int p = 1; p < PLANES - 1; p++)
    more = _mm512_mask_add_epi8(more, masks->plane[p], more, unit);
  value = _mm512_mask_sub_epi8(_mm512_add_epi8(value, more), negative, value, more);
  __m512i half[2] = {_mm512_cvtepi8_epi16(_mm512_castsi512_si256(value)),
                     _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(value, 1))};
  for (int i = 0; i < 2; i++, to += 4 * row_bytes) {
    _mm_store_si128((__m128i *)(void *)to, _mm512_castsi512_si128(half[i]));
    _mm_store_si128((__m128i *)(void *)(to + row_bytes), _mm512_extracti32x4_epi32(half[i], 1));
    _mm_store_si128((__m128i *)(void *)(to + 2 * row_bytes), _mm512_extracti32x4_epi32(half[i], 2));
    _mm_store_si128((__m128i *)(void *)(to + 3 * row_bytes), _mm512_extracti32x4_epi32(half[i], 3));
  }
}
