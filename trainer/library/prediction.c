/* Implements bireme.h: embeddings, labels, masked words and answers. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/inference/prediction/prediction.h"
#include "trainer/inference/prediction/text_input.h"
#include "trainer/library/library_impl.h"

/* Reserves the model and checks that it can read texts on this device. `what` is the result. */
static status begin_prediction(bm_model *m, const char *what)
{
    TRY(library_begin_use(m));
    status result = library_require_single_stack(m, what);
    if (result == STATUS_OK) {
        result = library_require_tokenizer(m);
    }
    if (result == STATUS_OK) {
        result = library_require_host(m);
    }
    if (result != STATUS_OK) {
        library_end_use(m);
    }
    return result;
}

/* Checks a text and converts it. */
static status read_text(const char *text, size_t bytes, struct text *out)
{
    TRY(library_require_text(text, bytes));
    *out = (struct text){text != NULL ? text : "", bytes};
    return text_input_check(out);
}

/* ---- sentence embeddings ---- */

static status embed_text(bm_model *m, const struct text *text, float *out)
{
    const struct text none = {NULL, 0};
    struct token_list ids = {0};
    int64_t first = 0, cut = 0;
    TRY(library_require_text(text->bytes, text->count));
    REQUIRE(out != NULL, STATUS_USAGE, "the output is NULL");
    status result = text_pair_encode(m->session.tokenizer, text, &none, 0, &ids, &first, &cut);
    if (result == STATUS_OK) {
        result = prediction_embed(&m->batch, &ids, out);
    }
    token_list_free(&ids);
    return result;
}

bm_status bm_embed(bm_model *m, const char *text, size_t bytes, float *out)
{
    library_begin_call();
    status result = begin_prediction(m, "embeddings");
    if (result == STATUS_OK) {
        result = embed_text(m, &(struct text){text, bytes}, out);
        library_end_use(m);
    }
    return library_end_call(result);
}

/* ---- labels ---- */

static int64_t count_name_bytes(const struct session *s, const struct prediction *p)
{
    char buffer[PREDICTION_NAME_BYTES];
    int64_t bytes = 0;
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        bytes += (int64_t)strlen(prediction_label_name(s, p->scores[i].index, buffer)) + 1;
    }
    return bytes;
}

/* Converts a prediction. has_words: each of its rows is a word of the text. The names follow the
 * labels in the same block. */
static status make_labels(const struct session *s, const struct prediction *p,
                          const struct text *text, bool has_words, bm_label **out)
{
    char buffer[PREDICTION_NAME_BYTES];
    int64_t count = p->rows * p->columns, bytes = count_name_bytes(s, p);
    struct text rest = *text;
    bm_label *labels = NULL; /* the names follow */
    size_t capacity = (size_t)count * sizeof *labels + (size_t)bytes;
    TRY(memory_allocate_array(&labels, capacity, 1, "the labels"));
    char *names = (char *)(labels + count);
    for (int64_t i = 0; i < count; i++) {
        const char *name = prediction_label_name(s, p->scores[i].index, buffer);
        bool begins_word = has_words && i % p->columns == 0;
        struct text word = begins_word ? text_input_next_word(&rest) : *text;
        size_t begin = (size_t)(word.bytes - text->bytes);
        labels[i] = (bm_label){.name = names,
                               .id = p->scores[i].index,
                               .score = p->scores[i].probability,
                               .begin = begin,
                               .end = begin + word.count};
        if (has_words && !begins_word) {
            labels[i].begin = labels[i - 1].begin;
            labels[i].end = labels[i - 1].end;
        }
        memcpy(names, name, strlen(name) + 1);
        names += strlen(name) + 1;
    }
    *out = labels;
    return STATUS_OK;
}

/* The label of a model for regression has no name, and its score is the number. */
static status make_number(double value, const struct text *text, bm_label **out)
{
    bm_label *label = NULL;
    TRY(ALLOCATE(label, 1, "a label"));
    *label = (bm_label){.name = "", .score = value, .end = text->count};
    *out = label;
    return STATUS_OK;
}

