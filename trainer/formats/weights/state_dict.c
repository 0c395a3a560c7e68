#include "trainer/formats/weights/state_dict.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/model/linear.h"

void state_dict_destroy(struct state_dict *d)
{
    free(d->tensors);
    free(d->names);
    *d = (struct state_dict){0};
}

/* ---- entries ---- */

/* Makes space for one more entry. The names may move, so finish_entries sets the name pointers. */
static status reserve_entry(struct state_dict *d)
{
    int64_t capacity = d->capacity;
    TRY(RESERVE(d->tensors, capacity, d->tensor_set.count + 1, "tensors"));
    return RESERVE(d->names, d->capacity, d->tensor_set.count + 1, "the names of tensors");
}

/* Elements of an array in memory; data NULL: only shapes are needed. */
struct elements {
    enum dtype dtype;
    void *data;
};

/* Returns the elements from `count` on. */
static struct elements skip_elements(struct elements e, int64_t count)
{
    e.data = e.data != NULL ? (char *)e.data + count * (int64_t)dtype_bytes(e.dtype) : NULL;
    return e;
}

/* Appends a rectangle of a parameter. `data` begins with its first element. */
static status append_rectangle(struct state_dict *d, const char *prefix,
                               const struct model_parameter *p, bool written,
                               const struct model_shard *rectangle, struct elements data)
{
    TRY(reserve_entry(d));
    struct checkpoint_tensor *t = &d->tensors[d->tensor_set.count];
    snprintf(d->names[d->tensor_set.count++], sizeof *d->names, "%s%s", prefix, p->name);
    *t = (struct checkpoint_tensor){
        .dimensions = p->dimensions,
        .rows = rectangle->rows,
        .columns = rectangle->columns,
        .transposed = p->transposed,
        .load_only = !written,
        .dtype = data.dtype,
        .data = data.data,
    };
    if (p->dimensions == 1) {
        t->global_shape[0] = p->whole_columns;
        t->offset[0] = rectangle->column;
    } else {
        int row_dimension =
            p->transposed ? 1 : 0; /* dimension of the file that memory's rows are */
        t->global_shape[row_dimension] = p->whole_rows;
        t->global_shape[1 - row_dimension] = p->whole_columns;
        t->offset[row_dimension] = rectangle->row;
        t->offset[1 - row_dimension] = rectangle->column;
    }
    return STATUS_OK;
}

/* Appends elements [first, end) of a shard, counted from its first element, as rectangles: the
 * rest of the first row, whole rows, and the beginning of the last row. */
static status append_elements(struct state_dict *d, const char *prefix,
                              const struct model_parameter *p, bool written,
                              const struct model_shard *shard, int64_t first, int64_t end,
                              struct elements data)
{
    int64_t width = shard->columns;
    for (int64_t i = first; i < end;) {
        int64_t column = i % width, left = end - i;
        struct model_shard rectangle = {.row = shard->row + i / width,
                                        .column = shard->column + column,
                                        .rows = column == 0 && left >= width ? left / width : 1,
                                        .columns = number_min(left, width - column)};
        TRY(append_rectangle(d, prefix, p, written, &rectangle, skip_elements(data, i - first)));
        i += rectangle.rows * rectangle.columns;
    }
    return STATUS_OK;
}

/* Appends the elements of a parameter that lie in [first, end) of the flat buffer. `data` begins
 * with element `first`. */
static status append_range(struct state_dict *d, const char *prefix,
                           const struct state_dict_layout *layout, int index, int64_t first,
                           int64_t end, struct elements data)
{
    const struct model_parameter *p = &layout->parameters[index];
    bool written = !p->replicated || layout->writes_replicated;
    for (int i = 0; i < p->shard_count; i++) {
        const struct model_shard *shard = &p->shards[i];
        int64_t from = p->first + shard->first, to = from + shard->rows * shard->columns;
        int64_t low = number_max(first, from), high = number_min(end, to);
        if (low < high) {
            TRY(append_elements(d, prefix, p, written, shard, low - from, high - from,
                                skip_elements(data, low - first)));
        }
    }
    return STATUS_OK;
}

static status finish_entries(status result, const char *set_name, struct state_dict *d)
{
    if (result != STATUS_OK) {
        state_dict_destroy(d);
        return result;
    }
    for (int i = 0; i < d->tensor_set.count; i++) {
        d->tensors[i].name = d->names[i];
    }
    d->tensor_set.name = set_name;
    d->tensor_set.tensors = d->tensors;
    return STATUS_OK;
}

/* ---- weights and moments ---- */

static bool is_selected(const struct state_dict_layout *layout, int index)
{
    const struct model_parameter *p = &layout->parameters[index];
    switch (layout->subset) {
    case STATE_DICT_SUBSET_TRAINED:
        return p->trained;
    case STATE_DICT_SUBSET_FROZEN:
        return !p->trained;
    case STATE_DICT_SUBSET_BASE_MODEL:
        return !model_is_adapter(p);
    case STATE_DICT_SUBSET_TASK_HEAD:
        return p->trained && !model_is_adapter(p);
    default:
        return true;
    }
}

