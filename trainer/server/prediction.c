/* Embeddings, masked words, labels and answers: one pass of the model for each text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/qa_windows.h"
#include "trainer/inference/answer_span.h"
#include "trainer/inference/finite_outputs.h"
#include "trainer/inference/sentence_embedding.h"
#include "trainer/logging/json_text.h"
#include "trainer/server/base64.h"
#include "trainer/server/server_impl.h"
#include "trainer/setup/objective_spec.h"

static bool is_encoder(const struct server *s)
{
    return recipe_architecture_is_encoder(s->session.recipe.model.architecture);
}

bool server_can(const struct server *s, enum request_kind kind)
{
    const struct recipe *recipe = &s->session.recipe;
    enum model_head_kind head = objective_spec_head(recipe);
    switch (kind) {
    case REQUEST_COMPLETION:
        return s->engine != NULL;
    case REQUEST_CHAT:
        return s->engine != NULL && s->template != NULL;
    case REQUEST_EMBEDDING:
        return true;
    case REQUEST_FILL_MASK:
        return recipe->objective == OBJECTIVE_MLM &&
               tokenizer_get_specials(s->session.tokenizer).mask >= 0;
    case REQUEST_CLASSIFY:
        return (head == MODEL_HEAD_SEQUENCE && recipe->objective != OBJECTIVE_REWARD &&
                !recipe->data.text_pairs) ||
               head == MODEL_HEAD_TOKEN;
    default:
        return recipe->objective == OBJECTIVE_ANSWER;
    }
}

/* ---- texts ---- */

static status encode_text(struct server *s, const struct request *q,
                          const struct request_prompt *prompt, struct token_list *out)
{
    const struct tokenizer *t = s->session.tokenizer;
    const struct text text = {prompt->text, prompt->bytes}, none = {NULL, 0};
    int64_t first = 0, removed = 0;
    if (prompt->text == NULL) {
        return server_encode_prompt(s, prompt, out);
    }
    REQUIRE(strlen(prompt->text) == prompt->bytes, STATUS_DATA,
            "the text contains a NUL character");
    if (q->kind == REQUEST_FILL_MASK) {
        return tokenizer_encode_pair(t, prompt->text, prompt->bytes, NULL, 0, true, 0, out, &first);
    }
    return text_pair_encode(t, &text, &none, 0, out, &first, &removed);
}

static status add_special(const struct server *s, int32_t id, struct token_list *ids)
{
    TRY(token_list_reserve(ids, 1));
    if (is_encoder(s)) {
        ids->ids[ids->count++] = id;
    }
    return STATUS_OK;
}

/* Encodes words that are separated by white space. Appends the index of the first token of each
 * word to begins. */
static status encode_words(struct server *s, const char *line, struct token_list *ids,
                           struct token_list *begins)
{
    struct tokenizer_specials special = tokenizer_get_specials(s->session.tokenizer);
    static const char spaces[] = " \t\r\n";
    TRY(add_special(s, special.cls, ids));
    for (const char *word = line + strspn(line, spaces); *word != '\0';) {
        struct text text = {word, strcspn(word, spaces)};
        int64_t begin = 0;
        TRY(text_pair_encode_word(s->session.tokenizer, &text, begins->count == 0, ids, &begin));
        TRY(token_list_reserve(begins, 1));
        begins->ids[begins->count++] = (int32_t)begin;
        word += text.count;
        word += strspn(word, spaces);
    }
    REQUIRE(begins->count > 0, STATUS_DATA, "the text contains no word");
    return add_special(s, special.sep, ids);
}

