/* Implements bireme.h: the sources and targets of encoder-decoders. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/source_text.h"
#include "trainer/library/library_impl.h"
#include "trainer/setup/derive.h"

bm_translate_options bm_translate_defaults(void)
{
    return (bm_translate_options){
        .max_new_tokens = GENERATION_UNSET,
        .min_new_tokens = GENERATION_UNSET,
        .num_beams = GENERATION_UNSET,
        .length_penalty = NAN,
        .no_repeat_ngram_size = GENERATION_UNSET,
    };
}

status library_complete_source_options(const bm_model *m, int64_t max_new_tokens,
                                       struct generate_options *options)
{
    const struct session *s = &m->session;
    const struct model_config *c = model_get_config(s->model);
    const struct generation_context context = {
        .vocabulary = c->vocabulary,
        .positions = c->positions,
        .end_token = s->tokenizer != NULL ? tokenizer_eos(tokenizer_target(s->tokenizer)) : -1,
        .max_new_tokens = max_new_tokens,
    };
    options->whole_text = true;
    options->decoder_start = derive_decoder_start(&s->recipe, s->tokenizer);
    return generation_config_complete(s->tokenizer_dir, &context, options);
}

/* Checks and converts the options that are set. The limits of `bireme translate` apply. */
static status check_options(const bm_translate_options *o, struct generate_options *out)
{
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {
        {"max_new_tokens", (double)o->max_new_tokens, 1, GENERATE_TOKENS_MAX},
        {"min_new_tokens", (double)o->min_new_tokens, 0, GENERATE_TOKENS_MAX},
        {"num_beams", (double)o->num_beams, 1, GENERATE_BEAMS_MAX},
        {"length_penalty", isnan(o->length_penalty) ? GENERATION_UNSET : o->length_penalty,
         -GENERATE_LENGTH_PENALTY_MAX, GENERATE_LENGTH_PENALTY_MAX},
        {"no_repeat_ngram_size", (double)o->no_repeat_ngram_size, 0, GENERATE_NGRAM_MAX},
    };
    for (int i = 0; i < COUNT(ranges); i++) {
        REQUIRE(ranges[i].value == GENERATION_UNSET ||
                    (ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max),
                STATUS_USAGE, "%s is %g; it must be from %g to %g", ranges[i].name, ranges[i].value,
                ranges[i].min, ranges[i].max);
    }
    *out = generation_config_unset();
    out->max_new_tokens = o->max_new_tokens;
    out->constraints.min_new_tokens = o->min_new_tokens;
    out->num_beams = o->num_beams;
    out->length_penalty = o->length_penalty;
    out->constraints.no_repeat_ngram_size = o->no_repeat_ngram_size;
    out->early_stopping = o->early_stopping != 0;
    return STATUS_OK;
}

static status generate_target(bm_model *m, const struct text *source, struct source_text *language,
                              struct generate_options *options, char **text, size_t *bytes)
{
    struct session *s = &m->session;
    struct token_list ids = {0};
    struct generate_output output = {0};
    status result = source_text_encode(s->tokenizer, language, source, &ids);
    if (result == STATUS_OK) {
        result =
            generate_run(s->kernels, s->model, s->tokenizer, &ids, 1, options, NULL, NULL, &output);
    }
    if (result == STATUS_OK) {
        result = tokenizer_decode(tokenizer_target(s->tokenizer), output.tokens.ids,
                                  output.tokens.count, true, text, bytes);
    }
    m->end = result != STATUS_OK                              ? BM_END_NONE
             : output.ended                                   ? BM_END_TOKEN
             : output.tokens.count >= options->max_new_tokens ? BM_END_LENGTH
                                                              : BM_END_POSITIONS;
    token_list_free(&ids);
    token_list_free(&output.tokens);
    return result;
}

static status translate_text(bm_model *m, const char *source, size_t source_bytes,
                             const bm_translate_options *requested, char **text, size_t *bytes)
{
    enum { NEW_TOKENS = 128 };
    const bm_translate_options defaults = bm_translate_defaults();
    const bm_translate_options *o = requested != NULL ? requested : &defaults;
    struct generate_options options;
    struct source_text language = {
        .prefix = o->source_prefix, .from = o->source_lang, .to = o->target_lang};
    REQUIRE(text != NULL && bytes != NULL, STATUS_USAGE, "text or bytes is NULL");
    *text = NULL;
    *bytes = 0;
    TRY(library_require_tokenizer(m));
    TRY(library_require_text(source, source_bytes));
    TRY(weights_require_seq2seq(&m->session, m->path));
    TRY(check_options(o, &options));
    TRY(library_complete_source_options(m, NEW_TOKENS, &options));
    TRY(source_text_resolve(m->session.tokenizer, &language, &options));
    if (source_bytes == 0) { /* an empty source has an empty target */
        TRY(ALLOCATE(*text, 1, "a text"));
        m->end = BM_END_TOKEN;
        return STATUS_OK;
    }
    return generate_target(m, &(struct text){source, source_bytes}, &language, &options, text,
                           bytes);
}

bm_status bm_translate(bm_model *m, const char *source, size_t source_bytes,
                       const bm_translate_options *options, char **text, size_t *bytes)
{
    library_begin_call();
    status result = library_begin_use(m);
    if (result == STATUS_OK) {
        m->end = BM_END_NONE;
        result = translate_text(m, source, source_bytes, options, text, bytes);
        library_end_use(m);
    }
    return library_end_call(result);
}
