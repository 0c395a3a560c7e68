/* Corruption of texts for denoising: the text is restored from source and target, counts of noise
 * and spans are exact, and frequencies agree with the definitions. */
#include "base/memory.h"
#include "base/number.h"
#include "datasets/loader/denoise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/datasets/added_tokens.h"
#include "tests/datasets/train_tokenizer.h"

enum {
    TOKENS_MAX = 700,
    FIRST = 10,
    MASK = 1,
    EOS = 2,
    BOS = 3,
    SENTINEL = 5000,
    VOCABULARY = 6000
};

static int32_t text[TOKENS_MAX], scratch[4 * TOKENS_MAX], ids[2 * TOKENS_MAX];

static struct denoise make_denoise(enum denoise_kind kind)
{
    struct denoise d = {.kind = kind,
                        .density = kind == DENOISE_BART ? 0.3 : 0.15,
                        .mean_span = 3,
                        .bos = BOS,
                        .eos = EOS,
                        .mask = MASK,
                        .modes = {-1, -1, -1},
                        .sentinel_count = DENOISE_SENTINELS_MAX};
    for (int i = 0; i < DENOISE_SENTINELS_MAX; i++) {
        d.sentinels[i] = SENTINEL - i;
    }
    return d;
}

/* Makes a text of different tokens. */
static void make_text(int64_t window)
{
    for (int64_t i = 0; i < window; i++) {
        text[i] = (int32_t)(FIRST + i);
    }
}

/* Corrupts a window, and checks that the lengths are known without the text. */
static void corrupt_text(const struct denoise *d, uint64_t example, int64_t window, int64_t *source,
                         int64_t *target)
{
    int64_t lengths[2];
    uint64_t key = denoise_key(3, 1, example);
    memset(ids, -1, sizeof ids);
    denoise_lengths(d, key, window, scratch, &lengths[0], &lengths[1]);
    denoise_apply(d, key, 0, text, window, scratch, ids, source, target);
    CHECK(*source == lengths[0] && *target == lengths[1]);
    CHECK(ids[*source - 1] == EOS && ids[*source + *target - 1] == EOS);
    CHECK(ids[*source + *target] == -1);
}

static bool is_sentinel(int32_t id)
{
    return id <= SENTINEL && id > SENTINEL - DENOISE_SENTINELS_MAX;
}

/* Puts the spans of the target in place of the sentinels of the source. Returns their number. */
static int64_t restore_text(const int32_t *source, int64_t length, const int32_t *target,
                            int64_t target_length, int64_t window)
{
    int64_t at = 0, read = 0, spans = 0;
    for (int64_t i = 0; i < length; i++) {
        if (!is_sentinel(source[i])) {
            CHECK(at < window && source[i] == text[at++]);
            continue;
        }
        CHECK_EQUAL(source[i], SENTINEL - spans++);
        CHECK_EQUAL(target[read++], source[i]);
        while (read < target_length && !is_sentinel(target[read])) {
            CHECK(at < window && target[read++] == text[at++]);
        }
    }
    CHECK(at == window && read == target_length);
    return spans;
}

static void test_span_corruption(void)
{
    static const struct {
        int64_t window, noise, spans;
        double density, mean;
    } cases[] = {{2, 1, 1, 0.15, 3},     {3, 1, 1, 0.15, 3},     {17, 3, 1, 0.15, 3},
                 {512, 77, 26, 0.15, 3}, {512, 77, 1, 0.15, 64}, {512, 256, 85, 0.5, 3},
                 {101, 91, 10, 0.9, 3}};
    for (int i = 0; i < COUNT(cases); i++) {
        struct denoise d = make_denoise(DENOISE_SPAN_CORRUPTION);
        d.density = cases[i].density;
        d.mean_span = cases[i].mean;
        make_text(cases[i].window);
        for (uint64_t example = 0; example < 50; example++) {
            int64_t source, target;
            corrupt_text(&d, example, cases[i].window, &source, &target);
            CHECK_EQUAL(source, cases[i].window - cases[i].noise + cases[i].spans + 1);
            CHECK_EQUAL(target, cases[i].noise + cases[i].spans + 1);
            CHECK_EQUAL(restore_text(ids, source - 1, ids + source, target - 1, cases[i].window),
                        cases[i].spans);
            CHECK(!is_sentinel(ids[0]) && is_sentinel(ids[source - 2]));
        }
    }
}