status prediction_prepare(struct server *s, struct job *job, const char **code)
{
    const struct request *q = &job->request;
    int64_t positions = model_positions(model_get_config(s->session.model));
    *code = "unsupported_model";
    REQUIRE(server_can(s, q->kind), STATUS_DATA,
            "this model cannot answer such a request; /v1/models lists what it can answer");
    *code = NULL;
    bool is_split =
        q->kind == REQUEST_ANSWER || objective_spec_head(&s->session.recipe) == MODEL_HEAD_TOKEN;
    job->prompts = calloc((size_t)q->prompt_count, sizeof *job->prompts);
    REQUIRE(job->prompts != NULL, STATUS_INTERNAL, "out of memory for %" PRId64 " texts",
            q->prompt_count);
    job->prompt_count = q->prompt_count;
    for (int64_t i = 0; i < q->prompt_count; i++) {
        REQUIRE(q->prompts[i].text != NULL || q->kind == REQUEST_EMBEDDING, STATUS_DATA,
                "the input must be text, not token ids");
        if (is_split && q->kind != REQUEST_EMBEDDING) {
            continue; /* prediction_run encodes these texts */
        }
        TRY(encode_text(s, q, &q->prompts[i], &job->prompts[i]));
        job->prompt_tokens += job->prompts[i].count;
        *code = job->prompts[i].count > positions ? "context_length_exceeded" : *code;
        REQUIRE(job->prompts[i].count > 0, STATUS_DATA, "the text has no tokens");
        REQUIRE(job->prompts[i].count <= positions, STATUS_DATA,
                "the text has %" PRId64 " tokens, but the model has %" PRId64 " positions",
                job->prompts[i].count, positions);
    }
    return STATUS_OK;
}

/* ---- one pass ---- */

struct pass {
    struct model_input input;
    struct tensor hidden;
    int32_t *memory; /* positions and token types; output rows */
    int32_t cu_rows[2];
};

/* Runs the model on one text. rows NULL: *hidden of all rows, without the layers of the head. */
static status run_pass(struct server *s, const struct token_list *ids, int64_t first_segment,
                       const int32_t *rows, int64_t row_count, struct pass *p)
{
    int64_t count = ids->count, positions = model_positions(model_get_config(s->session.model));
    *p = (struct pass){.cu_rows = {0, (int32_t)count}};
    REQUIRE(count <= positions, STATUS_DATA,
            "the text has %" PRId64 " tokens, but the model has %" PRId64 " positions", count,
            positions);
    p->memory = calloc(2 * (size_t)count, sizeof *p->memory);
    REQUIRE(p->memory != NULL, STATUS_INTERNAL, "out of memory for %" PRId64 " tokens", count);
    for (int64_t i = 0; i < count; i++) {
        p->memory[i] = (int32_t)i;
        p->memory[count + i] = is_encoder(s) && i >= first_segment;
    }
    p->input = (struct model_input){
        .rows = count,
        .tokens = ids->ids,
        .positions = p->memory,
        .segments = 1,
        .cu_rows = p->cu_rows,
        .longest = model_get_config(s->session.model)->positions,
        .token_type_ids = p->memory + count,
        .output_rows = rows,
        .outputs = row_count,
    };
    return model_forward(s->session.model, &p->input, &p->hidden);
}

/* Computes the outputs of the fine-tuning head at some rows of a text.
 *
 * Memory    *outputs is allocated; the caller frees it */
static status run_head(struct server *s, const struct token_list *ids, int64_t first_segment,
                       const int32_t *rows, int64_t row_count, float **outputs)
{
    int64_t labels = model_get_config(s->session.model)->labels;
    struct pass p;
    *outputs = malloc((size_t)(row_count * labels) * sizeof **outputs);
    REQUIRE(*outputs != NULL, STATUS_INTERNAL, "out of memory for %" PRId64 " outputs", row_count);
    status result = run_pass(s, ids, first_segment, rows, row_count, &p);
    if (result == STATUS_OK) {
        struct model_label_head head = model_get_label_head(s->session.model, &p.input, NULL);
        result = classifier_logits(s->session.kernels,
                                   tensor_view(*outputs, DTYPE_F32, row_count, labels), p.hidden,
                                   head.weight, head.bias);
    }
    KEEP_FIRST(result,
               result == STATUS_OK ? finite_outputs_check(*outputs, row_count * labels) : result);
    free(p.memory);
    return result;
}

