/* Decoding a tile with AVX-512BW (Skylake-SP). */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,bmi,bmi2,popcnt")
#define DECODER tiles_avx512
#include "tile_pdep.h"

#include "tile_avx512.h"

INLINE void put_block(const uint8_t *bits, size_t at, const pdep_class *class,
                      const block_masks *masks, unsigned char *to, unsigned row_bytes) {
  long long row[8];
  for (int i = 0; i < 8; i++)
    row[i] = (long long)take_row(bits, at, class, i);
  put_values(class, masks,
             _mm512_setr_epi64(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]), to,
             row_bytes);
}
#endif
