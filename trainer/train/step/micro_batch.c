#include "trainer/train/step/micro_batch.h"

#include "comm/watchdog/watchdog.h"
#include "trainer/train/step/objective_input.h"

struct workspace_shape micro_batch_workspace_shape(const struct model *m, int64_t rows,
                                                   int64_t batch_size, bool training)
{
    const struct model_config *c = model_get_config(m);
    bool task = c->head != MODEL_HEAD_LM;
    return (struct workspace_shape){
        .rows = rows,
        .width = c->width,
        .task_rows = task ? c->output_rows : 0,
        .labels = task ? c->labels : 0,
        .contrastive = c->head == MODEL_HEAD_NONE,
        .batch_size = batch_size,
        .training = training,
    };
}

/* Names the current phase for the watchdog and for profilers. A pass without gradients keeps the
 * phase of its caller. */
static void set_phase(const struct micro_batch_context *c, const struct micro_batch *m,
                      const char *name)
{
    if (m->gradient) {
        watchdog_set_phase(name, 0);
        device_set_profiler_range(kernels_device(c->kernels), name);
    }
}

/* Waits until the weights below `end` have been gathered after the update of the previous step. */
static status wait_for_weights(void *user, int64_t end)
{
    return sharded_optimizer_wait_until(user, end);
}

static status reduce_final_gradients(void *user, int64_t first)
{
    watchdog_set_phase("backward", 0);
    return bucket_advance(sharded_optimizer_buckets(user), first);
}

static struct model_input get_model_input(const struct micro_batch_context *c,
                                          const struct micro_batch *m)
{
    struct model_input input = objective_input_model(m->device_batch);
    input.first_row = m->first_row;
    input.first_output = m->first_output;
    input.seed = c->seed;
    input.step = m->step;
    input.training = m->training;
    input.first_micro_batch = m->first_micro_batch;
    input.weights_hook = c->optimizer != NULL ? wait_for_weights : NULL;
    input.user = c->optimizer;
    input.transient_gradients =
        c->optimizer != NULL && sharded_optimizer_has_transient_gradients(c->optimizer);
    return input;
}

static struct objective_input get_objective_input(const struct micro_batch_context *c,
                                                  const struct micro_batch *m,
                                                  const struct model_input *input)
{
    struct objective_input in = workspace_input(c->workspace);
    objective_input_fill(&in, c->model, m->device_batch, input, m->hidden,
                         m->gradient ? sharded_optimizer_gradients(c->optimizer) : NULL);
    in.preference = c->preference;
    in.label_smoothing = c->objective->smooths_labels ? c->label_smoothing : 0;
    in.reference_logps = c->reference_logps;
    in.example_weight = m->example_weight;
    in.sink = m->gradient ? NULL : c->sink;
    in.device_sums = m->device_sums;
    return in;
}

static status compute_gradients(const struct micro_batch_context *c, const struct micro_batch *m,
                                const struct model_input *input)
{
    set_phase(c, m, "backward");
    TRY(model_backward(c->model, input, sharded_optimizer_gradients(c->optimizer),
                       reduce_final_gradients, c->optimizer));
    return bucket_end_micro_batch(sharded_optimizer_buckets(c->optimizer));
}

status micro_batch_run(const struct micro_batch_context *c, struct micro_batch *m)
{
    struct model_input input = get_model_input(c, m);
    if (!m->has_hidden) {
        set_phase(c, m, "forward");
        TRY(model_forward(c->model, &input, &m->hidden));
    }
    if (m->gradient) {
        TRY(bucket_begin_micro_batch(sharded_optimizer_buckets(c->optimizer)));
    }
    struct objective_input in = get_objective_input(c, m, &input);
    set_phase(c, m, "loss");
    TRY(c->objective->loss(c->kernels, m->batch, &in, m->gradient, m->host_sums));
    return m->gradient ? compute_gradients(c, m, &input) : STATUS_OK;
}
