// The machine's limits, measured: what shares of peak are shares of.
#ifndef GK_PEAK_H
#define GK_PEAK_H

#include "kernels.h"

// gk_peak_flops runs multiply-adds on registers only, on every thread of the pool at once, for
// about `seconds`, and returns the sum over threads in GFLOP/s, the best of five slices of that
// time. dtype GK_BF16 at level avx512bf16 means the bf16 dot product; at lower levels bf16 is
// computed as fp32, and so is its peak. The generic level's is that of scalar multiplies and adds.
double gk_peak_flops(gk_ctx *ctx, int dtype, double seconds);

enum gk_bandwidth { GK_COPY = 0, GK_TRIAD = 1 };

// gk_peak_bandwidth runs a[i] = b[i] (copy) or a[i] = b[i] + s*c[i] (triad) on every thread at
// once for about `seconds`, over buffers of `bytes` bytes each in all, and returns GB/s as STREAM
// counts them (2 or 3 times the buffer a pass; the reads that stores cause are not counted).
// 0 when there is no memory. Choose bytes larger than the last cache.
double gk_peak_bandwidth(gk_ctx *ctx, int kind, size_t bytes, double seconds);

#endif
