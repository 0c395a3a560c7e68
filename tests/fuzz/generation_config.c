/* Fuzz target: generation_config.json of an imported encoder-decoder. Options that are accepted are
 * within their ranges, and all token ids within the vocabulary: a step of generation applies them.
 */
#include "trainer/inference/generation_config.h"
#include "tests/fuzz/fuzz.h"

enum { VOCABULARY = 61, POSITIONS = 32, END = 2, TOKENS = 6 };

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 200};

static void check_token(int32_t id)
{
    fuzz_require(id >= 0 && id < VOCABULARY, "a token id is in the vocabulary");
}

static void check_options(const struct generate_options *o)
{
    const struct constraints *c = &o->constraints;
    double penalty = o->sampler.repetition_penalty;
    int tokens = 0;
    fuzz_require(o->num_beams >= 1 && o->num_beams <= GENERATE_BEAMS_MAX, "beams are in range");
    fuzz_require(o->max_new_tokens >= 1 && o->max_new_tokens <= GENERATE_TOKENS_MAX &&
                     c->min_new_tokens >= 0 && c->min_new_tokens <= GENERATE_TOKENS_MAX,
                 "lengths are in range");
    fuzz_require(c->no_repeat_ngram_size >= 0 && c->no_repeat_ngram_size <= GENERATE_NGRAM_MAX,
                 "the n-gram size is in range");
    fuzz_require(penalty >= GENERATE_REPETITION_PENALTY_MIN &&
                     penalty <= GENERATE_REPETITION_PENALTY_MAX &&
                     o->length_penalty >= -GENERATE_LENGTH_PENALTY_MAX &&
                     o->length_penalty <= GENERATE_LENGTH_PENALTY_MAX,
                 "penalties are in range");
    check_token(o->decoder_start);
    check_token(c->has_first ? c->first_token : 0);
    check_token(c->has_last ? c->last_token : 0);
    for (int i = 0; i < c->bad_words; i++) {
        tokens += c->bad_lengths[i];
    }
    fuzz_require(tokens <= CONSTRAINTS_BAD_TOKENS_MAX, "bad words fit");
    for (int i = 0; i < tokens; i++) {
        check_token(c->bad_tokens[i]);
    }
}

/* Applies the penalty and the constraints to the logits of one step. */
static status apply_options(const struct generate_options *o)
{
    const int32_t ids[TOKENS] = {o->decoder_start, 5, 6, 5, 6, 5};
    const struct constraints_sequence sequence = {ids, TOKENS, 1, 1 + o->max_new_tokens, END};
    float logits[VOCABULARY] = {0};
    struct sampler *sampler = NULL;
    TRY(sampler_create(VOCABULARY, &sampler));
    sampler_apply_penalty(sampler, o->sampler.repetition_penalty, logits, ids, TOKENS);
    constraints_apply(&o->constraints, &sequence, logits, VOCABULARY);
    sampler_destroy(&sampler);
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    const struct generation_context context = {
        .vocabulary = VOCABULARY, .positions = POSITIONS, .end_token = END, .max_new_tokens = 100};
    struct generate_options options = generation_config_unset();
    options.decoder_start = 0;
    fuzz_write_file(GENERATION_CONFIG_FILE, data, bytes);
    TRY(generation_config_complete(fuzz_folder(), &context, &options));
    check_options(&options);
    return apply_options(&options);
}
