/* Test of the emulator: it must detect every planted bug (planted.h), and report no error in
 * kernels without a bug. Each run is a child process. It succeeds, finds a wrong result, or is
 * ended by the emulator or a sanitizer. A bug counts as detected if the run fails in at least one
 * schedule; with the thread sanitizer, in the first schedule. A bug that needs STARVED_WARPS fails
 * in no other schedule. */
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "tests/simt/planted.h"

enum tool { ANY_BUILD, ADDRESS_ONLY, THREAD_ONLY, STARVED_WARPS };

#if defined(SIMT_ASAN)
static const tool this_build = ADDRESS_ONLY;
#elif defined(SIMT_TSAN)
static const tool this_build = THREAD_ONLY;
#else
static const tool this_build = ANY_BUILD;
#endif

/* Symbolizing takes seconds, and the test does not read the reports of sanitizers. */
extern "C" const char *__asan_default_options(void);
extern "C" const char *__asan_default_options(void)
{
    return "symbolize=0";
}
extern "C" const char *__tsan_default_options(void);
extern "C" const char *__tsan_default_options(void)
{
    return "symbolize=0";
}

static uint32_t state = 1;

/* Small integers: sums of their products are exact in any order. */
static float random_number()
{
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 24) / 16.0f - 8.0f;
}

static bf16 random_bf16()
{
    return gpu_bf16(floorf(random_number()));
}

static bool run_sums(planted_bug bug)
{
    const int rows = 5, columns = 200;
    std::vector<float> x(rows * columns), out(rows, NAN);
    for (float &e : x) {
        e = random_number();
    }
    planted_row_sums(bug, out.data(), x.data(), rows, columns);
    bool passed = true;
    for (int r = 0; r < rows; r++) {
        double sum = 0, squares = 0;
        for (int c = 0; c < columns; c++) {
            sum += static_cast<double>(x[static_cast<size_t>(r * columns + c)]);
        }
        for (int c = 0; c < columns; c++) {
            double d = static_cast<double>(x[static_cast<size_t>(r * columns + c)]) - sum / columns;
            squares += d * d;
        }
        double error = fabs(static_cast<double>(out[static_cast<size_t>(r)]) - (sum + squares));
        passed = passed && error <= 1e-2;
    }
    return passed;
}

typedef void gemm_function(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n,
                           int k);

static bool check_gemm(gemm_function *function, planted_bug bug)
{
    const size_t m = 70, n = 66, k = 320;
    std::vector<bf16> a(m * k), b(n * k);
    std::vector<float> c(m * n, NAN);
    for (bf16 &e : a) {
        e = random_bf16();
    }
    for (bf16 &e : b) {
        e = random_bf16();
    }
    function(bug, c.data(), a.data(), b.data(), m, n, k);
    bool passed = true;
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (size_t l = 0; l < k; l++) {
                sum += gpu_float(a[i * k + l]) * gpu_float(b[j * k + l]);
            }
            passed = passed && c[i * n + j] == sum;
        }
    }
    return passed;
}

static bool run_gemm(planted_bug bug)
{
    return check_gemm(planted_gemm, bug);
}

static bool run_values(planted_bug bug)
{
    const size_t keys = 192;
    std::vector<bf16> q(64 * 64), k(keys * 64), v(keys * 64);
    std::vector<float> o(64 * 64, NAN);
    for (std::vector<bf16> *x : {&q, &k, &v}) {
        for (bf16 &e : *x) {
            e = random_bf16();
        }
    }
    planted_values(bug, o.data(), q.data(), k.data(), v.data(), keys);
    bool passed = true;
    for (size_t i = 0; i < 64; i++) {
        float sums[64] = {};
        for (size_t j = 0; j < keys; j++) {
            float score = 0;
            for (size_t l = 0; l < 64; l++) {
                score += gpu_float(q[i * 64 + l]) * gpu_float(k[j * 64 + l]);
            }
            score = gpu_float(gpu_bf16(fmaxf(score, 0)));
            for (size_t l = 0; l < 64; l++) {
                sums[l] += score * gpu_float(v[j * 64 + l]);
            }
        }
        for (size_t l = 0; l < 64; l++) {
            passed = passed && o[i * 64 + l] == sums[l];
        }
    }
    return passed;
}

static bool run_pipeline(planted_bug bug)
{
    return check_gemm(planted_pipeline, bug);
}

static bool run_outer(planted_bug bug)
{
    const size_t rows = 128, columns = 64;
    /* gpu_load16 needs multiples of 16 bytes */
    std::vector<uint4> memory(2 * rows * columns / 8);
    bf16 *a = reinterpret_cast<bf16 *>(memory.data()), *b = a + rows * columns;
    std::vector<float> c(columns * columns, NAN);
    for (size_t i = 0; i < 2 * rows * columns; i++) {
        a[i] = random_bf16();
    }
    planted_outer(bug, c.data(), a, b);
    bool passed = true;
    for (size_t i = 0; i < columns; i++) {
        for (size_t j = 0; j < columns; j++) {
            float sum = 0;
            for (size_t l = 0; l < rows; l++) {
                sum += gpu_float(a[l * columns + i]) * gpu_float(b[l * columns + j]);
            }
            passed = passed && c[i * columns + j] == sum;
        }
    }
    return passed;
}

