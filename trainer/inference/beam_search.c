/* Beam search: one prompt, one slot for each beam.
 *
 * The algorithm is the same as in transformers. The repetition penalty and the constraints change
 * the log-probabilities, which are not normalized again. The search keeps as many finished
 * hypotheses as there are beams, ranked by log-probability / length^penalty. The length counts the
 * end token but not the prompt. A hypothesis that ends is kept only if it is among the best
 * `beams` of all continuations. The search ends when the list of hypotheses is full and the
 * best running beam, at its current length, does not outrank the worst of them; with
 * early_stopping, when the list is full. At the length limit, every continuation ends. */
#include "trainer/inference/beam_search.h"
#include "base/memory.h"
#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/inference/generate_impl.h"
#include "trainer/inference/slots_impl.h"
#include "trainer/model/cache.h"

struct beam_candidate {
    double score; /* log-probability of the whole continuation, with the repetition penalty */
    int32_t beam, id;
};

static int compare_candidates(const void *a, const void *b)
{
    const struct beam_candidate *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->beam != y->beam ? x->beam - y->beam : x->id - y->id;
}

struct beam_search {
    struct slots slots; /* slot i: beam i */
    struct sampler *sampler;
    const struct tokenizer *tokenizer;
    const struct generate_options *options;
    int64_t beams;
    int64_t live_beams;                /* 0: the prompt is not read; 1: all beams are equal */
    double *scores;                    /* [beams] log-probability of each running beam */
    struct generate_output *finished;  /* [beams] the best hypotheses so far */
    double *ranks;                     /* [beams] score / length^penalty, descending */
    int64_t count;                     /* number of finished hypotheses */
    struct beam_candidate *candidates; /* [beams * 2 beams + beams] */
};

static double compute_rank(const struct beam_search *b, double score, int64_t tokens)
{
    return score / pow((double)(tokens > 0 ? tokens : 1), b->options->length_penalty);
}

/* Keeps the continuation of a beam if it is among the best `beams`. The id -1 stands for the beam
 * without a continuation. */
static status finish_beam(struct beam_search *b, const struct beam_candidate *c, bool ended)
{
    const struct slots_sequence *s = &b->slots.sequences[c->beam];
    int64_t tokens = s->tokens.count - s->prompt_tokens;
    double rank = compute_rank(b, c->score, tokens + (c->id >= 0));
    if (b->count == b->beams && !(rank > b->ranks[b->count - 1])) {
        return STATUS_OK;
    }
    if (b->count == b->beams) {
        token_list_free(&b->finished[--b->count].tokens);
    }
    int64_t at = b->count++;
    for (; at > 0 && rank > b->ranks[at - 1]; at--) {
        b->ranks[at] = b->ranks[at - 1];
        b->finished[at] = b->finished[at - 1];
    }
    b->ranks[at] = rank;
    b->finished[at] = (struct generate_output){.log_probability = c->score, .ended = ended};
    TRY(token_list_append(&b->finished[at].tokens, s->tokens.ids + s->prompt_tokens, tokens));
    return ended || c->id < 0 ? STATUS_OK : token_list_append(&b->finished[at].tokens, &c->id, 1);
}

status beam_search_stop(struct beam_search *b)
{
    for (int64_t i = 0; i < b->beams; i++) {
        const struct beam_candidate c = {b->scores[i], (int32_t)i, -1};
        TRY(finish_beam(b, &c, false));
    }
    return STATUS_OK;
}

/* Lists the best 2 * beams continuations of each beam, sorted by score. They include the best
 * `beams` continuations of all beams. */
