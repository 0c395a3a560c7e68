/* All texts of a call advance together, one token a round: one forward pass over one row per running
 * text. Beams are texts whose caches change places. */
#include "trainer/inference/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mirror.h"

struct run {
    struct kernels *kernels;
    struct model *model;
    const struct tokenizer *tokenizer;
    const struct generate_options *options;
    struct model_cache *cache;
    struct sampler *sampler;
    int64_t texts, vocabulary, room; /* room: tokens the longest text may have in all */
    struct token_list *whole;        /* [texts] prompt and new tokens */
    int64_t *prompt_tokens;          /* [texts] */
    int64_t *limits;                 /* [texts] tokens it may have in all */
    bool *ended;                     /* [texts] by the end token or a stop text */
    int64_t *counts;                 /* [texts] rows of this round */
    int32_t *inputs;
    struct mirror placed_logits;
    float *logits; /* its host's side, f32 [texts, V]: the next token's, of every running text */
    generate_stream stream;
    void *user;
    size_t streamed; /* bytes given to stream so far */
};

static int32_t end_token(const struct run *r)
{
    return r->options->end != NULL ? *r->options->end : tokenizer_eos(r->tokenizer);
}

/* Whether text i gets another token. */
static bool is_running(const struct run *r, int64_t text)
{
    return !r->ended[text] && r->whole[text].count < r->limits[text];
}

static status append(struct token_list *list, const int32_t *ids, int64_t count)
{
    TRY(token_list_reserve(list, count));
    memcpy(list->ids + list->count, ids, (size_t)count * sizeof *ids);
    list->count += count;
    return STATUS_OK;
}

/* ---- one forward pass ---- */

/* Logits of the last row of text i, whose hidden states end at row `end` of hidden. */
static status read_logits(struct run *r, struct tensor hidden, int64_t end, int64_t text)
{
    size_t bytes = (size_t)r->vocabulary * sizeof *r->logits;
    float *placed = r->placed_logits.placed;
    struct tensor row = tensor_view(placed + text * r->vocabulary, DTYPE_F32, 1, r->vocabulary);
    TRY(classifier_logits(r->kernels, row, tensor_rows(hidden, end - 1, 1),
                          tensor_rows(model_head(r->model), 0, r->vocabulary), tensor_absent()));
    return mirror_pull(&r->placed_logits, (size_t)text * bytes, bytes);
}

/* Feed text i everything that its cache does not hold yet, in pieces that fit the working memory. */
static status feed_text(struct run *r, int64_t text, int64_t piece)
{
    const struct token_list *list = &r->whole[text];
    struct tensor hidden = {0};
    int64_t done = model_cache_length(r->cache, text), count = 0;
    memset(r->counts, 0, (size_t)r->texts * sizeof *r->counts);
    for (; done < list->count; done += count) {
        count = list->count - done < piece ? list->count - done : piece;
        r->counts[text] = count;
        TRY(model_extend(r->model, r->cache, list->ids + done, r->counts, &hidden));
    }
    return read_logits(r, hidden, count, text);
}

/* Feed the newest token of every running text in one pass. */
static status feed_round(struct run *r)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < r->texts; i++) {
        r->counts[i] = is_running(r, i);
        if (is_running(r, i)) {
            r->inputs[rows++] = r->whole[i].ids[r->whole[i].count - 1];
        }
    }
    struct tensor hidden = {0};
    TRY(model_extend(r->model, r->cache, r->inputs, r->counts, &hidden));
    for (int64_t i = 0, row = 0; i < r->texts; i++) {
        if (is_running(r, i)) {
            TRY(read_logits(r, hidden, ++row, i));
        }
    }
    return STATUS_OK;
}

/* The same without a cache: every text from its beginning. */
static status feed_again(struct run *r)
{
    for (int64_t i = 0; i < r->texts; i++) {
        if (is_running(r, i)) {
            model_cache_clear(r->cache, i);
            TRY(feed_text(r, i, r->room));
        }
    }
    return STATUS_OK;
}