/* Each composition of 4 noise tokens into 2 spans is equally frequent. */
static void test_compositions(void)
{
    enum { DRAWS = 6000 };
    int counts[4] = {0};
    struct denoise d = make_denoise(DENOISE_SPAN_CORRUPTION);
    d.density = 0.4;
    d.mean_span = 2;
    make_text(10);
    for (uint64_t example = 0; example < DRAWS; example++) {
        int64_t source, target;
        corrupt_text(&d, example, 10, &source, &target);
        int64_t length = 0;
        while (!is_sentinel(ids[source + 1 + length])) {
            length++;
        }
        CHECK(length >= 1 && length <= 3);
        counts[length]++;
    }
    for (int i = 1; i <= 3; i++) { /* four standard deviations */
        CHECK_NEAR(counts[i], DRAWS / 3, 4 * sqrt(DRAWS * 2.0 / 9));
    }
}

static int64_t count_token(const int32_t *tokens, int64_t count, int32_t id)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        found += tokens[i] == id;
    }
    return found;
}

/* Checks that the tokens without masks are a subsequence of the text. */
static void check_order(const int32_t *tokens, int64_t count)
{
    int32_t before = 0;
    for (int64_t i = 0; i < count; i++) {
        CHECK(tokens[i] == MASK || tokens[i] > before);
        before = tokens[i] == MASK ? before : tokens[i];
    }
}

static void test_text_infilling(void)
{
    enum { WINDOW = 512, NOISE = 154, DRAWS = 2000 }; /* ceil(0.3 * 512) */
    struct denoise d = make_denoise(DENOISE_BART);
    double masks = 0, merged = 0;
    make_text(WINDOW);
    for (uint64_t example = 0; example < DRAWS; example++) {
        int64_t source, target;
        corrupt_text(&d, example, WINDOW, &source, &target);
        CHECK(ids[0] == BOS && ids[source] == BOS);
        CHECK_EQUAL(target, WINDOW + 2);
        CHECK(memcmp(ids + source + 1, text, WINDOW * sizeof *text) == 0);
        int64_t spans = count_token(ids + 1, source - 2, MASK);
        CHECK_EQUAL(source - 2 - spans, WINDOW - NOISE);
        CHECK(source <= WINDOW + 2);
        check_order(ids + 1, source - 2);
        masks += (double)spans / DRAWS;
        for (int64_t i = 1; i + 3 < source; i++) { /* a mask between neighbors: zero length */
            merged += (ids[i + 1] == MASK && ids[i + 2] == ids[i] + 1) / (double)DRAWS;
        }
    }
    /* Wald: the mean number of Poisson lengths with a sum of at least 154 is (154 + the mean excess
     * of the last one) / 3. The excess is E[l(l - 1)] / (2 E[l]) = 1.5. */
    CHECK_NEAR(masks, (NOISE + 1.5) / 3, 0.3);
    /* exp(-3) of the spans have zero length; most of them have no span as a neighbor */
    double kept = (double)(WINDOW - NOISE) / (WINDOW - NOISE + masks);
    CHECK_NEAR(merged, masks * exp(-3.0) * kept * kept, 0.15);
    d.replacement = DENOISE_MASKS;
    int64_t source, target;
    corrupt_text(&d, 1, WINDOW, &source, &target);
    CHECK_EQUAL(source, WINDOW + 2);
    CHECK_EQUAL(count_token(ids, source, MASK), NOISE);
    d.density = 0.999; /* many zero-length spans do not fit */
    d.mean_span = 1;
    d.replacement = DENOISE_ONE_MASK;
    for (uint64_t example = 0; example < 50; example++) {
        corrupt_text(&d, example, 7, &source, &target);
        CHECK(source <= 7 + 2);
    }
}

