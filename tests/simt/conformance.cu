/* Conformance test: every wrapper of gpu.cuh on fixed data. The emulator writes its results to a
 * file; the same program, built by nvcc, runs on a GPU and compares:
 *
 *   conformance write FILE      conformance compare FILE
 *
 * The data are small integers, so that sums are exact in any order; only ex2.approx has a
 * tolerance. */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/simt/planted.h"

enum { WORDS_MAX = 8192 };

/* ---- kernels of one warp or one block, which write words ---- */

__global__ void convert_numbers(uint32_t *out)
{
    static const uint32_t high[] = {0x3f80, 0xbf81, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x0001, 0x0000};
    static const uint32_t low[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int i = threadIdx.x; i < 48; i += 32) {
        float x = gpu_from_bits(high[i % 8] << 16 | low[i / 8]);
        out[i] = gpu_bf16(x);
        out[48 + i] = gpu_pack(x, -x);
        out[96 + i] = gpu_bits(gpu_float(static_cast<bf16>(i * 997)));
        float y = gpu_from_bits(0x3f800001u + 0x12345u * static_cast<uint32_t>(i));
        out[144 + i] = gpu_bits(gpu_multiply(y, y) - y); /* not fused */
    }
}

__global__ void compute_powers(uint32_t *out)
{
    for (int i = threadIdx.x; i < 256; i += 32) {
        out[i] = gpu_bits(gpu_exp2(static_cast<float>(i - 200) * 0.37f));
    }
}

__global__ void exchange_lanes(uint32_t *out)
{
    uint32_t t = threadIdx.x, x = t * t + 1;
    out[t] = __shfl_xor_sync(~0u, x, 5);
    out[32 + t] = __shfl_down_sync(~0u, x, 7);
    out[64 + t] = __shfl_sync(~0u, x, static_cast<int>(t / 2 + 3));
    out[96 + t] = __ballot_sync(~0u, x % 3 == 0) + static_cast<uint32_t>(__popc(x));
    out[128 + t] = __umulhi(x * 0x9E3779B9u, 0xD2511F53u);
    if (t == 0) {
        out[160] = 0;
    }
    __syncwarp();
    gpu_atomic_max(&out[160], x * 0x9E3779B9u);
}

__global__ void load_matrices(uint32_t *out)
{
    GPU_SHARED(bf16, memory, 32 * 8);
    int lane = threadIdx.x;
    for (int i = 0; i < 8; i++) {
        memory[lane * 8 + i] = static_cast<bf16>(lane * 8 + i);
    }
    __syncwarp();
    uint32_t r[4];
    gpu_load_matrix(r, &memory[(31 - lane) * 8]);
    for (int i = 0; i < 4; i++) {
        out[lane * 8 + i] = r[i];
    }
    gpu_load_matrix_transposed(r, &memory[lane * 8]);
    for (int i = 0; i < 4; i++) {
        out[lane * 8 + 4 + i] = r[i];
    }
}

__global__ void multiply_fragments(uint32_t *out)
{
    int lane = threadIdx.x;
    uint32_t a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; i++) {
        a[i] = gpu_pack(static_cast<float>((lane * 7 + i * 3) % 11 - 5),
                        static_cast<float>((lane + i) % 5));
        d[i] = static_cast<float>(lane - i);
    }
    for (int i = 0; i < 2; i++) {
        b[i] = gpu_pack(static_cast<float>((lane * 5 + i) % 13 - 6),
                        static_cast<float>((lane * 3 + i) % 7));
    }
    gpu_mma_bf16(d, a, b);
    for (int i = 0; i < 4; i++) {
        out[lane * 4 + i] = gpu_bits(d[i]);
    }
}

__global__ void copy_words(uint32_t *out, const uint32_t *in)
{
    GPU_SHARED(uint32_t, memory, 64 * 4);
    int t = threadIdx.x;
    gpu_copy_async(&memory[t * 4], &in[(63 - t) * 4], t % 3 != 0);
    gpu_copy_commit();
    gpu_copy_wait<0>();
    __syncthreads();
    uint4 x = gpu_load16(&memory[(t + 1) % 64 * 4]);
    gpu_store16(&out[t * 4], x);
}

