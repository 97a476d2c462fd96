// Finding NCCL's functions in a library that has been opened.
#ifndef GOFSDP_NCCL_LOAD_H
#define GOFSDP_NCCL_LOAD_H

#include "table.h"

// Fills a table. It returns how many of its symbols the library lacks, and names up to most of them.
int gofsdp_nccl_fill(void *library, gofsdp_nccl *table, const char **missing, int most);

#endif
