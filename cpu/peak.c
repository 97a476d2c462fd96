//go:build cgo && amd64

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "peak.h"

#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Two units with a latency of 4 cycles (6 for the dot product) need 8 (12) independent chains.
// AVX2 has 16 registers: 12 chains fit beside the factors; AVX-512 has 32. Values stay 0: neither
// denormals nor infinities disturb. The empty assembler statement keeps the loop from being folded.
enum { CHAINS = 12, WIDE_CHAINS = 24, ROUNDS = 4096 };

#define FLOP_LOOP(NAME, N, TARGET, VEC, ZERO, FACTORS, FACTOR, STEP, KEEP) \
  TARGET static void NAME(void) {                                          \
    VEC sum[N];                                                            \
    FACTORS x = FACTOR;                                                    \
    __asm__ volatile("" : KEEP(x));                                        \
    GK_UNROLL for (int i = 0; i < N; i++) sum[i] = ZERO;                   \
    for (int r = 0; r < ROUNDS; r++) {                                     \
      GK_UNROLL for (int i = 0; i < N; i++) {                              \
        sum[i] = STEP;                                                     \
        __asm__ volatile("" : KEEP(sum[i]));                               \
      }                                                                    \
    }                                                                      \
  }

FLOP_LOOP(flops_generic, CHAINS, , float, 0, float, 0, sum[i] * x + x, "+x")
FLOP_LOOP(flops_avx2, CHAINS, GK_TARGET_AVX2, __m256, _mm256_setzero_ps(), __m256,
          _mm256_setzero_ps(), _mm256_fmadd_ps(x, x, sum[i]), "+x")
FLOP_LOOP(flops_avx512, WIDE_CHAINS, GK_TARGET_AVX512, __m512, _mm512_setzero_ps(), __m512,
          _mm512_setzero_ps(), _mm512_fmadd_ps(x, x, sum[i]), "+v")
FLOP_LOOP(flops_bf16, WIDE_CHAINS, GK_TARGET_AVX512BF16, __m512, _mm512_setzero_ps(), __m512i,
          _mm512_setzero_si512(), _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)x), "+v")

// A measurement is cut into slices, each started together, and the best one counts: other processes
// disturb some. A slice is longer than a scheduler's turn, so threads that share a core show it.
enum { SLICES = 5 };

typedef struct {
  gk_ctx *ctx;
  double seconds; // of one slice
  double *rates;  // [SLICES][threads]
  void (*loop)(void);
  double flops; // of one call of the loop
  float *a, *b, *c;
  int64_t n;
  int kind;
} peak_task;

static double best_slice(const double *rates, int threads) {
  double best = 0;
  for (int s = 0; s < SLICES; s++) {
    double sum = 0;
    for (int t = 0; t < threads; t++) sum += rates[s * threads + t];
    if (sum > best) best = sum;
  }
  return best;
}

static void measure_flops(void *arg, int thread, int threads) {
  peak_task *p = arg;
  for (int s = 0; s < SLICES; s++) {
    gk_pool_barrier(p->ctx->pool);
    p->loop(); // the clock rises
    double start = now(), elapsed;
    int64_t calls = 0;
    do {
      p->loop();
      calls++;
      elapsed = now() - start;
    } while (elapsed < p->seconds);
    p->rates[s * threads + thread] = (double)calls * p->flops / elapsed * 1e-9;
  }
}

double gk_peak_flops(gk_ctx *ctx, int dtype, double seconds) {
  int threads = gk_pool_threads(ctx->pool);
  double rates[SLICES * threads];
  peak_task p = {.ctx = ctx, .seconds = seconds / SLICES, .rates = rates};
  int flops_a_lane = 2, lanes = 1, chains = CHAINS;
  p.loop = flops_generic;
  if (ctx->isa >= GK_AVX2) p.loop = flops_avx2, lanes = 8;
  if (ctx->isa >= GK_AVX512) p.loop = flops_avx512, lanes = 16, chains = WIDE_CHAINS;
  if (ctx->isa >= GK_AVX512BF16 && dtype == GK_BF16) p.loop = flops_bf16, flops_a_lane = 4;
  p.flops = (double)ROUNDS * chains * lanes * flops_a_lane;
  gk_pool_run(ctx->pool, measure_flops, &p);
  return best_slice(rates, threads);
}

static void copy(float *restrict a, const float *restrict b, int64_t n) {
  memcpy(a, b, (size_t)n * sizeof *a);
}

// Four lanes are enough: one core saturates memory. n is a multiple of 4, for a pool splits by 1024.
static void triad(float *restrict a, const float *restrict b, const float *restrict c, int64_t n) {
  typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
  for (int64_t i = 0; i < n; i += 4)
    *(four *)(a + i) = *(const four *)(b + i) + 3.0f * *(const four *)(c + i);
}

static void measure_bandwidth(void *arg, int thread, int threads) {
  peak_task *p = arg;
  int64_t from, to;
  gk_split(p->n, 1024, thread, threads, &from, &to);
  for (int64_t i = from; i < to; i++) p->a[i] = p->b[i] = p->c[i] = 0; // first touch
  double bytes = (double)(to - from) * sizeof(float) * (p->kind == GK_COPY ? 2 : 3);
  for (int s = 0; s < SLICES; s++) {
    gk_pool_barrier(p->ctx->pool);
    double start = now(), elapsed;
    int64_t calls = 0;
    do {
      if (p->kind == GK_COPY) copy(p->a + from, p->b + from, to - from);
      else triad(p->a + from, p->b + from, p->c + from, to - from);
      calls++;
      elapsed = now() - start;
    } while (elapsed < p->seconds);
    p->rates[s * threads + thread] = (double)calls * bytes / elapsed * 1e-9;
  }
}

double gk_peak_bandwidth(gk_ctx *ctx, int kind, size_t bytes, double seconds) {
  int threads = gk_pool_threads(ctx->pool);
  double rates[SLICES * threads];
  char *map = mmap(NULL, 3 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return 0;
#ifdef MADV_HUGEPAGE
  madvise(map, 3 * bytes, MADV_HUGEPAGE);
#endif
  peak_task p = {.ctx = ctx, .seconds = seconds / SLICES, .rates = rates, .kind = kind};
  p.n = (int64_t)(bytes / sizeof(float) / 1024 * 1024);
  p.a = (float *)map, p.b = (float *)(map + bytes), p.c = (float *)(map + 2 * bytes);
  gk_pool_run(ctx->pool, measure_bandwidth, &p);
  munmap(map, 3 * bytes);
  return best_slice(rates, threads);
}
