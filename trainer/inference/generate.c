/* All sequences of a call advance together by one token per round: one forward pass over one row
 * for each running sequence. Beams are sequences; their caches are reordered after each round. */
#include "trainer/inference/generate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mirror.h"
#include "comm/comm.h"

struct run {
    struct kernels *kernels;
    struct model *model;
    const struct tokenizer *tokenizer;
    const struct generate_options *options;
    struct model_cache *cache;
    struct sampler *sampler;
    int64_t sequences, vocabulary, max_tokens; /* max_tokens: of the longest window */
    struct token_list *tokens;                 /* [sequences] prompt and new tokens */
    int64_t *prompt_tokens;                    /* [sequences] */
    int64_t *window;                           /* [sequences] first token that the model reads */
    int64_t *limits;                           /* [sequences] maximum tokens with prompt */
    bool *ended;                               /* [sequences] by the end token or a stop string */
    int64_t *counts;                           /* [sequences] rows of this round */
    int32_t *inputs;                           /* [sequences] newest tokens */
    struct mirror logits_mirror;
    float *logits;         /* host side, f32 [sequences, logits_stride]: logits of the next token */
    int64_t logits_stride; /* at least V */
    /* on the device, f32 [rows of this rank's vocabulary shard]; NULL: one rank has all */
    float *shard_logits;
    size_t shard_bytes;
    generate_stream stream;
    void *user;
    size_t streamed; /* bytes passed to stream so far */
};

static int32_t get_end_token(const struct run *r)
{
    return r->options->end_token != NULL ? *r->options->end_token : tokenizer_eos(r->tokenizer);
}

/* Returns whether the sequence gets another token. */
static bool is_running(const struct run *r, int64_t sequence)
{
    return !r->ended[sequence] && r->tokens[sequence].count < r->limits[sequence];
}

static status append_tokens(struct token_list *list, const int32_t *ids, int64_t count)
{
    TRY(token_list_reserve(list, count));
    memcpy(list->ids + list->count, ids, (size_t)count * sizeof *ids);
    list->count += count;
    return STATUS_OK;
}

/* ---- one forward pass ---- */

/* Computes the next token's logits of a sequence. Its last hidden state is row end - 1. Ranks that
 * share the model gather the logits of their vocabulary shards. */
static status read_logits(struct run *r, struct tensor hidden, int64_t end, int64_t sequence)
{
    struct vocabulary_shard shard = model_lm_head_shard(r->model);
    struct tensor head = model_lm_head(r->model);
    int64_t first = sequence * r->logits_stride;
    float *all = (float *)r->logits_mirror.device_data + first;
    float *own = shard.count > 1 ? r->shard_logits : all;
    int64_t rows = shard.count > 1 ? head.rows : r->vocabulary;
    TRY(classifier_logits(r->kernels, tensor_view(own, DTYPE_F32, 1, rows),
                          tensor_rows(hidden, end - 1, 1), tensor_rows(head, 0, rows),
                          tensor_absent()));
    if (shard.count > 1) {
        TRY(shard.all_gather(shard.context, all, own, (size_t)rows * sizeof *own));
    }
    return mirror_download_and_wait(&r->logits_mirror, (size_t)first * sizeof *own,
                                    (size_t)r->logits_stride * sizeof *own);
}

/* Extends the cache of a sequence by all tokens that it does not hold yet, in chunks that fit the
 * working memory, then reads the logits. */
static status extend_sequence(struct run *r, int64_t sequence, int64_t chunk_tokens)
{
    const struct token_list *list = &r->tokens[sequence];
    struct tensor hidden = {0};
    int64_t done = r->window[sequence] + model_cache_length(r->cache, sequence), count = 0;
    memset(r->counts, 0, (size_t)r->sequences * sizeof *r->counts);
    for (; done < list->count; done += count) {
        count = list->count - done < chunk_tokens ? list->count - done : chunk_tokens;
        r->counts[sequence] = count;
        TRY(model_forward_cached(r->model, r->cache, list->ids + done, r->counts, &hidden));
    }
    return read_logits(r, hidden, count, sequence);
}

/* Logs once per process that texts are longer than the positions of the model. */
static void log_slide(int64_t positions, int64_t kept)
{
    static bool is_logged;
    if (!is_logged) {
        log_info("the text is longer than the %" PRId64
                 " positions of the model and continues; only "
                 "its last %" PRId64 " to %" PRId64 " tokens are context; --no-slide ends the text",
                 positions, kept, positions);
    }
    is_logged = true;
}