static bool run_turns(planted_bug bug)
{
    const size_t count = 64, blocks = 4;
    std::vector<float4> memory(count / 4);
    auto *out = reinterpret_cast<float *>(memory.data());
    std::vector<float> x(count * blocks);
    std::vector<uint32_t> words(2);
    for (float &e : x) {
        e = random_number();
    }
    planted_turns(bug, out, x.data(), words.data());
    bool passed = true;
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (size_t block = 0; block < blocks; block++) {
            sum += sum + x[i * blocks + block];
        }
        passed = passed && out[i] == sum;
    }
    return passed;
}

static bool run_steps(planted_bug bug)
{
    const size_t steps = 4, elements = 512;
    /* TMA needs multiples of 16 bytes */
    std::vector<uint4> memory(steps * elements / 8);
    bf16 *x = reinterpret_cast<bf16 *>(memory.data());
    std::vector<float> sums(steps, NAN);
    uint32_t count = 0;
    for (size_t i = 0; i < steps * elements; i++) {
        x[i] = random_bf16();
    }
    planted_steps(bug, sums.data(), &count, x, steps);
    bool passed = count == steps;
    for (size_t step = 0; step < steps; step++) {
        float sum = 0;
        for (size_t i = 0; i < elements; i++) {
            sum += gpu_float(x[step * elements + i]);
        }
        passed = passed && sums[step] == sum;
    }
    return passed;
}

static bool run_neighbors(planted_bug bug)
{
    const size_t blocks = 3;
    std::vector<float> x(64), out(64 * blocks, NAN);
    for (float &e : x) {
        e = random_number();
    }
    planted_neighbors(bug, out.data(), x.data(), blocks);
    bool passed = true;
    for (size_t i = 0; i < 64 * (bug == PLANTED_BLOCKS_SAME_WORD ? 1 : blocks); i++) {
        passed = passed && out[i] == x[(i + 1) % 64] + x[i % 32];
    }
    return passed;
}

static const struct planted {
    const char *name;
    planted_bug bug;
    bool (*run)(planted_bug bug);
    tool needs;
} all[] = {
    {"row sums", PLANTED_NONE, run_sums, ANY_BUILD},
    {"gemm", PLANTED_NONE, run_gemm, ANY_BUILD},
    {"values", PLANTED_NONE, run_values, ANY_BUILD},
    {"pipeline", PLANTED_NONE, run_pipeline, ANY_BUILD},
    {"outer", PLANTED_NONE, run_outer, ANY_BUILD},
    {"turns", PLANTED_NONE, run_turns, ANY_BUILD},
    {"steps", PLANTED_NONE, run_steps, ANY_BUILD},
    {"neighbors", PLANTED_NONE, run_neighbors, ANY_BUILD},
    {"scratch read too early", PLANTED_SUM_NO_BARRIER, run_sums, ANY_BUILD},
    {"scratch written too early", PLANTED_SUM_SCRATCH_REUSED, run_sums, ANY_BUILD},
    {"shared memory never written", PLANTED_SUM_SHARED_UNWRITTEN, run_sums, ANY_BUILD},
    {"cp.async wait too weak", PLANTED_COPY_WAIT_WEAK, run_gemm, ANY_BUILD},
    {"no barrier after cp.async", PLANTED_COPY_NO_BARRIER, run_gemm, ANY_BUILD},
    {"stage overwritten too early", PLANTED_COPY_STAGE_REUSED, run_gemm, ANY_BUILD},
    {"cp.async never waited for", PLANTED_COPY_NOT_WAITED, run_gemm, ANY_BUILD},
    {"ldmatrix misaligned", PLANTED_MATRIX_MISALIGNED, run_gemm, ANY_BUILD},
    {"keys and values overwritten", PLANTED_TILE_REUSED, run_values, ANY_BUILD},
    {"ring stage not empty", PLANTED_RING_NOT_EMPTY, run_pipeline, ANY_BUILD},
    {"wgmma not waited for", PLANTED_WGMMA_NO_WAIT, run_pipeline, ANY_BUILD},
    {"wgmma registers not fenced", PLANTED_WGMMA_NO_FENCE, run_pipeline, ANY_BUILD},
    {"written for wgmma, not fenced", PLANTED_WGMMA_STALE, run_pipeline, ANY_BUILD},
    {"mbarrier init not fenced", PLANTED_RING_NO_FENCE, run_pipeline, ANY_BUILD},
    {"tiles after a static array", PLANTED_RING_MISALIGNED, run_pipeline, ANY_BUILD},
    {"shared memory not allowed", PLANTED_SHARED_NOT_ALLOWED, run_pipeline, ANY_BUILD},
    {"stored for wgmma, not fenced", PLANTED_OUTER_STALE, run_outer, ANY_BUILD},
    {"stored without a swizzle", PLANTED_OUTER_NO_SWIZZLE, run_outer, ANY_BUILD},
    {"turn of a later block", PLANTED_TURN_NO_TICKET, run_turns, ANY_BUILD},
    {"turn not passed", PLANTED_TURN_NOT_PASSED, run_turns, ANY_BUILD},
    {"turn not waited for", PLANTED_TURN_NO_WAIT, run_turns, THREAD_ONLY},
    {"turn without a fence", PLANTED_TURN_NO_FENCE, run_turns, ANY_BUILD},
    {"turn passed too early", PLANTED_TURN_EARLY, run_turns, THREAD_ONLY},
    {"stale bulk copy", PLANTED_BULK_STALE, run_turns, ANY_BUILD},
    {"bulk copy not waited for", PLANTED_BULK_NOT_WAITED, run_turns, ANY_BUILD},
    {"tile overwritten before the bulk copy", PLANTED_BULK_NOT_READ, run_turns, ANY_BUILD},
    {"arrivals one step ahead", PLANTED_STEPS_AHEAD, run_steps, STARVED_WARPS},
    {"global memory past its end", PLANTED_GLOBAL_PAST_END, run_neighbors, ADDRESS_ONLY},
    {"dynamic array past its end", PLANTED_DYNAMIC_PAST_END, run_neighbors, ADDRESS_ONLY},
    {"static array past its end", PLANTED_STATIC_PAST_END, run_neighbors, ADDRESS_ONLY},
    {"barriers in two branches", PLANTED_BARRIER_DIVERGENT, run_neighbors, ANY_BUILD},
    {"a barrier with two counts", PLANTED_BARRIER_COUNTS, run_neighbors, ANY_BUILD},
    {"a barrier never reached", PLANTED_BARRIER_UNREACHED, run_neighbors, ANY_BUILD},
    {"no thread waits at a barrier", PLANTED_BARRIER_LEFT, run_neighbors, ANY_BUILD},
    {"a lane absent", PLANTED_SHUFFLE_ABSENT, run_neighbors, ANY_BUILD},
    {"two blocks, one word", PLANTED_BLOCKS_SAME_WORD, run_neighbors, THREAD_ONLY},
};

