// vf is sixteen floats, the unit of every kernel of this package: one register of AVX-512, two of
// AVX2, a plain array elsewhere (GK_LEVEL 2, 1, 0). All levels round alike: a fused multiply-add is
// one wherever it is written and nowhere else, and sums across lanes have one order. So the levels
// give the same bits.
//
// Included by each level's file after it has set the compiler's target.

#include <math.h>

#include "ops.h"

#if GK_LEVEL > 0
#include <immintrin.h>
#endif

enum { LANES = 16 };

// INLINED functions are inlined, so that a type is a constant in them and vectors stay in registers.
// The portable level would only take long to compile.
#if GK_LEVEL > 0
#define INLINED GK_INLINE
#else
#define INLINED static __attribute__((unused))
#endif

// v_sum adds lane i to i+8, then i to i+4, i+2 and i+1; v_sum8 does all but the first.
#if GK_LEVEL > 0
INLINED float v_sum8(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#endif

#if GK_LEVEL == 2

typedef __m512 vf;

INLINED vf v_set(float x) { return _mm512_set1_ps(x); }
INLINED vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINED void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINED void v_store_past(float *p, vf x) { _mm512_stream_ps(p, x); }
INLINED vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINED vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINED vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINED vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINED vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINED vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINED vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
// v_max is b where either is a NaN.
INLINED vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINED vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }

INLINED __mmask16 v_mask(int n) { return (__mmask16)(n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1); }
INLINED vf v_load_part(const float *p, int n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
INLINED void v_store_part(float *p, int n, vf x) { _mm512_mask_storeu_ps(p, v_mask(n), x); }

// v_keep keeps lanes lo to hi-1; the others become fill.
INLINED vf v_keep(vf x, int lo, int hi, vf fill) {
  return _mm512_mask_blend_ps(v_mask(hi) & (__mmask16)~v_mask(lo), fill, x);
}

// v_widen puts each word into the upper half of its lane by one shuffle; to extend and shift takes two
// instructions.
INLINED vf v_widen(__m256i x) {
  const __m512i place = _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16,
                                         7 << 16, 6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, place, _mm512_castsi256_si512(x)));
}
// v_rounded has the bf16 of each lane in its upper half, and anything in its lower.
INLINED __m512i v_rounded(vf x) {
  __m512i bits = _mm512_castps_si512(x), up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  // Ties go to even: an odd upper half is rounded up by one more.
  up = _mm512_mask_add_epi32(up, _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)), up, _mm512_set1_epi32(1));
  return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
}
INLINED __m256i v_narrow(vf x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_rounded(x), 16)); }
INLINED vf v_load_bf16(const gk_bf16 *p) { return v_widen(_mm256_loadu_si256((const __m256i *)p)); }
INLINED void v_store_bf16(gk_bf16 *p, vf x) { _mm256_storeu_si256((__m256i *)p, v_narrow(x)); }

INLINED void v_load_bf16_pair(const gk_bf16 *p, vf *x) {
  __m512i both = _mm512_loadu_si512(p);
  x[0] = v_widen(_mm512_castsi512_si256(both));
  x[1] = v_widen(_mm512_extracti64x4_epi64(both, 1));
}
INLINED void v_store_bf16_pair(gk_bf16 *p, const vf *x) {
#ifdef GK_CONVERTS
  // The instruction rounds as v_rounded does but for denormal numbers, which it takes for zeros.
  enum { DENORMAL = 0x20 };
  if (__builtin_expect((_mm512_fpclass_ps_mask(x[0], DENORMAL) | _mm512_fpclass_ps_mask(x[1], DENORMAL)) == 0, 1)) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
    return;
  }
#endif
  const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                       21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(v_rounded(x[0]), odd, v_rounded(x[1])));
}

