/* Measures the shortest time in which this machine computes only the GEMMs of a step.
 *
 * Each shape is timed with two algorithms: split by oneDNN, and split into units by matmul.c. There
 * is no bias, activation or accumulation. A shape that a step runs once per layer runs here on as
 * many separate operands; operands used twice would be in the cache. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

/* The three operands. Each buffer holds the operands of any one shape, `count` times. */
enum { OPERAND_OUTPUT = 0, OPERAND_INPUT, OPERAND_WEIGHT, OPERANDS };

struct roofline {
    void *data[OPERANDS];
    size_t bytes[OPERANDS];
};

static size_t compute_operand_bytes(enum dtype dtype, const struct gemm_shape *p, int which)
{
    switch (which) {
    case OPERAND_OUTPUT:
        return (size_t)(p->rows * p->outputs) * dtype_bytes(dtype);
    case OPERAND_INPUT:
        return (size_t)(p->rows * p->inner) * dtype_bytes(dtype);
    default:
        return (size_t)(p->outputs * p->inner) * sizeof(float);
    }
}

static struct matmul_call make_call(enum dtype dtype, const struct gemm_shape *p,
                                    const struct roofline *o, int64_t index)
{
    void *data[OPERANDS];
    for (int j = 0; j < OPERANDS; j++) {
        data[j] = (char *)o->data[j] + (size_t)index * compute_operand_bytes(dtype, p, j);
    }
    struct tensor y = tensor_view(data[OPERAND_OUTPUT], dtype, p->rows, p->outputs);
    struct tensor x = tensor_view(data[OPERAND_INPUT], dtype, p->rows, p->inner);
    struct tensor w = tensor_view(data[OPERAND_WEIGHT], dtype, p->outputs, p->inner);
    struct tensor dw = tensor_view(data[OPERAND_WEIGHT], DTYPE_F32, p->outputs, p->inner);
    switch (p->kind) {
    case GEMM_BACKWARD_INPUT:
        return (struct matmul_call){.c = x, .a = y, .b = w};
    case GEMM_BACKWARD_WEIGHT:
        return (struct matmul_call){.c = dw, .a = y, .transpose_a = true, .b = x};
    default:
        return (struct matmul_call){.c = y, .a = x, .b = w, .transpose_b = true};
    }
}

typedef status gemm_function(struct kernels *k, const struct matmul_call *call);

/* Times one run over all operands of a shape. */
static status time_gemm(struct kernels *k, gemm_function *run, const struct gemm_shape *p,
                        const struct roofline *o, double *seconds)
{
    double start = clock_seconds();
    for (int64_t i = 0; i < p->count; i++) {
        struct matmul_call call = make_call(k->dtype, p, o, i);
        TRY(run(k, &call));
    }
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

static status measure_shape(struct kernels *k, double seconds[KERNELS_ROOFLINE_ALGORITHMS],
                            const struct gemm_shape *p, const struct roofline *o)
{
    struct matmul_call call = make_call(k->dtype, p, o, 0);
    TRY(matmul_run_unsplit(k, &call)); /* creates the plans */
    TRY(matmul_run(k, &call));
    TRY(matmul_run(k, &call)); /* compares divisions of its units */
    TRY(time_gemm(k, matmul_run_unsplit, p, o, &seconds[0]));
    return time_gemm(k, matmul_run, p, o, &seconds[1]);
}

/* Fills an operand with a repeated pattern of small nonzero values. Some processors multiply
 * zeros faster. */
static void fill_operand(void *data, size_t bytes, enum dtype dtype)
{
    enum { PATTERN_BYTES = 1 << 16 };
    size_t pattern = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    for (size_t i = 0; i < pattern / dtype_bytes(dtype); i++) {
        float value = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
        if (dtype == DTYPE_F32) {
            ((float *)data)[i] = value;
        } else {
            ((bf16 *)data)[i] = f32_to_bf16(value);
        }
    }
    for (size_t done = pattern; done < bytes; done += pattern) {
        memcpy((char *)data + done, data, bytes - done < pattern ? bytes - done : pattern);
    }
}

/* Allocates the operands of these shapes. Buffers of the previous call are kept if they are
 * large enough. */
static status prepare_operands(struct kernels *k, const struct gemm_shape *shapes, int count)
{
    struct cpu *cpu = cpu_get_state(k);
    if (cpu->roofline == NULL) {
        TRY(ALLOCATE(cpu->roofline, 1, "the operands of the roofline"));
    }
    struct roofline *f = cpu->roofline;
    for (int j = 0; j < OPERANDS; j++) {
        size_t bytes = 0;
        for (int i = 0; i < count; i++) {
            size_t each = (size_t)shapes[i].count * compute_operand_bytes(k->dtype, &shapes[i], j);
            bytes = each > bytes ? each : bytes;
        }
        if (bytes > f->bytes[j]) {
            device_release(k->device, f->data[j], f->bytes[j]);
            f->data[j] = NULL;
            f->bytes[j] = 0;
            TRY(device_allocate(k->device, bytes, "the operands of the roofline", &f->data[j]));
            f->bytes[j] = bytes;
            fill_operand(f->data[j], bytes, k->dtype);
        }
    }
    return STATUS_OK;
}

void roofline_destroy(struct kernels *k)
{
    struct roofline *f = cpu_get_state(k)->roofline;
    for (int j = 0; f != NULL && j < OPERANDS; j++) {
        device_release(k->device, f->data[j], f->bytes[j]);
    }
    free(f);
    cpu_get_state(k)->roofline = NULL;
}

status roofline_measure(struct kernels *k, double (*seconds)[KERNELS_ROOFLINE_ALGORITHMS],
                        const struct gemm_shape *shapes, int count)
{
    TRY(prepare_operands(k, shapes, count));
    for (int i = 0; i < count; i++) {
        TRY(measure_shape(k, seconds[i], &shapes[i], cpu_get_state(k)->roofline));
    }
    return STATUS_OK;
}
