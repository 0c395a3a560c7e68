/* Shared code of the tests of operations: seeded tensors between guard bytes, contexts for every
 * instruction set that this processor supports, and comparisons with the oracle.
 *
 * Letters of shapes are as in kernels.h: B batch, T tokens, N rows (B T), C width, H heads,
 * G key-value heads, D head width, F inner width, V vocabulary, P positions; in a GEMM, K inner
 * size and M outputs. */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kernels/kernels.h"
#include "tests/check.h"
#include "tests/kernels/oracle.h"
#ifdef OPERATION_SIMT
#include "tests/simt/backend.h"
#elif defined(OPERATION_CUDA)
#include "tests/kernels/on_gpu.h"
#elif defined(OPERATION_AMX_MODEL)
#include "tests/kernels/attention_model.h"
#endif

/* GUARD: guard bytes before and after the elements. UNTOUCHED: initial value of all bytes; elements
 * of such bytes are NaN. */
enum { GUARD = 64, UNTOUCHED = 0xff };

/* element_bytes - return the bytes of an element; the dtype may be ORACLE_F64. */
static inline size_t element_bytes(enum dtype dtype)
{
    return dtype == ORACLE_F64 ? 8 : dtype_bytes(dtype);
}

/* padded_bytes - return the bytes of a tensor, including the gaps between its rows. */
static inline size_t padded_bytes(struct tensor t)
{
    return (size_t)(t.rows * t.stride) * element_bytes(t.dtype);
}

/* operation_limits - return the limits of a test of GEMMs with this many rows. */
static inline struct kernels_limits operation_limits(int64_t rows)
{
    return (struct kernels_limits){.rows = rows,
                                   .width = 64,
                                   .inner = 64,
                                   .heads = 1,
                                   .head_width = 64,
                                   .sequence = 64,
                                   .vocabulary = 64,
                                   .training = true};
}

/* operation_tensor - allocate a tensor between guard bytes; release it with operation_release. */
static inline struct tensor operation_tensor(enum dtype dtype, int64_t rows, int64_t columns,
                                             int64_t stride)
{
    struct tensor t = {NULL, dtype, rows, columns, stride};
    char *memory = malloc(padded_bytes(t) + 2 * GUARD);
    CHECK(memory != NULL);
    memset(memory, UNTOUCHED, padded_bytes(t) + 2 * GUARD);
    t.data = memory + GUARD;
    return t;
}

/* operation_check_guards - check that nothing outside the elements was written: before, after, or
 * between the rows. */
static inline void operation_check_guards(struct tensor t)
{
    const unsigned char *p = t.data;
    for (size_t i = 0; i < GUARD; i++) {
        CHECK(p[-(ptrdiff_t)i - 1] == UNTOUCHED && p[padded_bytes(t) + i] == UNTOUCHED);
    }
    size_t size = element_bytes(t.dtype);
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = t.columns * (int64_t)size; c < t.stride * (int64_t)size; c++) {
            CHECK(p[(size_t)(r * t.stride) * size + (size_t)c] == UNTOUCHED);
        }
    }
}

/* operation_release - check the guard bytes and free a tensor, which may be absent. */
static inline void operation_release(struct tensor *t)
{
    if (t->data != NULL) {
        operation_check_guards(*t);
        free((char *)t->data - GUARD);
    }
    t->data = NULL;
}

/* operation_normals - return the first `count` normal numbers of a seed. They are computed once,
 * because the shapes, dtypes and instruction sets of a test use the same seeds. */
static inline const float *operation_normals(uint64_t seed, int64_t count)
{
    enum { SEEDS = 32 };
    static struct {
        uint64_t seed;
        int64_t count;
        float *numbers;
    } tables[SEEDS];
    uint64_t i = seed % SEEDS;
    if (tables[i].numbers == NULL || tables[i].seed != seed) {
        tables[i].count = 0;
        tables[i].seed = seed;
    }
    if (count > tables[i].count) {
        uint64_t key = random_key(seed, RANDOM_TEST, 0, 0);
        tables[i].numbers = realloc(tables[i].numbers, (size_t)count * sizeof(float));
        CHECK(tables[i].numbers != NULL);
        for (int64_t n = tables[i].count; n < count; n++) {
            tables[i].numbers[n] = random_normal(key, (uint64_t)n);
        }
        tables[i].count = count;
    }
    return tables[i].numbers;
}