/* Moves the window of a full sequence to its last tokens, so that the next half of the positions is
 * free, and clears its cache. Returns whether the window has moved. */
static bool slide_window(struct run *r, int64_t sequence)
{
    int64_t positions = model_get_config(r->model)->positions, kept = (positions + 1) / 2;
    int64_t count = r->tokens[sequence].count;
    if (count - r->window[sequence] <= positions) {
        return false;
    }
    log_slide(positions, kept);
    r->window[sequence] = count - kept;
    model_cache_clear(r->cache, sequence);
    return true;
}

/* Extends every running sequence by its newest token in one forward pass. If the window of a
 * sequence moves, a separate pass encodes it again. */
static status extend_running(struct run *r, int64_t chunk_tokens)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < r->sequences; i++) {
        if (is_running(r, i) && slide_window(r, i)) {
            TRY(extend_sequence(r, i, chunk_tokens));
        }
    }
    for (int64_t i = 0; i < r->sequences; i++) {
        int64_t count = r->tokens[i].count;
        bool is_extended = r->window[i] + model_cache_length(r->cache, i) == count;
        r->counts[i] = is_running(r, i) && !is_extended;
        if (r->counts[i] > 0) {
            r->inputs[rows++] = r->tokens[i].ids[count - 1];
        }
    }
    if (rows == 0) {
        return STATUS_OK;
    }
    struct tensor hidden = {0};
    TRY(model_forward_cached(r->model, r->cache, r->inputs, r->counts, &hidden));
    for (int64_t i = 0, row = 0; i < r->sequences; i++) {
        if (r->counts[i] > 0) {
            TRY(read_logits(r, hidden, ++row, i));
        }
    }
    return STATUS_OK;
}

/* Recomputes every running sequence from the start of its window, as without a cache. */
static status recompute_running(struct run *r)
{
    for (int64_t i = 0; i < r->sequences; i++) {
        if (is_running(r, i)) {
            slide_window(r, i);
            model_cache_clear(r->cache, i);
            TRY(extend_sequence(r, i, r->max_tokens));
        }
    }
    return STATUS_OK;
}

static status advance_running(struct run *r, int64_t chunk_tokens)
{
    return r->options->use_cache ? extend_running(r, chunk_tokens) : recompute_running(r);
}

/* ---- stop strings and streamed bytes ---- */

/* Decodes the new tokens. *final_bytes receives the bytes that further tokens cannot change. */
static status decode_new_tokens(const struct run *r, int64_t sequence, char **out, size_t *bytes,
                                size_t *final_bytes)
{
    const int32_t *ids = r->tokens[sequence].ids + r->prompt_tokens[sequence];
    int64_t count = r->tokens[sequence].count - r->prompt_tokens[sequence];
    int64_t final_count = tokenizer_count_final(r->tokenizer, ids, count);
    char *final_text = NULL;
    TRY(tokenizer_decode_continued(r->tokenizer, ids, count, true, out, bytes));
    *final_bytes = *bytes;
    status result = final_count == count
                        ? STATUS_OK
                        : tokenizer_decode_continued(r->tokenizer, ids, final_count, true,
                                                     &final_text, final_bytes);
    free(final_text);
    return result;
}

/* Returns the offset of the stop string that begins first; `bytes` if there is none. */
static size_t find_stop(const struct generate_options *o, const char *text, size_t bytes)
{
    size_t first = bytes;
    for (int i = 0; i < o->stop_count; i++) {
        size_t length = strlen(o->stops[i]);
        for (size_t at = 0; at < first && at + length <= bytes; at++) {
            if (memcmp(text + at, o->stops[i], length) == 0) {
                first = at;
            }
        }
    }
    return first;
}

/* Returns how many bytes at the end must not be streamed yet: the start of a UTF-8 character or of
 * a stop string. */
static size_t count_withheld(const struct generate_options *o, const char *text, size_t bytes)
{
    size_t withheld = 0;
    for (size_t distance = 1; distance <= 3 && distance <= bytes; distance++) {
        unsigned char c = (unsigned char)text[bytes - distance];
        size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        if (c >= 0xc0) {
            withheld = length > distance ? distance : 0;
            break;
        }
    }
    for (int i = 0; i < o->stop_count; i++) {
        size_t length = strlen(o->stops[i]);
        for (size_t part = length - 1; part > withheld; part--) {
            if (part <= bytes && memcmp(text + bytes - part, o->stops[i], part) == 0) {
                withheld = part;
                break;
            }
        }
    }
    return withheld;
}

