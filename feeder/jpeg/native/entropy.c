/* Entropy decoding for any CPU. */
#define DECODE_RUNS decode_runs
#include "entropy_impl.h"
