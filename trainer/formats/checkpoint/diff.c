/* Compares two checkpoints tensor by tensor, in blocks. */
#include "trainer/formats/checkpoint/diff.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/checkpoint/reader.h"

struct comparison {
    struct checkpoint_reader *a, *b;
    float *block_a, *block_b; /* [CHECKPOINT_READ_ELEMENTS] */
    double tolerance;
    json_t *different; /* report of the tensors that differ */
};

/* Difference of one tensor. */
struct difference {
    int64_t elements; /* number of elements with different bits */
    double largest;   /* max |a - b|; NaN if any difference is NaN */
    double scale;     /* max |a| over finite a */
};

/* Returns the maximum; a NaN in either argument is kept. */
static double max_keep_nan(double current, double value)
{
    return isnan(current) || value <= current ? current : value;
}

static void compare_block(const struct comparison *c, int64_t count, struct difference *d)
{
    for (int64_t i = 0; i < count; i++) {
        float a = c->block_a[i], b = c->block_b[i];
        d->scale = max_keep_nan(d->scale, isfinite(a) ? fabs((double)a) : 0);
        if (memcmp(&a, &b, sizeof a) != 0) {
            d->elements++;
            d->largest = max_keep_nan(d->largest, fabs((double)a - (double)b));
        }
    }
}

static status compare_tensor(const struct comparison *c, const struct manifest_tensor *a,
                             const struct manifest_tensor *b, struct difference *out)
{
    int64_t offset[2] = {0, 0}, shape[2];
    while (checkpoint_reader_block(a, offset, shape)) {
        TRY(checkpoint_reader_read(c->a, a, offset, shape, c->block_a));
        TRY(checkpoint_reader_read(c->b, b, offset, shape, c->block_b));
        compare_block(c, shape[0] * shape[1], out);
        checkpoint_reader_next_block(a, offset, shape);
    }
    return STATUS_OK;
}

static void add_reason(const struct comparison *c, const struct manifest_tensor *t,
                       const char *reason)
{
    json_array_append_new(c->different, json_pack("{s:s, s:s, s:s}", "family", t->set, "name",
                                                  t->name, "reason", reason));
}

/* Returns a JSON number; null for infinity and NaN, which JSON does not have. */
static json_t *number_to_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static status compare_by_name(const struct comparison *c, const struct manifest_tensor *a)
{
    const struct manifest_tensor *b =
        manifest_find_tensor(checkpoint_reader_manifest(c->b), a->set, a->name);
    struct difference d = {0};
    if (b == NULL) {
        add_reason(c, a, "only in the first");
        return STATUS_OK;
    }
    if (a->dimensions != b->dimensions || memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
        add_reason(c, a, "the shapes differ");
        return STATUS_OK;
    }
    TRY(compare_tensor(c, a, b, &d));
    bool same = d.elements == 0 || (c->tolerance > 0 && d.largest <= c->tolerance * d.scale);
    if (!same) {
        json_array_append_new(c->different,
                              json_pack("{s:s, s:s, s:I, s:o, s:o}", "family", a->set, "name",
                                        a->name, "elements", (json_int_t)d.elements,
                                        "largest_difference", number_to_json(d.largest), "relative",
                                        number_to_json(d.largest / d.scale)));
    }
    return STATUS_OK;
}

static status compare_all(struct comparison *c)
{
    const struct manifest *a = checkpoint_reader_manifest(c->a);
    const struct manifest *b = checkpoint_reader_manifest(c->b);
    TRY(ALLOCATE(c->block_a, CHECKPOINT_READ_ELEMENTS, "a block of values"));
    TRY(ALLOCATE(c->block_b, CHECKPOINT_READ_ELEMENTS, "a block of values"));
    for (int i = 0; i < a->tensor_count; i++) {
        TRY(compare_by_name(c, &a->tensors[i]));
    }
    for (int i = 0; i < b->tensor_count; i++) {
        const struct manifest_tensor *t = &b->tensors[i];
        if (manifest_find_tensor(a, t->set, t->name) == NULL) {
            add_reason(c, t, "only in the second");
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
    free(c.block_a);
    free(c.block_b);
    checkpoint_reader_close(&c.a);
    checkpoint_reader_close(&c.b);
    return result;
}
