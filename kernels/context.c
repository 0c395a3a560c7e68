/* Creation, release and properties of a context; graphs and tuning. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/kernels_table.h"

static const struct kernels_driver *drivers[] = {[DEVICE_CPU] = &cpu_driver, [DEVICE_CUDA] = NULL};

void kernels_register(enum device_kind kind, const struct kernels_driver *driver)
{
    drivers[kind] = driver;
}

static status check_limits(const struct kernels_limits *l)
{
    const int64_t limit = INT64_C(1) << 31;
    REQUIRE(l->rows > 0 && l->width > 0 && l->inner >= 0 && l->heads > 0 && l->head_width > 0 &&
                l->sequence > 0 && l->vocabulary > 0,
            STATUS_INTERNAL,
            "kernels_create: rows %" PRId64 ", width %" PRId64 ", inner %" PRId64
            ", heads %d, head width %" PRId64 ", "
            "sequence %" PRId64 ", vocabulary %" PRId64 ": all must be above 0, inner at least 0",
            l->rows, l->width, l->inner, l->heads, l->head_width, l->sequence, l->vocabulary);
    REQUIRE(l->rows < limit && l->width < limit && l->inner < limit && l->head_width < limit &&
                l->sequence < limit && l->vocabulary < limit,
            STATUS_INTERNAL, "kernels_create: a size is 2^31 or more; sizes must be below 2^31");
    return STATUS_OK;
}

status kernels_create(struct device *dev, enum dtype dtype, int threads,
                      const struct kernels_limits *limits, struct kernels **out)
{
    *out = NULL;
    TRY(check_limits(limits));
    REQUIRE(threads >= 0, STATUS_INTERNAL, "kernels_create: %d threads; must be at least 0",
            threads);
    const struct kernels_driver *driver = drivers[device_kind_of(dev)];
    REQUIRE(driver != NULL, STATUS_UNAVAILABLE,
            "device cuda: this build has no CUDA kernels; set train.device to cpu or auto");
    struct kernels *k = NULL;
    TRY(ALLOCATE(k, 1, "the kernels context"));
    k->device = dev;
    k->dtype = dtype;
    k->limits = *limits;
    status result = driver->create(k, threads);
    if (result != STATUS_OK) {
        free(k);
        return result;
    }
    *out = k;
    return STATUS_OK;
}

status kernels_destroy(struct kernels **k)
{
    if (*k != NULL) {
        (*k)->table.destroy(*k);
        free(*k);
        *k = NULL;
    }
    return STATUS_OK;
}

size_t kernels_workspace_bytes(enum device_kind kind, enum dtype dtype, int threads,
                               const struct kernels_limits *limits)
{
    return kind == DEVICE_CPU ? cpu_workspace_bytes(dtype, threads, limits)
                              : cuda_workspace_bytes(dtype, limits);
}

struct device *kernels_device(const struct kernels *k)
{
    return k->device;
}

struct stream *kernels_stream(const struct kernels *k)
{
    return k->stream;
}

enum dtype kernels_dtype(const struct kernels *k)
{
    return k->dtype;
}

enum dtype kernels_bias_dtype(const struct kernels *k)
{
    return device_kind_of(k->device) == DEVICE_CPU ? DTYPE_F32 : k->dtype;
}

int kernels_threads(const struct kernels *k)
{
    return k->threads;
}

const char *kernels_description(const struct kernels *k)
{
    return k->description;
}

/* ---- graphs ---- */

void kernels_graphs_enable(struct kernels *k, bool enabled)
{
    if (k->table.graphs.enable != NULL) {
        k->table.graphs.enable(k, enabled);
    }
}

status kernels_graph_begin(struct kernels *k, const struct kernels_graph_key *key)
{
    return k->table.graphs.begin != NULL ? k->table.graphs.begin(k, key) : STATUS_OK;
}

status kernels_graph_end(struct kernels *k, status result)
{
    return k->table.graphs.end != NULL ? k->table.graphs.end(k, result) : result;
}

status kernels_graph_end_segment(struct kernels *k)
{
    return k->table.graphs.end_segment != NULL ? k->table.graphs.end_segment(k) : STATUS_OK;
}

status kernels_tune(struct kernels *k, bool measure, char **text)
{
    if (k->table.tune != NULL) {
        return k->table.tune(k, measure, text);
    }
    if (text != NULL) {
        TRY(ALLOCATE(*text, 1, "GEMM plans"));
    }
    return STATUS_OK;
}

status kernels_tune_import(struct kernels *k, const char *text)
{
    return k->table.tune_import != NULL ? k->table.tune_import(k, text) : STATUS_OK;
}
