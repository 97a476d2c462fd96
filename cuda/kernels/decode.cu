// Attention of a few new rows over a cache of keys and values.
#include "common.cuh"

// Sequence s has cached[s] rows in its cache, which has room for cache_len.
struct AttentionDecodeArgs {
  const void *q, *k, *v;
  const int *cached;
  void *k_cache, *v_cache, *out;
  int rows; // new ones, of all sequences
  int seq_len, cache_len, heads, kv_heads;
  int across; // how many times 16 bytes a row of keys is
  float scale;
};

constexpr int THREADS = 256;

__device__ __forceinline__ i64 cached(const AttentionDecodeArgs &a, i64 s) {
  return in_range(a.cached[s], 0x7fffffff);
}

// append copies the new rows' keys and values to the caches, a warp each, 16 bytes a lane; what has no room stays
// out. It moves two rows of kv_heads·D numbers for each new row, twice, and computes nothing.
__device__ __forceinline__ void append(const AttentionDecodeArgs &a) {
  const int t = (blockIdx.x * THREADS + threadIdx.x) / 32, s = t / a.seq_len;
  if (t >= a.rows) return;
  const i64 place = cached(a, s) + t % a.seq_len;
  if (place >= a.cache_len) return;
  const i64 from = i64(t) * a.across, to = (i64(s) * a.cache_len + place) * a.across;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < a.across; i += 32) {
    reinterpret_cast<Words *>(a.k_cache)[to + i] = reinterpret_cast<const Words *>(a.k)[from + i];
    reinterpret_cast<Words *>(a.v_cache)[to + i] = reinterpret_cast<const Words *>(a.v)[from + i];
  }
}

// decode: a block takes one new row and one of its query heads. The lanes that hold a row of D numbers, 16
// bytes each, are a team; the block's teams share the cached rows in turn, two at a time so that four loads
// are under way, each with a softmax of its own. In the end teams are merged in order.
//
// FLOPs: 4·D a cached row and query head. Bytes: a key-value head's cached rows, once from memory, as its
// query heads' blocks are neighbours and find them in L2: one FLOP a byte of a bf16 cache and query head of
// the group. So memory is the limit. A row is not split over blocks, as the operation has no place for parts;
// with eight sequences and twelve heads 96 blocks of 8 warps fill an L4.
template <typename T, int D> __device__ __forceinline__ void decode(const AttentionDecodeArgs &a) {
  constexpr int N = full<T>, TEAM = D / N, TEAMS = THREADS / TEAM;
  __shared__ float parts[TEAMS][D];
  __shared__ float mosts[TEAMS], sums[TEAMS];
  const int team = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
  const int head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
  const int t = blockIdx.x / a.heads, s = t / a.seq_len;
  const i64 rows = cached(a, s) + t % a.seq_len + 1, here = (i64(t) * a.heads + head) * TEAM;
  const T *const k_cache = static_cast<const T *>(a.k_cache), *const v_cache = static_cast<const T *>(a.v_cache);
  T *const to = static_cast<T *>(a.out);
  float q[N], out[N] = {};
  if (rows > a.cache_len) { // this row is not in the cache
    if (team == 0) store(to, here + lane, out);
    return;
  }
  load(q, static_cast<const T *>(a.q), here + lane);
  const i64 stride = i64(a.kv_heads) * TEAM, first = i64(s) * a.cache_len * stride + kv_head * TEAM + lane;
  float most = nothing(), sum = 0;
  // All teams go on equally long, as a team's lanes add up with those of the warp's other teams.
  for (i64 j = team; j - team < rows; j += 2 * TEAMS) {
    float k[2][N] = {}, v[2][N] = {}, score[2] = {};
#pragma unroll
    for (int u = 0; u < 2; u++) {
      if (j + u * TEAMS >= rows) continue;
      load(k[u], k_cache, first + (j + u * TEAMS) * stride);
      load(v[u], v_cache, first + (j + u * TEAMS) * stride);
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
#pragma unroll
      for (int i = 0; i < N; i++) score[u] += q[i] * k[u][i];
      score[u] = a.scale * group_sum<TEAM>(score[u]);
      // A score of −∞, which is an overflow, counts for nothing beside others; e^(−∞ − −∞) would be no number.
      if (j + u * TEAMS >= rows || score[u] == nothing()) continue;
      if (score[u] > most) {
        const float shrink = expf(most - score[u]);
        sum *= shrink;
#pragma unroll
        for (int i = 0; i < N; i++) out[i] *= shrink;
        most = score[u];
      }
      const float e = expf(score[u] - most);
      sum += e;
#pragma unroll
      for (int i = 0; i < N; i++) out[i] += e * v[u][i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; i++) parts[team][lane * N + i] = out[i];
  if (lane == 0) {
    mosts[team] = most;
    sums[team] = sum;
  }
  __syncthreads();
  if (team != 0) return;
#pragma unroll
  for (int i = 0; i < N; i++) out[i] = 0;
  most = mosts[0]; // of a team that has seen a row
  for (int w = 1; w < TEAMS && w < rows; w++) most = fmaxf(most, mosts[w]);
  sum = 0;
  for (int w = 0; w < TEAMS && w < rows; w++) {
    const float share = expf(mosts[w] - most);
    sum += share * sums[w];
#pragma unroll
    for (int i = 0; i < N; i++) out[i] += share * parts[w][lane * N + i];
  }
#pragma unroll
  for (int i = 0; i < N; i++) out[i] /= sum;
  store(to, here + lane, out);
}

#define KERNELS(T, NAME)                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 6)                                                 \
  attention_decode_append_##NAME(const AttentionDecodeArgs a) { append(a); }                               \
  extern "C" __global__ void __launch_bounds__(THREADS, 3)                                                 \
  attention_decode_h64_##NAME(const AttentionDecodeArgs a) { decode<T, 64>(a); }                           \
  extern "C" __global__ void __launch_bounds__(THREADS, 3)                                                 \
  attention_decode_h128_##NAME(const AttentionDecodeArgs a) { decode<T, 128>(a); }

KERNELS(float, f32)
KERNELS(bf16, bf16)
