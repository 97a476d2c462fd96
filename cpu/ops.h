// The operations of package device in C, all but the matrix products: their arguments and how one
// is run. The comments of package device define what they compute; tensors are float or gk_bf16 as
// the `type` of the call says, unless a comment says otherwise.
#ifndef GK_OPS_H
#define GK_OPS_H

#include <stdatomic.h>

#include "kernels.h"

enum gk_op {
  GK_OP_ADD_RMS_NORM,
  GK_OP_ADD_RMS_NORM_BACKWARD,
  GK_OP_QK_NORM_ROPE,
  GK_OP_QK_NORM_ROPE_BACKWARD,
  GK_OP_ATTENTION,
  GK_OP_ATTENTION_BACKWARD,
  GK_OP_ATTENTION_DECODE,
  GK_OP_EMBED,
  GK_OP_EMBED_BACKWARD,
  GK_OP_SWIGLU,
  GK_OP_SWIGLU_BACKWARD,
  GK_OP_HEAD_LOSS,
  GK_OP_BIAS_BACKWARD,
  GK_OP_REDUCE_SUM,
  GK_OP_SUM_SQUARES,
  GK_OP_CHECK_FINITE,
  GK_OP_ADAMW,
  GK_OP_CAST,
  GK_OP_COPY,
  GK_OP_FILL,
  GK_OPS
};

typedef struct {
  const void *x, *residual, *weight; // residual may be NULL
  void *sum, *out;
  float *rstd;
  int64_t rows, dim;
  float eps;
} gk_add_rms_norm_args;

typedef struct {
  const void *dout, *dsum, *sum, *weight; // dsum may be NULL
  const float *rstd;
  void *dx, *dweight;
  int64_t rows, dim;
  int dweight_type, accumulate;
} gk_add_rms_norm_backward_args;

// One of the two tensors, Q or K, of a rotation.
typedef struct {
  const void *x, *weight; // weight may be NULL: no norm
  void *out;
  float *rstd;
  int64_t heads;
} gk_rope_part;

typedef struct {
  gk_rope_part part[2];
  const int32_t *pos;
  const float *cos, *sin;
  int64_t rows, head_size;
  float eps;
} gk_qk_norm_rope_args;

typedef struct {
  const void *dout, *x, *weight; // x, weight and what follows only with a norm
  const float *rstd;
  void *dx, *dweight;
  int64_t heads;
  int dweight_type;
} gk_rope_backward_part;

typedef struct {
  gk_rope_backward_part part[2];
  const int32_t *pos;
  const float *cos, *sin;
  int64_t rows, head_size;
  int accumulate;
} gk_qk_norm_rope_backward_args;

typedef struct {
  const void *q, *k, *v;
  const int32_t *start; // NULL in decode: every row starts at key 0
  void *out;
  float *lse; // NULL in decode

  const void *out_in, *dout; // backward: Out and its gradient
  float *d;
  void *dq, *dk, *dv;

  const int32_t *cached; // decode
  void *k_cache, *v_cache;

  int64_t seqs, seq_len, cache_len, heads, kv_heads, head_size;
  float scale;
} gk_attention_args;

typedef struct {
  const void *table;
  const int32_t *ids;
  void *out;
  int64_t rows, dim;
} gk_embed_args;

typedef struct {
  const void *dout;
  const int32_t *ids;
  void *dtable;
  int64_t rows, dim, vocab;
  int dtable_type;
} gk_embed_backward_args;

typedef struct {
  const void *gate, *up, *dout; // dout: backward
  void *out, *dgate, *dup;      // out: forward
  int64_t n;
} gk_swiglu_args;

typedef struct {
  void *logits;
  const int32_t *targets;
  const float *scale;
  float *loss;
  int64_t rows, vocab;
  int backward;
} gk_head_loss_args;

typedef struct {
  const void *dout;
  void *dbias;
  int64_t m, n;
  int dbias_type, accumulate;
} gk_bias_backward_args;

typedef struct {
  const char *srcs; // the first source's address is at srcs, the next ones stride bytes further
  int64_t stride, count;
  void *dst;
  int64_t n;
  int dst_type;
} gk_reduce_sum_args;

// One vector in, one result out. The result of GK_OP_SUM_SQUARES is a double, of GK_OP_CHECK_FINITE an int32_t.
typedef struct {
  const void *x;
  void *out;
  int64_t n;
} gk_vector_args;

typedef struct {
  float *param, *m, *v;
  const void *grad; // of the call's type
  const float *hyper;
  gk_bf16 *copy; // may be NULL
  int64_t n;
  float beta1, beta2, eps, weight_decay;
  int stochastic;
  uint64_t seed;
  int64_t index;
} gk_adamw_args;

typedef struct {
  const void *src;
  void *dst;
  int64_t n;
  int dst_type; // GK_OP_CAST
  int64_t size; // GK_OP_COPY, GK_OP_FILL: bytes of an element
  uint64_t bits; // GK_OP_FILL: the element
} gk_move_args;

// gk_run runs one operation on tensors of the given type. args points to the operation's struct.
// Sizes and indices must be right already. It returns 0, or 1 where the scratch of the pool cannot
// hold what the operation needs, and nothing was done.
int gk_run(gk_ctx *ctx, int op, int type, const void *args);

// gk_run_reduce_sum is gk_run for GK_OP_REDUCE_SUM; the list of sources may lie in Go's memory.
int gk_run_reduce_sum(gk_ctx *ctx, int type, const gk_reduce_sum_args *args, const void *srcs);

// gk_call is what a task gets: the operation's arguments and the pool's memory.
typedef struct {
  gk_ctx *ctx;
  const void *args;
  atomic_llong *taken; // counts of items taken, zero at the start
  int phase;           // counts from 0; a phase begins when all threads have finished the one before
} gk_call;

// gk_next takes the next item of a list that threads share. An operation has two lists.
static inline int64_t gk_next(const gk_call *c, int list) { return atomic_fetch_add(&c->taken[list], 1); }

// The block of device.NormBlock, and how many of their sums fit the threads' scratch at once.
enum { GK_NORM_BLOCK = 1024 };
static inline int64_t gk_norm_round(gk_pool *pool, int threads) {
  return (int64_t)(gk_pool_scratch_bytes(pool) / sizeof(double)) * threads;
}

// The tasks of each level, by operation and type.
extern const gk_task gk_tasks_generic[GK_OPS][2];
extern const gk_task gk_tasks_avx2[GK_OPS][2];
extern const gk_task gk_tasks_avx512[GK_OPS][2];
extern const gk_task gk_tasks_avx512bf16[GK_OPS][2];

// Attention in bf16 by the dot product, in place of the tasks of level avx512.
void gk_attention_pairs(void *call, int thread, int threads);
void gk_attention_backward_pairs(void *call, int thread, int threads);

#endif