/* Warp 0 arrives at a named barrier without waiting; warp 1 waits there for its data. */
__global__ void pass_words(uint32_t *out)
{
    GPU_SHARED(uint32_t, memory, 32);
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        memory[lane] = static_cast<uint32_t>(lane * 3 + 1);
        gpu_barrier_arrive(2, 64);
    } else {
        gpu_barrier_sync(2, 64);
        out[lane] = memory[31 - lane];
    }
}

/* O [64, 128] = (A B^T) V, for A [64, 64], B and V [128, ...]. A B^T is rounded to bf16 in
 * registers. This tests the forms of wgmma with A in registers and B not transposed. */
__global__ void __launch_bounds__(128)
    multiply_chain(const __grid_constant__ gpu_map map_a, const __grid_constant__ gpu_map map_b,
                   const __grid_constant__ gpu_map map_v, uint32_t *out)
{
#ifdef GPU_HAS_SM90
    GPU_SHARED_DYNAMIC(unsigned char, memory);
    gpu_require_swizzle_base(memory);
    unsigned char *b = memory + 8192, *v = b + 16384;
    gpu_mbarrier *full = reinterpret_cast<gpu_mbarrier *>(v + 2 * 16384);
    if (threadIdx.x == 0) {
        gpu_mbarrier_init(full, 1);
        gpu_fence_async();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        gpu_mbarrier_expect(full, 8192 + 3 * 16384);
        gpu_copy_box(memory, &map_a, 0, 0, full);
        gpu_copy_box(b, &map_b, 0, 0, full);
        gpu_copy_box(v, &map_v, 0, 0, full);
        gpu_copy_box(v + 16384, &map_v, 64, 0, full);
    }
    gpu_mbarrier_wait(full, 0);
    float s[16][4] = {}, o[16][4] = {};
    gpu_wgmma_order(s);
    gpu_wgmma_fence();
    for (int kk = 0; kk < 4; kk++) {
        gpu_wgmma(s, gpu_matrix_descriptor(memory) + 2 * kk, gpu_matrix_descriptor(b) + 2 * kk,
                  true);
    }
    gpu_wgmma_commit();
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(s);
    uint32_t p[8][4];
    for (int kk = 0; kk < 8; kk++) {
        for (int i = 0; i < 4; i++) {
            p[kk][i] = gpu_pack(s[2 * kk + i / 2][i % 2 * 2], s[2 * kk + i / 2][i % 2 * 2 + 1]);
        }
    }
    gpu_wgmma_order(p);
    gpu_wgmma_order(o);
    gpu_wgmma_fence();
    for (int kk = 0; kk < 8; kk++) {
        gpu_wgmma(o, p[kk], gpu_columns_descriptor(v, 16384) + 128 * kk, true);
    }
    gpu_wgmma_commit();
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(o);
    for (int i = 0; i < 64; i++) {
        out[i * 128 + threadIdx.x] = gpu_bits(o[i / 4][i % 4]);
    }
#endif
}

/* ---- memory that host and device access ---- */

#ifdef __CUDACC__
static uint32_t *allocate_words(size_t count)
{
    uint32_t *words = NULL;
    if (cudaMallocManaged(&words, count * 4) != cudaSuccess) {
        fprintf(stderr, "conformance: cannot allocate memory on the GPU: %s\n",
                cudaGetErrorString(cudaGetLastError()));
        exit(2);
    }
    return words;
}
static bool wait_for_device()
{
    return cudaDeviceSynchronize() == cudaSuccess;
}
static bool is_sm90()
{
    return gpu_capability() == 9;
}
static void release_words(uint32_t *words)
{
    cudaFree(words);
}
#else
static uint32_t *allocate_words(size_t count)
{
    return static_cast<uint32_t *>(aligned_alloc(64, count * 4));
}
static bool wait_for_device()
{
    return true;
}
static bool is_sm90()
{
    return true;
}
static void release_words(uint32_t *words)
{
    free(words);
}
#endif

