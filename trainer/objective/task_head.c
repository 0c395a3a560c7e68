/* Device memory: gradients f32, outputs f32, rounded gradients, one after the other. */
#include "trainer/objective/task_head.h"

#include <inttypes.h>

_Static_assert((int)OBJECTIVE_LOSS + (int)HEAD_LOSS_SUMS <= (int)OBJECTIVE_SUMS &&
                   (int)OBJECTIVE_COUNT == (int)OBJECTIVE_LOSS + (int)HEAD_LOSS_COUNT,
               "the sums of a head are consecutive sums of an objective");

static size_t compute_output_bytes(const struct task_head *m)
{
    return (size_t)(m->rows * m->labels) * sizeof(float);
}

status task_head_create(struct kernels *k, int64_t rows, int64_t labels, struct task_head *out)
{
    *out = (struct task_head){.rows = rows, .labels = labels};
    size_t rounded = (size_t)(rows * labels) * dtype_bytes(kernels_dtype(k));
    return mirror_create(kernels_device(k), kernels_stream(k),
                         2 * compute_output_bytes(out) + rounded,
                         "the outputs of the fine-tuning head", &out->mirror);
}

void task_head_destroy(struct task_head *head)
{
    mirror_destroy(&head->mirror);
}

static struct tensor view_device(const struct task_head *m, size_t first, enum dtype dtype,
                                 int64_t rows)
{
    return tensor_view((char *)m->mirror.device_data + first, dtype, rows, m->labels);
}

static struct tensor view_gradients(const struct objective_input *in)
{
    return view_device(in->task_head, 0, DTYPE_F32, in->hidden.value.rows);
}

static struct tensor view_outputs(const struct objective_input *in)
{
    const struct task_head *m = in->task_head;
    return view_device(m, compute_output_bytes(m), DTYPE_F32, in->hidden.value.rows);
}

static status queue_outputs(struct kernels *k, const struct objective_input *in)
{
    const struct task_head *m = in->task_head;
    int64_t rows = in->hidden.value.rows;
    const struct objective_label_head *head = &in->label_head;
    int64_t labels = head->weight.data != NULL ? head->weight.rows : in->hidden.value.columns;
    REQUIRE(m != NULL && rows <= m->rows && labels == m->labels, STATUS_INTERNAL,
            "a batch has %" PRId64 " rows and %" PRId64
            " outputs for the fine-tuning head, which does not match the plan",
            rows, labels);
    return head->weight.data != NULL
               ? classifier_logits(k, view_outputs(in), in->hidden.value, head->weight, head->bias)
               : op_copy(k, view_outputs(in), in->hidden.value);
}

static status download_outputs(const struct objective_input *in, const float **outputs)
{
    const struct task_head *m = in->task_head;
    *outputs = (const float *)((const char *)m->mirror.host + compute_output_bytes(m));
    return mirror_download_and_wait(&m->mirror, compute_output_bytes(m),
                                    (size_t)(in->hidden.value.rows * m->labels) * sizeof **outputs);
}

status task_head_outputs(struct kernels *k, const struct objective_input *in, struct tensor *out)
{
    TRY(queue_outputs(k, in));
    *out = view_outputs(in);
    return STATUS_OK;
}

status task_head_forward(struct kernels *k, const struct objective_input *in, const float **outputs)
{
    TRY(queue_outputs(k, in));
    return download_outputs(in, outputs);
}

struct tensor task_head_gradients(const struct objective_input *in)
{
    return view_gradients(in);
}

status task_head_backward(struct kernels *k, const struct objective_input *in)
{
    const struct task_head *m = in->task_head;
    struct tensor gradients = view_gradients(in), dy = gradients;
    if (in->label_head.weight.data == NULL) {
        return op_copy(k, in->hidden.gradient, gradients);
    }
    if (kernels_dtype(k) != DTYPE_F32) {
        dy = view_device(m, 2 * compute_output_bytes(m), kernels_dtype(k), gradients.rows);
        TRY(op_cast(k, dy, gradients));
    }
    TRY(linear_backward_weight(k, in->label_head.weight_gradient, in->label_head.bias_gradient, dy,
                               in->hidden.value, in->first_micro_batch));
    return linear_backward_input(k, in->hidden.gradient, (struct bias_gradient){0}, dy,
                                 in->label_head.weight, ACTIVATION_NONE, tensor_absent());
}

/* Passes each example of a batch to in->sink. */
static status report_examples(const struct batch *batch, const struct objective_input *in,
                              const float *outputs, int64_t labels_each)
{
    static const struct batch_task no_task = {0};
    const struct batch_task *task = batch->kind == BATCH_TASK ? &batch->task : &no_task;
    const int32_t *example_rows = batch->outputs.example_rows;
    const int64_t columns = in->task_head->labels;
    bool one_segment_each = batch->segments == batch->sequences;
    for (int64_t i = 0; i < batch->sequences; i++) {
        int64_t first = example_rows[i], label = labels_each > 0 ? labels_each * i : first;
        struct objective_example e = {
            .sample = batch->samples[i],
            .rows = example_rows[i + 1] - first,
            .columns = columns,
            .outputs = outputs + first * columns,
            .labels = task->labels != NULL ? task->labels + label : NULL,
            .numbers = task->float_labels != NULL ? task->float_labels + label : NULL,
            .tokens = one_segment_each ? batch->inputs + batch->cu_rows[i] : NULL,
            .token_count = one_segment_each ? batch->cu_rows[i + 1] - batch->cu_rows[i] : 0,
            .token_flags = task->token_flags != NULL ? task->token_flags + batch->cu_rows[i] : NULL,
            .row = task->dataset_rows != NULL ? task->dataset_rows[i] : 0,
        };
        TRY(in->sink->consume(in->sink->user, &e));
    }
    return STATUS_OK;
}

status task_head_run(struct kernels *k, const struct batch *batch, const struct objective_input *in,
                     const struct head_loss *loss, int64_t labels_each, bool gradient)
{
    const float *outputs = NULL;
    TRY(queue_outputs(k, in));
    TRY(head_loss_run(k, in->device_sums + OBJECTIVE_LOSS, view_gradients(in), view_outputs(in),
                      loss));
    if (in->sink != NULL) {
        TRY(download_outputs(in, &outputs));
        TRY(report_examples(batch, in, outputs, labels_each));
    }
    return gradient ? task_head_backward(k, in) : STATUS_OK;
}

status task_head_check_labels(const int32_t *batch_labels, int64_t count, int64_t labels,
                              bool allow_ignored)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t label = batch_labels[i];
        REQUIRE((label >= 0 && label < labels) || (allow_ignored && label == BATCH_IGNORED),
                STATUS_INTERNAL, "label %" PRId64 " is not in [0, %" PRId64 ")", label, labels);
    }
    return STATUS_OK;
}

status task_head_check(const struct batch *batch, const struct objective_input *in,
                       enum batch_kind kind)
{
    REQUIRE(batch->kind == kind && batch->outputs.rows != NULL &&
                batch->outputs.example_rows != NULL &&
                batch->outputs.count == in->hidden.value.rows,
            STATUS_INTERNAL, "the batch has no rows for a fine-tuning head, or another number");
    return STATUS_OK;
}
