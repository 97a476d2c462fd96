//go:build cgo && amd64

// The loops of a matrix product. Threads divide C among them, each packs what it needs for itself.
//
//   rows of C (all, where A is read in place and sums stay in C)
//     columns of C (all, but for bf16 results over several blocks of k)
//       block of k: pack A, where it cannot be read in place
//         group of columns: pack B, just in time, into the second-level cache
//           tiles
//
// Blocks of k store and reload the fp32 partial sums, which changes no bit.
//
// Threads share no packed panel: that was tried with two threads of a Zen 5 machine and lost. Panels of
// B packed together, 256 columns between two barriers, made products of 1024 rows 0.92 to 1.00 times as
// fast as private ones of threads that divide columns (weight gradients 0.96 to 1.03), 0.98 to 1.01 where
// threads divide rows and so each pack all of B. Panels of A packed together made weight
// gradients 1.01 to 1.05 times as fast where the cores have their last-level cache in common (a line
// crosses in 45 ns), and 0.70 to 0.87 times where not (180 ns).
//
// Reached on a Zen 5 core with two 512-bit multiply-adds a cycle (265 GFLOP/s in fp32, 525 in bf16),
// 1024 rows, packing included: forward and input gradient 90-97 % of that in fp32 and 83-94 % in
// bf16, weight gradient 85-93 % and 83-91 %; two threads 1.9 to 2 times as much. A Zen 4 core has half
// the peak, so loads and packing weigh half as much there. Decoding a token reads fp32 weights at 30
// to 35 GB/s and bf16 at 22 to 29 where a copy counts 40 to 47.
#include "gemm.h"

#include <math.h>

#include "gemm_units.h"

enum {
  MAX_UNITS = 1024,      // longest block of k
  MAX_GROUP = 72,        // columns in a group: 64, or 72 in panels of 24; with 1024 units 288 KiB
  MAX_ROWS = 1024,       // of a packed block of A, or of partial sums
  VECTOR_COLUMNS = 2048, // of a product with one row: their sums stay in the first-level cache
  // Multiply-adds that are not worth a second thread, which costs 1 to 3 µs. A product with one row
  // waits for memory, so it is slower for its size.
  SMALL = 1 << 18,
  SMALL_VECTOR = 1 << 16,
  // A thread's scratch, in bytes.
  PACKED_B = 4 * MAX_UNITS * MAX_GROUP,
  PACKED_A = 4 * MAX_UNITS * MAX_ROWS,
  PARTIAL = 8 << 20, // fp32 sums of a bf16 result between blocks of k
};

_Static_assert(PACKED_B + PACKED_A + PARTIAL <= GK_MATMUL_SCRATCH, "the scratch is too small");

// plan is one product as its threads see it.
typedef struct plan {
  const gk_matmul_args *args;
  gk_ctx *ctx;
  const gk_tile_table *tile;
  int unit, pack_a;
  int64_t size_ab, size_c; // bytes of an element
  int64_t unit_k;          // k in one unit
  int64_t block_k;         // k in one block, a multiple of unit_k
  int row_parts, col_parts;
} plan;

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static char *at_c(const plan *p, int64_t row, int64_t col) {
  return (char *)p->args->c + (row * p->args->n + col) * p->size_c;
}

static float read_float(const char *from, int bf16) {
  float f;
  gk_bf16 b;
  if (bf16) return memcpy(&b, from, 2), gk_bf16_to_f32(b);
  return memcpy(&f, from, 4), f;
}

static void write_float(char *to, int bf16, float f) {
  gk_bf16 b = gk_bf16_from_f32(f);
  if (bf16) memcpy(to, &b, 2);
  else memcpy(to, &f, 4);
}

