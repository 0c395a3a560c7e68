/* What the tests of operations share: guarded tensors with seeded contents, contexts on every
 * instruction set that this processor runs, comparisons with the reference. */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kernels/cpu/reference.h"
#include "kernels/kernels.h"
#include "tests/check.h"
#ifdef OPERATION_SIMT
#include "tests/simt/backend.h"
#elif defined(OPERATION_CUDA)
#include "tests/kernels/on_gpu.h" /* last: it changes what memory is */
#endif

enum { GUARD = 64, UNTOUCHED = 0xff }; /* bytes around the elements; what is in all: NaN */

static inline size_t element_bytes(enum dtype dtype)
{
    return dtype == REFERENCE_F64 ? 8 : dtype_bytes(dtype);
}

static inline size_t tensor_bytes(struct tensor t)
{
    return (size_t)(t.rows * t.stride) * element_bytes(t.dtype);
}

/* operation_tensor - a tensor between guard words; release with operation_release. */
static inline struct tensor operation_tensor(enum dtype dtype, int64_t rows, int64_t columns,
                                             int64_t stride)
{
    struct tensor t = {NULL, dtype, rows, columns, stride};
    char *memory = malloc(tensor_bytes(t) + 2 * GUARD);
    CHECK(memory != NULL);
    memset(memory, UNTOUCHED, tensor_bytes(t) + 2 * GUARD);
    t.data = memory + GUARD;
    return t;
}

/* operation_guards - nobody wrote outside of the elements: before, after, or between the rows. */
static inline void operation_guards(struct tensor t)
{
    const unsigned char *p = t.data;
    for (size_t i = 0; i < GUARD; i++) {
        CHECK(p[-(ptrdiff_t)i - 1] == UNTOUCHED && p[tensor_bytes(t) + i] == UNTOUCHED);
    }
    size_t size = element_bytes(t.dtype);
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = t.columns * (int64_t)size; c < t.stride * (int64_t)size; c++) {
            CHECK(p[(size_t)(r * t.stride) * size + (size_t)c] == UNTOUCHED);
        }
    }
}

static inline void operation_release(struct tensor *t)
{
    if (t->data != NULL) {
        operation_guards(*t);
        free((char *)t->data - GUARD);
    }
    t->data = NULL;
}

static inline void operation_fill(struct tensor t, uint64_t seed, double scale)
{
    uint64_t key = random_key(seed, RANDOM_TEST, 0, 0);
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = 0; c < t.columns; c++) {
            double x = random_normal(key, (uint64_t)(r * t.columns + c));
            reference_set(t, r, c, scale * x);
        }
    }
}

static inline struct tensor operation_random(enum dtype dtype, int64_t rows, int64_t columns,
                                             uint64_t seed, double scale)
{
    struct tensor t = operation_tensor(dtype, rows, columns, columns);
    operation_fill(t, seed, scale);
    return t;
}

static inline void operation_set(struct tensor t, double value)
{
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = 0; c < t.columns; c++) {
            reference_set(t, r, c, value);
        }
    }
}

/* operation_copy - the same numbers in another type. */
static inline struct tensor operation_copy(struct tensor from, enum dtype dtype)
{
    struct tensor t = operation_tensor(dtype, from.rows, from.columns, from.columns);
    reference_convert(t, from);
    return t;
}

/* operation_difference - the largest |a - b| over the largest |b| (or 1e-30); NaN only in both. */
static inline double operation_difference(struct tensor a, struct tensor b)
{
    double apart = 0, size = 1e-30;
    CHECK(a.rows == b.rows && a.columns == b.columns);
    for (int64_t r = 0; r < a.rows; r++) {
        for (int64_t c = 0; c < a.columns; c++) {
            double x = reference_get(a, r, c), y = reference_get(b, r, c);
            if ((isnan(x) && isnan(y)) || x == y) {
                continue;
            }
            double difference = fabs(x - y);
            apart = !(difference <= apart) ? difference : apart;
            size = fabs(y) > size ? fabs(y) : size;
            if (isnan(difference) || isinf(difference)) {
                return INFINITY;
            }
        }
    }
    for (int64_t r = 0; r < b.rows; r++) {
        for (int64_t c = 0; c < b.columns; c++) {
            double y = fabs(reference_get(b, r, c));
            size = isfinite(y) && y > size ? y : size;
        }
    }
    return apart / size;
}

static inline bool operation_equal(struct tensor a, struct tensor b)
{
    return tensor_bytes(a) == tensor_bytes(b) && memcmp(a.data, b.data, tensor_bytes(a)) == 0;
}

#ifdef OPERATION_SIMT
/* The CUDA back-end in the emulator (tests/simt); threads mean nothing there. */
static const char *const operation_sets[] = {"simt"};
enum { OPERATION_SETS = 1, OPERATION_ON_GPU = 1, OPERATION_HOST = 1 };

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
/* The CUDA back-end on GPU 0. */
static const char *const operation_sets[] = {"gpu"};
enum { OPERATION_SETS = 1, OPERATION_ON_GPU = 1, OPERATION_HOST = 0 };

static inline struct kernels *operation_context(struct device *dev, const char *set,
                                                enum dtype dtype, int threads,
                                                const struct kernels_limits *limits)
{
    (void)set;
    (void)threads;
    return on_gpu_context(dev, dtype, limits);
}
#else
/* The processor's instruction sets, best last; each test runs with all that this machine has. */
static const char *const operation_sets[] = {"baseline", "v3", "v4", "v4_bf16"};
enum { OPERATION_SETS = 4, OPERATION_ON_GPU = 0, OPERATION_HOST = 1 };

/* operation_context - NULL where this processor lacks the instruction set or the type. */
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
    return k;
}
#endif

/* operation_device - where the memory of contexts is. */
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

static inline void operation_device_release(struct device *dev)
{
    if (OPERATION_HOST) { /* a GPU is the program's */
        CHECK_OK(device_destroy(&dev));
    }
}

/* operation_each - run a test in every instruction set and type. k has one thread and other has
 * three: whatever they compute must be equal to the last bit. */
static inline void operation_each(const struct kernels_limits *limits,
                                  void (*test)(struct kernels *k, struct kernels *other))
{
    struct device *dev = operation_device();
    int runs = 0;
    for (int i = 0; i < 2 * OPERATION_SETS; i++) {
        enum dtype dtype = i % 2 == 0 ? DTYPE_F32 : DTYPE_BF16;
        struct kernels *k = operation_context(dev, operation_sets[i / 2], dtype, 1, limits);
        struct kernels *other = operation_context(dev, operation_sets[i / 2], dtype, 3, limits);
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

/* operation_within - an error must not be above its tolerance; NaN is. */
static inline void operation_within(const char *what, struct kernels *k, double error,
                                    double tolerance)
{
    if (!(error <= tolerance)) {
        fprintf(stderr, "%s: %s: error %.3g > %.3g\n", kernels_description(k), what, error,
                tolerance);
        exit(1);
    }
}