/* ---- embeddings ---- */

static status embed_text(struct server *s, const struct job *job, int64_t index, json_t *out)
{
    struct pass p;
    float *vector = NULL;
    status result = run_pass(s, &job->prompts[index], job->prompts[index].count, NULL, 0, &p);
    TRY_GOTO(result, done, result);
    vector = calloc((size_t)p.hidden.columns, sizeof *vector);
    REQUIRE_GOTO(result, done, vector != NULL, STATUS_INTERNAL, "out of memory for an embedding");
    TRY_GOTO(result, done, sentence_embedding_pool(p.hidden, vector));
    json_object_set_new(out, "object", json_string("embedding"));
    if (job->request.is_base64) {
        char *text = NULL;
        TRY_GOTO(result, done,
                 base64_encode(vector, (size_t)p.hidden.columns * sizeof *vector, &text));
        json_object_set_new(out, "embedding", json_string(text));
        free(text);
    } else {
        json_t *list = json_array();
        for (int64_t i = 0; i < p.hidden.columns; i++) {
            json_array_append_new(list, json_real((double)vector[i]));
        }
        json_object_set_new(out, "embedding", list);
    }
done:
    free(vector);
    free(p.memory);
    return result;
}

/* ---- masked words ---- */

static double compute_log_sum(const float *values, int64_t count)
{
    double top = (double)values[0], sum = 0;
    for (int64_t i = 1; i < count; i++) {
        top = fmax(top, (double)values[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        sum += exp((double)values[i] - top);
    }
    return top + log(sum);
}

/* Returns the index of the largest value that is not -INFINITY. */
static int64_t find_largest(const float *values, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) {
        best = values[i] > values[best] ? i : best;
    }
    return best;
}

/* Lists the most probable tokens. Overwrites the logits of the listed ones. */
static status list_tokens(struct server *s, float *logits, int64_t vocabulary, int64_t top_k,
                          json_t *out)
{
    double log_sum = compute_log_sum(logits, vocabulary);
    for (int64_t i = 0; i < top_k && i < vocabulary; i++) {
        int32_t id = (int32_t)find_largest(logits, vocabulary);
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(s->session.tokenizer, &id, 1, false, &text, &bytes));
        json_array_append_new(out, json_pack("{s:o, s:i, s:f}", "text",
                                             json_text_create(text, bytes), "token", (int)id,
                                             "probability", exp((double)logits[id] - log_sum)));
        free(text);
        logits[id] = -INFINITY;
    }
    return STATUS_OK;
}

static status fill_masks(struct server *s, const struct job *job, int64_t index, json_t *out)
{
    const struct token_list *ids = &job->prompts[index];
    int32_t mask = tokenizer_get_specials(s->session.tokenizer).mask;
    int64_t vocabulary = model_get_config(s->session.model)->vocabulary, count = 0;
    struct model *m = s->session.model;
    struct pass p = {0};
    float *logits = malloc((size_t)vocabulary * sizeof *logits);
    int32_t *rows = malloc((size_t)ids->count * sizeof *rows);
    json_t *masks = json_array();
    status result = STATUS_OK;
    json_object_set_new(out, "masks", masks);
    REQUIRE_GOTO(result, done, logits != NULL && rows != NULL, STATUS_INTERNAL,
                 "out of memory for the logits");
    for (int64_t i = 0; i < ids->count; i++) {
        if (ids->ids[i] == mask) {
            rows[count++] = (int32_t)i;
        }
    }
    REQUIRE_GOTO(result, done, count > 0, STATUS_DATA, "input: text %" PRId64 " has no mask token",
                 index);
    TRY_GOTO(result, done, run_pass(s, ids, ids->count, rows, count, &p));
    for (int64_t i = 0; i < count; i++) {
        json_t *list = json_array();
        json_array_append_new(masks, list);
        TRY_GOTO(result, done,
                 classifier_logits(
                     s->session.kernels, tensor_view(logits, DTYPE_F32, 1, vocabulary),
                     tensor_rows(p.hidden, i, 1), model_lm_head(m), model_lm_head_bias(m)));
        TRY_GOTO(result, done, finite_outputs_check(logits, vocabulary));
        TRY_GOTO(result, done, list_tokens(s, logits, vocabulary, job->request.top_k, list));
    }
done:
    free(logits);
    free(rows);
    free(p.memory);
    return result;
}