/* Ends the sequence if it contains a stop string and streams the bytes that are final. */
static status update_output(struct run *r, int64_t sequence, bool final)
{
    const struct generate_options *o = r->options;
    if (o->stop_count == 0 && r->stream == NULL) {
        return STATUS_OK;
    }
    char *text = NULL;
    size_t bytes = 0, final_bytes = 0;
    TRY(decode_new_tokens(r, sequence, &text, &bytes, &final_bytes));
    size_t stop = find_stop(o, text, bytes);
    r->ended[sequence] = r->ended[sequence] || stop < bytes;
    if (r->stream != NULL) {
        bool whole = final || r->ended[sequence];
        size_t ready = stop < bytes || whole ? stop : bytes - count_withheld(o, text, bytes);
        ready = whole || ready < final_bytes ? ready : final_bytes;
        if (ready > r->streamed) {
            r->stream(r->user, text + r->streamed, ready - r->streamed);
            r->streamed = ready;
        }
    }
    free(text);
    return STATUS_OK;
}

/* ---- sampling ---- */

static status sample_token(struct run *r, int64_t sequence)
{
    struct token_list *list = &r->tokens[sequence];
    float *logits = r->logits + sequence * r->logits_stride;
    int32_t id = 0;
    sampler_apply_penalty(r->sampler, logits, list->ids, list->count);
    uint64_t sample = (uint64_t)(r->options->first_sequence + sequence);
    TRY(sampler_choose(r->sampler, logits, sample, (uint64_t)list->count, &id));
    if (id == get_end_token(r)) {
        r->ended[sequence] = true;
        return STATUS_OK;
    }
    TRY(append_tokens(list, &id, 1));
    return update_output(r, sequence, false);
}

static bool is_any_running(const struct run *r)
{
    for (int64_t i = 0; i < r->sequences; i++) {
        if (is_running(r, i)) {
            return true;
        }
    }
    return false;
}

static status run_sampling(struct run *r, int64_t chunk_tokens)
{
    for (int64_t i = 0; i < r->sequences; i++) {
        TRY(extend_sequence(r, i, chunk_tokens));
    }
    for (;;) {
        for (int64_t i = 0; i < r->sequences; i++) {
            if (is_running(r, i)) {
                TRY(sample_token(r, i));
            }
        }
        bool stop = r->options->should_stop != NULL && r->options->should_stop();
        if (stop || !is_any_running(r)) {
            break;
        }
        TRY(advance_running(r, chunk_tokens));
    }
    return r->stream != NULL ? update_output(r, 0, true) : STATUS_OK;
}

/* ---- beam search: one prompt, `sequences` beams ----
 *
 * The algorithm is Hugging Face's beam search with early_stopping = false. The repetition penalty
 * changes the log-probabilities, which are not normalized again. The search keeps as many finished
 * hypotheses as there are beams, ranked by log-probability / length^penalty. The length counts the
 * end token but not the prompt. A hypothesis that ends is kept only if it is among the best
 * `sequences` of all continuations. The search ends when the list of hypotheses is full and the
 * best running beam, at its current length, does not outrank the worst of them. At the length limit
 * the running beams are ranked too. */

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

struct beams {
    struct run *run;
    double *scores;                    /* [sequences] log-probability of each running beam */
    struct generate_output *finished;  /* [sequences] the best hypotheses so far */
    double *ranks;                     /* [sequences] score / length^penalty, descending */
    int64_t count;                     /* number of finished hypotheses */
    struct beam_candidate *candidates; /* [sequences * 2 sequences + sequences] */
};

static double compute_rank(const struct beams *b, double score, int64_t tokens)
{
    return score / pow((double)(tokens > 0 ? tokens : 1), b->run->options->length_penalty);
}

/* Keeps a hypothesis if it is among the best `sequences`. */
static status finish_beam(struct beams *b, int64_t beam, double score, bool ended)
{
    const struct run *r = b->run;
    int64_t tokens = r->tokens[beam].count - r->prompt_tokens[beam];
    double rank = compute_rank(b, score, tokens + ended);
    if (b->count == r->sequences && !(rank > b->ranks[b->count - 1])) {
        return STATUS_OK;
    }
    if (b->count == r->sequences) {
        token_list_free(&b->finished[--b->count].tokens);
    }
    int64_t at = b->count++;
    for (; at > 0 && rank > b->ranks[at - 1]; at--) {
        b->ranks[at] = b->ranks[at - 1];
        b->finished[at] = b->finished[at - 1];
    }
    b->ranks[at] = rank;
    b->finished[at] = (struct generate_output){.log_probability = score, .ended = ended};
    return append_tokens(&b->finished[at].tokens, r->tokens[beam].ids + r->prompt_tokens[beam],
                         tokens);
}