/* operation_fill - fill a tensor with seeded normal numbers times scale. */
static inline void operation_fill(struct tensor t, uint64_t seed, double scale)
{
    const float *numbers = operation_normals(seed, t.rows * t.columns);
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = 0; c < t.columns; c++) {
            oracle_set(t, r, c, scale * numbers[r * t.columns + c]);
        }
    }
}

/* operation_random - allocate a tensor and fill it with random numbers. */
static inline struct tensor operation_random(enum dtype dtype, int64_t rows, int64_t columns,
                                             uint64_t seed, double scale)
{
    struct tensor t = operation_tensor(dtype, rows, columns, columns);
    operation_fill(t, seed, scale);
    return t;
}

/* operation_set - set all elements of a tensor to a value. */
static inline void operation_set(struct tensor t, double value)
{
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = 0; c < t.columns; c++) {
            oracle_set(t, r, c, value);
        }
    }
}

/* operation_copy - allocate a copy of a tensor in another dtype. */
static inline struct tensor operation_copy(struct tensor from, enum dtype dtype)
{
    struct tensor t = operation_tensor(dtype, from.rows, from.columns, from.columns);
    oracle_cast(t, from);
    return t;
}

/* operation_difference - compute max |a - b| / max |b|, with at least 1e-30 as denominator.
 *
 * Numerics  equal elements and pairs of NaN differ by 0; the result is infinity if another
 *           difference is NaN or infinite */
static inline double operation_difference(struct tensor a, struct tensor b)
{
    double max_difference = 0, size = 1e-30;
    CHECK(a.rows == b.rows && a.columns == b.columns);
    for (int64_t r = 0; r < a.rows; r++) {
        for (int64_t c = 0; c < a.columns; c++) {
            double x = oracle_get(a, r, c), y = oracle_get(b, r, c);
            if ((isnan(x) && isnan(y)) || x == y) {
                continue;
            }
            double difference = fabs(x - y);
            max_difference = !(difference <= max_difference) ? difference : max_difference;
            size = fabs(y) > size ? fabs(y) : size;
            if (isnan(difference) || isinf(difference)) {
                return INFINITY;
            }
        }
    }
    for (int64_t r = 0; r < b.rows; r++) {
        for (int64_t c = 0; c < b.columns; c++) {
            double y = fabs(oracle_get(b, r, c));
            size = isfinite(y) && y > size ? y : size;
        }
    }
    return max_difference / size;
}

/* operation_equal - return whether all bytes of two tensors are equal. */
static inline bool operation_equal(struct tensor a, struct tensor b)
{
    return padded_bytes(a) == padded_bytes(b) && memcmp(a.data, b.data, padded_bytes(a)) == 0;
}

#ifdef OPERATION_SIMT
/* The CUDA back-end in the emulator (tests/simt). It ignores the number of threads. */
static const char *const operation_variants[] = {"simt"};
enum { OPERATION_VARIANTS = 1, OPERATION_ON_GPU = 1, OPERATION_HOST = 1 };

static inline struct kernels *operation_context(struct device *dev, const char *set,
                                                enum dtype dtype, int threads,
                                                const struct kernels_limits *limits)
{
    (void)set;
    (void)threads;
    struct kernels *k = NULL;
    CHECK_OK(simt_kernels_create(dev, dtype, limits, &k));
    return k;
}
#elif defined(OPERATION_CUDA)
/* The CUDA back-end on GPU 0, or on an emulated GPU (GPU_EMULATOR). */
static const char *const operation_variants[] = {"gpu"};
enum { OPERATION_VARIANTS = 1, OPERATION_ON_GPU = 1, OPERATION_HOST = 0 };

static inline struct kernels *operation_context(struct device *dev, const char *set,
                                                enum dtype dtype, int threads,
                                                const struct kernels_limits *limits)
{
    (void)set;
    (void)threads;
    return on_gpu_context(dev, dtype, limits);
}
#else
#ifdef OPERATION_AMX_MODEL
/* The CPU back-end with AVX-512 BF16. Attention is compiled with a model of AMX (tile_model.h). */
static const char *const operation_variants[] = {"v4_bf16"};
enum { OPERATION_VARIANTS = 1, OPERATION_ON_GPU = 0, OPERATION_HOST = 1 };
#else
/* The instruction sets of the CPU back-end, best last. Each test runs with all supported ones. */
static const char *const operation_variants[] = {"baseline", "v3", "v4", "v4_bf16", "v4_amx"};
enum { OPERATION_VARIANTS = 5, OPERATION_ON_GPU = 0, OPERATION_HOST = 1 };
#endif

