#include "trainer/score.h"

#include <math.h>
#include <stdlib.h>

#include "datasets/batch.h"

/* A micro-batch of whole items, one after the other; each is a segment of its own. */
struct pack {
    int32_t *tokens, *targets, *positions, *best; /* [rows] */
    int32_t *cu_rows;                             /* [rows + 1] */
    float *losses;                                /* [rows] */
    int64_t capacity, rows, segments, longest, first_item;
};

static void pack_destroy(struct pack *p)
{
    free(p->tokens);
    free(p->targets);
    free(p->positions);
    free(p->best);
    free(p->cu_rows);
    free(p->losses);
}

static status pack_create(struct pack *p, int64_t rows)
{
    size_t n = (size_t)rows;
    *p = (struct pack){.capacity = rows};
    p->tokens = calloc(n, sizeof *p->tokens);
    p->targets = calloc(n, sizeof *p->targets);
    p->positions = calloc(n, sizeof *p->positions);
    p->best = calloc(n, sizeof *p->best);
    p->cu_rows = calloc(n + 1, sizeof *p->cu_rows);
    p->losses = calloc(n, sizeof *p->losses);
    REQUIRE(p->tokens != NULL && p->targets != NULL && p->positions != NULL && p->best != NULL &&
                p->cu_rows != NULL && p->losses != NULL,
            STATUS_INTERNAL, "out of memory for %zu rows", n);
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

static status pack_run(struct kernels *k, struct model *m, struct pack *p, struct score_result *out)
{
    struct model_input input = {
        .rows = p->rows,
        .tokens = p->tokens,
        .positions = p->positions,
        .segments = p->segments,
        .cu_rows = p->cu_rows,
        .longest = p->longest,
    };
    struct classifier c = {.vocabulary = model_config_of(m)->vocabulary,
                           .ignored = BATCH_IGNORED,
                           .parts = model_head_parts(m)};
    struct tensor hidden;
    TRY(model_forward(m, &input, &hidden));
    TRY(classifier_run(k, p->losses, p->best, tensor_absent(), tensor_absent(), hidden,
                       model_head(m), p->targets, &c));
    for (int64_t s = 0; s < p->segments; s++) {
        struct score_result *r = &out[p->first_item + s];
        r->greedy = true;
        for (int64_t i = p->cu_rows[s]; i < p->cu_rows[s + 1]; i++) {
            if (p->targets[i] != BATCH_IGNORED) {
                REQUIRE(isfinite(p->losses[i]), STATUS_NOT_FINITE,
                        "a log-probability is %g: the weights are damaged", -(double)p->losses[i]);
                r->log_probability -= (double)p->losses[i];
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
            TRY(pack_run(k, m, p, out));
        }
        out[i] = (struct score_result){.cut = skipped > 0};
        pack_add(p, &items[i], skipped);
    }
    return p->segments > 0 ? pack_run(k, m, p, out) : STATUS_OK;
}

status score_run(struct kernels *k, struct model *m, int64_t rows, const struct score_item *items,
                 int64_t count, struct score_result *out)
{
    struct pack p;
    status result = pack_create(&p, rows);
    if (result == STATUS_OK) {
        result = score_all(k, m, &p, items, count, out);
    }
    pack_destroy(&p);
    return result;
}
