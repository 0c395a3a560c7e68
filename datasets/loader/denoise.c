#include "datasets/loader/denoise.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"

/* The streams of random numbers of a window. */
enum draw { DRAW_DENOISER, DRAW_NOISE, DRAW_TEXT, DRAW_SENTENCES, DRAW_ROTATION };

/* The spans of a window, in increasing order. */
struct plan {
    int32_t *starts, *lengths; /* [count] */
    int64_t count, noise;      /* spans, and tokens in them */
    int32_t mode;              /* first token of the source; -1: none */
    bool has_sentinels;
};

static uint64_t derive_key(uint64_t key, enum draw draw)
{
    return random_key(key, RANDOM_DENOISING, (uint64_t)draw, 0);
}

static double draw_uniform(uint64_t key, uint64_t index)
{
    return (double)(random_u64(key, index) >> 11) * 0x1p-53;
}

/* ---- special tokens ---- */

static void find_sentinels(struct denoise *d, const struct tokenizer *tokenizer, int64_t vocabulary)
{
    char name[32];
    int64_t known = tokenizer_vocab_size(tokenizer);
    bool has_names = tokenizer_find(tokenizer, "<extra_id_0>") >= 0;
    d->unnamed_from = has_names ? 0 : known;
    for (d->sentinel_count = 0; d->sentinel_count < DENOISE_SENTINELS_MAX; d->sentinel_count++) {
        snprintf(name, sizeof name, "<extra_id_%d>", d->sentinel_count);
        int64_t last = vocabulary - 1 - d->sentinel_count;
        int64_t id = has_names ? tokenizer_find(tokenizer, name) : last >= known ? last : -1;
        if (id < 0) {
            break;
        }
        d->sentinels[d->sentinel_count] = (int32_t)id;
    }
}

/* Returns whether the text of a token ends with a mark that ends a sentence. */
static status ends_sentence(const struct tokenizer *tokenizer, int32_t id, uint8_t *out)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(tokenizer_decode(tokenizer, &id, 1, false, &text, &bytes));
    *out = bytes > 0 && strchr(".!?", text[bytes - 1]) != NULL && text[bytes - 1] != '\0';
    free(text);
    return STATUS_OK;
}

status denoise_find_tokens(struct denoise *d, const struct tokenizer *tokenizer, int64_t vocabulary,
                           uint8_t *sentence_ends)
{
    static const char *const modes[DENOISE_MODES] = {"[NLU]", "[S2S]", "[NLG]"};
    struct tokenizer_specials specials = tokenizer_get_specials(tokenizer);
    int64_t known = tokenizer_vocab_size(tokenizer);
    int32_t begin = tokenizer_bos(tokenizer);
    d->eos = tokenizer_eos(tokenizer);
    d->bos = begin >= 0 ? begin : specials.cls;
    d->mask = specials.mask;
    for (int i = 0; i < DENOISE_MODES; i++) {
        d->modes[i] = tokenizer_find(tokenizer, modes[i]);
    }
    find_sentinels(d, tokenizer, vocabulary);
    d->sentence_ends = sentence_ends;
    for (int64_t id = 0; id < known && sentence_ends != NULL; id++) {
        TRY(ends_sentence(tokenizer, (int32_t)id, &sentence_ends[id]));
    }
    return STATUS_OK;
}

/* ---- spans ---- */

/* Draws `marks` of `items` numbers in increasing order, each set with equal probability. */
static void draw_marks(uint64_t key, int64_t items, int64_t marks, int32_t *out)
{
    for (int64_t i = 0, found = 0; found < marks; i++) {
        uint64_t left = (uint64_t)(items - i);
        if (random_below(key, (uint64_t)i, left) < (uint64_t)(marks - found)) {
            out[found++] = (int32_t)i;
        }
    }
}