/* ---- list of cases ---- */

static void run_numbers(uint32_t *out, const uint32_t *)
{
    GPU_LAUNCH(convert_numbers, 1, 32, 0, 0, out);
}
static void run_powers(uint32_t *out, const uint32_t *)
{
    GPU_LAUNCH(compute_powers, 1, 32, 0, 0, out);
}
static void run_lanes(uint32_t *out, const uint32_t *)
{
    GPU_LAUNCH(exchange_lanes, 1, 32, 0, 0, out);
}
static void run_matrices(uint32_t *out, const uint32_t *)
{
    GPU_LAUNCH(load_matrices, 1, 32, 0, 0, out);
}
static void run_mma(uint32_t *out, const uint32_t *)
{
    GPU_LAUNCH(multiply_fragments, 1, 32, 0, 0, out);
}
static void run_copies(uint32_t *out, const uint32_t *in)
{
    GPU_LAUNCH(copy_words, 1, 64, 0, 0, out, in);
}
static void run_passing(uint32_t *out, const uint32_t *)
{
    GPU_LAUNCH(pass_words, 1, 64, 0, 0, out);
}
static void run_gemm(uint32_t *out, const uint32_t *in)
{
    const bf16 *x = reinterpret_cast<const bf16 *>(in);
    planted_gemm(PLANTED_NONE, reinterpret_cast<float *>(out), x, x + 8192, 70, 66, 128);
}
static void run_pipeline(uint32_t *out, const uint32_t *in)
{
    const bf16 *x = reinterpret_cast<const bf16 *>(in);
    planted_pipeline(PLANTED_NONE, reinterpret_cast<float *>(out), x, x + 8192, 62, 66, 128);
}

static void run_chain(uint32_t *out, const uint32_t *in)
{
    const bf16 *x = reinterpret_cast<const bf16 *>(in);
    const int bytes = 8192 + 3 * 16384 + int{sizeof(gpu_mbarrier)};
    gpu_map a, b, v;
    if (!gpu_map_make(&a, x, 64, 64, 64, 64, 64) ||
        !gpu_map_make(&b, x + 4096, 128, 64, 64, 128, 64) ||
        !gpu_map_make(&v, x + 1024, 128, 128, 128, 128, 64)) {
        printf("conformance: the driver refuses a TMA map\n"); /* and `out` is wrong */
        return;
    }
    const char *refused = gpu_allow_shared(GPU_KERNEL(multiply_chain), bytes);
    if (refused != NULL) {
        printf("conformance: %d of %zu bytes of shared memory: %s\n", bytes, gpu_shared_limit(),
               refused);
        return;
    }
    GPU_LAUNCH(multiply_chain, 1, 128, bytes, 0, a, b, v, out);
}

static void run_outer(uint32_t *out, const uint32_t *in)
{
    const bf16 *x = reinterpret_cast<const bf16 *>(in);
    planted_outer(PLANTED_NONE, reinterpret_cast<float *>(out), x, x + 8192);
}

/* The counters and the data follow the results. */
static void run_turns(uint32_t *out, const uint32_t *in)
{
    float *x = reinterpret_cast<float *>(out + 128);
    memset(out, 0, (64 + 2) * sizeof *out);
    for (int i = 0; i < 64 * 4; i++) {
        x[i] = bf16_to_f32(reinterpret_cast<const bf16 *>(in)[i]);
    }
    planted_turns(PLANTED_NONE, reinterpret_cast<float *>(out), x, out + 64);
}