static status classify_words(bm_model *m, const struct text *text, int64_t top_k, bm_label **labels,
                             int64_t *count)
{
    struct token_list ids = {0}, begins = {0};
    struct prediction p = {0};
    status result = text_input_encode_words(&m->session, text, &ids, &begins);
    if (result == STATUS_OK) {
        result = prediction_words(&m->batch, &ids, &begins, top_k, &p);
    }
    if (result == STATUS_OK) {
        result = make_labels(&m->session, &p, text, true, labels);
        *count = result == STATUS_OK ? p.rows * p.columns : 0;
    }
    prediction_free(&p);
    token_list_free(&ids);
    token_list_free(&begins);
    return result;
}

static status classify_text(bm_model *m, const struct text *text, const struct text *pair,
                            int64_t top_k, bm_label **labels, int64_t *count)
{
    const struct recipe *recipe = &m->session.recipe;
    struct token_list ids = {0};
    struct prediction p = {0};
    int64_t first = 0, cut = 0;
    double value = 0;
    REQUIRE(!recipe->data.text_pairs || pair->bytes != NULL, STATUS_DATA,
            "%s was trained on pairs of texts; give the second text too", m->path);
    status result = text_pair_encode(m->session.tokenizer, text, pair, 0, &ids, &first, &cut);
    TRY_GOTO(result, done, result);
    if (recipe->objective == OBJECTIVE_REGRESS) {
        TRY_GOTO(result, done, prediction_number(&m->batch, &ids, first, &value));
        TRY_GOTO(result, done, make_number(value, text, labels));
        *count = 1;
    } else {
        TRY_GOTO(result, done, prediction_labels(&m->batch, &ids, first, top_k, &p));
        TRY_GOTO(result, done, make_labels(&m->session, &p, text, false, labels));
        *count = p.columns;
    }
done:
    prediction_free(&p);
    token_list_free(&ids);
    return result;
}

static status predict_label(bm_model *m, const struct text *text, const struct text *pair,
                            int64_t top_k, bm_label **labels, int64_t *count)
{
    const struct session *s = &m->session;
    struct text first, second = {NULL, 0};
    TRY(prediction_require_labels(s, m->path));
    REQUIRE(!prediction_supports(s, PREDICTION_CHOICES), STATUS_DATA,
            "%s was trained with objective choose, which only `bireme classify` supports", m->path);
    REQUIRE(top_k >= 1, STATUS_USAGE, "top_k is less than 1");
    TRY(read_text(text->bytes, text->count, &first));
    if (pair->bytes != NULL || pair->count > 0) {
        TRY(read_text(pair->bytes, pair->count, &second));
    }
    if (prediction_supports(s, PREDICTION_WORDS)) {
        REQUIRE(second.bytes == NULL, STATUS_DATA,
                "%s labels words and reads one text; omit the second text", m->path);
        return classify_words(m, &first, top_k, labels, count);
    }
    return classify_text(m, &first, &second, top_k, labels, count);
}

bm_status bm_classify(bm_model *m, const char *text, size_t bytes, const char *pair,
                      size_t pair_bytes, int64_t top_k, bm_label **labels, int64_t *count)
{
    library_begin_call();
    if (labels == NULL || count == NULL) {
        return library_end_call(RAISE_STATUS(STATUS_USAGE, "labels or count is NULL"));
    }
    *labels = NULL;
    *count = 0;
    status result = begin_prediction(m, "labels");
    if (result == STATUS_OK) {
        result = predict_label(m, &(struct text){text, bytes}, &(struct text){pair, pair_bytes},
                               top_k, labels, count);
        library_end_use(m);
    }
    return library_end_call(result);
}

/* ---- masked words ---- */

