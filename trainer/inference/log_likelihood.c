#include "trainer/inference/log_likelihood.h"

#include <math.h>
#include <string.h>

#include "base/mirror.h"
#include "datasets/loader/batch.h"
#include "trainer/objective/task_head.h"

/* A micro-batch of whole items, one after the other; each is a segment of its own. */
struct pack {
    struct mirror given,
        made; /* what goes to the device and what comes back: the host's sides are */
    int32_t *tokens, *targets, *positions; /* [rows], given */
    int32_t *cu_rows;                      /* [rows + 1], given */
    int32_t *best;                         /* [rows], made */
    float *losses;                         /* [rows], made */
    int64_t capacity, rows, segments, longest, first_item;
};

static void pack_destroy(struct pack *p)
{
    mirror_destroy(&p->given);
    mirror_destroy(&p->made);
}

static status pack_create(struct kernels *k, struct pack *p, int64_t rows)
{
    struct device *dev = kernels_device(k);
    struct stream *stream = kernels_stream(k);
    size_t n = (size_t)rows;
    *p = (struct pack){.capacity = rows};
    TRY(mirror_create(dev, stream, (4 * n + 1) * sizeof *p->tokens, "items", &p->given));
    TRY(mirror_create(dev, stream, 2 * n * sizeof *p->losses, "losses", &p->made));
    p->tokens = p->given.host;
    p->targets = p->tokens + n;
    p->positions = p->targets + n;
    p->cu_rows = p->positions + n;
    p->losses = p->made.host;
    p->best = (int32_t *)(p->losses + n);
    return STATUS_OK;
}

static void pack_add(struct pack *p, const struct score_item *item, int64_t skipped)
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
    p->longest = rows > p->longest ? rows : p->longest;
}

/* Losses and best ids of the pack's rows. */
static status pack_score(struct kernels *k, struct model *m, struct pack *p)
{
    int64_t n = p->capacity;
    const int32_t *given = p->given.placed;
    float *losses = p->made.placed;
    struct model_input input = {
        .rows = p->rows,
        .tokens = given,
        .positions = given + 2 * n,
        .segments = p->segments,
        .cu_rows = given + 3 * n,
        .longest = p->longest,
    };
    struct classifier c = {.vocabulary = model_config_of(m)->vocabulary,
                           .ignored = BATCH_IGNORED,
                           .parts = model_head_parts(m)};
    struct tensor hidden;
    TRY(mirror_push(&p->given, 0, p->given.bytes));
    TRY(model_forward(m, &input, &hidden));
    TRY(classifier_run(k, losses, (int32_t *)(losses + n), tensor_absent(), tensor_absent(), hidden,
                       model_head(m), given + n, &c));
    return mirror_pull(&p->made, 0, p->made.bytes);
}

static status pack_run(struct kernels *k, struct model *m, struct pack *p,
                       const struct score_item *items, struct score_result *out)
{
    TRY(pack_score(k, m, p));
    for (int64_t s = 0; s < p->segments; s++) {
        struct score_result *r = &out[p->first_item + s];
        double *each = items[p->first_item + s].each;
        r->greedy = true;
        for (int64_t i = p->cu_rows[s]; i < p->cu_rows[s + 1]; i++) {
            if (p->targets[i] != BATCH_IGNORED) {
                REQUIRE(isfinite(p->losses[i]), STATUS_NOT_FINITE,
                        "a log-probability is %g: the weights are damaged", -(double)p->losses[i]);
                r->log_probability -= (double)p->losses[i];
                if (each != NULL) {
                    each[r->tokens] = -(double)p->losses[i];
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
                        const struct score_item *items, int64_t count, struct score_result *out)
{
    int64_t positions = model_config_of(m)->positions;
    int64_t longest = p->capacity < positions ? p->capacity : positions;
    for (int64_t i = 0; i < count; i++) {
        int64_t rows = items[i].count - 1, skipped = rows > longest ? rows - longest : 0;
        REQUIRE(items[i].scored <= longest, STATUS_USAGE,
                "item %lld: %lld tokens are to be scored, the model has %lld positions",
                (long long)i, (long long)items[i].scored, (long long)longest);
        if (p->rows + rows - skipped > p->capacity) {
            TRY(pack_run(k, m, p, items, out));
        }
        out[i] = (struct score_result){.cut = skipped > 0};
        pack_add(p, &items[i], skipped);
    }
    return p->segments > 0 ? pack_run(k, m, p, items, out) : STATUS_OK;
}

status score_run(struct kernels *k, struct model *m, int64_t rows, const struct score_item *items,
                 int64_t count, struct score_result *out)
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

/* The text as one segment whose last row the head reads. */
static status reward_text(struct kernels *k, struct model *m, const struct score_item *item,
                          struct mirror *given, const struct head_memory *memory, double *out)
{
    size_t n = (size_t)item->count;
    int32_t *tokens = given->host, *positions = tokens + n, *bounds = positions + n;
    const int32_t *placed = given->placed;
    const float *reward = NULL;
    float *unused = NULL;
    struct tensor hidden;
    memcpy(tokens, item->ids, n * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        positions[i] = (int32_t)i;
    }
    bounds[1] = (int32_t)n;
    bounds[2] = (int32_t)n - 1;
    struct model_input input = {
        .rows = item->count,
        .tokens = placed,
        .positions = placed + n,
        .segments = 1,
        .cu_rows = placed + 2 * n,
        .longest = item->count,
        .output_rows = placed + 2 * n + 2,
        .outputs = 1,
    };
    TRY(mirror_push(given, 0, given->bytes));
    TRY(model_forward(m, &input, &hidden));
    struct model_labels labels = model_labels_of(m, &input, NULL);
    const struct objective_views views = {
        .hidden = hidden, .labels = labels.weight, .labels_bias = labels.bias, .task = memory};
    TRY(head_forward(k, &views, &reward, &unused));
    REQUIRE(isfinite(*reward), STATUS_NOT_FINITE, "a reward is %g: the weights are damaged",
            (double)*reward);
    *out = (double)*reward;
    return STATUS_OK;
}

status score_reward(struct kernels *k, struct model *m, const struct score_item *item, double *out)
{
    struct mirror given = {0};
    struct head_memory memory = {0};
    size_t bytes = (2 * (size_t)item->count + 3) * sizeof *item->ids;
    status result =
        mirror_create(kernels_device(k), kernels_stream(k), bytes, "a text to reward", &given);
    if (result == STATUS_OK) {
        result = head_create(k, 1, 1, &memory);
    }
    if (result == STATUS_OK) {
        result = reward_text(k, m, item, &given, &memory, out);
    }
    head_destroy(&memory);
    mirror_destroy(&given);
    return result;
}