/* ---- labels ---- */

static json_t *make_label(const struct server *s, int64_t label, double probability)
{
    const struct labels *names = &s->session.labels;
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, label);
    const char *name = label < names->count ? names->names[label] : number;
    return json_pack("{s:o, s:f}", "label", json_text_create(name, strlen(name)), "probability",
                     probability);
}

static status classify_text(struct server *s, const struct job *job, int64_t index, json_t *out)
{
    const struct token_list *ids = &job->prompts[index];
    bool last = objective_spec_reads_last_row(&s->session.recipe);
    int64_t count = model_get_config(s->session.model)->labels;
    const int32_t row = last ? (int32_t)ids->count - 1 : 0;
    float *outputs = NULL;
    status result = run_head(s, ids, ids->count, &row, 1, &outputs);
    if (result == STATUS_OK && s->session.recipe.objective == OBJECTIVE_REGRESS) {
        json_object_set_new(out, "value", json_real((double)outputs[0]));
    } else if (result == STATUS_OK) {
        double log_sum = compute_log_sum(outputs, count);
        json_t *list = json_array();
        for (int64_t i = 0; i < job->request.top_k && i < count; i++) {
            int64_t best = find_largest(outputs, count);
            json_array_append_new(list, make_label(s, best, exp((double)outputs[best] - log_sum)));
            outputs[best] = -INFINITY;
        }
        json_object_set_new(out, "labels", list);
    }
    free(outputs);
    return result;
}

static status classify_words(struct server *s, struct job *job, int64_t index, json_t *out)
{
    const struct request_prompt *prompt = &job->request.prompts[index];
    struct token_list ids = {0}, begins = {0};
    float *outputs = NULL;
    int64_t count = model_get_config(s->session.model)->labels;
    const char *word = prompt->text;
    status result = encode_words(s, prompt->text, &ids, &begins);
    if (result == STATUS_OK) {
        job->prompt_tokens += ids.count;
        result = run_head(s, &ids, ids.count, begins.ids, begins.count, &outputs);
    }
    json_t *list = json_array();
    json_object_set_new(out, "tokens", list);
    for (int64_t i = 0; result == STATUS_OK && i < begins.count; i++) {
        const float *row = outputs + i * count;
        int64_t best = find_largest(row, count);
        word += strspn(word, " \t\r\n");
        size_t bytes = strcspn(word, " \t\r\n");
        json_t *label = make_label(s, best, exp((double)row[best] - compute_log_sum(row, count)));
        json_object_set_new(label, "token", json_text_create(word, bytes));
        json_array_append_new(list, label);
        word += bytes;
    }
    free(outputs);
    token_list_free(&ids);
    token_list_free(&begins);
    return result;
}

/* ---- answers ---- */

/* The best span and the best "no answer" of all windows; as in `bireme answer`. */
struct best_answer {
    struct answer_span span, none;
    int64_t begin, end; /* code points of the context */
};