/* Draws a composition of `total` into `parts` positive numbers. */
static void draw_composition(uint64_t key, int64_t total, int64_t parts, int32_t *out)
{
    draw_marks(key, total - 1, parts - 1, out);
    int32_t before = 0;
    for (int64_t i = 0; i < parts; i++) {
        int32_t end = i + 1 < parts ? out[i] + 1 : (int32_t)total;
        out[i] = end - before;
        before = end;
    }
}

/* Counts the noise and the spans of T5's corruption. */
static void count_noise(double density, double mean_span, int64_t window, int64_t *noise,
                        int64_t *spans)
{
    *noise = number_clamp(llround((double)window * density), 1, window - 1);
    *spans = number_clamp(llround((double)*noise / mean_span), 1, *noise);
    *spans = number_min(*spans, window - *noise);
}

static void plan_spans(uint64_t key, double density, double mean_span, int64_t window,
                       struct plan *plan)
{
    count_noise(density, mean_span, window, &plan->noise, &plan->count);
    draw_composition(derive_key(key, DRAW_NOISE), plan->noise, plan->count, plan->lengths);
    draw_composition(derive_key(key, DRAW_TEXT), window - plan->noise, plan->count, plan->starts);
    int32_t end = 0;
    for (int64_t i = 0; i < plan->count; i++) {
        plan->starts[i] += end;
        end = plan->starts[i] + plan->lengths[i];
    }
}

/* Makes one span of all tokens from `first` on. */
static void plan_suffix(int64_t first, int64_t window, struct plan *plan)
{
    plan->count = 1;
    plan->noise = window - first;
    plan->starts[0] = (int32_t)first;
    plan->lengths[0] = (int32_t)plan->noise;
}

static const struct {
    double density, mean_span; /* mean_span 0: a suffix */
    int mode;
} ul2_denoisers[] = {
    {0.15, 3, 0}, {0.15, 8, 0}, {0.25, 0, 1}, {0.5, 3, 2}, {0.5, 8, 2}, {0.5, 64, 2}, {0.15, 64, 2},
};

enum { UL2_DENOISERS = COUNT(ul2_denoisers) };

static void plan_ul2(const struct denoise *d, uint64_t key, int64_t window, struct plan *plan)
{
    int i = (int)random_below(derive_key(key, DRAW_DENOISER), 0, UL2_DENOISERS);
    double density = ul2_denoisers[i].density, mean_span = ul2_denoisers[i].mean_span;
    if (mean_span > 0) {
        plan_spans(key, density, mean_span, window, plan);
    } else {
        int64_t noise = number_clamp(llround((double)window * density), 1, window - 1);
        plan_suffix(window - noise, window, plan);
    }
    plan->mode = d->modes[ul2_denoisers[i].mode];
}

/* Draws a number of the Poisson distribution, by inversion. */
static int64_t draw_poisson(uint64_t key, uint64_t index, double mean)
{
    double u = draw_uniform(key, index), p = exp(-mean), sum = p;
    int64_t k = 0;
    while (u >= sum && k < 1000) {
        p *= mean / (double)++k;
        sum += p;
    }
    return k;
}

/* Draws the lengths of BART's spans until they have all noise. The last one is cut. The source must
 * not become longer than the window, so the last zero-length spans are dropped if there are
 * too many. */
static void draw_lengths(const struct denoise *d, uint64_t key, int64_t window, int64_t noise,
                         struct plan *plan)
{
    for (uint64_t i = 0; plan->noise < noise; i++) {
        int64_t left = noise - plan->noise;
        int64_t length = d->single_tokens ? 1 : draw_poisson(key, i, d->mean_span);
        bool fits = d->replacement == DENOISE_ONE_MASK && plan->count + left < window;
        if (length > 0 || fits) {
            length = number_min(length, left);
            plan->noise += length;
            plan->lengths[plan->count++] = (int32_t)length;
        }
    }
    for (int64_t i = plan->count - 1; plan->count > noise; i--) {
        if (plan->lengths[i] == 0) {
            plan->count--;
            memmove(plan->lengths + i, plan->lengths + i + 1,
                    (size_t)(plan->count - i) * sizeof *plan->lengths);
        }
    }
}

