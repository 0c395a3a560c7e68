#include "trainer/inference/server/request_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"

/* The request that is read, and the field for error messages. */
struct reader {
    struct request *q;
    const char **parameter;
};

/* Returns a field; NULL: it is absent or null. Sets the field of error messages. */
static json_t *get_field(struct reader *r, const char *name)
{
    json_t *value = json_object_get(r->q->root, name);
    *r->parameter = name;
    return json_is_null(value) ? NULL : value;
}

static status read_number(struct reader *r, const char *name, double min, double max, double *out)
{
    json_t *value = get_field(r, name);
    if (value == NULL) {
        return STATUS_OK;
    }
    REQUIRE(json_is_number(value), STATUS_DATA, "%s must be a number", name);
    double number = json_number_value(value);
    REQUIRE(number >= min && number <= max, STATUS_DATA, "%s is %g; it must be from %g to %g", name,
            number, min, max);
    *out = number;
    return STATUS_OK;
}

static status read_integer(struct reader *r, const char *name, int64_t min, int64_t max,
                           int64_t *out)
{
    json_t *value = get_field(r, name);
    if (value == NULL) {
        return STATUS_OK;
    }
    REQUIRE(json_is_integer(value), STATUS_DATA, "%s must be an integer", name);
    int64_t number = json_integer_value(value);
    REQUIRE(number >= min && number <= max, STATUS_DATA,
            "%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, name, number, min, max);
    *out = number;
    return STATUS_OK;
}

static status read_flag(struct reader *r, const char *name, bool *out)
{
    json_t *value = get_field(r, name);
    if (value == NULL) {
        return STATUS_OK;
    }
    REQUIRE(json_is_boolean(value), STATUS_DATA, "%s must be true or false", name);
    *out = json_is_true(value);
    return STATUS_OK;
}

static status read_text(struct reader *r, const char *name, const char **out)
{
    json_t *value = get_field(r, name);
    if (value == NULL) {
        return STATUS_OK;
    }
    REQUIRE(json_is_string(value), STATUS_DATA, "%s must be a string", name);
    *out = json_string_value(value);
    REQUIRE(strlen(*out) == json_string_length(value), STATUS_DATA, "%s contains a NUL character",
            name);
    return STATUS_OK;
}

/* Returns whether the request has a field that is not null. */
static bool has_field(const struct reader *r, const char *name)
{
    const json_t *value = json_object_get(r->q->root, name);
    return value != NULL && !json_is_null(value);
}

/* Refuses a field that would change the answer, unless its value has no effect. */
static status refuse_field(struct reader *r, const char *name)
{
    const json_t *value = get_field(r, name);
    bool has_effect = value != NULL && !(json_is_number(value) && json_number_value(value) == 0) &&
                      !(json_is_array(value) && json_array_size(value) == 0) &&
                      !(json_is_object(value) && json_object_size(value) == 0) &&
                      !(json_is_string(value) && json_string_length(value) == 0) &&
                      !json_is_false(value);
    REQUIRE(!has_effect, STATUS_DATA, "%s is not supported; leave it out", name);
    return STATUS_OK;
}

/* ---- prompts ---- */

static status add_prompt(struct request *q, struct request_prompt **out)
{
    TRY(GROW(q->prompts, q->prompt_count + 1, "texts"));
    *out = &q->prompts[q->prompt_count++];
    **out = (struct request_prompt){0};
    return STATUS_OK;
}

static status add_text(struct request *q, const json_t *value)
{
    struct request_prompt *prompt = NULL;
    TRY(add_prompt(q, &prompt));
    prompt->text = json_string_value(value);
    prompt->bytes = json_string_length(value);
    return STATUS_OK;
}

static status add_ids(struct request *q, const char *name, const json_t *list)
{
    struct request_prompt *prompt = NULL;
    size_t i;
    json_t *id;
    TRY(add_prompt(q, &prompt));
    REQUIRE(json_array_size(list) > 0, STATUS_DATA, "%s contains an empty list of token ids", name);
    TRY(token_list_reserve(&prompt->ids, (int64_t)json_array_size(list)));
    json_array_foreach(list, i, id)
    {
        REQUIRE(json_is_integer(id) && json_integer_value(id) >= 0 &&
                    json_integer_value(id) <= INT32_MAX,
                STATUS_DATA, "%s: element %zu is not a token id", name, i);
        prompt->ids.ids[prompt->ids.count++] = (int32_t)json_integer_value(id);
    }
    return STATUS_OK;
}

/* Reads a text, a list of texts, a list of ids or a list of lists of ids. */
static status read_prompts(struct reader *r, const char *name)
{
    struct request *q = r->q;
    json_t *value = get_field(r, name), *element;
    size_t i, count = json_array_size(value);
    REQUIRE(value != NULL, STATUS_DATA, "%s is missing", name);
    if (json_is_string(value)) {
        return add_text(q, value);
    }
    REQUIRE(json_is_array(value) && count > 0, STATUS_DATA,
            "%s must be a string, a list of strings, a list of token ids, or a list of such lists",
            name);
    if (json_is_integer(json_array_get(value, 0))) {
        return add_ids(q, name, value);
    }
    REQUIRE(count <= REQUEST_PROMPTS_MAX, STATUS_DATA,
            "%s has %zu elements; at most %d are allowed", name, count, REQUEST_PROMPTS_MAX);
    json_array_foreach(value, i, element)
    {
        REQUIRE(json_is_string(element) || json_is_array(element), STATUS_DATA,
                "%s: element %zu is neither a string nor a list of token ids", name, i);
        TRY(json_is_string(element) ? add_text(q, element) : add_ids(q, name, element));
    }
    return STATUS_OK;
}

/* ---- messages ---- */

/* Joins the parts of a message's content, [{"type": "text", "text": ...}, ...]. */
static status join_parts(const json_t *parts, size_t message, json_t **out)
{
    size_t i, bytes = 0, used = 0;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        REQUIRE(type != NULL && strcmp(type, "text") == 0 && json_is_string(text), STATUS_DATA,
                "messages: message %zu has a part that is not text", message);
        bytes += json_string_length(text);
    }
    char *joined = NULL;
    TRY(ALLOCATE(joined, bytes + 1, "a message"));
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        memcpy(joined + used, json_string_value(text), json_string_length(text));
        used += json_string_length(text);
    }
    *out = json_stringn(joined, bytes);
    free(joined);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for a message of %zu bytes", bytes);
    return STATUS_OK;
}