static status answer_window(struct server *s, struct job *job, const struct qa_windows *windows,
                            int64_t window, struct best_answer *best)
{
    struct token_list ids = {0};
    struct qa_windows_window w;
    float *outputs = NULL;
    int32_t *rows = NULL;
    status result = qa_windows_window(windows, window, &ids, &w);
    TRY_GOTO(result, done, result);
    rows = malloc((size_t)ids.count * sizeof *rows);
    REQUIRE_GOTO(result, done, rows != NULL, STATUS_INTERNAL, "out of memory for a window");
    for (int64_t i = 0; i < ids.count; i++) {
        rows[i] = (int32_t)i;
    }
    job->prompt_tokens += ids.count;
    TRY_GOTO(result, done, run_head(s, &ids, w.first_segment_tokens, rows, ids.count, &outputs));
    struct answer_span span = answer_span_best(outputs, ids.count, w.context_start,
                                               w.context_tokens, ANSWER_SPAN_TOKENS_MAX);
    struct answer_span none = answer_span_none(outputs, ids.count);
    if (span.score > best->span.score) {
        best->span = span;
        best->begin = windows->char_begin.ids[w.first_context_token + span.first - w.context_start];
        best->end = windows->char_end.ids[w.first_context_token + span.last - w.context_start];
    }
    best->none = none.score < best->none.score ? none : best->none;
done:
    free(rows);
    free(outputs);
    token_list_free(&ids);
    return result;
}

static status answer_text(struct server *s, struct job *job, int64_t index, json_t *out)
{
    const struct request *q = &job->request;
    const struct text question = {q->question, strlen(q->question)};
    const struct text context = {q->prompts[index].text, q->prompts[index].bytes};
    int64_t positions = model_positions(model_get_config(s->session.model));
    int64_t length = s->session.recipe.data.sequence_length;
    struct qa_windows windows = {0};
    struct best_answer best = {.span.score = -INFINITY, .none.score = INFINITY};
    status result = qa_windows_encode(s->session.tokenizer, &question, &context,
                                      length < positions ? length : positions, &windows);
    for (int64_t i = 0; result == STATUS_OK && i < windows.window_count; i++) {
        result = answer_window(s, job, &windows, i, &best);
    }
    if (result == STATUS_OK) {
        double threshold = s->session.recipe.answer.no_answer_threshold;
        bool found = !(best.none.score - best.span.score > threshold);
        size_t begin = found ? qa_windows_byte_offset(&context, best.begin) : 0;
        size_t end = found ? qa_windows_byte_offset(&context, best.end) : 0;
        json_object_set_new(out, "answer", json_text_create(context.bytes + begin, end - begin));
        json_object_set_new(out, "begin", json_integer(found ? best.begin : 0));
        json_object_set_new(out, "end", json_integer(found ? best.end : 0));
        json_object_set_new(out, "probability",
                            json_real(found ? best.span.probability : best.none.probability));
    }
    qa_windows_free(&windows);
    return result;
}

/* ---- a job ---- */

static status predict_text(struct server *s, struct job *job, int64_t index, json_t *out)
{
    switch (job->request.kind) {
    case REQUEST_EMBEDDING:
        return embed_text(s, job, index, out);
    case REQUEST_FILL_MASK:
        return fill_masks(s, job, index, out);
    case REQUEST_CLASSIFY:
        return objective_spec_head(&s->session.recipe) == MODEL_HEAD_TOKEN
                   ? classify_words(s, job, index, out)
                   : classify_text(s, job, index, out);
    default:
        return answer_text(s, job, index, out);
    }
}

status prediction_run(struct server *s, struct job *job)
{
    json_t *data = json_array();
    for (int64_t i = 0; i < job->prompt_count; i++) {
        json_t *item = json_pack("{s:I}", "index", (json_int_t)i);
        status result = predict_text(s, job, i, item);
        json_array_append_new(data, item);
        if (result != STATUS_OK) {
            json_decref(data);
            return result;
        }
    }
    job_write_json(job, json_pack("{s:s, s:s, s:o, s:{s:I, s:I}}", "object", "list", "model",
                                  job->request.model, "data", data, "usage", "prompt_tokens",
                                  (json_int_t)job->prompt_tokens, "total_tokens",
                                  (json_int_t)job->prompt_tokens));
    job_end(job);
    return STATUS_OK;
}