/* Counts the tokens that each mask between two tokens of the text replaces. A mask next to another
 * one is not counted: the lengths of the two spans are unknown. */
static void count_span_lengths(const int32_t *source, int64_t count, int most, double *counts)
{
    for (int64_t i = 1; i + 1 < count; i++) {
        if (source[i] == MASK && source[i - 1] != MASK && source[i + 1] != MASK) {
            int length = source[i + 1] - source[i - 1] - 1;
            counts[number_min(length, most)]++;
        }
    }
}

/* The lengths of the spans of text infilling have the Poisson distribution with mean 3. The last
 * span of a window is an exception, because it is cut. By renewal theory, its length has the
 * distribution k p(k) / 3 before the cut, and P(length >= k) / 3 after it. */
static void test_span_lengths(void)
{
    enum { WINDOW = 512, NOISE = 154, DRAWS = 2000, LENGTHS = 10 }; /* the last one: 9 and more */
    struct denoise d = make_denoise(DENOISE_BART);
    double counts[LENGTHS] = {0}, expected[LENGTHS] = {0}, all = 0;
    double p = exp(-3.0), tail = 1, spans = (NOISE + 1.5) / 3;
    make_text(WINDOW);
    for (uint64_t example = 0; example < DRAWS; example++) {
        int64_t source, target;
        corrupt_text(&d, example, WINDOW, &source, &target);
        count_span_lengths(ids + 1, source - 2, LENGTHS - 1, counts);
    }
    for (int k = 0; k < 60; k++) {
        double cut = k > 0 ? tail / 3 : 0;
        expected[k < LENGTHS ? k : LENGTHS - 1] += p + (cut - k * p / 3) / spans;
        tail -= p;
        p *= 3.0 / (k + 1);
    }
    for (int k = 0; k < LENGTHS; k++) {
        all += counts[k];
    }
    CHECK(all > 70000);
    for (int k = 0; k < LENGTHS; k++) { /* four standard deviations */
        CHECK_NEAR(counts[k], all * expected[k], 4 * sqrt(all * expected[k] * (1 - expected[k])));
    }
}

/* Returns the number of runs of masks. */
static int64_t count_runs(const int32_t *tokens, int64_t count)
{
    int64_t runs = 0;
    for (int64_t i = 0; i < count; i++) {
        runs += tokens[i] == MASK && (i == 0 || tokens[i - 1] != MASK);
    }
    return runs;
}

/* Token masking replaces single tokens at independent places by a mask each, and token deletion
 * removes them. */
static void test_single_tokens(void)
{
    enum { WINDOW = 512, NOISE = 154, DRAWS = 200 };
    static int32_t masked[WINDOW + 2];
    struct denoise d = make_denoise(DENOISE_BART);
    int64_t source, target;
    double runs = 0;
    d.single_tokens = true;
    make_text(WINDOW);
    for (uint64_t example = 0; example < DRAWS; example++) {
        d.replacement = DENOISE_MASKS;
        corrupt_text(&d, example, WINDOW, &source, &target);
        CHECK_EQUAL(source, WINDOW + 2);
        CHECK_EQUAL(count_token(ids, source, MASK), NOISE);
        for (int64_t i = 0; i < WINDOW; i++) {
            CHECK(ids[1 + i] == MASK || ids[1 + i] == text[i]);
        }
        runs += (double)count_runs(ids, source) / DRAWS;
        memcpy(masked, ids, sizeof masked);
        d.replacement = DENOISE_ONE_MASK; /* of spans with one token: the same */
        corrupt_text(&d, example, WINDOW, &source, &target);
        CHECK(source == WINDOW + 2 && memcmp(masked, ids, sizeof masked) == 0);
        d.replacement = DENOISE_NOTHING;
        corrupt_text(&d, example, WINDOW, &source, &target);
        CHECK_EQUAL(source, WINDOW - NOISE + 2);
        CHECK_EQUAL(count_token(ids, source, MASK), 0);
        check_order(ids + 1, source - 2);
    }
    /* The mean number of runs of n of w places is n (w - n + 1) / w. */
    CHECK_NEAR(runs, NOISE * (WINDOW - NOISE + 1.0) / WINDOW, 1.5);
}