/* Converts the forms of a message that only this API has: content in parts, role "developer". */
static status normalize_message(json_t *message, size_t index)
{
    REQUIRE(json_is_object(message), STATUS_DATA, "messages: message %zu is not an object", index);
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    REQUIRE(role != NULL, STATUS_DATA, "messages: message %zu has no role", index);
    REQUIRE(json_is_string(content) || json_is_array(content), STATUS_DATA,
            "messages: message %zu has no content", index);
    if (strcmp(role, "developer") == 0) {
        json_object_set_new(message, "role", json_string("system"));
    }
    if (json_is_array(content)) {
        json_t *text = NULL;
        TRY(join_parts(content, index, &text));
        json_object_set_new(message, "content", text);
    }
    return STATUS_OK;
}

static status read_messages(struct reader *r)
{
    json_t *list = get_field(r, "messages"), *message;
    size_t i;
    REQUIRE(json_is_array(list) && json_array_size(list) > 0, STATUS_DATA,
            "messages must be a list with at least one message");
    REQUIRE(json_array_size(list) <= REQUEST_PROMPTS_MAX, STATUS_DATA,
            "messages has %zu elements; at most %d are allowed", json_array_size(list),
            REQUEST_PROMPTS_MAX);
    json_array_foreach(list, i, message)
    {
        TRY(normalize_message(message, i));
    }
    return chat_messages_read(list, "messages", &r->q->messages, &r->q->message_count);
}

/* ---- settings of generation ---- */

static status add_stop(struct request *q, const json_t *value)
{
    REQUIRE(json_is_string(value) && json_string_length(value) > 0, STATUS_DATA,
            "stop must be a string that is not empty, or a list of them");
    REQUIRE(q->options.stop_count < GENERATE_STOPS_MAX, STATUS_DATA,
            "stop has more than %d strings", GENERATE_STOPS_MAX);
    REQUIRE(strlen(json_string_value(value)) == json_string_length(value), STATUS_DATA,
            "stop contains a NUL character");
    q->options.stops[q->options.stop_count++] = json_string_value(value);
    return STATUS_OK;
}

static status read_stops(struct reader *r)
{
    json_t *value = get_field(r, "stop"), *element;
    size_t i;
    if (value == NULL) {
        return STATUS_OK;
    }
    if (!json_is_array(value)) {
        return add_stop(r->q, value);
    }
    json_array_foreach(value, i, element)
    {
        TRY(add_stop(r->q, element));
    }
    return STATUS_OK;
}

