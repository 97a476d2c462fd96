//go:build cgo && amd64

#include "ops.h"

// An operation of less work than this is done by the calling thread alone: it takes about 3 µs, and
// to have the others help takes as long.
enum { ALONE = 16384 };

// size_of_work is a count of elements, to compare with ALONE. Elements that are only moved, rotated
// or added take a quarter of the time of others.
static int64_t size_of_work(int op, const void *args) {
  switch (op) {
    case GK_OP_ADD_RMS_NORM: {
      const gk_add_rms_norm_args *o = args;
      return o->rows * o->dim;
    }
    case GK_OP_ADD_RMS_NORM_BACKWARD: {
      const gk_add_rms_norm_backward_args *o = args;
      return o->rows * o->dim;
    }
    case GK_OP_QK_NORM_ROPE: {
      const gk_qk_norm_rope_args *o = args;
      return o->rows * (o->part[0].heads + o->part[1].heads) * o->head_size / 4;
    }
    case GK_OP_QK_NORM_ROPE_BACKWARD: {
      const gk_qk_norm_rope_backward_args *o = args;
      return o->rows * (o->part[0].heads + o->part[1].heads) * o->head_size / 4;
    }
    case GK_OP_ATTENTION:
    case GK_OP_ATTENTION_BACKWARD: {
      const gk_attention_args *o = args;
      return o->seqs * o->seq_len * o->seq_len * o->heads * o->head_size / 8;
    }
    case GK_OP_ATTENTION_DECODE: {
      const gk_attention_args *o = args;
      return o->seqs * o->seq_len * o->cache_len * o->heads * o->head_size / 8;
    }
    case GK_OP_EMBED: {
      const gk_embed_args *o = args;
      return o->rows * o->dim / 4;
    }
    case GK_OP_EMBED_BACKWARD: {
      const gk_embed_backward_args *o = args;
      return o->rows * o->dim;
    }
    case GK_OP_SWIGLU:
    case GK_OP_SWIGLU_BACKWARD: return ((const gk_swiglu_args *)args)->n;
    case GK_OP_HEAD_LOSS: {
      const gk_head_loss_args *o = args;
      return o->rows * o->vocab;
    }
    case GK_OP_BIAS_BACKWARD: {
      const gk_bias_backward_args *o = args;
      return o->m * o->n / 4;
    }
    case GK_OP_REDUCE_SUM: {
      const gk_reduce_sum_args *o = args;
      return o->n * o->count / 4;
    }
    case GK_OP_SUM_SQUARES:
    case GK_OP_CHECK_FINITE: return ((const gk_vector_args *)args)->n / 4;
    case GK_OP_ADAMW: return ((const gk_adamw_args *)args)->n;
    case GK_OP_CAST:
    case GK_OP_COPY:
    case GK_OP_FILL: return ((const gk_move_args *)args)->n / 4;
  }
  return INT64_MAX;
}

// phases_of is the number of phases of an operation's task on so many threads. A barrier would do, but
// a thread that runs late would hold up the others at it; a phase's parts are run by whoever is there.
static int phases_of(gk_ctx *ctx, int op, const void *args, int threads) {
  switch (op) {
    case GK_OP_ADD_RMS_NORM_BACKWARD:
    case GK_OP_ATTENTION_BACKWARD:
    case GK_OP_ATTENTION_DECODE:
    case GK_OP_EMBED_BACKWARD:
    case GK_OP_CHECK_FINITE: return 2;
    case GK_OP_QK_NORM_ROPE_BACKWARD: {
      const gk_qk_norm_rope_backward_args *o = args;
      return o->part[0].weight == NULL ? 1 : 2;
    }
    case GK_OP_SUM_SQUARES: { // two in each round
      int64_t round = GK_NORM_BLOCK * gk_norm_round(ctx->pool, threads), n = ((const gk_vector_args *)args)->n;
      return n <= round ? 2 : (int)((n + round - 1) / round) * 2;
    }
  }
  return 1;
}

// scratch_of is the bytes that an operation needs in each thread's scratch, at least.
static int64_t scratch_of(int op, const void *args) {
  const int64_t float_bytes = sizeof(float);
  switch (op) {
    case GK_OP_ADD_RMS_NORM_BACKWARD: return 65 * ((const gk_add_rms_norm_backward_args *)args)->dim * float_bytes;
    case GK_OP_QK_NORM_ROPE_BACKWARD: {
      const gk_qk_norm_rope_backward_args *o = args;
      return (131 * o->head_size + 64) * float_bytes;
    }
    case GK_OP_HEAD_LOSS: return (((const gk_head_loss_args *)args)->vocab + 64) * float_bytes;
    case GK_OP_BIAS_BACKWARD: return (((const gk_bias_backward_args *)args)->n + 64) * float_bytes;
    case GK_OP_EMBED_BACKWARD: {
      const gk_embed_backward_args *o = args;
      return (o->vocab + o->rows) * (int64_t)sizeof(int32_t);
    }
    case GK_OP_ATTENTION:
    case GK_OP_ATTENTION_BACKWARD:
    case GK_OP_ATTENTION_DECODE: // tiles, and one block at least
      return (((const gk_attention_args *)args)->head_size + 32) * (3 * 128 + 4 * 256) * float_bytes + (1 << 20);
  }
  return 0;
}

int gk_run(gk_ctx *ctx, int op, int type, const void *args) {
  static const gk_task(*const levels[])[2] = {gk_tasks_generic, gk_tasks_avx2, gk_tasks_avx512,
                                            gk_tasks_avx512bf16};
  if (scratch_of(op, args) > (int64_t)gk_pool_scratch_bytes(ctx->pool)) return 1;
  atomic_llong taken[2] = {0, 0};
  gk_call call = {.ctx = ctx, .args = args, .taken = taken};
  gk_task task = levels[ctx->isa][op][type];
  if (type == GK_BF16 && ctx->isa == GK_AVX512BF16) {
    if (op == GK_OP_ATTENTION) task = gk_attention_pairs;
    if (op == GK_OP_ATTENTION_BACKWARD) task = gk_attention_backward_pairs;
  }
  const int alone = size_of_work(op, args) < ALONE;
  const int phases = phases_of(ctx, op, args, alone ? 1 : gk_pool_threads(ctx->pool));
  for (; call.phase < phases; call.phase++) {
    if (alone) task(&call, 0, 1);
    else gk_pool_share(ctx->pool, task, &call);
  }
  return 0;
}

int gk_run_reduce_sum(gk_ctx *ctx, int type, const gk_reduce_sum_args *args, const void *srcs) {
  gk_reduce_sum_args with = *args;
  with.srcs = srcs;
  return gk_run(ctx, GK_OP_REDUCE_SUM, type, &with);
}
