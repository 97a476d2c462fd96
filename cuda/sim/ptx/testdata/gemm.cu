// C = A·B for row-major bf16 A [M,K] and B [K,N], with C in fp32. A block of four
// warps makes 64×64 of C; tiles of A and B come in three stages by cp.async. M and N are
// multiples of 64, K of 32.
struct Args {
    const unsigned short *a, *b;
    float *c;
    int m, n, k;
};

static __device__ unsigned address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

static __device__ void copy16(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

extern "C" __global__ void __launch_bounds__(128) gemm(const Args g) {
    extern __shared__ __align__(16) unsigned short tiles[]; // 3 × (64×40 of A, 32×72 of B)
    const int A = 64 * 40, B = 32 * 72, stage = A + B;
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    auto fetch = [&](int s, int k0) {
        unsigned short *at = tiles + s * stage;
        for (int i = t; i < 256; i += 128) copy16(address(at + i / 4 * 40 + i % 4 * 8), g.a + (long)(row0 + i / 4) * g.k + k0 + i % 4 * 8);
        for (int i = t; i < 256; i += 128) copy16(address(at + A + i / 8 * 72 + i % 8 * 8), g.b + (long)(k0 + i / 8) * g.n + col0 + i % 8 * 8);
    };
    float acc[8][4] = {};
    int steps = g.k / 32;
    for (int s = 0; s < 2; s++) {
        if (s < steps) fetch(s, s * 32);
        asm volatile("cp.async.commit_group;");
    }
    for (int s = 0; s < steps; s++) {
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        if (s + 2 < steps) fetch((s + 2) % 3, (s + 2) * 32);
        asm volatile("cp.async.commit_group;");
        unsigned short *at = tiles + s % 3 * stage;
        for (int k = 0; k < 32; k += 16) {
            unsigned a0, a1, a2, a3;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                         : "r"(address(at + (warp * 16 + lane % 16) * 40 + k + lane / 16 * 8)));
            for (int j = 0; j < 8; j++) {
                unsigned b0, b1;
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                             : "=r"(b0), "=r"(b1)
                             : "r"(address(at + A + (k + lane % 16) * 72 + j * 8)));
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3])
                             : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
            }
        }
    }
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 4; i++)
            g.c[(long)(row0 + warp * 16 + lane / 4 + i / 2 * 8) * g.n + col0 + j * 8 + lane % 4 * 2 + i % 2] = acc[j][i];
}

// sum[0] is that of n numbers, by one block of 256: shuffles in the warps, shared memory between them.
extern "C" __global__ void __launch_bounds__(256) sum(const float *x, float *out, int n) {
    __shared__ float part[8];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += 256) v += x[i];
    for (int m = 16; m; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < 8 ? part[threadIdx.x] : 0;
        for (int m = 4; m; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
        if (threadIdx.x == 0) *out = v;
    }
}
