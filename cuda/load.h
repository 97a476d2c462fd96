// Opening shared libraries at run time: nothing of NVIDIA's is linked.
#ifndef GOFSDP_CUDA_LOAD_H
#define GOFSDP_CUDA_LOAD_H

#include "blas.h"
#include "table.h"

// Opens a library by path, or by its soname. NULL: *why says why, to be freed.
void *gofsdp_open(const char *name, char **why);

// Closes a library of which nothing is used.
void gofsdp_close(void *library);

// The path that a library was opened from, the library's own: NULL where it is not known.
const char *gofsdp_path(void *library);

// Fill a table. They return how many of its symbols the library lacks, and name up to most of them.
int gofsdp_fill(void *library, gofsdp_driver *table, const char **missing, int most);
int gofsdp_fill_blas(void *library, gofsdp_blas *table, const char **missing, int most);

// Versions, -1 where the library does not say. NCCL's as 22907 for 2.29.7; a part (0, 1, 2) of cuBLAS's.
int gofsdp_nccl_version(void *library);
int gofsdp_cublas_version(void *library, const char *symbol, int part);

#endif