/* Each rotation of a window of 20 tokens is equally frequent. */
static void test_rotation(void)
{
    enum { WINDOW = 20, DRAWS = 3800 };
    int counts[WINDOW] = {0};
    struct denoise d = make_denoise(DENOISE_BART);
    d.density = 0.01; /* one token */
    d.replacement = DENOISE_MASKS;
    d.rotation = 1;
    make_text(WINDOW);
    for (uint64_t example = 0; example < DRAWS; example++) {
        int64_t source, target;
        corrupt_text(&d, example, WINDOW, &source, &target);
        const int32_t *tokens = ids + 1;
        int64_t known = tokens[0] == MASK, offset = tokens[known] - FIRST - known + WINDOW;
        for (int64_t i = 0; i < WINDOW; i++) {
            CHECK(tokens[i] == MASK || tokens[i] == text[(offset + i) % WINDOW]);
        }
        counts[offset % WINDOW]++;
    }
    CHECK_EQUAL(counts[0], 0);
    for (int i = 1; i < WINDOW; i++) {
        CHECK_NEAR(counts[i], DRAWS / 19, 4.5 * sqrt(DRAWS / 19.0));
    }
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void test_sentences(void)
{
    enum { WINDOW = 100, SENTENCE = 7 };
    static uint8_t ends[VOCABULARY];
    int64_t source, target, moved = 0;
    struct denoise d = make_denoise(DENOISE_BART);
    d.sentence_ends = ends;
    d.permuted_sentences = 1;
    d.density = 0.01;
    d.replacement = DENOISE_MASKS;
    make_text(WINDOW);
    for (int i = SENTENCE - 1; i < WINDOW; i += SENTENCE) {
        ends[text[i]] = 1;
    }
    corrupt_text(&d, 4, WINDOW, &source, &target);
    int32_t *tokens = ids + 1;
    CHECK_EQUAL(count_token(tokens, WINDOW, MASK), 1);
    for (int64_t i = 0; i + 1 < WINDOW; i++) { /* only the ends of sentences have new neighbors */
        bool end = tokens[i] == MASK || tokens[i + 1] == MASK || ends[tokens[i]] != 0 ||
                   tokens[i] == text[WINDOW - 1];
        CHECK(end || tokens[i + 1] == tokens[i] + 1);
        moved +=
            end && tokens[i] != MASK && tokens[i + 1] != MASK && tokens[i + 1] != tokens[i] + 1;
    }
    CHECK(moved > 8); /* of 14 */
    CHECK(memcmp(ids + source + 1, text, WINDOW * sizeof *text) == 0);
    qsort(tokens, WINDOW, sizeof *tokens, compare_ids);
    for (int64_t i = 1, gaps = 0; i + 1 < WINDOW; i++) {
        gaps += tokens[i + 1] != tokens[i] + 1;
        CHECK(gaps <= 1); /* the masked token */
    }
    d.permuted_sentences = 0;
    d.rotation = 1;
    corrupt_text(&d, 4, WINDOW, &source, &target);
    int64_t breaks = 0;
    for (int64_t i = 0; i + 1 < WINDOW; i++) {
        breaks += ids[1 + i] != MASK && ids[2 + i] < ids[1 + i] && ids[2 + i] != MASK;
    }
    CHECK_EQUAL(breaks, 1);
}

/* Returns a tokenizer with the tokens of the modes, in another order than theirs. */
static struct tokenizer *make_mode_tokenizer(void)
{
    static const struct added_content modes[] = {
        {"[NLG]", true, false}, {"[NLU]", true, false}, {"[S2S]", true, false}};
    static const char words[] = "the list of files and the user of the system";
    struct tokenizer *plain = NULL;
    struct denoise d = {0};
    char *path = folder_file("words");
    folder_write(path, words, sizeof words - 1);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, &path, 1, 1, &plain));
    CHECK_OK(denoise_find_tokens(&d, plain, VOCABULARY, NULL));
    CHECK(d.modes[0] == -1 && d.modes[1] == -1 && d.modes[2] == -1);
    struct tokenizer *t = added_tokens_make(plain, modes, COUNT(modes));
    CHECK_OK(tokenizer_destroy(&plain));
    return t;
}

