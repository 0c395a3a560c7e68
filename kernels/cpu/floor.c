/* The floor under a step: its matrix products alone, as fast as the library does them here.
 *
 * Each product is timed divided by the library and divided by us, alternating, with nothing before
 * or after it, and not accumulating; the better median counts. */
#include <stdlib.h>

#include "base/clock.h"
#include "kernels/cpu/matmul.h"

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, double_compare);
    return times[count / 2];
}

typedef status product_function(struct kernels *k, const struct matmul_call *call);

static status timed(struct kernels *k, product_function *product, const struct matmul_call *call,
                    double *seconds)
{
    double start = clock_seconds();
    TRY(product(k, call));
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

static status product_time(struct kernels *k, double *seconds, const struct matmul_call *call,
                           int repeats)
{
    double *times = malloc(2 * (size_t)repeats * sizeof *times);
    REQUIRE(times != NULL, STATUS_INTERNAL, "out of memory for %d timings", repeats);
    status result = STATUS_OK;
    TRY_GOTO(result, done, matmul_product_whole(k, call)); /* makes the plans */
    TRY_GOTO(result, done, matmul_product(k, call));
    for (int i = 0; i < repeats; i++) {
        TRY_GOTO(result, done, timed(k, matmul_product_whole, call, &times[i]));
        TRY_GOTO(result, done, timed(k, matmul_product, call, &times[repeats + i]));
    }
    double whole = median(times, repeats), divided = median(times + repeats, repeats);
    *seconds = whole < divided ? whole : divided;
done:
    free(times);
    return result;
}

/* Operands of the largest product: outputs, inputs, weights. */
enum { WIDE = 0, NARROW, WEIGHT, OPERANDS };

struct operands {
    void *data[OPERANDS];
    size_t bytes[OPERANDS];
};

static struct matmul_call call_make(enum dtype dtype, const struct product *p,
                                    const struct operands *o)
{
    struct tensor y = tensor_view(o->data[WIDE], dtype, p->rows, p->outputs);
    struct tensor x = tensor_view(o->data[NARROW], dtype, p->rows, p->inner);
    struct tensor w = tensor_view(o->data[WEIGHT], dtype, p->outputs, p->inner);
    struct tensor dw = tensor_view(o->data[WEIGHT], DTYPE_F32, p->outputs, p->inner);
    switch (p->kind) {
    case PRODUCT_INPUT:
        return (struct matmul_call){.c = x, .a = y, .b = w};
    case PRODUCT_WEIGHT:
        return (struct matmul_call){.c = dw, .a = y, .transpose_a = true, .b = x};
    default:
        return (struct matmul_call){.c = y, .a = x, .b = w, .transpose_b = true};
    }
}

/* Small values that are not zero: some processors multiply zeros faster. */
static void operand_fill(void *data, size_t bytes, enum dtype dtype)
{
    size_t count = bytes / dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        float value = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
        if (dtype == DTYPE_F32) {
            ((float *)data)[i] = value;
        } else {
            ((bf16 *)data)[i] = f32_to_bf16(value);
        }
    }
}

static status operands_create(struct kernels *k, const struct product *products, int count,
                              struct operands *o)
{
    for (int i = 0; i < count; i++) {
        const struct product *p = &products[i];
        size_t sizes[OPERANDS] = {
            [WIDE] = (size_t)(p->rows * p->outputs) * dtype_bytes(k->dtype),
            [NARROW] = (size_t)(p->rows * p->inner) * dtype_bytes(k->dtype),
            [WEIGHT] = (size_t)(p->outputs * p->inner) * sizeof(float),
        };
        for (int j = 0; j < OPERANDS; j++) {
            o->bytes[j] = sizes[j] > o->bytes[j] ? sizes[j] : o->bytes[j];
        }
    }
    for (int j = 0; j < OPERANDS; j++) {
        TRY(device_allocate(k->device, o->bytes[j], "the floor's operands", &o->data[j]));
        operand_fill(o->data[j], o->bytes[j], k->dtype);
    }
    return STATUS_OK;
}

status matmul_floor(struct kernels *k, double *seconds, const struct product *products, int count,
                    int repeats)
{
    struct operands o = {0};
    status result = STATUS_OK;
    *seconds = 0;
    TRY_GOTO(result, done, operands_create(k, products, count, &o));
    for (int i = 0; i < count; i++) {
        struct matmul_call call = call_make(k->dtype, &products[i], &o);
        double each = 0;
        TRY_GOTO(result, done, product_time(k, &each, &call, repeats));
        *seconds += each * (double)products[i].count;
    }
done:
    for (int j = 0; j < OPERANDS; j++) {
        device_release(k->device, o.data[j], o.bytes[j]);
    }
    return result;
}
