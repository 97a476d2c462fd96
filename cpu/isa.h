// The instruction-set levels that kernels are written for, lowest first.
#ifndef GK_ISA_H
#define GK_ISA_H

enum gk_isa {
  GK_GENERIC = 0,    // portable C; fmaf from the C library
  GK_AVX2 = 1,       // AVX2 and FMA
  GK_AVX512 = 2,     // AVX-512 F, BW, DQ, VL
  GK_AVX512BF16 = 3, // and the bf16 dot product
};

// gk_isa_detect is the highest level that this CPU and operating system support. A lower one may
// always be used: ranks agree on the lowest among them.
int gk_isa_detect(void);

#endif
