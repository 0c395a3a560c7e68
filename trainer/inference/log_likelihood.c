#include "trainer/inference/log_likelihood.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/device/mirror.h"
#include "base/number.h"
#include "datasets/loader/batch.h"
#include "trainer/objective/task_head.h"

/* A micro-batch of whole items, one after the other. Each item is a separate segment. */
struct pack {
    struct mirror inputs, outputs;
    int32_t *tokens, *targets, *positions; /* [rows], host side of inputs */
    int32_t *cu_rows;                      /* [rows + 1], host side of inputs */
    int32_t *best;                         /* [rows], host side of outputs: most probable ids */
    float *losses;                         /* [rows], host side of outputs */
    int64_t capacity, rows, segments, longest, first_item;
};

static void pack_destroy(struct pack *p)
{
    mirror_destroy(&p->inputs);
    mirror_destroy(&p->outputs);
}

static size_t compute_input_bytes(int64_t rows)
{
    return (4 * (size_t)rows + 1) * sizeof(int32_t);
}

static size_t compute_output_bytes(int64_t rows)
{
    return 2 * (size_t)rows * sizeof(float);
}

int64_t log_likelihood_bytes(int64_t rows)
{
    return 2 * (int64_t)(compute_input_bytes(rows) + compute_output_bytes(rows));
}

static status pack_create(struct kernels *k, struct pack *p, int64_t rows)
{
    struct device *dev = kernels_device(k);
    struct stream *stream = kernels_stream(k);
    size_t n = (size_t)rows;
    *p = (struct pack){.capacity = rows};
    TRY(mirror_create(dev, stream, compute_input_bytes(rows), "items", &p->inputs));
    TRY(mirror_create(dev, stream, compute_output_bytes(rows), "losses", &p->outputs));
    p->tokens = p->inputs.host;
    p->targets = p->tokens + n;
    p->positions = p->targets + n;
    p->cu_rows = p->positions + n;
    p->losses = p->outputs.host;
    p->best = (int32_t *)(p->losses + n);
    return STATUS_OK;
}

static void pack_add(struct pack *p, const struct log_likelihood_item *item, int64_t skipped)
{
    int64_t rows = item->count - 1 - skipped;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = p->rows + i, id = skipped + i;
        p->tokens[at] = item->ids[id];
        p->positions[at] = (int32_t)i;
        p->targets[at] = id + 1 >= item->count - item->scored ? item->ids[id + 1] : BATCH_IGNORED;
    }
    p->rows += rows;
    p->segments++;
    p->cu_rows[p->segments] = (int32_t)p->rows;
    p->longest = number_max(p->longest, rows);
}

/* Computes the losses and most probable ids of the pack's rows. */
static status pack_score(struct kernels *k, struct model *m, struct pack *p)
{
    int64_t n = p->capacity;
    const int32_t *inputs = p->inputs.device_data;
    float *losses = p->outputs.device_data;
    struct model_input input = {
        .rows = p->rows,
        .tokens = inputs,
        .positions = inputs + 2 * n,
        .segments = p->segments,
        .cu_rows = inputs + 3 * n,
        .longest = p->longest,
    };
    const struct classifier c = model_classifier(m, BATCH_IGNORED);
    struct tensor hidden;
    TRY(mirror_upload(&p->inputs, 0, p->inputs.bytes));
    TRY(model_forward(m, &input, &hidden));
    TRY(classifier_run(k, losses, (int32_t *)(losses + n), tensor_absent(), tensor_absent(), hidden,
                       model_lm_head(m), inputs + n, &c));
    return mirror_download_and_wait(&p->outputs, 0, p->outputs.bytes);
}

static status pack_run(struct kernels *k, struct model *m, struct pack *p,
                       const struct log_likelihood_item *items, struct log_likelihood_result *out)
{
    TRY(pack_score(k, m, p));
    for (int64_t s = 0; s < p->segments; s++) {
        struct log_likelihood_result *r = &out[p->first_item + s];
        double *log_probabilities = items[p->first_item + s].log_probabilities;
        r->greedy = true;
        for (int64_t i = p->cu_rows[s]; i < p->cu_rows[s + 1]; i++) {
            if (p->targets[i] != BATCH_IGNORED) {
                REQUIRE(isfinite(p->losses[i]), STATUS_NOT_FINITE,
                        "a log-probability is %g: the weights are damaged", -(double)p->losses[i]);
                r->log_probability -= (double)p->losses[i];
                if (log_probabilities != NULL) {
                    log_probabilities[r->tokens] = -(double)p->losses[i];
                }
                r->tokens++;
                r->greedy = r->greedy && p->best[i] == p->targets[i];
            }
        }
    }
    p->first_item += p->segments;
    p->rows = p->segments = p->longest = 0;
    return STATUS_OK;
}