// v_scale is x·2^n for the n of t = 1.5·2^23 + n, rounded once.
INLINED vf v_scale(vf x, vf t, vf n) {
  (void)t;
  return _mm512_scalef_ps(x, n);
}
// v_scale_16ths is x·2^⌊n⌋ for the n of t = 1.5·2^19 + n, a number of sixteenths.
INLINED vf v_scale_16ths(vf x, vf t, vf n) { return v_scale(x, t, n); }
// v_look_up is the number of table that the last four bits of each lane of t name.
INLINED vf v_look_up(const float *table, vf t) {
  return _mm512_permutexvar_ps(_mm512_castps_si512(t), _mm512_loadu_ps(table));
}
// v_raise adds the last bits of t, times 2^shift, to the bits of x.
INLINED vf v_raise(vf x, vf t, int shift) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(t), shift)));
}

INLINED float v_sum(vf x) {
  return v_sum8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
INLINED float v_max_across(vf x) { return _mm512_reduce_max_ps(x); }

#elif GK_LEVEL == 1

typedef struct {
  __m256 a, b;
} vf;

#define BOTH(expr_a, expr_b) ((vf){(expr_a), (expr_b)})
INLINED vf v_set(float x) { return BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINED vf v_load(const float *p) { return BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINED void v_store(float *p, vf x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
INLINED void v_store_past(float *p, vf x) {
  _mm256_stream_ps(p, x.a);
  _mm256_stream_ps(p + 8, x.b);
}
INLINED vf v_add(vf x, vf y) { return BOTH(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINED vf v_sub(vf x, vf y) { return BOTH(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINED vf v_mul(vf x, vf y) { return BOTH(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINED vf v_div(vf x, vf y) { return BOTH(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINED vf v_sqrt(vf x) { return BOTH(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
INLINED vf v_fma(vf x, vf y, vf z) {
  return BOTH(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
INLINED vf v_fnma(vf x, vf y, vf z) {
  return BOTH(_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b));
}
INLINED vf v_max(vf x, vf y) { return BOTH(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINED vf v_min(vf x, vf y) { return BOTH(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }

// The mask of 8 lanes, the first of which has number first.
INLINED __m256i v_between(int first, int lo, int hi) {
  __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                             _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
}
INLINED vf v_load_part(const float *p, int n) {
  return BOTH(_mm256_maskload_ps(p, v_between(0, 0, n)), _mm256_maskload_ps(p + 8, v_between(8, 0, n)));
}
INLINED void v_store_part(float *p, int n, vf x) {
  _mm256_maskstore_ps(p, v_between(0, 0, n), x.a);
  _mm256_maskstore_ps(p + 8, v_between(8, 0, n), x.b);
}
INLINED vf v_keep(vf x, int lo, int hi, vf fill) {
  return BOTH(_mm256_blendv_ps(fill.a, x.a, _mm256_castsi256_ps(v_between(0, lo, hi))),
              _mm256_blendv_ps(fill.b, x.b, _mm256_castsi256_ps(v_between(8, lo, hi))));
}

INLINED __m256 v_widen8(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
INLINED __m256i v_narrow8(__m256 x) {
  __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
  __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
}
INLINED vf v_load_bf16(const gk_bf16 *p) {
  return BOTH(v_widen8(_mm_loadu_si128((const __m128i *)p)), v_widen8(_mm_loadu_si128((const __m128i *)(p + 8))));
}
INLINED void v_store_bf16(gk_bf16 *p, vf x) {
  __m256i both = _mm256_packus_epi32(v_narrow8(x.a), v_narrow8(x.b)); // interleaves 128-bit halves
  _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}

// In two steps, the first of which is exact, because 2^n itself may be no float.
INLINED __m256 v_scale8(__m256 x, __m256i n) {
  __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half), bias = _mm256_set1_epi32(127);
  x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
// v_count is the n of t = 1.5·2^(23−bits) + n in units of 2^−bits.
INLINED __m256i v_count(__m256 t, int bits) {
  return _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000 - (bits << 23)));
}
INLINED vf v_scale(vf x, vf t, vf n) {
  (void)n;
  return BOTH(v_scale8(x.a, v_count(t.a, 0)), v_scale8(x.b, v_count(t.b, 0)));
}
INLINED vf v_scale_16ths(vf x, vf t, vf n) {
  (void)n;
  return BOTH(v_scale8(x.a, _mm256_srai_epi32(v_count(t.a, 4), 4)), v_scale8(x.b, _mm256_srai_epi32(v_count(t.b, 4), 4)));
}
INLINED __m256 v_look_up8(const float *table, __m256 t) {
  __m256i i = _mm256_castps_si256(t);
  __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i);
  __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), i);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
INLINED vf v_look_up(const float *table, vf t) { return BOTH(v_look_up8(table, t.a), v_look_up8(table, t.b)); }
INLINED __m256 v_raise8(__m256 x, __m256 t, int shift) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(t), shift)));
}
INLINED vf v_raise(vf x, vf t, int shift) { return BOTH(v_raise8(x.a, t.a, shift), v_raise8(x.b, t.b, shift)); }

INLINED float v_sum(vf x) { return v_sum8(_mm256_add_ps(x.a, x.b)); }
INLINED float v_max_across(vf x) {
  float m[8];
  _mm256_storeu_ps(m, _mm256_max_ps(x.a, x.b));
  for (int i = 1; i < 8; i++) m[0] = m[0] > m[i] ? m[0] : m[i];
  return m[0];
}

#else

typedef struct {
  float x[16];
} vf;

#define EACH(expr)                                   \
  vf r;                                              \
  for (int i = 0; i < LANES; i++) r.x[i] = (expr);   \
  return r
INLINED vf v_set(float x) { EACH(x); }
INLINED vf v_load(const float *p) { EACH(p[i]); }
INLINED void v_store(float *p, vf x) { memcpy(p, x.x, sizeof x.x); }
INLINED void v_store_past(float *p, vf x) { v_store(p, x); }
INLINED vf v_add(vf a, vf b) { EACH(a.x[i] + b.x[i]); }
INLINED vf v_sub(vf a, vf b) { EACH(a.x[i] - b.x[i]); }
INLINED vf v_mul(vf a, vf b) { EACH(a.x[i] * b.x[i]); }
INLINED vf v_div(vf a, vf b) { EACH(a.x[i] / b.x[i]); }
INLINED vf v_sqrt(vf a) { EACH(sqrtf(a.x[i])); }
INLINED vf v_fma(vf a, vf b, vf c) { EACH(fmaf(a.x[i], b.x[i], c.x[i])); }
INLINED vf v_fnma(vf a, vf b, vf c) { EACH(fmaf(-a.x[i], b.x[i], c.x[i])); }
INLINED vf v_max(vf a, vf b) { EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]); }
INLINED vf v_min(vf a, vf b) { EACH(a.x[i] < b.x[i] ? a.x[i] : b.x[i]); }
INLINED vf v_load_part(const float *p, int n) { EACH(i < n ? p[i] : 0); }
INLINED void v_store_part(float *p, int n, vf x) {
  for (int i = 0; i < LANES && i < n; i++) p[i] = x.x[i];
}
INLINED vf v_keep(vf x, int lo, int hi, vf fill) { EACH(i >= lo && i < hi ? x.x[i] : fill.x[i]); }
INLINED vf v_load_bf16(const gk_bf16 *p) { EACH(gk_bf16_to_f32(p[i])); }
INLINED void v_store_bf16(gk_bf16 *p, vf x) {
  for (int i = 0; i < LANES; i++) p[i] = gk_bf16_from_f32(x.x[i]);
}

INLINED float v_power_of_two(int n) {
  uint32_t bits = (uint32_t)(n + 127) << 23;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
INLINED uint32_t v_word(float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  return word;
}
INLINED vf v_scale_by(vf x, vf t, int bits) {
  vf r;
  for (int i = 0; i < LANES; i++) {
    // A NaN has no exponent; the unsigned difference keeps its overflow defined.
    int e = (int32_t)(v_word(t.x[i]) - (0x4b400000u - ((uint32_t)bits << 23))) >> bits, half = e >> 1;
    r.x[i] = x.x[i] * v_power_of_two(half) * v_power_of_two((int)((uint32_t)e - (uint32_t)half));
  }
  return r;
}
INLINED vf v_scale(vf x, vf t, vf n) {
  (void)n;
  return v_scale_by(x, t, 0);
}
INLINED vf v_scale_16ths(vf x, vf t, vf n) {
  (void)n;
  return v_scale_by(x, t, 4);
}
INLINED vf v_look_up(const float *table, vf t) { EACH(table[v_word(t.x[i]) & 15]); }
INLINED vf v_raise(vf x, vf t, int shift) {
  vf r;
  for (int i = 0; i < LANES; i++) {
    uint32_t bits = v_word(x.x[i]) + (v_word(t.x[i]) << shift);
    memcpy(&r.x[i], &bits, sizeof bits);
  }
  return r;
}

INLINED float v_sum(vf x) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = x.x[i] + x.x[i + 8];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
INLINED float v_max_across(vf x) {
  float m = x.x[0];
  for (int i = 1; i < LANES; i++) m = m > x.x[i] ? m : x.x[i];
  return m;
}

#endif

INLINED vf v_load_bf16_part(const gk_bf16 *p, int n) {
  gk_bf16 all[LANES] = {0};
  for (int i = 0; i < n && i < LANES; i++) all[i] = p[i];
  return v_load_bf16(all);
}
INLINED void v_store_bf16_part(gk_bf16 *p, int n, vf x) {
  gk_bf16 all[LANES];
  v_store_bf16(all, x);
  for (int i = 0; i < n && i < LANES; i++) p[i] = all[i];
}

// v_ld reads elements i to i+15 of a tensor, zeros for those at n and beyond; v_st writes them.
INLINED vf v_ld(const void *p, int type, int64_t i, int64_t n) {
  if (type == GK_BF16) {
    const gk_bf16 *q = (const gk_bf16 *)p + i;
    return n - i >= LANES ? v_load_bf16(q) : v_load_bf16_part(q, (int)(n - i));
  }
  const float *q = (const float *)p + i;
  return n - i >= LANES ? v_load(q) : v_load_part(q, (int)(n - i));
}
INLINED void v_st(void *p, int type, int64_t i, int64_t n, vf x) {
  if (type == GK_BF16) {
    gk_bf16 *q = (gk_bf16 *)p + i;
    if (n - i >= LANES) v_store_bf16(q, x);
    else v_store_bf16_part(q, (int)(n - i), x);
    return;
  }
  float *q = (float *)p + i;
  if (n - i >= LANES) v_store(q, x);
  else v_store_part(q, (int)(n - i), x);
}

// Where arithmetic rather than memory is the limit, a kernel takes STEP vectors at once, one instruction
// after the other for all of them: chains that depend on nothing but themselves keep all units busy,
// while the processor sees too few of them ahead if they follow each other. Half as many registers
// hold only one.
#if GK_LEVEL == 2
enum { STEP = 4 };
#else
enum { STEP = 1 };
#endif
enum { STEP_LANES = STEP * LANES };

// EACH_OF is a statement for each k of `many` vectors, which the compiler knows.
#define EACH_OF(many) \
  GK_UNROLL           \
  for (int k = 0; k < (many); k++)

// EACH_STEP is a statement for each vector of a step.
#define EACH_STEP EACH_OF(STEP)

// v_lds and v_sts are v_ld and v_st of `many` vectors.
INLINED void v_lds(vf *x, int many, const void *p, int type, int64_t i, int64_t n) {
  const int full = n - i >= many * LANES;
#if GK_LEVEL == 2
  if (type == GK_BF16 && many % 2 == 0 && full) {
    GK_UNROLL
    for (int k = 0; k < many; k += 2) v_load_bf16_pair((const gk_bf16 *)p + i + k * LANES, x + k);
    return;
  }
#endif
  if (full) EACH_OF(many) x[k] = v_ld(p, type, i + k * LANES, i + many * LANES);
  else EACH_OF(many) x[k] = v_ld(p, type, i + k * LANES, n);
}
INLINED void v_sts(void *p, int many, int type, int64_t i, int64_t n, const vf *x) {
  const int full = n - i >= many * LANES;
#if GK_LEVEL == 2
  if (type == GK_BF16 && many % 2 == 0 && full) {
    GK_UNROLL
    for (int k = 0; k < many; k += 2) v_store_bf16_pair((gk_bf16 *)p + i + k * LANES, x + k);
    return;
  }
#endif
  if (full) EACH_OF(many) v_st(p, type, i + k * LANES, i + many * LANES, x[k]);
  else EACH_OF(many) v_st(p, type, i + k * LANES, n, x[k]);
}

// What is larger than PAST bytes is written past the caches by v_store_past, to whole aligned lines: no
// line is read before it is written, which is a third of a copy's traffic and two fifths of a sum's of two,
// and the core's other work keeps its caches. v_settle ends such stores, before others are told.
enum { PAST = 4 << 20 };
INLINED int past(const void *p, int64_t bytes) { return bytes >= PAST && (uintptr_t)p % 64 == 0; }
INLINED void v_settle(void) {
#if GK_LEVEL > 0
  _mm_sfence();
#endif
}

// prefetch asks for the lines of some bytes from p on.
INLINED void prefetch(const void *p, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char *)p + b);
}

// at is the address of element i.
INLINED const void *at(const void *p, int type, int64_t i) {
  return (const char *)p + i * (type == GK_BF16 ? 2 : 4);
}
INLINED void *at_w(void *p, int type, int64_t i) { return (char *)p + i * (type == GK_BF16 ? 2 : 4); }

static const float V_ROOTS[LANES] = { // 2^(i/16)
    0x1p+0f,        0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fep+0f,  0x1.3dea64p+0f,
    0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
    0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
static const float V_SIXTEENTH = 0x1.8p19f; // adding it rounds to a sixteenth

// v_exps turns each of `many` vectors into e^x to 1e-7: x = n·ln 2 + r, where n is a whole number of
// sixteenths. 2^(n mod 1) is looked up, and e^r is 1 + r + r²·(a line through (e^r−1−r)/r² at the
// Chebyshev nodes of |r| ≤ ln 2 / 32). A NaN stays one, −∞ gives 0 and what is too large ∞.
INLINED void v_exps(vf *x, int many) {
  vf t[STEP], n[STEP], root[STEP], square[STEP], p[STEP];
  EACH_OF(many) x[k] = v_max(v_set(-104.0f), x[k]);
  EACH_OF(many) x[k] = v_min(v_set(89.0f), x[k]);
  EACH_OF(many) t[k] = v_fma(x[k], v_set(1.44269504f), v_set(V_SIXTEENTH));
  EACH_OF(many) n[k] = v_sub(t[k], v_set(V_SIXTEENTH));
  EACH_OF(many) root[k] = v_look_up(V_ROOTS, t[k]);
  EACH_OF(many) x[k] = v_fnma(n[k], v_set(0x1.62ep-1f), x[k]); // ln 2 in two parts: the first product is exact
  EACH_OF(many) x[k] = v_fnma(n[k], v_set(0x1.0bfbe8p-15f), x[k]);
  EACH_OF(many) p[k] = v_fma(v_set(0x1.55565cp-3f), x[k], v_set(0x1.000148p-1f));
  EACH_OF(many) square[k] = v_mul(x[k], x[k]);
  EACH_OF(many) p[k] = v_fma(p[k], square[k], x[k]);
  EACH_OF(many) p[k] = v_fma(p[k], root[k], root[k]);
  EACH_OF(many) x[k] = v_scale_16ths(p[k], t[k], n[k]);
}

// v_falling_exp2s turns each of `many` vectors into 2^x, as v_exps does e^x, for x below 2^17. r = x − n
// is exact, and (2^r−1)/r a parabola.
INLINED void v_falling_exp2s(vf *x, int many) {
  vf t[STEP], n[STEP], root[STEP], p[STEP];
  EACH_OF(many) x[k] = v_max(v_set(-151.0f), x[k]);
  EACH_OF(many) t[k] = v_add(x[k], v_set(V_SIXTEENTH));
  EACH_OF(many) n[k] = v_sub(t[k], v_set(V_SIXTEENTH));
  EACH_OF(many) root[k] = v_look_up(V_ROOTS, t[k]);
  EACH_OF(many) x[k] = v_sub(x[k], n[k]);
  EACH_OF(many) p[k] = v_fma(v_set(0x1.c6b29ap-5f), x[k], v_set(0x1.ebff92p-3f));
  EACH_OF(many) p[k] = v_fma(p[k], x[k], v_set(0x1.62e43p-1f));
  EACH_OF(many) x[k] = v_mul(x[k], root[k]);
  EACH_OF(many) p[k] = v_fma(p[k], x[k], root[k]);
  EACH_OF(many) x[k] = v_scale_16ths(p[k], t[k], n[k]);
}
// v_exp2 is 2^x to 1e-7: x = n + r for a whole n, and (2^r−1)/r is interpolated.
INLINED vf v_exp2(vf x) {
  const float magic = 12582912.0f;
  x = v_min(v_set(129.0f), v_max(v_set(-151.0f), x));
  vf t = v_add(x, v_set(magic));
  vf n = v_sub(t, v_set(magic));
  vf r = v_sub(x, n);
  vf p = v_fma(v_set(0x1.4413cep-13f), r, v_set(0x1.5f08f2p-10f));
  p = v_fma(p, r, v_set(0x1.3b2a52p-7f));
  p = v_fma(p, r, v_set(0x1.c6af6cp-5f));
  p = v_fma(p, r, v_set(0x1.ebfbep-3f));
  p = v_fma(p, r, v_set(0x1.62e43p-1f));
  return v_scale(v_fma(p, r, v_set(1.0f)), t, n);
}

// v_weights turns each of `many` vectors into 2^x to 2e-7 for x from −126 to 1/2, exact at 0: x = n + r for a
// whole n, at most 0, and (2^r−1)/r is interpolated. It gives 0 for −127 and below, and keeps a NaN. Adding n to the
// exponent is faster than to scale, and weights that small are nothing beside the largest of their row, which is 1.
INLINED void v_weights(vf *x, int many) {
  vf t[STEP], p[STEP];
  const vf magic = v_set(12582912.0f); // 1.5·2^23: adding it rounds to an integer, in the lowest bits
  EACH_OF(many) x[k] = v_max(v_set(-127.0f), x[k]);
  EACH_OF(many) t[k] = v_add(v_min(x[k], v_set(0.0f)), magic); // of a NaN n is 0, or its own bits would be added
  EACH_OF(many) x[k] = v_sub(x[k], v_sub(t[k], magic));
  EACH_OF(many) p[k] = v_fma(v_set(0x1.5ec866p-10f), x[k], v_set(0x1.3cbf6p-7f));
  EACH_OF(many) p[k] = v_fma(p[k], x[k], v_set(0x1.c6afeep-5f));
  EACH_OF(many) p[k] = v_fma(p[k], x[k], v_set(0x1.ebfa4cp-3f));
  EACH_OF(many) p[k] = v_fma(p[k], x[k], v_set(0x1.62e43p-1f));
  EACH_OF(many) p[k] = v_fma(p[k], x[k], v_set(1.0f));
  EACH_OF(many) x[k] = v_raise(p[k], t[k], 23);
}
