/* blur in each of its versions; feeder/jpeg/blur.py defines it. */
#ifndef FEEDER_BLUR_H
#define FEEDER_BLUR_H

#define CHANNELS 3

/* Blurs a picture of width * height * CHANNELS bytes; `weights` are those of the distances 0 ..
 * radius, which is less than both sides. Returns 0 if out of memory. */
typedef int blur_picture(const unsigned char *in, int width, int height, const float *weights,
                         int radius, unsigned char *out);

blur_picture blur_portable, blur_avx2;

#endif
