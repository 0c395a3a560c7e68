#include "trainer/objective/task_head.h"

#include <math.h>

static size_t half_bytes(const struct head_memory *m)
{
    return (size_t)(m->rows * m->labels) * sizeof(float);
}

status head_create(struct kernels *k, int64_t rows, int64_t labels, struct head_memory *out)
{
    *out = (struct head_memory){.rows = rows, .labels = labels};
    size_t rounded = (size_t)(rows * labels) * dtype_bytes(kernels_dtype(k));
    return mirror_create(kernels_device(k), kernels_stream(k), 2 * half_bytes(out) + rounded,
                         "a task's outputs", &out->mirror);
}

void head_destroy(struct head_memory *memory)
{
    mirror_destroy(&memory->mirror);
}

static struct tensor placed(const struct head_memory *m, size_t first, enum dtype dtype,
                            int64_t rows)
{
    return tensor_view((char *)m->mirror.placed + first, dtype, rows, m->labels);
}

static status copy(struct kernels *k, struct tensor to, struct tensor from)
{
    if (to.dtype != from.dtype) {
        return convert(k, to, from);
    }
    return device_copy(kernels_device(k), kernels_stream(k), to.data, from.data,
                       (size_t)(to.rows * to.columns) * dtype_bytes(to.dtype));
}

status head_forward(struct kernels *k, const struct objective_views *views, const float **outputs,
                    float **slopes)
{
    const struct head_memory *m = views->task;
    int64_t rows = views->hidden.rows;
    int64_t labels = views->labels.data != NULL ? views->labels.rows : views->hidden.columns;
    REQUIRE(m != NULL && rows <= m->rows && labels == m->labels, STATUS_INTERNAL,
            "a task's head of %lld rows and %lld outputs", (long long)rows, (long long)labels);
    struct tensor logits = placed(m, half_bytes(m), DTYPE_F32, rows);
    TRY(views->labels.data != NULL
            ? classifier_logits(k, logits, views->hidden, views->labels, views->labels_bias)
            : copy(k, logits, views->hidden));
    *slopes = m->mirror.host;
    *outputs = (const float *)((const char *)m->mirror.host + half_bytes(m));
    return mirror_pull(&m->mirror, half_bytes(m), (size_t)(rows * m->labels) * sizeof **outputs);
}

status head_backward(struct kernels *k, const struct objective_views *views)
{
    const struct head_memory *m = views->task;
    int64_t rows = views->hidden.rows;
    struct tensor slopes = placed(m, 0, DTYPE_F32, rows), dy = slopes;
    TRY(mirror_push(&m->mirror, 0, (size_t)(rows * m->labels) * sizeof(float)));
    if (views->labels.data == NULL) {
        return copy(k, views->hidden_gradient, slopes);
    }
    if (kernels_dtype(k) != DTYPE_F32) {
        dy = placed(m, 2 * half_bytes(m), kernels_dtype(k), rows);
        TRY(convert(k, dy, slopes));
    }
    TRY(linear_backward_weight(k, views->labels_gradient, views->labels_bias_gradient, dy,
                               views->hidden, views->fresh));
    return linear_backward_input(k, views->hidden_gradient, dy, views->labels, ACTIVATION_NONE,
                                 tensor_absent());
}

double head_softmax(const float *outputs, float *slopes, const struct head_choice *choice,
                    int64_t *best)
{
    int64_t stride = choice->stride, at = 0;
    double sum = 0;
    for (int64_t i = 1; i < choice->count; i++) {
        at = outputs[i * stride] > outputs[at * stride] ? i : at;
    }
    double largest = (double)outputs[at * stride];
    for (int64_t i = 0; i < choice->count; i++) {
        sum += exp((double)outputs[i * stride] - largest);
    }
    for (int64_t i = 0; i < choice->count; i++) {
        double share = exp((double)outputs[i * stride] - largest) / sum;
        slopes[i * stride] = (float)(choice->weight * (share - (double)(i == choice->right)));
    }
    *best = at;
    return log(sum) + largest - (double)outputs[choice->right * stride];
}

status head_check(const struct batch *batch, const struct objective_views *views)
{
    REQUIRE(batch->masked_rows != NULL && batch->example_rows != NULL &&
                batch->masked == views->hidden.rows,
            STATUS_INTERNAL, "a batch without rows for a task's head");
    return STATUS_OK;
}

status head_tell(const struct batch *batch, const struct objective_views *views,
                 const float *outputs, int64_t columns, int64_t each)
{
    bool whole = batch->segments == batch->sequences; /* one segment an example */
    bool windows = whole && batch->next_sentence != NULL;
    for (int64_t i = 0; i < batch->sequences && views->sink != NULL; i++) {
        int64_t first = batch->example_rows[i], label = each > 0 ? each * i : first;
        struct objective_example e = {
            .sample = batch->samples[i],
            .rows = batch->example_rows[i + 1] - first,
            .columns = columns,
            .outputs = outputs + first * columns,
            .labels = batch->labels != NULL ? batch->labels + label : NULL,
            .numbers = batch->numbers != NULL ? batch->numbers + label : NULL,
            .tokens = whole ? batch->inputs + batch->cu_rows[i] : NULL,
            .token_count = whole ? batch->cu_rows[i + 1] - batch->cu_rows[i] : 0,
            .marks = windows ? batch->targets + batch->cu_rows[i] : NULL,
            .row = windows ? batch->next_sentence[i] : 0,
        };
        TRY(views->sink->take(views->sink->user, &e));
    }
    return STATUS_OK;
}