static status list_candidates(struct beam_search *b, int32_t end_token, int64_t *out)
{
    struct slots *d = &b->slots;
    int64_t ids = b->tokenizer != NULL ? tokenizer_vocab_size(b->tokenizer) : d->vocabulary;
    int64_t per_beam = number_min(2 * b->beams, d->vocabulary), count = 0;
    for (int64_t beam = 0; beam < b->live_beams; beam++) {
        const struct slots_sequence *s = &d->sequences[beam];
        const struct constraints_sequence sequence = {
            s->tokens.ids, s->tokens.count, s->prompt_tokens, s->limit, end_token, ids};
        float *logits = s->logits;
        TRY(sampler_log_softmax(logits, d->vocabulary));
        sampler_apply_penalty(b->sampler, b->options->sampler.repetition_penalty, logits,
                              s->tokens.ids, s->tokens.count);
        constraints_apply(&b->options->constraints, &sequence, logits, d->vocabulary);
        struct beam_candidate *best = b->candidates + count;
        int64_t filled = 0;
        for (int64_t id = 0; id < d->vocabulary; id++) {
            struct beam_candidate c = {b->scores[beam] + logits[id], (int32_t)beam, (int32_t)id};
            int64_t at = filled;
            for (; at > 0 && c.score > best[at - 1].score; at--) {
                if (at < per_beam) {
                    best[at] = best[at - 1];
                }
            }
            if (at < per_beam) {
                best[at] = c;
                filled += filled < per_beam;
            }
        }
        count += filled;
    }
    qsort(b->candidates, (size_t)count, sizeof *b->candidates, compare_candidates);
    *out = count;
    return STATUS_OK;
}

/* Replaces the beams by the chosen continuations. */
static status continue_beams(struct beam_search *b, const struct beam_candidate *chosen)
{
    struct slots *d = &b->slots;
    struct token_list *next = NULL;
    int32_t *sources = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(next, b->beams, "beams"));
    TRY_GOTO(result, done, ALLOCATE(sources, b->beams, "beams"));
    for (int64_t i = 0; i < b->beams; i++) {
        sources[i] = chosen[i].beam;
        const struct token_list *source = &d->sequences[sources[i]].tokens;
        TRY_GOTO(result, done, token_list_append(&next[i], source->ids, source->count));
        TRY_GOTO(result, done, token_list_append(&next[i], &chosen[i].id, 1));
    }
    for (int64_t i = 0; i < b->beams; i++) {
        token_list_free(&d->sequences[i].tokens);
        d->sequences[i].tokens = next[i];
        d->sequences[i].is_prompt_read = true;
        b->scores[i] = chosen[i].score;
    }
    free(next);
    next = NULL;
    TRY_GOTO(result, done, model_cache_reorder(d->model, d->cache, sources));
done:
    for (int64_t i = 0; next != NULL && i < b->beams; i++) {
        token_list_free(&next[i]);
    }
    free(next);
    free(sources);
    return result;
}

/* Returns whether no running beam can change the list of hypotheses. */
static bool is_decided(const struct beam_search *b)
{
    const struct slots_sequence *s = &b->slots.sequences[0];
    double best = compute_rank(b, b->scores[0], s->tokens.count - s->prompt_tokens);
    return b->count == b->beams && (b->options->early_stopping || b->ranks[b->count - 1] >= best);
}

/* Extends all beams by a token. *done is set at the length limit, or if the search is decided. */
static status extend_beams(struct beam_search *b, bool *done)
{
    struct slots *d = &b->slots;
    int32_t end_token =
        b->options->end_token != NULL ? *b->options->end_token : tokenizer_eos(b->tokenizer);
    bool is_last = d->sequences[0].tokens.count + 1 >= d->sequences[0].limit;
    int64_t count = 0, chosen = 0;
    TRY(list_candidates(b, end_token, &count));
    struct beam_candidate *next = b->candidates + 2 * b->beams * b->beams;
    for (int64_t i = 0; i < count && chosen < b->beams; i++) {
        const struct beam_candidate *c = &b->candidates[i];
        if (c->id != end_token && !is_last) {
            next[chosen++] = *c;
        } else if (i < b->beams) { /* an ended hypothesis must itself be among the best */
            TRY(finish_beam(b, c, c->id == end_token));
        }
    }
    REQUIRE((is_last ? count : chosen) >= b->beams, STATUS_USAGE,
            "%" PRId64 " beams are too many for a vocabulary of %" PRId64
            " tokens; use fewer beams",
            b->beams, d->vocabulary);
    *done = is_last;
    if (!is_last) {
        TRY(continue_beams(b, next));
        *done = is_decided(b);
    }
    return STATUS_OK;
}