static status feed_next(struct run *r)
{
    return r->options->use_cache ? feed_round(r) : feed_again(r);
}

/* ---- the end of a text, and its bytes ---- */

static status decode_new(const struct run *r, int64_t text, char **out, size_t *bytes)
{
    const struct token_list *list = &r->whole[text];
    return tokenizer_decode(r->tokenizer, list->ids + r->prompt_tokens[text],
                            list->count - r->prompt_tokens[text], true, out, bytes);
}

/* Where the first stop text begins; bytes where there is none. */
static size_t find_stop(const struct generate_options *o, const char *text, size_t bytes)
{
    size_t first = bytes;
    for (int i = 0; i < o->stop_count; i++) {
        size_t length = strlen(o->stops[i]);
        for (size_t at = 0; at + length <= first; at++) {
            if (memcmp(text + at, o->stops[i], length) == 0) {
                first = at;
            }
        }
    }
    return first;
}

/* Bytes at the end that must wait: the beginning of a character, or of a stop text. */
static size_t held_back(const struct generate_options *o, const char *text, size_t bytes)
{
    size_t held = 0;
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        unsigned char c = (unsigned char)text[bytes - back];
        size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        if (c >= 0xc0) {
            held = length > back ? back : 0;
            break;
        }
    }
    for (int i = 0; i < o->stop_count; i++) {
        size_t length = strlen(o->stops[i]);
        for (size_t part = length - 1; part > held; part--) {
            if (part <= bytes && memcmp(text + bytes - part, o->stops[i], part) == 0) {
                held = part;
                break;
            }
        }
    }
    return held;
}

/* Looks for stop texts in text i, and passes on what is sure. */
static status look_at(struct run *r, int64_t text, bool final)
{
    const struct generate_options *o = r->options;
    if (o->stop_count == 0 && r->stream == NULL) {
        return STATUS_OK;
    }
    char *bytes = NULL;
    size_t count = 0;
    TRY(decode_new(r, text, &bytes, &count));
    size_t stop = find_stop(o, bytes, count);
    r->ended[text] = r->ended[text] || stop < count;
    if (r->stream != NULL) {
        bool whole = final || r->ended[text];
        size_t sure = stop < count || whole ? stop : count - held_back(o, bytes, count);
        if (sure > r->streamed) {
            r->stream(r->user, bytes + r->streamed, sure - r->streamed);
            r->streamed = sure;
        }
    }
    free(bytes);
    return STATUS_OK;
}

/* ---- sampling ---- */

static status choose(struct run *r, int64_t text)
{
    struct token_list *list = &r->whole[text];
    float *logits = r->logits + text * r->vocabulary;
    int32_t id = 0;
    sampler_penalise(r->sampler, logits, list->ids, list->count);
    uint64_t sample = (uint64_t)(r->options->first_text + text);
    TRY(sampler_choose(r->sampler, logits, sample, (uint64_t)list->count, &id));
    if (id == end_token(r)) {
        r->ended[text] = true;
        return STATUS_OK;
    }
    TRY(append(list, &id, 1));
    return look_at(r, text, false);
}

static bool any_running(const struct run *r)
{
    for (int64_t i = 0; i < r->texts; i++) {
        if (is_running(r, i)) {
            return true;
        }
    }
    return false;
}

static status sample_texts(struct run *r, int64_t piece)
{
    for (int64_t i = 0; i < r->texts; i++) {
        TRY(feed_text(r, i, piece));
    }
    for (;;) {
        for (int64_t i = 0; i < r->texts; i++) {
            if (is_running(r, i)) {
                TRY(choose(r, i));
            }
        }
        bool stop = r->options->stopped != NULL && r->options->stopped();
        if (stop || !any_running(r)) {
            break;
        }
        TRY(feed_next(r));
    }
    return r->stream != NULL ? look_at(r, 0, true) : STATUS_OK;
}