static const struct section {
    const char *name;
    int words;
    double tolerance; /* relative; 0: equal bits */
    bool sm90;
    void (*run)(uint32_t *out, const uint32_t *in);
} sections[] = {
    {"numbers", 192, 0, false, run_numbers},
    {"ex2", 256, 0x1p-21, false, run_powers},
    {"lanes", 161, 0, false, run_lanes},
    {"ldmatrix", 256, 0, false, run_matrices},
    {"mma.sync", 128, 0, false, run_mma},
    {"cp.async", 256, 0, false, run_copies},
    {"named barriers", 32, 0, false, run_passing},
    {"tile GEMM", 70 * 66, 0, false, run_gemm},
    {"TMA, mbarrier, wgmma", 62 * 66, 0, true, run_pipeline},
    {"wgmma of registers and of columns", 64 * 128, 0, true, run_chain},
    {"wgmma of two transposed operands", 64 * 64, 0, true, run_outer},
    {"turns of blocks", 64 + 2, 0, true, run_turns},
};

static bool is_equal_word(const section &s, uint32_t actual, uint32_t expected)
{
    if (actual == expected) {
        return true;
    }
    float a, b;
    memcpy(&a, &actual, 4);
    memcpy(&b, &expected, 4);
    double difference = fabs(static_cast<double>(a) - static_cast<double>(b));
    return s.tolerance > 0 && difference <= s.tolerance * fabs(static_cast<double>(b));
}

static int compare_section(const section &s, const uint32_t *actual, const uint32_t *expected)
{
    int wrong_count = 0;
    for (int i = 0; i < s.words; i++) {
        if (!is_equal_word(s, actual[i], expected[i]) && wrong_count++ < 4) {
            printf("    word %d is %08x; the result of the emulator is %08x\n", i, actual[i],
                   expected[i]);
        }
    }
    printf("conformance: %s: %s\n", s.name, wrong_count == 0 ? "agrees" : "WRONG");
    return wrong_count != 0;
}

/* bf16 integers from -8 to 7. */
static void fill_integers(uint32_t *in, size_t count)
{
    uint32_t state = 7;
    for (size_t i = 0; i < count; i++) {
        in[i] = 0;
        for (int half = 0; half < 2; half++) {
            state = state * 1664525u + 1013904223u;
            float x = static_cast<float>(static_cast<int>(state >> 28) - 8);
            in[i] |= static_cast<uint32_t>(f32_to_bf16(x)) << (16 * half);
        }
    }
}

int main(int count, char **arguments)
{
    bool is_write = count == 3 && strcmp(arguments[1], "write") == 0;
    if (count != 3 || (!is_write && strcmp(arguments[1], "compare") != 0)) {
        fprintf(stderr, "usage: conformance write|compare FILE\n");
        return 64;
    }
    FILE *file = fopen(arguments[2], is_write ? "wb" : "rb");
    if (file == NULL) {
        perror(arguments[2]);
        return 66;
    }
    uint32_t *out = allocate_words(WORDS_MAX), *in = allocate_words(WORDS_MAX + 1024);
    std::vector<uint32_t> expected(WORDS_MAX);
    fill_integers(in, WORDS_MAX + 1024);
    int wrong_count = 0;
    printf("conformance: %d multiprocessors\n", gpu_processors());
    for (const section &s : sections) {
        size_t words = static_cast<size_t>(s.words);
        memset(out, 0xff, WORDS_MAX * 4);
        if (!s.sm90 || is_sm90()) {
            s.run(out, in);
        }
        const char *launch_error = gpu_launch_error();
        bool finished = wait_for_device() && launch_error == NULL;
        if (is_write) {
            wrong_count += fwrite(out, 4, words, file) != words;
            continue;
        }
        bool read = fread(expected.data(), 4, words, file) == words;
        if (s.sm90 && !is_sm90()) {
            printf("conformance: %s: skipped, this GPU is not sm_90\n", s.name);
        } else if (!finished || !read) {
            printf("conformance: %s: %s\n", s.name,
                   read ? "the launch failed" : "FILE is too short");
            wrong_count++;
        } else {
            wrong_count += compare_section(s, out, expected.data());
        }
    }
    wrong_count += fclose(file) != 0;
    release_words(out);
    release_words(in);
    return wrong_count != 0;
}
