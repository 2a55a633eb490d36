/* blur with what every CPU has. */
#define VECTOR_BYTES 16
#define BLUR blur_portable
#include "blur_impl.h"
