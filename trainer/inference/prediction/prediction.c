#include "trainer/inference/prediction/prediction.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/inference/sentence_embedding.h"
#include "trainer/setup/objective_spec.h"

bool prediction_supports(const struct session *s, enum prediction_kind kind)
{
    const struct recipe *recipe = &s->recipe;
    enum model_head_kind head = objective_spec_head(recipe);
    switch (kind) {
    case PREDICTION_EMBEDDING:
        return true;
    case PREDICTION_MASKS:
        return recipe->objective == OBJECTIVE_MLM && tokenizer_get_specials(s->tokenizer).mask >= 0;
    case PREDICTION_LABELS:
        return head == MODEL_HEAD_SEQUENCE && recipe->objective != OBJECTIVE_REWARD;
    case PREDICTION_WORDS:
        return head == MODEL_HEAD_TOKEN;
    case PREDICTION_CHOICES:
        return head == MODEL_HEAD_MULTIPLE_CHOICE;
    default:
        return recipe->objective == OBJECTIVE_ANSWER;
    }
}

status prediction_require_masks(const struct session *s, const char *checkpoint)
{
    REQUIRE(s->recipe.objective == OBJECTIVE_MLM, STATUS_DATA,
            "%s was trained with objective %s; fill-mask needs a model that was trained with "
            "objective mlm",
            checkpoint, recipe_objective_name(s->recipe.objective));
    REQUIRE(prediction_supports(s, PREDICTION_MASKS), STATUS_DATA,
            "the tokenizer of %s has no mask token, which fill-mask needs", checkpoint);
    return STATUS_OK;
}

status prediction_require_labels(const struct session *s, const char *checkpoint)
{
    REQUIRE(prediction_supports(s, PREDICTION_LABELS) || prediction_supports(s, PREDICTION_WORDS) ||
                prediction_supports(s, PREDICTION_CHOICES),
            STATUS_DATA,
            "%s was trained with objective %s; classify needs a model that was trained with "
            "objective classify, regress, classify_tokens or choose",
            checkpoint, recipe_objective_name(s->recipe.objective));
    return STATUS_OK;
}

status prediction_require_answers(const struct session *s, const char *checkpoint)
{
    REQUIRE(prediction_supports(s, PREDICTION_ANSWER), STATUS_DATA,
            "%s was trained with objective %s; answer needs a model that was trained with "
            "objective answer",
            checkpoint, recipe_objective_name(s->recipe.objective));
    return STATUS_OK;
}

const char *prediction_label_name(const struct session *s, int64_t label,
                                  char buffer[PREDICTION_NAME_BYTES])
{
    if (label < s->labels.count) {
        return s->labels.names[label];
    }
    snprintf(buffer, PREDICTION_NAME_BYTES, "%" PRId64, label);
    return buffer;
}

void prediction_free(struct prediction *p)
{
    free(p->scores);
    *p = (struct prediction){0};
}

/* Allocates the scores and a buffer of outputs. */
static status begin_prediction(struct prediction *out, int64_t rows, int64_t width, int64_t top_k,
                               int64_t output_rows, float **outputs)
{
    int64_t columns = number_min(top_k, width);
    *out = (struct prediction){.rows = rows, .columns = columns};
    TRY(ALLOCATE(*outputs, output_rows * width, "the outputs of rows"));
    return ALLOCATE(out->scores, rows * columns, "the scores of rows");
}

/* Frees the buffer, and after an error the scores too. */
static status end_prediction(struct prediction *out, float *outputs, status result)
{
    free(outputs);
    if (result != STATUS_OK) {
        prediction_free(out);
    }
    return result;
}

status prediction_embed(struct text_batch *b, const struct token_list *ids, float *vector)
{
    struct tensor hidden;
    TRY(text_batch_set(b, ids, ids->count));
    struct model_input input = text_batch_input(b);
    TRY(model_forward(b->session->model, &input, &hidden));
    return sentence_embedding_pool(hidden, vector);
}

static status predict_masks(const struct text_batch *b, const int32_t *rows, float *logits,
                            struct prediction *out)
{
    int64_t vocabulary = model_get_config(b->session->model)->vocabulary;
    struct tensor hidden;
    TRY(text_batch_vocabulary_rows(b, rows, out->rows, &hidden));
    for (int64_t i = 0; i < out->rows; i++) {
        TRY(text_batch_logits(b, tensor_rows(hidden, i, 1), logits));
        top_scores_select(logits, vocabulary, out->columns, out->scores + i * out->columns);
    }
    return STATUS_OK;
}