// narrow_tile computes the first `cols` columns of a tile, by way of a whole one.
static void narrow_tile(const plan *p, gk_tile t, gk_tile_func func, int rows, int64_t cols) {
  float whole[8 * 32] = {0};
  gk_tile inner = t;
  inner.init = inner.out = (char *)whole;
  inner.init_row = inner.out_row = p->tile->cols * 4;
  inner.init_bf16 = inner.out_bf16 = 0;
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < cols; j++)
      whole[i * p->tile->cols + j] =
          read_float(t.init + i * t.init_row + j * (t.init_bf16 ? 2 : 4), t.init_bf16);
  func(&inner);
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < cols; j++)
      write_float(t.out + i * t.out_row + j * (t.out_bf16 ? 2 : 4), t.out_bf16,
                  whole[i * p->tile->cols + j]);
}

// block is what one group of columns and one block of k work on.
typedef struct block {
  int64_t row, rows;    // of C
  int64_t col, cols;    // of C
  int64_t k, len;       // of k, in elements
  const char *packed_a; // or NULL
  char *partial;        // fp32 sums of the block's first element and on, or NULL
  int64_t partial_row;  // bytes
} block;

// multiply_group packs B's columns of the block and computes the block's tiles.
static void multiply_group(const plan *p, const block *b, char *packed_b) {
  const gk_matmul_args *x = p->args;
  const int64_t units = (b->len + p->unit_k - 1) / p->unit_k, width = p->tile->cols;
  const int first = b->k == 0, last = b->k + b->len == x->k;
  const char *src = (const char *)x->b + (x->trans_b ? b->col * x->k + b->k : b->k * x->n + b->col) * p->size_ab;
  gk_pack_avx2(&(gk_pack){.src = src, .stride = (x->trans_b ? x->k : x->n) * p->size_ab, .k_contiguous = x->trans_b,
                          .unit = p->unit, .count = b->cols, .k = b->len, .width = (int)width, .dst = packed_b});

  float start[MAX_GROUP] = {0};
  if (x->bias != NULL)
    for (int64_t j = 0; j < b->cols; j++)
      start[j] = read_float((const char *)x->bias + (b->col + j) * p->size_ab, x->dtype_a == GK_BF16);

  gk_tile t = {.units = units};
  t.a_row = x->k * p->size_ab;
  t.out_bf16 = x->dtype_c == GK_BF16 && last;
  t.out_row = last || b->partial == NULL ? x->n * p->size_c : b->partial_row;
  for (int64_t i = 0; i < b->rows; i += p->tile->rows) {
    int rows = (int)least(p->tile->rows, b->rows - i);
    if (b->packed_a != NULL) t.a = b->packed_a + i * units * 4;
    else t.a = (const char *)x->a + ((b->row + i) * x->k + b->k) * p->size_ab;
    gk_tile_func func = b->packed_a != NULL ? p->tile->packed[rows] : p->tile->strided[rows];
    for (int64_t j = 0; j < b->cols; j += width) {
      char *c = at_c(p, b->row + i, b->col + j);
      char *sum = b->partial == NULL ? c : b->partial + i * b->partial_row + j * 4;
      t.b = packed_b + j * units * 4;
      t.out = last ? c : sum;
      if (!first) {
        t.init = sum, t.init_bf16 = 0;
        t.init_row = b->partial == NULL ? x->n * p->size_c : b->partial_row;
      } else if (x->accumulate) {
        t.init = c, t.init_bf16 = x->dtype_c == GK_BF16;
        t.init_row = x->n * p->size_c;
      } else {
        t.init = (const char *)(start + j), t.init_bf16 = 0;
        t.init_row = 0;
      }
      int64_t beyond = j + width < b->cols ? width : p->tile->rows * x->n - j;
      t.next = c + beyond * p->size_c;
      t.next_row = x->n * p->size_c;
      if (b->cols - j >= width) func(&t);
      else narrow_tile(p, t, func, rows, b->cols - j);
    }
  }
}

