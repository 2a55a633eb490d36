/* Decoding a tile with AVX-512 and VBMI (Ice Lake, Zen 4). */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,bmi,bmi2,popcnt")
#define DECODER tiles_avx512vbmi
#include "tile_pdep.h"

#include "tile_avx512.h"

INLINE void put_block(const uint8_t *bits, size_t at, const pdep_class *class,
                      const block_masks *masks, unsigned char *to, unsigned row_bytes) {
  __m512i rows = _mm512_permutexvar_epi8(_mm512_load_si512(class->row_from),
                                         _mm512_loadu_si512(bits + at / 8));
  __m512i shift = _mm512_add_epi64(_mm512_load_si512(class->row_shift),
                                   _mm512_set1_epi64((long long)(at % 8)));
  put_values(class, masks,
             _mm512_multishift_epi64_epi8(_mm512_load_si512(class->field_at),
                                          _mm512_srlv_epi64(rows, shift)),
             to, row_bytes);
}
#endif
