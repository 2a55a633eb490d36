/* Encoding for any CPU of the architecture. */
#define ENCODER encoder_portable
#define WIDTH 16
#include "encode_impl.h"
