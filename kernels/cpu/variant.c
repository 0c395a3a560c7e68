/* One instruction set's table: compiled once for each (cpu.h). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

static size_t scratch_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    cpu_scratch *parts[] = {
        CPU(classifier_scratch),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t bytes = parts[i](dtype, threads, limits);
        most = bytes > most ? bytes : most;
    }
    return most;
}

#define VARIANT_TEXT_(name) #name
#define VARIANT_TEXT(name) VARIANT_TEXT_(name)

const struct cpu_variant CPU(variant) = {
    .name = VARIANT_TEXT(CPU_VARIANT),
    .scratch_bytes = scratch_bytes,
    .table =
        {
            .linear_forward = CPU(linear_forward),
            .linear_backward_input = CPU(linear_backward_input),
            .linear_backward_weight = CPU(linear_backward_weight),
            .classifier_run = CPU(classifier_run),
            .classifier_logits = CPU(classifier_logits),
            .floor = matmul_floor,
        },
};