/* ---- beams: one prompt, `texts` beams ----
 *
 * As Hugging Face's beam search with early_stopping = false: as many finished hypotheses are kept as there
 * are beams, each ranked by log-probability / length^penalty (the end token counts in the length, the
 * prompt does not). An end is finished only where it is among the best `texts` of all continuations. The
 * search is over once that many are finished and the best running beam, at its present length, would not
 * beat the worst of them; or at the limit, where the running beams are ranked too. */

struct beam_candidate {
    double score; /* log-probability of the whole continuation */
    int32_t beam, id;
};

static int by_score(const void *a, const void *b)
{
    const struct beam_candidate *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->beam != y->beam ? x->beam - y->beam : x->id - y->id;
}

struct beams {
    struct run *run;
    double *scores;                    /* [texts] */
    struct generate_text *finished;    /* [texts] the best hypotheses so far */
    double *ranks;                     /* [texts] score / length^penalty, falling */
    int64_t count;                     /* of them */
    struct beam_candidate *candidates; /* [texts * 2 texts] */
};

static double rank_of(const struct beams *b, double score, int64_t tokens)
{
    return score / pow((double)(tokens > 0 ? tokens : 1), b->run->options->length_penalty);
}

/* Keep a hypothesis if it is among the best `texts`. */
static status finish_beam(struct beams *b, int64_t beam, double score, bool ended)
{
    const struct run *r = b->run;
    int64_t tokens = r->whole[beam].count - r->prompt_tokens[beam];
    double rank = rank_of(b, score, tokens + ended);
    if (b->count == r->texts && !(rank > b->ranks[b->count - 1])) {
        return STATUS_OK;
    }
    if (b->count == r->texts) {
        token_list_free(&b->finished[--b->count].tokens);
    }
    int64_t at = b->count++;
    for (; at > 0 && rank > b->ranks[at - 1]; at--) {
        b->ranks[at] = b->ranks[at - 1];
        b->finished[at] = b->finished[at - 1];
    }
    b->ranks[at] = rank;
    b->finished[at] = (struct generate_text){.log_probability = score, .ended = ended};
    return append(&b->finished[at].tokens, r->whole[beam].ids + r->prompt_tokens[beam], tokens);
}

/* The best 2 texts continuations of each beam; more than enough for the best `texts` of all. */
static status list_candidates(struct beams *b, int64_t live, int64_t *out)
{
    struct run *r = b->run;
    int64_t per_beam = 2 * r->texts < r->vocabulary ? 2 * r->texts : r->vocabulary, count = 0;
    for (int64_t beam = 0; beam < live; beam++) {
        float *logits = r->logits + beam * r->vocabulary;
        sampler_penalise(r->sampler, logits, r->whole[beam].ids, r->whole[beam].count);
        TRY(sampler_log_softmax(logits, r->vocabulary));
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
    qsort(b->candidates, (size_t)count, sizeof *b->candidates, by_score);
    *out = count;
    return STATUS_OK;
}

/* Put the chosen continuations in the places of the beams. */
static status continue_beams(struct beams *b, const struct beam_candidate *chosen)
{
    struct run *r = b->run;
    struct token_list *next = calloc((size_t)r->texts, sizeof *next);
    int32_t *from = calloc((size_t)r->texts, sizeof *from);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, next != NULL && from != NULL, STATUS_INTERNAL,
                 "out of memory for beams");
    for (int64_t i = 0; i < r->texts; i++) {
        from[i] = chosen[i].beam;
        const struct token_list *old = &r->whole[from[i]];
        TRY_GOTO(result, done, append(&next[i], old->ids, old->count));
        TRY_GOTO(result, done, append(&next[i], &chosen[i].id, 1));
    }
    for (int64_t i = 0; i < r->texts; i++) {
        token_list_free(&r->whole[i]);
        r->whole[i] = next[i];
        b->scores[i] = chosen[i].score;
    }
    free(next);
    next = NULL;
    TRY_GOTO(result, done, model_cache_reorder(r->model, r->cache, from));
done:
    for (int64_t i = 0; next != NULL && i < r->texts; i++) {
        token_list_free(&next[i]);
    }
    free(next);
    free(from);
    return result;
}