/* operation_context - create a context. If this processor lacks the instruction set or the dtype,
 * return NULL. If the test uses the model of AMX, skip the test instead. */
static inline struct kernels *operation_context(struct device *dev, const char *set,
                                                enum dtype dtype, int threads,
                                                const struct kernels_limits *limits)
{
    struct kernels *k = NULL;
    CHECK(setenv("BIREME_CPU", set, 1) == 0);
    if (kernels_create(dev, dtype, threads, limits, &k) == STATUS_UNAVAILABLE) {
        status_clear();
    }
    CHECK_OK(status_pending()->code);
#ifdef OPERATION_AMX_MODEL
    if (k == NULL) {
        printf("skipped: the processor has no AVX-512 BF16\n");
        exit(CHECK_SKIPPED);
    }
    attention_model_use(k);
#endif
    return k;
}
#endif

/* operation_device - return the device on which the operations run. */
static inline struct device *operation_device(void)
{
#ifdef OPERATION_CUDA
    return on_gpu_device();
#else
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    return dev;
#endif
}

/* operation_device_release - release the device that operation_device returned. */
static inline void operation_device_release(struct device *dev)
{
    if (OPERATION_HOST) { /* on_gpu.cc releases the GPU */
        CHECK_OK(device_destroy(&dev));
    }
}

/* operation_is_emulated - return whether an emulator runs this CPU program (BIREME_EMULATED_CPU=1,
 * scripts/check_arm64.sh). Some tests omit their largest shapes there, which would take many
 * minutes. */
static inline bool operation_is_emulated(void)
{
    const char *value = getenv("BIREME_EMULATED_CPU");
    return value != NULL && strcmp(value, "1") == 0;
}

/* operation_is_too_long - return whether a test of many numbers of threads omits a shape with this
 * number of multiplications, because an emulator would need minutes. */
static inline bool operation_is_too_long(int64_t multiplications)
{
    return operation_is_emulated() && multiplications > 100000000;
}

/* With the thread sanitizer, the time of a barrier in the emulator grows with the square of the
 * block's threads. Therefore tests omit shapes with many blocks. */
#ifdef __SANITIZE_THREAD__
enum { OPERATION_THREAD_SANITIZER = 1 };
#else
enum { OPERATION_THREAD_SANITIZER = 0 };
#endif

/* operation_run_all - run a test with every instruction set and dtype.
 *
 * k has one thread and `other` has three. The test checks that their results have the same bits. */
static inline void operation_run_all(const struct kernels_limits *limits,
                                     void (*test)(struct kernels *k, struct kernels *other))
{
    struct device *dev = operation_device();
    int runs = 0;
    for (int i = 0; i < 2 * OPERATION_VARIANTS; i++) {
        enum dtype dtype = i % 2 == 0 ? DTYPE_F32 : DTYPE_BF16;
        struct kernels *k = operation_context(dev, operation_variants[i / 2], dtype, 1, limits);
        struct kernels *other = operation_context(dev, operation_variants[i / 2], dtype, 3, limits);
        if (k != NULL && other != NULL) {
            test(k, other);
            runs++;
        }
        CHECK_OK(kernels_destroy(&k));
        CHECK_OK(kernels_destroy(&other));
    }
    CHECK(runs >= 1);
    operation_device_release(dev);
}

/* operation_check_error - end the test if the error of `name` is above its tolerance or NaN. */
static inline void operation_check_error(const char *name, struct kernels *k, double error,
                                         double tolerance)
{
    if (!(error <= tolerance)) {
        fprintf(stderr, "%s: %s: error %.3g > %.3g\n", kernels_description(k), name, error,
                tolerance);
        exit(1);
    }
}

/* operation_check_column_sums - check that sums [1, M] are `before` plus the sums of the columns of
 * t [N, M].
 *
 * Numerics  the tolerance is twice the error of a sum of N terms (Higham, Mary 2019,
 *           doi:10.1137/18M1226312) */
static inline void operation_check_column_sums(const char *name, struct kernels *k,
                                               struct tensor sums, struct tensor before,
                                               struct tensor t)
{
    for (int64_t c = 0; c < t.columns; c++) {
        double sum = oracle_get(before, 0, c), magnitudes = fabs(sum);
        for (int64_t n = 0; n < t.rows; n++) {
            sum += oracle_get(t, n, c);
            magnitudes += fabs(oracle_get(t, n, c));
        }
        operation_check_error(name, k, fabs(oracle_get(sums, 0, c) - sum),
                              2 * 0x1p-24 * sqrt((double)(t.rows + 1)) * magnitudes);
    }
}
