/* Functions that the linker needs and that no target calls: the CPU back-end needs OpenMP and
 * oneDNN, and event files need protobuf-c and ISA-L. */
#include "kernels/kernels_table.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/logging/tensorboard.h"

const struct kernels_driver cpu_driver;

static status refuse_call(void)
{
    fuzz_require(false, "fuzz targets call parsers only");
    return STATUS_INTERNAL;
}

size_t cpu_workspace_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)dtype;
    (void)threads;
    (void)limits;
    return (size_t)refuse_call();
}

status tensorboard_create(const char *folder, int64_t first_step, struct tensorboard **out)
{
    (void)folder;
    (void)first_step;
    (void)out;
    return refuse_call();
}

status tensorboard_write(struct tensorboard *t, const char *event, double seconds, int64_t step,
                         const struct metric *fields, int count)
{
    (void)t;
    (void)event;
    (void)seconds;
    (void)step;
    (void)fields;
    (void)count;
    return refuse_call();
}

status tensorboard_sync(struct tensorboard *t)
{
    (void)t;
    return refuse_call();
}

/* metrics_close calls it without a file. */
status tensorboard_destroy(struct tensorboard **t)
{
    return *t == NULL ? STATUS_OK : refuse_call();
}