/* Converts a prediction. The texts follow the tokens in the same block. */
static status make_tokens(const struct session *s, const struct prediction *p, bm_token **out)
{
    int64_t count = p->rows * p->columns;
    size_t bytes = 0, capacity = (size_t)count * (sizeof(bm_token) + 16);
    size_t used = (size_t)count * sizeof(bm_token);
    char *block = NULL, *text = NULL;
    status result = STATUS_OK;
    TRY(ALLOCATE(block, capacity, "the tokens"));
    for (int64_t i = 0; i < count; i++) {
        int32_t id = (int32_t)p->scores[i].index;
        TRY_GOTO(result, done, tokenizer_decode(s->tokenizer, &id, 1, false, &text, &bytes));
        if (used + bytes + 1 > capacity) {
            capacity = 2 * (used + bytes + 1);
            TRY_GOTO(result, done, GROW(block, capacity, "the tokens"));
        }
        ((bm_token *)(void *)block)[i] =
            (bm_token){.id = id, .probability = p->scores[i].probability, .bytes = bytes};
        memcpy(block + used, text, bytes);
        block[used + bytes] = '\0';
        used += bytes + 1;
        free(text);
        text = NULL;
    }
    bm_token *tokens = (void *)block;
    const char *next = block + (size_t)count * sizeof *tokens;
    for (int64_t i = 0; i < count; i++) {
        tokens[i].text = next;
        next += tokens[i].bytes + 1;
    }
    *out = tokens;
    block = NULL;
done:
    free(text);
    free(block);
    return result;
}

static status fill_masks(bm_model *m, const struct text *text, int64_t top_k, bm_token **tokens,
                         int64_t *masks)
{
    const struct text none = {NULL, 0};
    struct text checked;
    struct token_list ids = {0};
    struct prediction p = {0};
    int64_t first = 0;
    TRY(prediction_require_masks(&m->session, m->path));
    REQUIRE(top_k >= 1, STATUS_USAGE, "top_k is less than 1");
    TRY(read_text(text->bytes, text->count, &checked));
    status result = text_input_encode_masked(&m->session, &checked, &none, &ids, &first);
    TRY_GOTO(result, done, result);
    TRY_GOTO(result, done, text_input_require_mask(&m->session, &ids, &checked));
    TRY_GOTO(result, done, prediction_masks(&m->batch, &ids, top_k, &p));
    TRY_GOTO(result, done, make_tokens(&m->session, &p, tokens));
    *masks = p.rows;
done:
    prediction_free(&p);
    token_list_free(&ids);
    return result;
}

bm_status bm_fill_mask(bm_model *m, const char *text, size_t bytes, int64_t top_k,
                       bm_token **tokens, int64_t *masks)
{
    library_begin_call();
    if (tokens == NULL || masks == NULL) {
        return library_end_call(RAISE_STATUS(STATUS_USAGE, "tokens or masks is NULL"));
    }
    *tokens = NULL;
    *masks = 0;
    status result = begin_prediction(m, "masked words");
    if (result == STATUS_OK) {
        result = fill_masks(m, &(struct text){text, bytes}, top_k, tokens, masks);
        library_end_use(m);
    }
    return library_end_call(result);
}

/* ---- answers ---- */

static status find_answer(bm_model *m, const struct text *question, const struct text *context,
                          bm_answer_span *out)
{
    struct text checked_question, checked_context;
    struct answer answer;
    TRY(prediction_require_answers(&m->session, m->path));
    TRY(read_text(question->bytes, question->count, &checked_question));
    TRY(read_text(context->bytes, context->count, &checked_context));
    TRY(prediction_answer(&m->batch, &checked_question, &checked_context, ANSWER_SPAN_TOKENS_MAX,
                          &answer, NULL));
    *out = (bm_answer_span){answer.begin_bytes, answer.end_bytes, answer.probability};
    return STATUS_OK;
}

bm_status bm_answer(bm_model *m, const char *question, size_t question_bytes, const char *context,
                    size_t context_bytes, bm_answer_span *out)
{
    library_begin_call();
    if (out == NULL) {
        return library_end_call(RAISE_STATUS(STATUS_USAGE, "the output is NULL"));
    }
    *out = (bm_answer_span){0, 0, 0};
    status result = begin_prediction(m, "answers");
    if (result == STATUS_OK) {
        result = find_answer(m, &(struct text){question, question_bytes},
                             &(struct text){context, context_bytes}, out);
        library_end_use(m);
    }
    return library_end_call(result);
}
