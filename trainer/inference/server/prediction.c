/* Embeddings, masked words, labels and answers: one pass of the model for each text. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/inference/prediction/prediction.h"
#include "trainer/inference/prediction/text_input.h"
#include "trainer/inference/server/base64.h"
#include "trainer/inference/server/server_impl.h"
#include "trainer/logging/json_text.h"

static bool labels_words(const struct server *s)
{
    return prediction_supports(&s->session, PREDICTION_WORDS);
}

bool server_can(const struct server *s, enum request_kind kind)
{
    const struct session *session = &s->session;
    switch (kind) {
    case REQUEST_COMPLETION:
        return s->engine != NULL;
    case REQUEST_CHAT:
        return s->engine != NULL && s->template != NULL;
    case REQUEST_EMBEDDING:
        return !s->has_source && prediction_supports(session, PREDICTION_EMBEDDING);
    case REQUEST_FILL_MASK:
        return prediction_supports(session, PREDICTION_MASKS);
    case REQUEST_CLASSIFY:
        return labels_words(s) || (prediction_supports(session, PREDICTION_LABELS) &&
                                   !session->recipe.data.text_pairs);
    default:
        return prediction_supports(session, PREDICTION_ANSWER);
    }
}

/* ---- texts ---- */

static status encode_text(struct server *s, const struct request *q,
                          const struct request_prompt *prompt, struct token_list *out)
{
    const struct text text = {prompt->text, prompt->bytes}, none = {NULL, 0};
    int64_t first = 0, removed = 0;
    if (prompt->text == NULL) {
        return server_encode_prompt(s, prompt, out);
    }
    REQUIRE(strlen(prompt->text) == prompt->bytes, STATUS_DATA,
            "the text contains a NUL character");
    if (q->kind == REQUEST_FILL_MASK) {
        TRY(text_input_encode_masked(&s->session, &text, &none, out, &first));
        return text_input_require_mask(&s->session, out, &text);
    }
    return text_pair_encode(s->session.tokenizer, &text, &none, 0, out, &first, &removed);
}

status server_prepare_prediction(struct server *s, struct server_job *job, const char **code)
{
    const struct request *q = &job->request;
    const struct model_config *model = model_get_config(s->session.model);
    *code = "unsupported_model";
    REQUIRE(server_can(s, q->kind), STATUS_DATA,
            "the model does not support this path; /v1/models lists the tasks that it supports");
    *code = NULL;
    bool is_split = q->kind == REQUEST_ANSWER || (q->kind == REQUEST_CLASSIFY && labels_words(s));
    TRY(ALLOCATE(job->prompts, q->prompt_count, "texts"));
    job->prompt_count = q->prompt_count;
    for (int64_t i = 0; i < q->prompt_count; i++) {
        REQUIRE(q->prompts[i].text != NULL || q->kind == REQUEST_EMBEDDING, STATUS_DATA,
                "the input must be text, not token ids");
        if (is_split) { /* server_run_prediction encodes these texts */
            REQUIRE(strlen(q->prompts[i].text) == q->prompts[i].bytes, STATUS_DATA,
                    "the text contains a NUL character");
            continue;
        }
        TRY(encode_text(s, q, &q->prompts[i], &job->prompts[i]));
        job->prompt_tokens += job->prompts[i].count;
        *code = job->prompts[i].count > model_positions(model) ? "context_length_exceeded" : *code;
        REQUIRE(job->prompts[i].count > 0, STATUS_DATA, "the text has no tokens");
        TRY(model_require_positions(model, "the text", job->prompts[i].count, 0, STATUS_DATA));
    }
    return STATUS_OK;
}

/* ---- predictions ---- */

static status embed_text(struct server *s, const struct server_job *job, int64_t index, json_t *out)
{
    int64_t width = model_get_config(s->session.model)->width;
    float *vector = NULL;
    TRY(ALLOCATE(vector, width, "an embedding"));
    status result = prediction_embed(&s->batch, &job->prompts[index], vector);
    TRY_GOTO(result, done, result);
    json_object_set_new(out, "object", json_string("embedding"));
    if (job->request.is_base64) {
        char *text = NULL;
        TRY_GOTO(result, done, base64_encode(vector, (size_t)width * sizeof *vector, &text));
        json_object_set_new(out, "embedding", json_string(text));
        free(text);
    } else {
        json_t *list = json_array();
        for (int64_t i = 0; i < width; i++) {
            json_array_append_new(list, json_real((double)vector[i]));
        }
        json_object_set_new(out, "embedding", list);
    }
done:
    free(vector);
    return result;
}

static status list_tokens(const struct server *s, const struct top_score *scores, int64_t count,
                          json_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        int32_t id = (int32_t)scores[i].index;
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(s->session.tokenizer, &id, 1, false, &text, &bytes));
        json_array_append_new(out,
                              json_pack("{s:o, s:i, s:f}", "text", json_text_create(text, bytes),
                                        "token", (int)id, "probability", scores[i].probability));
        free(text);
    }
    return STATUS_OK;
}