// multiply is one thread's part of the product.
static void multiply(void *arg, int thread, int threads) {
  const plan *p = arg;
  const gk_matmul_args *x = p->args;
  (void)threads; // parts may be fewer
  if (thread >= p->row_parts * p->col_parts) return;
  int64_t row, row_end, col, col_end;
  gk_split(x->m, p->tile->rows, thread % p->row_parts, p->row_parts, &row, &row_end);
  gk_split(x->n, p->tile->cols, thread / p->row_parts, p->col_parts, &col, &col_end);

  char *packed_b = gk_pool_scratch(p->ctx->pool, thread);
  char *packed_a = packed_b + PACKED_B, *partial = packed_a + PACKED_A;
  const int64_t group = round_up(64, p->tile->cols);
  const int sums = x->k > p->block_k && x->dtype_c == GK_BF16;
  int64_t max_rows = p->pack_a || sums ? MAX_ROWS : x->m, max_cols = x->n;
  if (sums) max_cols = PARTIAL / 4 / least(max_rows, round_up(x->m, 8)) / group * group;

  for (int64_t i = row; i < row_end; i += max_rows) {
    block b = {.row = i, .rows = least(max_rows, row_end - i)};
    for (int64_t j = col; j < col_end; j += max_cols) {
      int64_t j_end = least(j + max_cols, col_end);
      for (b.k = 0; b.k < x->k; b.k += p->block_k) {
        b.len = least(p->block_k, x->k - b.k);
        if (p->pack_a) {
          const char *src = (const char *)x->a + (x->trans_a ? b.k * x->m + i : i * x->k + b.k) * p->size_ab;
          gk_pack_avx2(&(gk_pack){.src = src, .stride = (x->trans_a ? x->m : x->k) * p->size_ab,
                                  .k_contiguous = !x->trans_a, .unit = p->unit, .count = b.rows, .k = b.len,
                                  .width = p->tile->rows, .dst = packed_a});
          b.packed_a = packed_a;
        }
        for (b.col = j; b.col < j_end; b.col += group) {
          b.cols = least(group, j_end - b.col);
          if (sums) {
            b.partial = partial + (b.col - j) * 4;
            b.partial_row = (j_end - j) * 4;
          }
          multiply_group(p, &b, packed_b);
        }
      }
    }
  }
}

// divide chooses into how many parts threads cut the rows and columns of C: the slowest thread's tiles,
// plus what it packs, an element of which costs as much as about 32 multiply-adds, plus what it reads
// that another thread wrote. Operations that work by rows give each thread its own, so these are the
// other rows of A, and afterwards the other columns of its own rows of C. Such an element costs as much
// again, or more where the cores are far apart: small products of 1024 rows that follow each other are
// 1.2 to 1.8 times as fast by rows as by columns where a line crosses in 180 ns, 1.01 to 1.05 in 40 ns.
static void divide(plan *p, int threads) {
  const gk_matmul_args *x = p->args;
  p->row_parts = p->col_parts = 1;
  if (x->m * x->n * x->k < SMALL) return;
  const double own = (double)x->m / threads;
  double best = INFINITY;
  for (int parts = 1; parts <= threads; parts++) {
    double rows = (double)round_up((x->m + parts - 1) / parts, p->tile->rows);
    double cols = (double)round_up((x->n + threads / parts - 1) / (threads / parts), p->tile->cols);
    double cost = rows * cols + 32 * (cols + (p->pack_a ? rows : 0));
    if (!p->pack_a) cost += 32 * (fmax(rows - own, 0) + own * fmax((double)x->n - cols, 0) / (double)x->k);
    if (cost >= best) continue;
    best = cost;
    p->row_parts = parts;
    p->col_parts = threads / parts;
  }
}