status beam_search_advance(struct beam_search *b, bool *done)
{
    bool is_first = b->live_beams == 0; /* all beams start from the same prompt */
    TRY(is_first ? slots_read_all(&b->slots, 0) : slots_advance(&b->slots));
    b->live_beams = is_first ? 1 : b->beams;
    return extend_beams(b, done);
}

static status allocate_beams(struct beam_search *b, struct kernels *k, struct model *m,
                             int64_t prompt)
{
    const struct generate_options *o = b->options;
    size_t beams = (size_t)b->beams;
    bool has_source = generate_has_source(m);
    int64_t positions = model_get_config(m)->positions,
            wanted = (has_source ? 1 : prompt) + o->max_new_tokens;
    const struct slots_limits limits = {
        .slots = b->beams,
        .max_tokens = number_min(wanted, positions),
        .source_tokens = has_source ? prompt : 0,
        .chunk_tokens = generate_chunk_tokens(o),
        .logits_rows = b->beams,
        .use_cache = o->use_cache,
    };
    TRY(ALLOCATE(b->scores, beams, "beams"));
    TRY(ALLOCATE(b->ranks, beams, "beams"));
    TRY(ALLOCATE(b->finished, beams, "beams"));
    TRY(ALLOCATE(b->candidates, 2 * beams * beams + beams, "the candidates of beams"));
    TRY(slots_create(&b->slots, k, m, &limits));
    return sampler_create(b->slots.vocabulary, &b->sampler);
}

/* Begins all beams with the prompt, or with the start token after the source. */
static status begin_beams(struct beam_search *b, const struct token_list *prompt)
{
    bool has_source = b->slots.limits.source_tokens > 0;
    struct token_list start = generate_start_list(b->options);
    for (int64_t i = 0; i < b->beams; i++) {
        TRY(slots_begin(&b->slots, i, has_source && i == 0 ? prompt : NULL,
                        has_source ? &start : prompt, b->slots.limits.max_tokens));
    }
    return STATUS_OK;
}

status beam_search_create(struct kernels *k, struct model *m, const struct tokenizer *t,
                          const struct token_list *prompt, const struct generate_options *options,
                          struct beam_search **out)
{
    TRY(ALLOCATE(*out, 1, "beams"));
    struct beam_search *b = *out;
    b->tokenizer = tokenizer_target(t);
    b->options = options;
    b->beams = options->num_beams;
    status result = allocate_beams(b, k, m, prompt->count);
    if (result == STATUS_OK) {
        result = begin_beams(b, prompt);
    }
    if (result != STATUS_OK) {
        beam_search_destroy(out);
    }
    return result;
}

void beam_search_destroy(struct beam_search **out)
{
    struct beam_search *b = *out;
    *out = NULL;
    if (b == NULL) {
        return;
    }
    for (int64_t i = 0; i < b->count; i++) {
        token_list_free(&b->finished[i].tokens);
    }
    free(b->scores);
    free(b->ranks);
    free(b->finished);
    free(b->candidates);
    slots_destroy(&b->slots);
    sampler_destroy(&b->sampler);
    free(b);
}

void beam_search_take(struct beam_search *b, struct generate_output *out)
{
    size_t wanted = (size_t)b->options->num_samples;
    memcpy(out, b->finished, wanted * sizeof *out);
    memset(b->finished, 0, wanted * sizeof *out);
}

/* Extends the beams to their ends. It contains collectives of the group. */
static status search_beams(struct beam_search *b, struct generate_output *out)
{
    for (bool done = false, stop = false; !done;) {
        TRY(generate_should_stop(b->options, &stop));
        TRY(stop ? beam_search_stop(b) : beam_search_advance(b, &done));
        done = done || stop;
    }
    beam_search_take(b, out);
    return STATUS_OK;
}

status beam_search_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                       const struct token_list *prompt, const struct generate_options *options,
                       struct generate_output *out)
{
    struct beam_search *b = NULL;
    struct comm *group = options->tensor_group;
    status result = beam_search_create(k, m, t, prompt, options, &b);
    if (result == STATUS_OK) {
        result = search_beams(b, out);
    }
    result = group != NULL ? comm_abort_on_error(group, result) : result;
    beam_search_destroy(&b);
    return result;
}