static status fill_masks(struct server *s, const struct server_job *job, int64_t index, json_t *out)
{
    struct prediction p;
    json_t *masks = json_array();
    json_object_set_new(out, "masks", masks);
    TRY(prediction_masks(&s->batch, &job->prompts[index], job->request.top_k, &p));
    status result = STATUS_OK;
    for (int64_t i = 0; i < p.rows && result == STATUS_OK; i++) {
        json_t *list = json_array();
        json_array_append_new(masks, list);
        result = list_tokens(s, p.scores + i * p.columns, p.columns, list);
    }
    prediction_free(&p);
    return result;
}

static json_t *make_label(const struct server *s, const struct top_score *score)
{
    char buffer[PREDICTION_NAME_BYTES];
    const char *name = prediction_label_name(&s->session, score->index, buffer);
    return json_pack("{s:o, s:f}", "label", json_text_create(name, strlen(name)), "probability",
                     score->probability);
}

static status classify_text(struct server *s, const struct server_job *job, int64_t index,
                            json_t *out)
{
    const struct token_list *ids = &job->prompts[index];
    if (s->session.recipe.objective == OBJECTIVE_REGRESS) {
        double value = 0;
        TRY(prediction_number(&s->batch, ids, ids->count, &value));
        json_object_set_new(out, "value", json_real(value));
        return STATUS_OK;
    }
    struct prediction p;
    json_t *list = json_array();
    json_object_set_new(out, "labels", list);
    TRY(prediction_labels(&s->batch, ids, ids->count, job->request.top_k, &p));
    for (int64_t i = 0; i < p.columns; i++) {
        json_array_append_new(list, make_label(s, &p.scores[i]));
    }
    prediction_free(&p);
    return STATUS_OK;
}

static status classify_words(struct server *s, struct server_job *job, int64_t index, json_t *out)
{
    const struct request_prompt *prompt = &job->request.prompts[index];
    struct text rest = {prompt->text, prompt->bytes};
    struct token_list ids = {0}, begins = {0};
    struct prediction p = {0};
    json_t *list = json_array();
    json_object_set_new(out, "tokens", list);
    status result = text_input_encode_words(&s->session, &rest, &ids, &begins);
    if (result == STATUS_OK) {
        job->prompt_tokens += ids.count;
        result = prediction_words(&s->batch, &ids, &begins, 1, &p);
    }
    for (int64_t i = 0; i < p.rows; i++) {
        struct text word = text_input_next_word(&rest);
        json_t *label = make_label(s, &p.scores[i]);
        json_object_set_new(label, "token", json_text_create(word.bytes, word.count));
        json_array_append_new(list, label);
    }
    prediction_free(&p);
    token_list_free(&ids);
    token_list_free(&begins);
    return result;
}

static status answer_text(struct server *s, struct server_job *job, int64_t index, json_t *out)
{
    const struct request *q = &job->request;
    const struct text question = {q->question, strlen(q->question)};
    const struct text context = {q->prompts[index].text, q->prompts[index].bytes};
    struct answer a;
    int64_t tokens = 0;
    TRY(prediction_answer(&s->batch, &question, &context, ANSWER_SPAN_TOKENS_MAX, &a, &tokens));
    job->prompt_tokens += tokens;
    json_object_set_new(
        out, "answer",
        json_text_create(context.bytes + a.begin_bytes, a.end_bytes - a.begin_bytes));
    json_object_set_new(out, "begin", json_integer(a.begin));
    json_object_set_new(out, "end", json_integer(a.end));
    json_object_set_new(out, "probability", json_real(a.probability));
    return STATUS_OK;
}

/* ---- a job ---- */

static status predict_text(struct server *s, struct server_job *job, int64_t index, json_t *out)
{
    switch (job->request.kind) {
    case REQUEST_EMBEDDING:
        return embed_text(s, job, index, out);
    case REQUEST_FILL_MASK:
        return fill_masks(s, job, index, out);
    case REQUEST_CLASSIFY:
        return labels_words(s) ? classify_words(s, job, index, out)
                               : classify_text(s, job, index, out);
    default:
        return answer_text(s, job, index, out);
    }
}

status server_run_prediction(struct server *s, struct server_job *job)
{
    if (job->predictions == NULL) {
        job->predictions = json_array();
    }
    int64_t index = (int64_t)json_array_size(job->predictions);
    json_t *item = json_pack("{s:I}", "index", (json_int_t)index);
    REQUIRE(json_array_append_new(job->predictions, item) == 0, STATUS_INTERNAL,
            "out of memory for an answer");
    TRY(predict_text(s, job, index, item));
    if (index + 1 < job->prompt_count) {
        return STATUS_OK;
    }
    server_job_write_json(job, json_pack("{s:s, s:o, s:O, s:{s:I, s:I}}", "object", "list", "model",
                                         server_model_json(s, job), "data", job->predictions,
                                         "usage", "prompt_tokens", (json_int_t)job->prompt_tokens,
                                         "total_tokens", (json_int_t)job->prompt_tokens));
    server_job_end(job);
    return STATUS_OK;
}