/* The seven denoisers of UL2: noise of 512 tokens at the rates 0.15, 0.25 and 0.5, and the number
 * of spans, which is the noise divided by the mean length. */
static const struct {
    int64_t noise, spans;
    const char *mode;
} ul2_denoisers[] = {
    {77, 26, "[NLU]"},  /* R: 0.15, 3 */
    {77, 10, "[NLU]"},  /* R: 0.15, 8 */
    {128, 1, "[S2S]"},  /* S: 0.25, the last tokens */
    {256, 85, "[NLG]"}, /* X: 0.5, 3 */
    {256, 32, "[NLG]"}, /* X: 0.5, 8 */
    {256, 4, "[NLG]"},  /* X: 0.5, 64 */
    {77, 1, "[NLG]"},   /* X: 0.15, 64 */
};

/* Returns the denoiser with this noise, these spans and this mode token. */
static int find_denoiser(const struct tokenizer *t, int64_t noise, int64_t spans, int32_t mode)
{
    int i = 0;
    while (i < COUNT(ul2_denoisers) &&
           (noise != ul2_denoisers[i].noise || spans != ul2_denoisers[i].spans ||
            mode != tokenizer_find(t, ul2_denoisers[i].mode))) {
        i++;
    }
    CHECK(i < COUNT(ul2_denoisers));
    return i;
}