static status score_all(struct kernels *k, struct model *m, struct pack *p,
                        const struct log_likelihood_item *items, int64_t count,
                        struct log_likelihood_result *out)
{
    int64_t positions = model_get_config(m)->positions;
    int64_t longest = number_min(p->capacity, positions);
    for (int64_t i = 0; i < count; i++) {
        int64_t rows = items[i].count - 1, skipped = rows > longest ? rows - longest : 0;
        REQUIRE(items[i].scored <= longest, STATUS_USAGE,
                "text %" PRId64 " has %" PRId64 " tokens to score, but the model has %" PRId64
                " positions; split it",
                i, items[i].scored, longest);
        if (p->rows + rows - skipped > p->capacity) {
            TRY(pack_run(k, m, p, items, out));
        }
        out[i] = (struct log_likelihood_result){.truncated = skipped > 0};
        pack_add(p, &items[i], skipped);
    }
    return p->segments > 0 ? pack_run(k, m, p, items, out) : STATUS_OK;
}

status log_likelihood_run(struct kernels *k, struct model *m, int64_t rows,
                          const struct log_likelihood_item *items, int64_t count,
                          struct log_likelihood_result *out)
{
    struct pack p;
    status result = pack_create(k, &p, rows);
    if (result == STATUS_OK) {
        result = score_all(k, m, &p, items, count, out);
    }
    pack_destroy(&p);
    return result;
}

/* ---- rewards ---- */

/* Runs the sequence as one segment; the head reads its last row. */
static status compute_reward(struct kernels *k, struct model *m,
                             const struct log_likelihood_item *item, struct mirror *inputs,
                             const struct task_head *memory, double *out)
{
    size_t n = (size_t)item->count;
    int32_t *tokens = inputs->host, *positions = tokens + n, *bounds = positions + n;
    const int32_t *device_inputs = inputs->device_data;
    const float *reward = NULL;
    struct tensor hidden;
    memcpy(tokens, item->ids, n * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        positions[i] = (int32_t)i;
    }
    bounds[1] = (int32_t)n;
    bounds[2] = (int32_t)n - 1;
    struct model_input input = {
        .rows = item->count,
        .tokens = device_inputs,
        .positions = device_inputs + n,
        .segments = 1,
        .cu_rows = device_inputs + 2 * n,
        .longest = item->count,
        .output_rows = device_inputs + 2 * n + 2,
        .outputs = 1,
    };
    TRY(mirror_upload(inputs, 0, inputs->bytes));
    TRY(model_forward(m, &input, &hidden));
    struct model_label_head labels = model_get_label_head(m, &input, NULL);
    const struct objective_input in = {
        .hidden = {.value = hidden},
        .label_head = {.weight = labels.weight, .bias = labels.bias},
        .task_head = memory,
    };
    TRY(task_head_forward(k, &in, &reward));
    REQUIRE(isfinite(*reward), STATUS_NOT_FINITE, "a reward is %g: the weights are damaged",
            (double)*reward);
    *out = (double)*reward;
    return STATUS_OK;
}

status log_likelihood_reward(struct kernels *k, struct model *m,
                             const struct log_likelihood_item *item, double *out)
{
    struct mirror inputs = {0};
    struct task_head memory = {0};
    size_t bytes = (2 * (size_t)item->count + 3) * sizeof *item->ids;
    status result = mirror_create(kernels_device(k), kernels_stream(k), bytes,
                                  "the input of the reward model", &inputs);
    if (result == STATUS_OK) {
        result = task_head_create(k, 1, 1, &memory);
    }
    if (result == STATUS_OK) {
        result = compute_reward(k, m, item, &inputs, &memory, out);
    }
    task_head_destroy(&memory);
    mirror_destroy(&inputs);
    return result;
}