static status advance_beams(struct beams *b, int64_t live, bool *done)
{
    struct run *r = b->run;
    int32_t eos = end_token(r);
    int64_t count = 0, chosen = 0;
    TRY(list_candidates(b, live, &count));
    struct beam_candidate *next = b->candidates + 2 * r->texts * r->texts;
    for (int64_t i = 0; i < count && chosen < r->texts; i++) {
        const struct beam_candidate *c = &b->candidates[i];
        if (c->id != eos) {
            next[chosen++] = *c;
        } else if (i < r->texts) { /* an end counts where it is among the best itself */
            TRY(finish_beam(b, c->beam, c->score, true));
        }
    }
    REQUIRE(chosen == r->texts, STATUS_USAGE,
            "%lld beams are more than the vocabulary of %lld tokens can fill", (long long)r->texts,
            (long long)r->vocabulary);
    TRY(continue_beams(b, next));
    int64_t tokens = r->whole[0].count - r->prompt_tokens[0];
    *done = b->count == r->texts && b->ranks[b->count - 1] >= rank_of(b, next[0].score, tokens);
    return STATUS_OK;
}

static status search_beams(struct beams *b, int64_t piece)
{
    struct run *r = b->run;
    bool done = false;
    int64_t live = 1; /* all beams begin as the same prompt */
    TRY(feed_text(r, 0, piece));
    while (!done && is_running(r, 0)) {
        if (r->whole[0].count > r->prompt_tokens[0]) {
            TRY(feed_next(r));
        }
        TRY(advance_beams(b, live, &done));
        live = r->texts;
    }
    for (int64_t i = 0; !done && i < r->texts; i++) {
        TRY(finish_beam(b, i, b->scores[i], false));
    }
    return STATUS_OK;
}

static status beam_texts(struct run *r, int64_t piece, struct generate_text *out)
{
    struct beams b = {.run = r};
    status result = STATUS_OK;
    size_t texts = (size_t)r->texts;
    int64_t wanted = r->options->num_samples;
    b.scores = calloc(texts, sizeof *b.scores);
    b.ranks = calloc(texts, sizeof *b.ranks);
    b.finished = calloc(texts, sizeof *b.finished);
    b.candidates = calloc(2 * texts * texts + texts, sizeof *b.candidates);
    REQUIRE_GOTO(result, done,
                 b.scores != NULL && b.ranks != NULL && b.finished != NULL && b.candidates != NULL,
                 STATUS_INTERNAL, "out of memory for beams");
    TRY_GOTO(result, done, search_beams(&b, piece));
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
    for (int64_t i = 0; r->whole != NULL && i < r->texts; i++) {
        token_list_free(&r->whole[i]);
    }
    free(r->whole);
    free(r->prompt_tokens);
    free(r->limits);
    free(r->ended);
    free(r->counts);
    free(r->inputs);
    mirror_destroy(&r->placed_logits);
    sampler_destroy(&r->sampler);
    (void)model_cache_destroy(&r->cache);
}

static int64_t limit_of(const struct run *r, int64_t prompt_tokens)
{
    int64_t positions = model_config_of(r->model)->positions;
    int64_t wanted = prompt_tokens + r->options->max_new_tokens;
    return wanted < positions ? wanted : positions;
}

