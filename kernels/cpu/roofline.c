/* The floor under a step: its matrix products alone, as fast as the library does them here.
 *
 * Each product is timed divided by the library and divided by us, with nothing before or after it, and not
 * accumulating. A product that the step does for each layer is done on as many operands: the same ones again
 * would lie in the cache. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cpu/matmul.h"

/* Outputs, inputs, weights: room for those of any product, as often as it is done. */
enum { WIDE = 0, NARROW, WEIGHT, OPERANDS };

struct floor {
    void *data[OPERANDS];
    size_t bytes[OPERANDS];
};

static size_t operand_bytes(enum dtype dtype, const struct product *p, int which)
{
    switch (which) {
    case WIDE:
        return (size_t)(p->rows * p->outputs) * dtype_bytes(dtype);
    case NARROW:
        return (size_t)(p->rows * p->inner) * dtype_bytes(dtype);
    default:
        return (size_t)(p->outputs * p->inner) * sizeof(float);
    }
}

static struct matmul_call call_make(enum dtype dtype, const struct product *p,
                                    const struct floor *o, int64_t index)
{
    void *data[OPERANDS];
    for (int j = 0; j < OPERANDS; j++) {
        data[j] = (char *)o->data[j] + (size_t)index * operand_bytes(dtype, p, j);
    }
    struct tensor y = tensor_view(data[WIDE], dtype, p->rows, p->outputs);
    struct tensor x = tensor_view(data[NARROW], dtype, p->rows, p->inner);
    struct tensor w = tensor_view(data[WEIGHT], dtype, p->outputs, p->inner);
    struct tensor dw = tensor_view(data[WEIGHT], DTYPE_F32, p->outputs, p->inner);
    switch (p->kind) {
    case PRODUCT_INPUT:
        return (struct matmul_call){.c = x, .a = y, .b = w};
    case PRODUCT_WEIGHT:
        return (struct matmul_call){.c = dw, .a = y, .transpose_a = true, .b = x};
    default:
        return (struct matmul_call){.c = y, .a = x, .b = w, .transpose_b = true};
    }
}

typedef status product_function(struct kernels *k, const struct matmul_call *call);

/* All of a product's operands once. */
static status timed(struct kernels *k, product_function *run, const struct product *p,
                    const struct floor *o, double *seconds)
{
    double start = clock_seconds();
    for (int64_t i = 0; i < p->count; i++) {
        struct matmul_call call = call_make(k->dtype, p, o, i);
        TRY(run(k, &call));
    }
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

static status product_time(struct kernels *k, double seconds[KERNELS_FLOOR_WAYS],
                           const struct product *p, const struct floor *o)
{
    struct matmul_call call = call_make(k->dtype, p, o, 0);
    TRY(matmul_product_whole(k, &call)); /* makes the plans */
    TRY(matmul_product(k, &call));
    TRY(timed(k, matmul_product_whole, p, o, &seconds[0]));
    return timed(k, matmul_product, p, o, &seconds[1]);
}

/* Small values that are not zero: some processors multiply zeros faster. A piece of them is repeated. */
static void operand_fill(void *data, size_t bytes, enum dtype dtype)
{
    enum { PIECE = 1 << 16 };
    size_t piece = bytes < PIECE ? bytes : PIECE;
    for (size_t i = 0; i < piece / dtype_bytes(dtype); i++) {
        float value = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
        if (dtype == DTYPE_F32) {
            ((float *)data)[i] = value;
        } else {
            ((bf16 *)data)[i] = f32_to_bf16(value);
        }
    }
    for (size_t done = piece; done < bytes; done += piece) {
        memcpy((char *)data + done, data, bytes - done < piece ? bytes - done : piece);
    }
}

/* prepare - operands of these products: those of the last call where they are large enough. */
static status prepare(struct kernels *k, const struct product *products, int count)
{
    struct cpu *cpu = cpu_of(k);
    if (cpu->floor == NULL) {
        cpu->floor = calloc(1, sizeof *cpu->floor);
        REQUIRE(cpu->floor != NULL, STATUS_INTERNAL, "out of memory for the floor's operands");
    }
    struct floor *f = cpu->floor;
    for (int j = 0; j < OPERANDS; j++) {
        size_t bytes = 0;
        for (int i = 0; i < count; i++) {
            size_t each = (size_t)products[i].count * operand_bytes(k->dtype, &products[i], j);
            bytes = each > bytes ? each : bytes;
        }
        if (bytes > f->bytes[j]) {
            device_release(k->device, f->data[j], f->bytes[j]);
            f->data[j] = NULL;
            f->bytes[j] = 0;
            TRY(device_allocate(k->device, bytes, "the floor's operands", &f->data[j]));
            f->bytes[j] = bytes;
            operand_fill(f->data[j], bytes, k->dtype);
        }
    }
    return STATUS_OK;
}

void matmul_floor_destroy(struct kernels *k)
{
    struct floor *f = cpu_of(k)->floor;
    for (int j = 0; f != NULL && j < OPERANDS; j++) {
        device_release(k->device, f->data[j], f->bytes[j]);
    }
    free(f);
    cpu_of(k)->floor = NULL;
}

status matmul_floor(struct kernels *k, double (*seconds)[KERNELS_FLOOR_WAYS],
                    const struct product *products, int count)
{
    TRY(prepare(k, products, count));
    for (int i = 0; i < count; i++) {
        TRY(product_time(k, seconds[i], &products[i], cpu_of(k)->floor));
    }
    return STATUS_OK;
}
