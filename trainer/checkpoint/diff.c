/* Two checkpoints, tensor by tensor, block by block. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/diff.h"

struct comparison {
    struct checkpoint_reader *a, *b;
    float *from_a, *from_b; /* CHECKPOINT_READ_ELEMENTS */
    double tolerance;
    json_t *different;
};

/* What was seen of one tensor; NaN stays in largest once it is there. */
struct difference {
    int64_t elements; /* whose bits differ */
    double largest, scale;
};

static double larger(double so_far, double value)
{
    return isnan(so_far) || value <= so_far ? so_far : value;
}

static void compare_block(const struct comparison *c, int64_t count, struct difference *d)
{
    for (int64_t i = 0; i < count; i++) {
        float a = c->from_a[i], b = c->from_b[i];
        d->scale = larger(d->scale, isfinite(a) ? fabs((double)a) : 0);
        if (memcmp(&a, &b, sizeof a) != 0) {
            d->elements++;
            d->largest = larger(d->largest, fabs((double)a - (double)b));
        }
    }
}

static status compare_tensor(const struct comparison *c, const struct manifest_tensor *a,
                             const struct manifest_tensor *b, struct difference *out)
{
    int64_t offset[2] = {0, 0}, shape[2];
    while (checkpoint_block(a, offset, shape)) {
        TRY(checkpoint_reader_read(c->a, a, offset, shape, c->from_a));
        TRY(checkpoint_reader_read(c->b, b, offset, shape, c->from_b));
        compare_block(c, shape[0] * shape[1], out);
        checkpoint_block_next(a, offset, shape);
    }
    return STATUS_OK;
}

static void note(const struct comparison *c, const struct manifest_tensor *t, const char *reason)
{
    json_array_append_new(c->different, json_pack("{s:s, s:s, s:s}", "family", t->family, "name",
                                                  t->name, "reason", reason));
}

/* A number that JSON has, or null. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static status compare(const struct comparison *c, const struct manifest_tensor *a)
{
    const struct manifest_tensor *b =
        manifest_find(checkpoint_reader_manifest(c->b), a->family, a->name);
    struct difference d = {0};
    if (b == NULL) {
        note(c, a, "only in the first");
        return STATUS_OK;
    }
    if (a->dimensions != b->dimensions || memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
        note(c, a, "another shape");
        return STATUS_OK;
    }
    TRY(compare_tensor(c, a, b, &d));
    bool same = d.elements == 0 || (c->tolerance > 0 && d.largest <= c->tolerance * d.scale);
    if (!same) {
        json_array_append_new(c->different,
                              json_pack("{s:s, s:s, s:I, s:o, s:o}", "family", a->family, "name",
                                        a->name, "elements", (json_int_t)d.elements,
                                        "largest_difference", number(d.largest), "relative",
                                        number(d.largest / d.scale)));
    }
    return STATUS_OK;
}

static status compare_all(struct comparison *c)
{
    const struct manifest *a = checkpoint_reader_manifest(c->a);
    const struct manifest *b = checkpoint_reader_manifest(c->b);
    c->from_a = malloc((size_t)CHECKPOINT_READ_ELEMENTS * sizeof *c->from_a);
    c->from_b = malloc((size_t)CHECKPOINT_READ_ELEMENTS * sizeof *c->from_b);
    REQUIRE(c->from_a != NULL && c->from_b != NULL, STATUS_INTERNAL, "out of memory to compare");
    for (int i = 0; i < a->tensor_count; i++) {
        TRY(compare(c, &a->tensors[i]));
    }
    for (int i = 0; i < b->tensor_count; i++) {
        const struct manifest_tensor *t = &b->tensors[i];
        if (manifest_find(a, t->family, t->name) == NULL) {
            note(c, t, "only in the second");
        }
    }
    return STATUS_OK;
}

status checkpoint_diff(const char *a, const char *b, double tolerance, json_t **out)
{
    struct comparison c = {.tolerance = tolerance, .different = json_array()};
    *out = NULL;
    status result = checkpoint_reader_open(a, &c.a);
    if (result == STATUS_OK) {
        result = checkpoint_reader_open(b, &c.b);
    }
    if (result == STATUS_OK) {
        result = compare_all(&c);
    }
    if (result == STATUS_OK) {
        *out = json_pack("{s:s, s:s, s:b, s:i, s:O}", "a", a, "b", b, "equal",
                         json_array_size(c.different) == 0, "tensors",
                         checkpoint_reader_manifest(c.a)->tensor_count, "different", c.different);
    }
    json_decref(c.different);
    free(c.from_a);
    free(c.from_b);
    checkpoint_reader_close(&c.a);
    checkpoint_reader_close(&c.b);
    return result;
}