/* Reads the settings of beam search: use_beam_search and best_of as in vLLM, or num_beams as in
 * transformers. */
static status read_beams(struct reader *r)
{
    struct request *q = r->q;
    struct generate_options *o = &q->options;
    bool is_used = false;
    int64_t beams = 1, best_of = q->n;
    TRY(read_number(r, "length_penalty", -GENERATE_LENGTH_PENALTY_MAX, GENERATE_LENGTH_PENALTY_MAX,
                    &o->length_penalty));
    q->has_early_stopping = has_field(r, "early_stopping");
    TRY(read_flag(r, "early_stopping", &o->early_stopping));
    TRY(read_flag(r, "use_beam_search", &is_used));
    TRY(read_integer(r, "num_beams", 1, REQUEST_CHOICES_MAX, &beams));
    TRY(read_integer(r, "best_of", 1, REQUEST_CHOICES_MAX, &best_of));
    is_used = is_used || beams > 1;
    REQUIRE(is_used || best_of == q->n, STATUS_DATA,
            "best_of needs use_beam_search; without it, best_of must be equal to n");
    if (!is_used) {
        return STATUS_OK;
    }
    REQUIRE(beams == 1 || !has_field(r, "best_of") || beams == best_of, STATUS_DATA,
            "num_beams is %" PRId64 ", but best_of is %" PRId64 "; give one of them", beams,
            best_of);
    o->num_beams = beams > 1 ? beams : best_of;
    o->num_samples = q->n;
    *r->parameter = "use_beam_search";
    REQUIRE(o->num_beams > 1, STATUS_DATA,
            "use_beam_search needs the number of beams: set best_of to a number above 1");
    REQUIRE(q->n <= o->num_beams, STATUS_DATA, "n is %" PRId64 ", more than the %" PRId64 " beams",
            q->n, o->num_beams);
    REQUIRE(!q->stream, STATUS_DATA, "stream is not supported with beam search; leave it out");
    return STATUS_OK;
}

/* Refuses the fields for which beam search has no output. */
static status check_beams(struct reader *r)
{
    const struct request *q = r->q;
    if (q->options.num_beams == 1) {
        return STATUS_OK;
    }
    *r->parameter = "logprobs";
    REQUIRE(q->top_logprobs < 0, STATUS_DATA,
            "logprobs is not supported with beam search; leave it out");
    *r->parameter = "echo";
    REQUIRE(!q->echo, STATUS_DATA, "echo is not supported with beam search; leave it out");
    return STATUS_OK;
}

static status read_sampling(struct reader *r)
{
    struct request *q = r->q;
    int64_t seed = 0;
    TRY(read_number(r, "temperature", 0, GENERATE_TEMPERATURE_MAX,
                    &q->options.sampler.temperature));
    TRY(read_number(r, "top_p", 0, 1, &q->options.sampler.top_p));
    TRY(read_integer(r, "top_k", -1, INT64_MAX, &q->options.sampler.top_k));
    TRY(read_number(r, "repetition_penalty", GENERATE_REPETITION_PENALTY_MIN,
                    GENERATE_REPETITION_PENALTY_MAX, &q->options.sampler.repetition_penalty));
    TRY(read_integer(r, "seed", INT64_MIN, INT64_MAX, &seed));
    TRY(read_integer(r, "n", 1, REQUEST_CHOICES_MAX, &q->n));
    TRY(read_stops(r));
    TRY(read_flag(r, "stream", &q->stream));
    q->options.sampler.top_k = number_max(q->options.sampler.top_k, 0);
    q->has_seed = get_field(r, "seed") != NULL;
    q->options.sampler.seed = (uint64_t)seed;
    TRY(read_beams(r));
    TRY(refuse_field(r, "presence_penalty"));
    TRY(refuse_field(r, "frequency_penalty"));
    return refuse_field(r, "logit_bias");
}

static status read_stream_options(struct reader *r)
{
    const json_t *options = get_field(r, "stream_options");
    REQUIRE(options == NULL || json_is_object(options), STATUS_DATA,
            "stream_options must be an object");
    const json_t *usage = json_object_get(options, "include_usage");
    REQUIRE(usage == NULL || json_is_boolean(usage) || json_is_null(usage), STATUS_DATA,
            "stream_options.include_usage must be true or false");
    r->q->has_stream_usage = json_is_true(usage);
    return STATUS_OK;
}