static status run_create(struct run *r, int64_t longest)
{
    size_t texts = (size_t)r->texts;
    r->vocabulary = model_config_of(r->model)->vocabulary;
    r->room = limit_of(r, longest);
    r->whole = calloc(texts, sizeof *r->whole);
    r->prompt_tokens = calloc(texts, sizeof *r->prompt_tokens);
    r->limits = calloc(texts, sizeof *r->limits);
    r->ended = calloc(texts, sizeof *r->ended);
    r->counts = calloc(texts, sizeof *r->counts);
    r->inputs = calloc(texts, sizeof *r->inputs);
    REQUIRE(r->whole != NULL && r->prompt_tokens != NULL && r->limits != NULL && r->ended != NULL &&
                r->counts != NULL && r->inputs != NULL,
            STATUS_INTERNAL, "out of memory for %zu texts", texts);
    TRY(mirror_create(kernels_device(r->kernels), kernels_stream(r->kernels),
                      texts * (size_t)r->vocabulary * sizeof *r->logits, "logits",
                      &r->placed_logits));
    r->logits = r->placed_logits.host;
    TRY(sampler_create(&r->options->sampler, r->vocabulary, &r->sampler));
    return model_cache_create(r->model, r->texts, r->room, &r->cache);
}

static status begin(struct run *r, int64_t text, const struct token_list *prompt)
{
    r->prompt_tokens[text] = prompt->count;
    r->limits[text] = limit_of(r, prompt->count);
    return append(&r->whole[text], prompt->ids, prompt->count);
}

static status take_sampled(struct run *r, struct generate_text *out)
{
    for (int64_t i = 0; i < r->texts; i++) {
        const struct token_list *list = &r->whole[i];
        out[i] = (struct generate_text){.ended = r->ended[i]};
        TRY(append(&out[i].tokens, list->ids + r->prompt_tokens[i],
                   list->count - r->prompt_tokens[i]));
    }
    return STATUS_OK;
}

static status one_run(struct run *r, const struct token_list *prompts, int64_t count, int64_t piece,
                      struct generate_text *out)
{
    int64_t longest = 0, positions = model_config_of(r->model)->positions;
    for (int64_t i = 0; i < count; i++) {
        longest = prompts[i].count > longest ? prompts[i].count : longest;
    }
    REQUIRE(longest < positions, STATUS_USAGE,
            "a prompt of %lld tokens leaves no room: the model has %lld positions",
            (long long)longest, (long long)positions);
    if (longest + r->options->max_new_tokens > positions) {
        log_warning("LENGTH",
                    "at most %lld new tokens fit behind a prompt of %lld: the model has %lld "
                    "positions",
                    (long long)(positions - longest), (long long)longest, (long long)positions);
    }
    TRY(run_create(r, longest));
    for (int64_t i = 0; i < r->texts; i++) {
        TRY(begin(r, i, &prompts[i * count / r->texts]));
    }
    if (r->options->num_beams > 1) {
        return beam_texts(r, piece, out);
    }
    TRY(sample_texts(r, piece));
    return take_sampled(r, out);
}

status generate_run(struct kernels *k, struct model *m, const struct tokenizer *t,
                    const struct token_list *prompts, int64_t prompt_count,
                    const struct generate_options *options, generate_stream stream, void *user,
                    struct generate_text *out)
{
    enum { PIECE_TOKENS = 256 };
    bool beams = options->num_beams > 1;
    int64_t together = beams ? 1 : prompt_count; /* beams: prompt after prompt */
    for (int64_t first = 0; first < prompt_count; first += together) {
        struct run r = {.kernels = k,
                        .model = m,
                        .tokenizer = t,
                        .options = options,
                        .stream = stream,
                        .user = user,
                        .texts = beams ? options->num_beams : together * options->num_samples};
        status result = one_run(&r, prompts + first, together, PIECE_TOKENS,
                                out + first * options->num_samples);
        run_destroy(&r);
        TRY(result);
    }
    return STATUS_OK;
}

status generate_decode(const struct tokenizer *t, const struct generate_options *options,
                       const struct generate_text *text, char **out, size_t *bytes)
{
    TRY(tokenizer_decode(t, text->tokens.ids, text->tokens.count, true, out, bytes));
    *bytes = find_stop(options, *out, *bytes);
    (*out)[*bytes] = '\0';
    return STATUS_OK;
}