static void plan_bart(const struct denoise *d, uint64_t key, int64_t window, struct plan *plan)
{
    int64_t noise = number_clamp((int64_t)ceil((double)window * d->density), 1, window);
    draw_lengths(d, derive_key(key, DRAW_NOISE), window, noise, plan);
    /* an order of the spans and the other tokens */
    draw_marks(derive_key(key, DRAW_TEXT), window - noise + plan->count, plan->count, plan->starts);
    int32_t shift = 0;
    for (int64_t i = 0; i < plan->count; i++) {
        plan->starts[i] += shift;
        shift += plan->lengths[i] - 1;
    }
}

/* Draws the spans of a window into scratch [2 window]. */
static struct plan make_plan(const struct denoise *d, uint64_t key, int64_t window,
                             int32_t *scratch)
{
    struct plan plan = {scratch, scratch + window, 0, 0, -1, true};
    switch (d->kind) {
    case DENOISE_BART:
        plan_bart(d, key, window, &plan);
        break;
    case DENOISE_UL2:
        plan_ul2(d, key, window, &plan);
        break;
    case DENOISE_PREFIX_LM:
        plan_suffix(1 + (int64_t)random_below(derive_key(key, DRAW_TEXT), 0, (uint64_t)window - 1),
                    window, &plan);
        plan.has_sentinels = false;
        break;
    default:
        plan_spans(key, d->density, d->mean_span, window, &plan);
        break;
    }
    return plan;
}

/* ---- lengths ---- */

static bool has_begin(const struct denoise *d)
{
    return d->kind == DENOISE_BART && d->bos >= 0 && !d->has_language;
}

/* Returns the tokens of a source that replace its spans. */
static int64_t count_replacements(const struct denoise *d, const struct plan *plan)
{
    if (d->kind != DENOISE_BART) {
        return plan->has_sentinels ? plan->count : 0;
    }
    return d->replacement == DENOISE_ONE_MASK ? plan->count
           : d->replacement == DENOISE_MASKS  ? plan->noise
                                              : 0;
}

static void count_tokens(const struct denoise *d, const struct plan *plan, int64_t window,
                         int64_t *source, int64_t *target)
{
    int64_t ends = 1 + has_begin(d) + d->has_language;
    *source = (plan->mode >= 0) + window - plan->noise + count_replacements(d, plan) + ends;
    *target = d->kind == DENOISE_BART
                  ? window + ends
                  : plan->noise + (plan->has_sentinels ? plan->count : 0) + ends;
}

int64_t denoise_window_tokens(const struct denoise *d, int64_t tokens)
{
    return tokens - 1 - has_begin(d) - d->has_language - (d->kind == DENOISE_UL2);
}

static status raise_sentinels(const struct denoise *d, int64_t window, int64_t spans)
{
    char remedy[256] = "lower data.sequence_length";
    if (d->unnamed_from == 0) {
        snprintf(remedy, sizeof remedy,
                 "add tokens up to <extra_id_%" PRId64 "> to the tokenizer, "
                 "or lower data.sequence_length",
                 spans - 1);
    } else if (spans <= DENOISE_SENTINELS_MAX) {
        snprintf(remedy, sizeof remedy,
                 "set model.vocab_size to %" PRId64 ": the tokenizer has %" PRId64
                 " ids, and the ids after them are sentinels",
                 d->unnamed_from + spans, d->unnamed_from);
    }
    RAISE(STATUS_RECIPE,
          "denoise: a window of %" PRId64 " tokens has %" PRId64
          " spans, but there are %d sentinels; %s",
          window, spans, d->sentinel_count, remedy);
}

