// All operations at one level, and the table of their tasks. Included once by each ops_*.c.
#include "vec.h"

#include "norm.h"
#include "rope.h"
#include "pointwise.h"
#include "reduce.h"
#include "adamw.h"
#include "attention.h"
#include "attention_backward.h"

// TASKS makes an operation a task for each type, with the type known to the compiler.
#define TASKS(op)                                                                                         \
  static void op##_f32(void *call, int thread, int threads) { op(call, thread, threads, GK_F32); }        \
  static void op##_bf16(void *call, int thread, int threads) { op(call, thread, threads, GK_BF16); }

TASKS(add_rms_norm)
TASKS(add_rms_norm_backward)
TASKS(qk_norm_rope)
TASKS(qk_norm_rope_backward)
TASKS(attention)
TASKS(attention_backward)
TASKS(attention_decode)
TASKS(embed)
TASKS(embed_backward)
TASKS(swiglu)
TASKS(swiglu_backward)
TASKS(head_loss)
TASKS(bias_backward)
TASKS(reduce_sum)
TASKS(sum_squares)
TASKS(check_finite)
TASKS(adamw)
TASKS(cast)
TASKS(copy)
TASKS(fill)

#define BOTH_TYPES(op) {op##_f32, op##_bf16}
const gk_task GK_TASKS[GK_OPS][2] = {
    [GK_OP_ADD_RMS_NORM] = BOTH_TYPES(add_rms_norm),
    [GK_OP_ADD_RMS_NORM_BACKWARD] = BOTH_TYPES(add_rms_norm_backward),
    [GK_OP_QK_NORM_ROPE] = BOTH_TYPES(qk_norm_rope),
    [GK_OP_QK_NORM_ROPE_BACKWARD] = BOTH_TYPES(qk_norm_rope_backward),
    [GK_OP_ATTENTION] = BOTH_TYPES(attention),
    [GK_OP_ATTENTION_BACKWARD] = BOTH_TYPES(attention_backward),
    [GK_OP_ATTENTION_DECODE] = BOTH_TYPES(attention_decode),
    [GK_OP_EMBED] = BOTH_TYPES(embed),
    [GK_OP_EMBED_BACKWARD] = BOTH_TYPES(embed_backward),
    [GK_OP_SWIGLU] = BOTH_TYPES(swiglu),
    [GK_OP_SWIGLU_BACKWARD] = BOTH_TYPES(swiglu_backward),
    [GK_OP_HEAD_LOSS] = BOTH_TYPES(head_loss),
    [GK_OP_BIAS_BACKWARD] = BOTH_TYPES(bias_backward),
    [GK_OP_REDUCE_SUM] = BOTH_TYPES(reduce_sum),
    [GK_OP_SUM_SQUARES] = BOTH_TYPES(sum_squares),
    [GK_OP_CHECK_FINITE] = BOTH_TYPES(check_finite),
    [GK_OP_ADAMW] = BOTH_TYPES(adamw),
    [GK_OP_CAST] = BOTH_TYPES(cast),
    [GK_OP_COPY] = BOTH_TYPES(copy),
    [GK_OP_FILL] = BOTH_TYPES(fill),
};