static status read_completion(struct reader *r)
{
    struct request *q = r->q;
    TRY(read_prompts(r, "prompt"));
    TRY(read_sampling(r));
    TRY(read_stream_options(r));
    q->max_tokens = 16; /* the default of OpenAI */
    TRY(read_integer(r, "max_tokens", 0, INT32_MAX, &q->max_tokens));
    TRY(read_flag(r, "echo", &q->echo));
    TRY(read_integer(r, "logprobs", 0, REQUEST_TOP_MAX, &q->top_logprobs));
    *r->parameter = "max_tokens";
    REQUIRE(q->max_tokens > 0 || q->echo, STATUS_DATA, "max_tokens 0 needs echo");
    TRY(check_beams(r));
    return refuse_field(r, "suffix");
}

static status read_chat(struct reader *r)
{
    struct request *q = r->q;
    bool has_logprobs = false;
    int64_t top = -1;
    TRY(read_messages(r));
    TRY(read_sampling(r));
    TRY(read_stream_options(r));
    TRY(read_integer(r, "max_tokens", 1, INT32_MAX, &q->max_tokens));
    TRY(read_integer(r, "max_completion_tokens", 1, INT32_MAX, &q->max_tokens));
    TRY(read_flag(r, "logprobs", &has_logprobs));
    TRY(read_integer(r, "top_logprobs", 0, REQUEST_TOP_MAX, &top));
    REQUIRE(top < 0 || has_logprobs, STATUS_DATA, "top_logprobs needs logprobs");
    q->top_logprobs = !has_logprobs ? -1 : number_max(top, 0);
    TRY(check_beams(r));
    TRY(refuse_field(r, "tools"));
    TRY(refuse_field(r, "functions"));
    const json_t *format = get_field(r, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    REQUIRE(format == NULL || (type != NULL && strcmp(type, "text") == 0), STATUS_DATA,
            "response_format is not supported, except for {\"type\": \"text\"}");
    return STATUS_OK;
}

static status read_embedding(struct reader *r)
{
    const char *format = "float";
    TRY(read_prompts(r, "input"));
    TRY(read_text(r, "encoding_format", &format));
    r->q->is_base64 = strcmp(format, "base64") == 0;
    REQUIRE(r->q->is_base64 || strcmp(format, "float") == 0, STATUS_DATA,
            "encoding_format must be \"float\" or \"base64\"");
    return refuse_field(r, "dimensions");
}

static status read_answer(struct reader *r)
{
    TRY(read_text(r, "question", &r->q->question));
    REQUIRE(r->q->question != NULL, STATUS_DATA, "question is missing");
    return read_prompts(r, "context");
}

static status read_predictions(struct reader *r, int64_t top_k)
{
    TRY(read_prompts(r, "input"));
    r->q->top_k = top_k;
    return read_integer(r, "top_k", 1, 1000, &r->q->top_k);
}

static status read_fields(struct reader *r)
{
    TRY(read_text(r, "model", &r->q->model));
    switch (r->q->kind) {
    case REQUEST_COMPLETION:
        return read_completion(r);
    case REQUEST_CHAT:
        return read_chat(r);
    case REQUEST_EMBEDDING:
        return read_embedding(r);
    case REQUEST_FILL_MASK:
        return read_predictions(r, 5);
    case REQUEST_CLASSIFY:
        return read_predictions(r, 1);
    default:
        return read_answer(r);
    }
}

status request_parse(enum request_kind kind, const char *body, size_t bytes, struct request *out,
                     const char **parameter)
{
    json_error_t error;
    *parameter = NULL;
    *out = (struct request){
        .kind = kind,
        .model = "",
        .options = generate_options_default(),
        .n = 1,
        .max_tokens = -1,
        .top_logprobs = -1,
    };
    out->options.length_penalty = NAN;
    out->root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    REQUIRE(out->root != NULL, STATUS_DATA, "the body is not valid JSON: line %d, column %d: %s",
            error.line, error.column, error.text);
    REQUIRE(json_is_object(out->root), STATUS_DATA, "the body is not a JSON object");
    struct reader r = {out, parameter};
    return read_fields(&r);
}

void request_free(struct request *q)
{
    for (int64_t i = 0; i < q->prompt_count; i++) {
        token_list_free(&q->prompts[i].ids);
    }
    free(q->prompts);
    free(q->messages);
    json_decref(q->root);
    *q = (struct request){0};
}