status prediction_masks(struct text_batch *b, const struct token_list *ids, int64_t top_k,
                        struct prediction *out)
{
    int64_t vocabulary = model_get_config(b->session->model)->vocabulary;
    float *logits = NULL;
    *out = (struct prediction){0};
    TRY(text_batch_set(b, ids, ids->count));
    int32_t *rows = NULL;
    TRY(ALLOCATE(rows, ids->count, "rows"));
    int64_t count = text_batch_mask_rows(b, 0, rows);
    status result =
        count > 0 ? begin_prediction(out, count, vocabulary, top_k, 1, &logits)
                  : RAISE_STATUS(STATUS_DATA,
                                 "the text has no mask token; replace a word by the mask token");
    if (result == STATUS_OK) {
        result = predict_masks(b, rows, logits, out);
    }
    free(rows);
    return end_prediction(out, logits, result);
}

/* Predicts labels at some rows of the text in the batch. */
static status predict_rows(const struct text_batch *b, const int32_t *rows, int64_t count,
                           int64_t top_k, struct prediction *out)
{
    int64_t labels = model_get_config(b->session->model)->labels;
    float *outputs = NULL;
    status result = begin_prediction(out, count, labels, top_k, count, &outputs);
    if (result == STATUS_OK) {
        result = text_batch_head_outputs(b, rows, count, outputs);
    }
    for (int64_t i = 0; i < count && result == STATUS_OK; i++) {
        top_scores_select(outputs + i * labels, labels, out->columns,
                          out->scores + i * out->columns);
    }
    return end_prediction(out, outputs, result);
}

status prediction_labels(struct text_batch *b, const struct token_list *ids, int64_t first,
                         int64_t top_k, struct prediction *out)
{
    *out = (struct prediction){0};
    TRY(text_batch_set(b, ids, first));
    int32_t row = text_batch_head_row(b, 0);
    return predict_rows(b, &row, 1, top_k, out);
}

status prediction_number(struct text_batch *b, const struct token_list *ids, int64_t first,
                         double *out)
{
    float value = 0;
    TRY(text_batch_set(b, ids, first));
    int32_t row = text_batch_head_row(b, 0);
    REQUIRE(model_get_config(b->session->model)->labels == 1, STATUS_INTERNAL,
            "a model with objective regress must have one output");
    TRY(text_batch_head_outputs(b, &row, 1, &value));
    *out = (double)value;
    return STATUS_OK;
}

status prediction_words(struct text_batch *b, const struct token_list *ids,
                        const struct token_list *begins, int64_t top_k, struct prediction *out)
{
    *out = (struct prediction){0};
    TRY(text_batch_set(b, ids, ids->count));
    return predict_rows(b, begins->ids, begins->count, top_k, out);
}

/* Computes the outputs of a window and adds them to the search. `rows` is 0, 1, ... */
static status answer_window(struct text_batch *b, struct answer_search *search, int64_t window,
                            int64_t max_tokens, const int32_t *rows, float *outputs,
                            int64_t *tokens)
{
    struct token_list ids = {0};
    struct qa_windows_window w;
    status result = qa_windows_window(&search->windows, window, &ids, &w);
    if (result == STATUS_OK) {
        result = text_batch_set(b, &ids, w.first_segment_tokens);
    }
    if (result == STATUS_OK) {
        result = text_batch_head_outputs(b, rows, ids.count, outputs);
    }
    if (result == STATUS_OK) {
        answer_search_add(search, &w, outputs, ids.count, max_tokens);
        *tokens += ids.count;
    }
    token_list_free(&ids);
    return result;
}

static status answer_windows(struct text_batch *b, struct answer_search *search, int64_t max_tokens,
                             int64_t *tokens)
{
    status result = STATUS_OK;
    float *outputs = NULL;
    int32_t *rows = NULL;
    TRY_GOTO(result, done, ALLOCATE(outputs, 2 * b->max_rows, "the outputs of rows"));
    TRY_GOTO(result, done, ALLOCATE(rows, b->max_rows, "rows"));
    for (int64_t i = 0; i < b->max_rows; i++) {
        rows[i] = (int32_t)i;
    }
    for (int64_t i = 0; i < search->windows.window_count; i++) {
        TRY_GOTO(result, done, answer_window(b, search, i, max_tokens, rows, outputs, tokens));
    }
done:
    free(outputs);
    free(rows);
    return result;
}

status prediction_answer(struct text_batch *b, const struct text *question,
                         const struct text *context, int64_t max_tokens, struct answer *out,
                         int64_t *tokens)
{
    struct answer_search search = {0};
    int64_t count = 0;
    status result = answer_search_open(b->session, question, context, &search);
    if (result == STATUS_OK) {
        result = answer_windows(b, &search, max_tokens, &count);
    }
    if (result == STATUS_OK) {
        *out = answer_search_end(&search);
    }
    if (tokens != NULL) {
        *tokens = count;
    }
    answer_search_close(&search);
    return result;
}