status denoise_check(const struct denoise *d, int64_t tokens)
{
    int64_t window = denoise_window_tokens(d, tokens), noise, spans = 0;
    REQUIRE(window >= 2, STATUS_RECIPE,
            "denoise: a window of %" PRId64 " tokens is too short for a source and a target; "
            "raise data.sequence_length",
            tokens);
    REQUIRE(d->eos >= 0, STATUS_RECIPE,
            "denoise: the tokenizer has no end token; train or import a tokenizer with one");
    REQUIRE(d->kind != DENOISE_BART || d->replacement == DENOISE_NOTHING || d->mask >= 0,
            STATUS_RECIPE,
            "denoise: the tokenizer has no mask token; use one with a mask token, or "
            "denoise.replace_length=0");
    if (d->kind == DENOISE_SPAN_CORRUPTION) {
        count_noise(d->density, d->mean_span, window, &noise, &spans);
    }
    for (int i = 0; i < UL2_DENOISERS && d->kind == DENOISE_UL2; i++) {
        int64_t count = 1;
        if (ul2_denoisers[i].mean_span > 0) {
            count_noise(ul2_denoisers[i].density, ul2_denoisers[i].mean_span, window, &noise,
                        &count);
        }
        spans = number_max(spans, count);
    }
    return spans <= d->sentinel_count ? STATUS_OK : raise_sentinels(d, window, spans);
}

uint64_t denoise_key(uint64_t seed, int64_t epoch, uint64_t example)
{
    return random_key(seed, RANDOM_DENOISING, (uint64_t)epoch, example);
}

void denoise_lengths(const struct denoise *d, uint64_t key, int64_t window, int32_t *scratch,
                     int64_t *source, int64_t *target)
{
    struct plan plan = make_plan(d, key, window, scratch);
    count_tokens(d, &plan, window, source, target);
}

/* ---- texts ---- */

/* Copies the text with some of its sentences in another order. order [2 window] is scratch memory.
 */
static void permute_sentences(const struct denoise *d, uint64_t key, const int32_t *text,
                              int64_t window, int32_t *order, int32_t *out)
{
    int32_t *ends = order + window; /* of the sentences */
    int64_t count = 0;
    for (int64_t i = 0; i < window; i++) {
        if (i + 1 == window || (d->sentence_ends != NULL && d->sentence_ends[text[i]] != 0)) {
            order[count] = (int32_t)count;
            ends[count++] = (int32_t)(i + 1);
        }
    }
    int64_t moved = (int64_t)ceil((double)count * d->permuted_sentences);
    uint64_t shuffle = derive_key(key, DRAW_SENTENCES);
    for (int64_t i = 0; i < moved; i++) { /* the first `moved` of a random order change places */
        int64_t j = i + (int64_t)random_below(key, (uint64_t)i, (uint64_t)(moved - i));
        int64_t a = (int64_t)random_permute(shuffle, (uint64_t)i, (uint64_t)count),
                b = (int64_t)random_permute(shuffle, (uint64_t)j, (uint64_t)count);
        int32_t sentence = order[a];
        order[a] = order[b];
        order[b] = sentence;
    }
    for (int64_t i = 0, at = 0; i < count; i++) {
        int32_t first = order[i] > 0 ? ends[order[i] - 1] : 0, length = ends[order[i]] - first;
        memcpy(out + at, text + first, (size_t)length * sizeof *out);
        at += length;
    }
}

/* Writes the tokens that replace span i, and returns their number. */
static int64_t write_replacement(const struct denoise *d, const struct plan *plan, int64_t i,
                                 int32_t *out)
{
    bool bart = d->kind == DENOISE_BART;
    int64_t count = bart && d->replacement == DENOISE_MASKS ? plan->lengths[i]
                    : bart                                  ? d->replacement == DENOISE_ONE_MASK
                                                            : plan->has_sentinels;
    for (int64_t j = 0; j < count; j++) {
        out[j] = bart ? d->mask : d->sentinels[i];
    }
    return count;
}