static const struct order {
    const char *name;
    unsigned seed;
    bool starves_warps;
} orders[] = {{"fifo", 1, false},   {"lifo", 1, false},  {"warp", 1, false},  {"random", 1, false},
              {"random", 2, false}, {"lowest", 1, true}, {"highest", 1, true}};
enum { ORDERS = 7 };

/* Runs a kernel in a child process; returns whether it failed. Standard error goes to `output`. */
static bool is_detected(const planted &p, const order &o, FILE *output)
{
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(output), 2);
        simt::set_schedule(o.name, o.seed);
        exit(p.run(p.bug) ? 0 : 1);
    }
    int exit_status = 0;
    if (child < 0 || waitpid(child, &exit_status, 0) != child) {
        perror("test_planted");
        exit(2);
    }
    return exit_status != 0;
}

static void print_output(FILE *output)
{
    char line[512];
    rewind(output);
    for (int i = 0; i < 60 && fgets(line, sizeof line, output) != nullptr; i++) {
        fputs(line, stdout);
    }
}

static bool test_bug(const planted &p)
{
    bool detected_later = false, detected_first = false, detected_fair = false;
    printf("%-32s", p.name);
    FILE *output = tmpfile();
    for (int i = 0; i < ORDERS && !(detected_first && this_build != ANY_BUILD); i++) {
        bool failed = is_detected(p, orders[i], output);
        detected_first = detected_first || (i == 0 && failed);
        detected_later = detected_later || (i > 0 && failed);
        detected_fair = detected_fair || (!orders[i].starves_warps && failed);
        printf(" %s%u:%s", orders[i].name, orders[i].seed, failed ? "detected" : "-");
    }
    bool passed = p.bug == PLANTED_NONE       ? !detected_first && !detected_later
                  : p.needs == STARVED_WARPS  ? detected_later && !detected_fair
                  : this_build == THREAD_ONLY ? detected_first
                                              : detected_first || detected_later;
    printf("%s\n", passed ? "" : "  WRONG");
    if (!passed) {
        print_output(output);
    }
    fclose(output);
    return passed;
}

int main()
{
    int wrong_count = 0;
    for (const planted &p : all) {
        if (p.needs == ANY_BUILD || p.needs == STARVED_WARPS || p.needs == this_build) {
            wrong_count += !test_bug(p);
        }
    }
    printf("%d wrong\n", wrong_count);
    return wrong_count != 0;
}
