/* bireme bench kernels: the time of each operation, compared with the rate of a copy or GEMM. */
#include <inttypes.h>
#include <stdio.h>

#include "trainer/cli/bench_impl.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/setup/session.h"
#include "trainer/train/bench/bench.h"

/* The names with "product" and "floor" are the former names (docs/reference/metrics.md). */
static json_t *make_json(const struct session *s, const struct bench_kernels *b)
{
    json_t *report =
        json_pack("{s:s, s:i, s:s, s:I, s:f, s:f, s:f}", "precision",
                  dtype_name(kernels_dtype(s->kernels)), "threads", kernels_threads(s->kernels),
                  "backend", kernels_description(s->kernels), "rows", (json_int_t)b->rows,
                  "copy_bytes_per_second", b->copy_bytes_per_second, "gemm_flops_per_second",
                  b->gemm_flops_per_second, "product_flops_per_second", b->gemm_flops_per_second);
    json_t *operations = json_array();
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        json_array_append_new(operations,
                              json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                                        "name", o->name, "seconds", o->seconds, "roofline_seconds",
                                        o->roofline_seconds, "share_of_roofline", o->share,
                                        "floor_seconds", o->roofline_seconds, "share_of_floor",
                                        o->share, "flops", o->flops, "bytes", o->bytes,
                                        "flops_per_second", o->flops / o->seconds,
                                        "bytes_per_second", o->bytes / o->seconds));
    }
    json_object_set_new(report, "operations", operations);
    return report;
}

static void print_text(const struct session *s, const struct bench_kernels *b)
{
    printf("%s, %" PRId64 " rows, %s\n\n", dtype_name(kernels_dtype(s->kernels)), b->rows,
           kernels_description(s->kernels));
    printf("%-24s %10s %12s %9s %9s %9s\n", "operation", "ms", "roofline ms", "roofline", "GFLOP/s",
           "GB/s");
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        printf("%-24s %10.3f %12.3f %8.1f%% %9.1f %9.1f\n", o->name, 1e3 * o->seconds,
               1e3 * o->roofline_seconds, 100 * o->share, 1e-9 * o->flops / o->seconds,
               1e-9 * o->bytes / o->seconds);
    }
    printf("roofline: copy %.1f GB/s (read and written bytes), GEMM %.1f GFLOP/s\n",
           1e-9 * b->copy_bytes_per_second, 1e-9 * b->gemm_flops_per_second);
}

status bench_kernels_report(struct session *s, int repeats, bool json)
{
    struct bench_kernels b;
    TRY(bench_kernels_run(s, repeats, &b));
    if (comm_rank(s->mesh.world) != 0) {
        return STATUS_OK;
    }
    if (json) {
        return json_output_print(make_json(s, &b));
    }
    print_text(s, &b);
    return STATUS_OK;
}
