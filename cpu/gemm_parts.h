// What gemm.c's loops are made of: register tiles and packing, one set a level.
#ifndef GK_GEMM_PARTS_H
#define GK_GEMM_PARTS_H

#include "kernels.h"

// A unit is what one lane takes in one step along k, 4 bytes: a float, or two bf16 of adjacent k.
enum gk_unit {
  GK_UNIT_F32,   // a float
  GK_UNIT_WIDEN, // a bf16, widened to a float by packing
  GK_UNIT_PAIR,  // two bf16
};

// One call of a register tile. Strides are in bytes.
typedef struct gk_tile {
  const char *a;   // strided: first unit of the first row; packed: the panel
  ptrdiff_t a_row; // strided only
  const char *b;   // the panel
  int64_t units;   // steps along k
  const char *init; // what the chains start from; init_row 0 repeats one row
  ptrdiff_t init_row;
  char *out;
  ptrdiff_t out_row;
  const char *next; // fetched into the cache meanwhile: the next tile's output
  ptrdiff_t next_row;
  int init_bf16, out_bf16;
} gk_tile;

typedef void (*gk_tile_func)(const gk_tile *);

typedef struct gk_tile_table {
  int rows, cols;
  gk_tile_func strided[9], packed[9]; // by number of rows
} gk_tile_table;

extern const gk_tile_table gk_tile_avx2, gk_tile_avx512, gk_tile_avx512bf16;

// gk_pack packs `count` vectors of k units each (rows of op(A), columns of op(B)) into panels
// [count/width][units][width], the last one padded with zero vectors.
typedef struct gk_pack {
  const char *src;    // first element
  ptrdiff_t stride;   // bytes from one vector to the next, or from one k to the next
  int k_contiguous;   // elements of one vector are adjacent; else those of one k
  int unit;           // enum gk_unit
  int64_t count, k;   // k in elements; GK_UNIT_PAIR pads an odd one with zero
  int width;          // 4, 8, 24 or 32
  char *dst;
} gk_pack;

void gk_pack_avx2(const gk_pack *p);

// gk_vector is a row vector times a matrix, without packing: sum[v] continues its chain over
// a[u] and unit u of vector v of b, for all of them. Of b, width and dst are not used. GK_UNIT_PAIR
// needs level avx512bf16, the others avx2.
void gk_vector(const gk_pack *b, const int32_t *a, float *sum);

#endif
