/* The profile: calls, time, operations and bytes of each operation. */
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "kernels/kernels_table.h"

/* Returns the name of an operation in reports. The JSON output of `bireme bench` contains it, so it
 * stays the same if the function is renamed. */
static const char *get_reported_name(enum kernels_operation operation, const char *function)
{
    switch (operation) {
    case OPERATION_adamw_parts_update:
        return "adamw_update";
    case OPERATION_lamb_parts_moments:
        return "lamb_moments";
    case OPERATION_lamb_parts_apply:
        return "lamb_apply";
    case OPERATION_op_scale:
        return "scale";
    case OPERATION_op_loss_stats:
        return "tally_rows";
    case OPERATION_op_add:
        return "floats_add";
    case OPERATION_op_cast:
        return "convert";
    case OPERATION_op_gather_rows:
        return "gather_rows";
    case OPERATION_op_scatter_rows:
        return "scatter_rows";
    case OPERATION_op_round_weights:
        return "weights_round";
    case OPERATION_op_sum_of_squares:
    case OPERATION_control_gradient_squares:
        return "sum_of_squares";
    default:
        return function;
    }
}

void kernels_profile(struct kernels *k, bool on)
{
    static const char *names[OPERATIONS] = {
#define OPERATION_NAME(name) #name,
        KERNELS_OPERATIONS(OPERATION_NAME)
#undef OPERATION_NAME
    };
    k->profiling = on;
    if (on) {
        memset(k->times, 0, sizeof k->times);
        for (int i = 0; i < OPERATIONS; i++) {
            k->times[i].operation = get_reported_name((enum kernels_operation)i, names[i]);
        }
    }
}

_Static_assert((int)OPERATIONS <= (int)KERNELS_OPERATIONS_MAX,
               "more operations than a profile can hold");

int kernels_times(const struct kernels *k, struct kernels_time out[KERNELS_OPERATIONS_MAX])
{
    int count = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        if (k->times[i].calls > 0) {
            out[count++] = k->times[i];
        }
    }
    return count;
}

status kernels_record(struct kernels *k, enum kernels_operation operation, double start,
                      double flops, double bytes, status result)
{
    if (k->profiling) {
        KEEP_FIRST(result, device_wait(k->device, k->stream, DEADLINE_DEVICE_SECONDS));
        struct kernels_time *t = &k->times[operation];
        t->seconds += clock_seconds() - start;
        t->calls++;
        t->flops += flops;
        t->bytes += bytes;
        t->gemm_work.done += k->gemm_work.done;
        t->gemm_work.possible += k->gemm_work.possible;
        k->gemm_work = (struct gemm_work){0};
    }
    return result;
}