static status append_parameters(struct state_dict *d, const char *prefix,
                                const struct state_dict_layout *layout,
                                const struct state_dict_ranges *ranges, struct elements data)
{
    d->tensor_set.sharded = ranges->sharded;
    for (int i = 0; i < layout->count; i++) {
        for (int r = 0; r < ranges->count && is_selected(layout, i); r++) {
            const struct optimizer_range *range = &ranges->ranges[r];
            TRY(append_range(d, prefix, layout, i, range->first, range->first + range->count,
                             skip_elements(data, range->moment_offset)));
        }
    }
    return STATUS_OK;
}

status state_dict_create_weights(const struct state_dict_layout *layout,
                                 const struct state_dict_ranges *ranges, float *weights,
                                 struct state_dict *out)
{
    *out = (struct state_dict){0};
    struct elements data = {DTYPE_F32, weights};
    return finish_entries(append_parameters(out, "", layout, ranges, data), "model", out);
}

status state_dict_create_moments(const struct state_dict_layout *layout,
                                 const struct state_dict_ranges *ranges, enum dtype dtype,
                                 void *moment1, void *moment2, struct state_dict *out)
{
    *out = (struct state_dict){0};
    struct elements first = {dtype, moment1}, second = {dtype, moment2};
    status result = append_parameters(out, "exp_avg/", layout, ranges, first);
    if (result == STATUS_OK) {
        result = append_parameters(out, "exp_avg_sq/", layout, ranges, second);
    }
    return finish_entries(result, "optimizer", out);
}

/* ---- sessions ---- */

static void set_device(const struct session *s, struct state_dict *d)
{
    if (!device_is_host(s->device)) {
        d->tensor_set.device = s->device;
        d->tensor_set.stream = kernels_stream(s->kernels);
    }
}

static struct state_dict_layout get_layout(const struct session *s, enum parameter_subset subset)
{
    struct state_dict_layout layout = {.writes_replicated = comm_rank(s->mesh.tensor) == 0,
                                       .subset = subset};
    layout.parameters = model_parameters(s->model, &layout.count);
    return layout;
}

status state_dict_create_session_weights(const struct session *s,
                                         const struct state_dict_ranges *ranges, float *weights,
                                         struct state_dict *out)
{
    bool adapters = s->recipe.adapter.type != ADAPTER_NONE;
    struct state_dict_layout layout =
        get_layout(s, adapters ? STATE_DICT_SUBSET_TRAINED : STATE_DICT_SUBSET_ALL);
    struct optimizer_range all = {.count = model_elems(s->model)};
    struct state_dict_ranges whole = {.ranges = &all, .count = 1};
    TRY(state_dict_create_weights(&layout, ranges != NULL ? ranges : &whole,
                                  ranges != NULL ? weights : model_weights(s->model), out));
    set_device(s, out);
    return STATUS_OK;
}

status state_dict_create_session_subset(const struct session *s, enum parameter_subset subset,
                                        struct comm_range elements, float *weights,
                                        struct state_dict *out)
{
    struct state_dict_layout layout = get_layout(s, subset);
    struct optimizer_range range = {.first = elements.first, .count = elements.count};
    struct state_dict_ranges ranges = {.ranges = &range, .count = 1};
    TRY(state_dict_create_weights(&layout, &ranges, weights, out));
    set_device(s, out);
    return STATUS_OK;
}

status state_dict_create_session_moments(const struct session *s,
                                         const struct state_dict_ranges *ranges, enum dtype dtype,
                                         void *moment1, void *moment2, struct state_dict *out)
{
    struct state_dict_layout layout = get_layout(s, STATE_DICT_SUBSET_ALL);
    TRY(state_dict_create_moments(&layout, ranges, dtype, moment1, moment2, out));
    set_device(s, out);
    return STATUS_OK;
}

status state_dict_create_session_fp8(const struct session *s, struct state_dict *out)
{
    int64_t steps = 0, operands = 0;
    float *history = model_fp8_history(s->model, &steps, &operands);
    *out = (struct state_dict){0};
    if (history == NULL) {
        return STATUS_OK;
    }
    TRY(reserve_entry(out));
    snprintf(out->names[0], sizeof *out->names, "amax_history");
    out->tensors[0] = (struct checkpoint_tensor){
        .dimensions = 2,
        .global_shape = {steps, operands},
        .rows = steps,
        .columns = operands,
        .data = history,
        .load_only = comm_rank(s->mesh.tensor) > 0,
        .dtype = DTYPE_F32,
    };
    out->tensor_set.count = 1;
    return finish_entries(STATUS_OK, "fp8", out);
}