/* Each denoiser is drawn equally often, and its mode token is the first token of the source. */
static void test_ul2(void)
{
    enum { WINDOW = 512, DRAWS = 7000 };
    int drawn[COUNT(ul2_denoisers)] = {0};
    struct denoise d = make_denoise(DENOISE_UL2), names = {0};
    struct tokenizer *t = make_mode_tokenizer();
    CHECK_OK(denoise_find_tokens(&names, t, VOCABULARY, NULL));
    memcpy(d.modes, names.modes, sizeof d.modes);
    make_text(WINDOW);
    for (uint64_t example = 0; example < DRAWS; example++) {
        int64_t source, target;
        corrupt_text(&d, example, WINDOW, &source, &target);
        int64_t spans = restore_text(ids + 1, source - 2, ids + source, target - 1, WINDOW);
        int64_t noise = target - 1 - spans;
        CHECK_EQUAL(source, 1 + WINDOW - noise + spans + 1);
        drawn[find_denoiser(t, noise, spans, ids[0])]++;
    }
    for (int i = 0; i < COUNT(ul2_denoisers); i++) { /* four standard deviations */
        CHECK_NEAR(drawn[i], DRAWS / 7, 4 * sqrt(DRAWS * 6.0 / 49));
    }
    d.modes[0] = d.modes[1] = d.modes[2] = -1; /* no token: the source begins with text */
    int64_t source, target;
    corrupt_text(&d, 0, WINDOW, &source, &target);
    CHECK_EQUAL(ids[0], text[0]);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_prefix(void)
{
    enum { WINDOW = 20, DRAWS = 3800 };
    int counts[WINDOW] = {0};
    struct denoise d = make_denoise(DENOISE_PREFIX_LM);
    make_text(WINDOW);
    for (uint64_t example = 0; example < DRAWS; example++) {
        int64_t source, target;
        corrupt_text(&d, example, WINDOW, &source, &target);
        CHECK_EQUAL(source + target, WINDOW + 2);
        CHECK(memcmp(ids, text, (size_t)(source - 1) * sizeof *text) == 0);
        CHECK(memcmp(ids + source, text + source - 1, (size_t)(target - 1) * sizeof *text) == 0);
        counts[source - 1]++;
    }
    for (int i = 1; i < WINDOW; i++) {
        CHECK_NEAR(counts[i], DRAWS / 19, 4.5 * sqrt(DRAWS / 19.0));
    }
}

/* Another epoch and another example have another corruption. */
static void test_keys(void)
{
    CHECK(denoise_key(1, 2, 3) == denoise_key(1, 2, 3));
    CHECK(denoise_key(1, 2, 3) != denoise_key(1, 3, 3));
    CHECK(denoise_key(1, 2, 3) != denoise_key(1, 2, 4));
    CHECK(denoise_key(1, 2, 3) != denoise_key(2, 2, 3));
}

/* Checks the tokens of a side around its text, and returns the text. */
static const int32_t *check_language(const int32_t *side, int64_t count, bool first, int32_t token)
{
    CHECK_EQUAL(side[first ? 0 : count - 1], token);
    CHECK_EQUAL(side[count - 1 - !first], EOS);
    return side + first;
}

/* The language token of a text precedes its source and its target, or follows their end tokens. The
 * rest is the corruption without it. */
static void test_languages(void)
{
    enum { WINDOW = 40, LANGUAGE = 4 };
    static const enum denoise_kind kinds[] = {DENOISE_SPAN_CORRUPTION, DENOISE_BART};
    make_text(WINDOW);
    for (int i = 0; i < 4; i++) {
        static int32_t expected[2 * TOKENS_MAX];
        struct denoise d = make_denoise(kinds[i / 2]);
        int64_t source, target, lengths[2], plain_source, plain_target;
        uint64_t key = denoise_key(3, 1, 5);
        bool first = i % 2 == 0;
        d.bos = -1;
        CHECK_EQUAL(denoise_window_tokens(&d, 50), 49);
        denoise_apply(&d, key, 0, text, WINDOW, scratch, expected, &plain_source, &plain_target);
        d.bos = BOS; /* not written with a language */
        d.has_language = true;
        d.language_first = first;
        CHECK_EQUAL(denoise_window_tokens(&d, 50), 48);
        denoise_lengths(&d, key, WINDOW, scratch, &lengths[0], &lengths[1]);
        denoise_apply(&d, key, LANGUAGE, text, WINDOW, scratch, ids, &source, &target);
        CHECK(source == lengths[0] && target == lengths[1]);
        CHECK(source == plain_source + 1 && target == plain_target + 1);
        const int32_t *a = check_language(ids, source, first, LANGUAGE),
                      *b = check_language(ids + source, target, first, LANGUAGE);
        CHECK(memcmp(a, expected, (size_t)plain_source * sizeof *a) == 0);
        CHECK(memcmp(b, expected + plain_source, (size_t)plain_target * sizeof *b) == 0);
    }
}

static void test_check(void)
{
    struct denoise d = make_denoise(DENOISE_SPAN_CORRUPTION);
    CHECK_OK(denoise_check(&d, 513));
    d.sentinel_count = 25;
    CHECK_FAILS(denoise_check(&d, 513), STATUS_RECIPE,
                "has 26 spans, but there are 25 sentinels; add tokens up to <extra_id_25>");
    d.unnamed_from = 1000;
    CHECK_FAILS(denoise_check(&d, 513), STATUS_RECIPE, "set model.vocab_size to 1026");
    CHECK_FAILS(denoise_check(&d, 100000), STATUS_RECIPE, "sentinels; lower data.sequence_length");
    CHECK_FAILS(denoise_check(&d, 2), STATUS_RECIPE, "2 tokens is too short");
    d.kind = DENOISE_BART;
    CHECK_OK(denoise_check(&d, 513));
    d.mask = -1;
    CHECK_FAILS(denoise_check(&d, 513), STATUS_RECIPE, "no mask token");
    d.replacement = DENOISE_NOTHING;
    CHECK_OK(denoise_check(&d, 513));
    d.eos = -1;
    CHECK_FAILS(denoise_check(&d, 513), STATUS_RECIPE, "no end token");
}

int main(void)
{
    folder_make();
    test_languages();
    test_span_corruption();
    test_compositions();
    test_text_infilling();
    test_span_lengths();
    test_single_tokens();
    test_rotation();
    test_sentences();
    test_ul2();
    test_prefix();
    test_keys();
    test_check();
    return 0;
}