// multiply_vector is one thread's part of a product with one row. The units of A go to scratch.
static void multiply_vector(void *arg, int thread, int threads) {
  const plan *p = arg;
  const gk_matmul_args *x = p->args;
  const int half_c = x->dtype_c == GK_BF16;
  int64_t col, end;
  gk_split(x->n, 32, thread, threads, &col, &end);
  if (col == end) return;
  int32_t *a = gk_pool_scratch(p->ctx->pool, thread);
  gk_pack row = {.src = x->a, .k_contiguous = 1, .unit = p->unit, .count = 1, .k = x->k};
  for (int64_t u = 0; u * p->unit_k < x->k; u++) a[u] = (int32_t)unit_at(&row, 0, u);
  for (; col < end; col += VECTOR_COLUMNS) {
    float sum[VECTOR_COLUMNS] = {0};
    int64_t cols = least(VECTOR_COLUMNS, end - col);
    for (int64_t j = 0; j < cols; j++) {
      if (x->accumulate) sum[j] = read_float(at_c(p, 0, col + j), half_c);
      else if (x->bias != NULL)
        sum[j] = read_float((const char *)x->bias + (col + j) * p->size_ab, x->dtype_a == GK_BF16);
    }
    gk_vector(&(gk_pack){.src = (const char *)x->b + col * (x->trans_b ? x->k : 1) * p->size_ab,
                         .stride = (x->trans_b ? x->k : x->n) * p->size_ab, .k_contiguous = x->trans_b,
                         .unit = p->unit, .count = cols, .k = x->k},
              a, sum);
    for (int64_t j = 0; j < cols; j++) write_float(at_c(p, 0, col + j), half_c, sum[j]);
  }
}

// multiply_plain is the definition, element by element. fmaf comes from the C library, which uses
// the instruction where there is one.
static void multiply_plain(void *arg, int thread, int threads) {
  const plan *p = arg;
  const gk_matmul_args *x = p->args;
  const int half = x->dtype_a == GK_BF16, half_c = x->dtype_c == GK_BF16;
  int64_t from, to;
  gk_split(x->m * x->n, 16, thread, threads, &from, &to);
  for (int64_t e = from; e < to; e++) {
    int64_t i = e / x->n, j = e % x->n;
    float c = 0;
    if (x->accumulate) c = read_float(at_c(p, i, j), half_c);
    else if (x->bias != NULL) c = read_float((const char *)x->bias + j * p->size_ab, half);
    for (int64_t k = 0; k < x->k; k++) {
      int64_t a = x->trans_a ? k * x->m + i : i * x->k + k, b = x->trans_b ? j * x->k + k : k * x->n + j;
      c = fmaf(read_float((const char *)x->a + a * p->size_ab, half),
               read_float((const char *)x->b + b * p->size_ab, half), c);
    }
    write_float(at_c(p, i, j), half_c, c);
  }
}

void gk_matmul(gk_ctx *ctx, const gk_matmul_args *x) {
  const int half = x->dtype_a == GK_BF16, dots = half && ctx->isa >= GK_AVX512BF16;
  plan p = {.args = x, .ctx = ctx};
  p.size_ab = half ? 2 : 4;
  p.size_c = x->dtype_c == GK_BF16 ? 2 : 4;
  if (ctx->isa < GK_AVX2) {
    gk_pool_share(ctx->pool, multiply_plain, &p);
    return;
  }
  p.tile = dots ? &gk_tile_avx512bf16 : ctx->isa >= GK_AVX512 ? &gk_tile_avx512 : &gk_tile_avx2;
  p.unit = dots ? GK_UNIT_PAIR : half ? GK_UNIT_WIDEN : GK_UNIT_F32;
  p.unit_k = dots ? 2 : 1;
  // Rows of A that are already units along k are read where they lie.
  p.pack_a = x->trans_a || (half && !(dots && x->k % 2 == 0));
  int64_t units = (x->k + p.unit_k - 1) / p.unit_k, blocks = (units + MAX_UNITS - 1) / MAX_UNITS;
  p.block_k = round_up((units + blocks - 1) / blocks, 8) * p.unit_k;
  if (x->m == 1 && units * 4 <= (int64_t)gk_pool_scratch_bytes(ctx->pool)) {
    if (x->n * x->k < SMALL_VECTOR) multiply_vector(&p, 0, 1);
    else gk_pool_share(ctx->pool, multiply_vector, &p);
    return;
  }
  divide(&p, gk_pool_threads(ctx->pool));
  if (p.row_parts * p.col_parts == 1) multiply(&p, 0, 1);
  else gk_pool_share(ctx->pool, multiply, &p);
}
