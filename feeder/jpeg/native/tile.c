#include "tile.h"

const uint8_t NATURAL_ORDER[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

size_t read_class(class_code *class, const uint8_t *from, size_t bytes) {
  memset(class->low_bits, ABSENT, sizeof class->low_bits);
  class->dc_bits = 0;
  if (bytes == 0 || from[0] > 64 || 1 + (from[0] + 1u) / 2 > bytes)
    return 0;
  unsigned count = *from++, of_row[8] = {0}, most = 0;
  for (unsigned k = 1; k < count; k++) {
    unsigned low = from[k / 2] >> k % 2 * 4 & 15, p = NATURAL_ORDER[k];
    class->low_bits[p] = (uint8_t)low;
    if (low == ABSENT)
      continue;
    if (low > LOW_BITS_MAX)
      return 0;
    of_row[p / 8] += field_bits(low);
  }
  if (count > 0)
    class->dc_bits = from[0] & 15;
  for (unsigned row = 0; row < 8; row++)
    most = of_row[row] > most ? of_row[row] : most;
  return most > ROW_BITS_MAX || class->dc_bits > ESCAPE_BITS ? 0 : 1 + (count + 1) / 2;
}