/* Writes the text with its spans replaced, and returns the number of tokens. */
static int64_t write_source(const struct denoise *d, const struct plan *plan, const int32_t *text,
                            int64_t window, int32_t *out)
{
    int64_t used = 0, from = 0;
    for (int64_t i = 0; i <= plan->count; i++) {
        int64_t end = i < plan->count ? plan->starts[i] : window;
        memcpy(out + used, text + from, (size_t)(end - from) * sizeof *out);
        used += end - from;
        if (i < plan->count) {
            used += write_replacement(d, plan, i, out + used);
            from = end + plan->lengths[i];
        }
    }
    return used;
}

/* Writes the spans, each after its sentinel, and returns the number of tokens. */
static int64_t write_spans(const struct denoise *d, const struct plan *plan, const int32_t *text,
                           int32_t *out)
{
    int64_t used = 0;
    for (int64_t i = 0; i < plan->count; i++) {
        used += write_replacement(d, plan, i, out + used);
        memcpy(out + used, text + plan->starts[i], (size_t)plan->lengths[i] * sizeof *out);
        used += plan->lengths[i];
    }
    return used;
}

/* Moves the first tokens to the end, at a random place, with the probability d->rotation. */
static void rotate_tokens(const struct denoise *d, uint64_t key, int32_t *tokens, int64_t count,
                          int32_t *scratch)
{
    uint64_t rotation = derive_key(key, DRAW_ROTATION);
    if (count < 2 || draw_uniform(rotation, 0) >= d->rotation) {
        return;
    }
    int64_t offset = 1 + (int64_t)random_below(rotation, 1, (uint64_t)count - 1);
    memcpy(scratch, tokens, (size_t)offset * sizeof *tokens);
    memmove(tokens, tokens + offset, (size_t)(count - offset) * sizeof *tokens);
    memcpy(tokens + count - offset, scratch, (size_t)offset * sizeof *tokens);
}

/* Writes an optional token and returns their number. */
static int64_t write_token(int32_t *out, bool exists, int32_t id)
{
    if (exists) {
        *out = id;
    }
    return exists;
}

/* Writes the tokens before a text and returns their number. */
static int64_t write_begin(const struct denoise *d, int32_t language, int32_t *out)
{
    return d->has_language ? write_token(out, d->language_first, language)
                           : write_token(out, has_begin(d), d->bos);
}

/* Writes the tokens after a text. */
static void write_end(const struct denoise *d, int32_t language, int32_t *out)
{
    *out = d->eos;
    (void)write_token(out + 1, d->has_language && !d->language_first, language);
}

void denoise_apply(const struct denoise *d, uint64_t key, int32_t language, const int32_t *text,
                   int64_t window, int32_t *scratch, int32_t *ids, int64_t *source, int64_t *target)
{
    bool bart = d->kind == DENOISE_BART;
    struct plan plan = make_plan(d, key, window, scratch);
    count_tokens(d, &plan, window, source, target);
    const int32_t *read = text;
    int32_t *out = ids + *source;
    if (bart && d->permuted_sentences > 0) { /* the memory of the target is free here */
        permute_sentences(d, derive_key(key, DRAW_SENTENCES), text, window, scratch + 2 * window,
                          out);
        read = out;
    }
    int32_t *at = ids + write_begin(d, language, ids);
    at += write_token(at, plan.mode >= 0, plan.mode);
    int64_t written = write_source(d, &plan, read, window, at);
    if (bart) {
        rotate_tokens(d, key, at, written, scratch + 2 * window);
    }
    write_end(d, language, at + written);
    out += write_begin(d, language, out);
    if (bart) {
        memcpy(out, text, (size_t)window * sizeof *out);
        out += window;
    } else {
        out += write_spans(d, &plan, text, out);
    }
    write_end(d, language, out);
}