/* Lists the best 2 * sequences continuations of each beam, sorted by score. They include the best
 * `sequences` continuations of all beams. */
static status list_candidates(struct beams *b, int64_t live_beams, int64_t *out)
{
    struct run *r = b->run;
    int64_t per_beam = 2 * r->sequences < r->vocabulary ? 2 * r->sequences : r->vocabulary,
            count = 0;
    for (int64_t beam = 0; beam < live_beams; beam++) {
        float *logits = r->logits + beam * r->logits_stride;
        TRY(sampler_log_softmax(logits, r->vocabulary));
        sampler_apply_penalty(r->sampler, logits, r->tokens[beam].ids, r->tokens[beam].count);
        struct beam_candidate *best = b->candidates + count;
        int64_t filled = 0;
        for (int64_t id = 0; id < r->vocabulary; id++) {
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
static status continue_beams(struct beams *b, const struct beam_candidate *chosen)
{
    struct run *r = b->run;
    struct token_list *next = calloc((size_t)r->sequences, sizeof *next);
    int32_t *sources = calloc((size_t)r->sequences, sizeof *sources);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, next != NULL && sources != NULL, STATUS_INTERNAL,
                 "out of memory for beams");
    for (int64_t i = 0; i < r->sequences; i++) {
        sources[i] = chosen[i].beam;
        const struct token_list *source = &r->tokens[sources[i]];
        TRY_GOTO(result, done, append_tokens(&next[i], source->ids, source->count));
        TRY_GOTO(result, done, append_tokens(&next[i], &chosen[i].id, 1));
    }
    for (int64_t i = 0; i < r->sequences; i++) {
        token_list_free(&r->tokens[i]);
        r->tokens[i] = next[i];
        b->scores[i] = chosen[i].score;
    }
    free(next);
    next = NULL;
    TRY_GOTO(result, done, model_cache_reorder(r->model, r->cache, sources));
done:
    for (int64_t i = 0; next != NULL && i < r->sequences; i++) {
        token_list_free(&next[i]);
    }
    free(next);
    free(sources);
    return result;
}

static status advance_beams(struct beams *b, int64_t live_beams, bool *done)
{
    struct run *r = b->run;
    int32_t end_token = get_end_token(r);
    int64_t count = 0, chosen = 0;
    TRY(list_candidates(b, live_beams, &count));
    struct beam_candidate *next = b->candidates + 2 * r->sequences * r->sequences;
    for (int64_t i = 0; i < count && chosen < r->sequences; i++) {
        const struct beam_candidate *c = &b->candidates[i];
        if (c->id != end_token) {
            next[chosen++] = *c;
        } else if (i < r->sequences) { /* an ended hypothesis must itself be among the best */
            TRY(finish_beam(b, c->beam, c->score, true));
        }
    }
    REQUIRE(chosen == r->sequences, STATUS_USAGE,
            "%" PRId64 " beams are too many for a vocabulary of %" PRId64 " tokens", r->sequences,
            r->vocabulary);
    TRY(continue_beams(b, next));
    int64_t tokens = r->tokens[0].count - r->prompt_tokens[0];
    *done = b->count == r->sequences &&
            b->ranks[b->count - 1] >= compute_rank(b, next[0].score, tokens);
    return STATUS_OK;
}

static status search_beams(struct beams *b, int64_t chunk_tokens)
{
    struct run *r = b->run;
    bool done = false;
    int64_t live_beams = 1; /* all beams start from the same prompt */
    TRY(extend_sequence(r, 0, chunk_tokens));
    while (!done && is_running(r, 0)) {
        if (r->tokens[0].count > r->prompt_tokens[0]) {
            TRY(advance_running(r, chunk_tokens));
        }
        TRY(advance_beams(b, live_beams, &done));
        live_beams = r->sequences;
    }
    for (int64_t i = 0; !done && i < r->sequences; i++) {
        TRY(finish_beam(b, i, b->scores[i], false));
    }
    return STATUS_OK;
}

static status run_beam_search(struct run *r, int64_t chunk_tokens, struct generate_output *out)
{
    struct beams b = {.run = r};
    status result = STATUS_OK;
    size_t beams = (size_t)r->sequences;
    int64_t wanted = r->options->num_samples;
    b.scores = calloc(beams, sizeof *b.scores);
    b.ranks = calloc(beams, sizeof *b.ranks);
    b.finished = calloc(beams, sizeof *b.finished);
    b.candidates = calloc(2 * beams * beams + beams, sizeof *b.candidates);
    REQUIRE_GOTO(result, done,
                 b.scores != NULL && b.ranks != NULL && b.finished != NULL && b.candidates != NULL,
                 STATUS_INTERNAL, "out of memory for beams");
    TRY_GOTO(result, done, search_beams(&b, chunk_tokens));
    memcpy(out, b.finished, (size_t)wanted * sizeof *out);
    memset(b.finished, 0, (size_t)wanted * sizeof *out);
done:
    for (int64_t i = 0; i < b.count; i++) {
        token_list_free(&b.finished[i].tokens);
    }
    free(b.scores);
    free(b.ranks);
    free(b.finished);
    free(b.candidates);
    return result;
}

/* ---- set-up ---- */

static void run_destroy(struct run *r)
{
    for (int64_t i = 0; r->tokens != NULL && i < r->sequences; i++) {
        token_list_free(&r->tokens[i]);
    }
    free(r->tokens);
    free(r->prompt_tokens);
    free(r->window);
    free(r->limits);
    free(r->ended);
    free(r->counts);
    free(r->inputs);
    device_release(kernels_device(r->kernels), r->shard_logits, r->shard_bytes);
    mirror_destroy(&r->logits_mirror);
    sampler_destroy(&r->sampler);
    (void)model_cache_destroy(&r->cache);
}

/* Returns whether sequences may become longer than the positions of the model. */
static bool may_slide(const struct generate_options *options)
{
    return options->slide && options->num_beams == 1;
}

static int64_t compute_limit(const struct run *r, int64_t prompt_tokens)
{
    int64_t positions = model_get_config(r->model)->positions;
    int64_t wanted = prompt_tokens + r->options->max_new_tokens;
    return wanted < positions || may_slide(r->options) ? wanted : positions;
}

static status run_create(struct run *r, int64_t longest)
{
    size_t n = (size_t)r->sequences;
    r->vocabulary = model_get_config(r->model)->vocabulary;
    int64_t limit = compute_limit(r, longest), positions = model_get_config(r->model)->positions;
    r->max_tokens = limit < positions ? limit : positions;
    r->tokens = calloc(n, sizeof *r->tokens);
    r->prompt_tokens = calloc(n, sizeof *r->prompt_tokens);
    r->window = calloc(n, sizeof *r->window);
    r->limits = calloc(n, sizeof *r->limits);
    r->ended = calloc(n, sizeof *r->ended);
    r->counts = calloc(n, sizeof *r->counts);
    r->inputs = calloc(n, sizeof *r->inputs);
    REQUIRE(r->tokens != NULL && r->prompt_tokens != NULL && r->window != NULL &&
                r->limits != NULL && r->ended != NULL && r->counts != NULL && r->inputs != NULL,
            STATUS_INTERNAL, "out of memory for %zu sequences", n);
    int ranks = model_lm_head_shard(r->model).count;
    int64_t shard_rows = model_lm_head(r->model).rows;
    r->logits_stride = ranks > 1 ? ranks * shard_rows : r->vocabulary;
    r->shard_bytes = (size_t)shard_rows * sizeof *r->shard_logits;
    if (ranks > 1) {
        TRY(device_allocate(kernels_device(r->kernels), r->shard_bytes, "logits",
                            (void **)&r->shard_logits));
    }
    TRY(mirror_create(kernels_device(r->kernels), kernels_stream(r->kernels),
                      n * (size_t)r->logits_stride * sizeof *r->logits, "logits",
                      &r->logits_mirror));
    r->logits = r->logits_mirror.host;
    TRY(sampler_create(&r->options->sampler, r->vocabulary, &r->sampler));
    return model_cache_create(r->model, r->sequences, r->max_tokens, &r->cache);
}

static status begin_sequence(struct run *r, int64_t sequence, const struct token_list *prompt)
{
    r->prompt_tokens[sequence] = prompt->count;
    r->limits[sequence] = compute_limit(r, prompt->count);
    return append_tokens(&r->tokens[sequence], prompt->ids, prompt->count);
}

static status store_sampled(struct run *r, struct generate_output *out)
{
    for (int64_t i = 0; i < r->sequences; i++) {
        const struct token_list *list = &r->tokens[i];
        out[i] = (struct generate_output){.ended = r->ended[i]};
        TRY(append_tokens(&out[i].tokens, list->ids + r->prompt_tokens[i],
                          list->count - r->prompt_tokens[i]));
    }
    return STATUS_OK;
}

/* Extends the sequences by their texts. It contains collectives of the tensor group. */
static status extend_sequences(struct run *r, const struct token_list *prompts, int64_t count,
                               int64_t chunk_tokens, struct generate_output *out)
{
    for (int64_t i = 0; i < r->sequences; i++) {
        TRY(begin_sequence(r, i, &prompts[i * count / r->sequences]));
    }
    if (r->options->num_beams > 1) {
        return run_beam_search(r, chunk_tokens, out);
    }
    TRY(run_sampling(r, chunk_tokens));
    return store_sampled(r, out);
}

static status run_batch(struct run *r, const struct token_list *prompts, int64_t count,
                        int64_t chunk_tokens, struct generate_output *out)
{
    int64_t longest = 0, positions = model_get_config(r->model)->positions;
    for (int64_t i = 0; i < count; i++) {
        longest = prompts[i].count > longest ? prompts[i].count : longest;
    }
    REQUIRE(longest < positions, STATUS_USAGE,
            "a prompt has %" PRId64
            " tokens and leaves no room for a new token: the model has %" PRId64 " positions",
            longest, positions);
    if (longest + r->options->max_new_tokens > positions && !may_slide(r->options)) {
        log_warning("LENGTH",
                    "at most %" PRId64 " new tokens fit after a prompt of %" PRId64
                    " tokens: the model has %" PRId64 " positions",
                    positions - longest, longest, positions);
    }
    struct comm *group = r->options->tensor_group;
    status created = run_create(r, longest);
    TRY(group != NULL ? comm_agree(group, created) : created);
    status result = extend_sequences(r, prompts, count, chunk_tokens, out);
    return group != NULL ? comm_abort_on_error(group, result) : result;
}

status generate_encode_prompt(const struct tokenizer *t, const char *text, struct token_list *ids)
{
    TRY(tokenizer_append_bos(t, ids));
    TRY(tokenizer_encode(t, text, strlen(text), true, ids));
    if (ids->count == 0) {
        int32_t eos = tokenizer_eos(t);
        REQUIRE(eos >= 0, STATUS_USAGE,
                "an empty prompt needs a tokenizer with an end-of-text token; give a text with "
                "--prompt");
        TRY(append_tokens(ids, &eos, 1));
    }
    return STATUS_OK;
}

int64_t generate_bytes(const struct model_config *config, enum dtype dtype, int ranks,
                       int64_t tokens)
{
    int64_t keys = config->layers * tokens * model_kv_heads(config) / ranks;
    int64_t cache = 2 * keys * model_head_width(config) * (int64_t)dtype_bytes(dtype);
    int64_t logits = model_vocabulary_rows(config, ranks) * (ranks + 1);
    return cache + 4 * 3 * logits; /* on the host, on the device and for the sampler */
}

status generate_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                    const struct token_list *prompts, int64_t prompt_count,
                    const struct generate_options *options, generate_stream stream, void *user,
                    struct generate_output *out)
{
    enum { CHUNK_TOKENS = 256 };
    bool beams = options->num_beams > 1;
    int64_t chunk_tokens = options->chunk_tokens > 0 ? options->chunk_tokens : CHUNK_TOKENS;
    int64_t batch = beams ? 1 : prompt_count; /* beam search runs one prompt at a time */
    for (int64_t first = 0; first < prompt_count; first += batch) {
        struct run r = {.kernels = k,
                        .model = m,
                        .tokenizer = t,
                        .options = options,
                        .stream = stream,
                        .user = user,
                        .sequences = beams ? options->num_beams : batch * options->num_samples};
        status result =
            run_batch(&r, prompts + first, batch, chunk_tokens, out + first * options->num_samples);
        run_destroy(&r);
        TRY(result);
    }
    return STATUS_OK;
}

status generate_decode(const struct tokenizer *t, const struct generate_options *options,
                       struct generate_output *output, char **out, size_t *bytes)
{
    TRY(tokenizer_decode_continued(t, output->tokens.ids, output->tokens.count, true, out, bytes));
    size_t stop = find_stop(options, *out, *bytes);
    output->stopped = stop < *bytes;
    *bytes = stop;
    (*out)[*bytes] = '\0';
    return STATUS_OK;
}
