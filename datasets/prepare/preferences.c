/* Rows of the objectives dpo and reward: {"prompt", "chosen", "rejected"}. Without "prompt", the
 * prompt is the common beginning of both responses.
 *
 * Fields are texts, or lists of messages if the tokenizer's folder has a chat template. As in TRL,
 * a text response is encoded together with its prompt and ends with the tokenizer's end token. It
 * starts at the first token that differs between the encodings of the prompt alone and of prompt
 * and response: a token across the boundary belongs to the response. An implicit prompt ends
 * before the first difference of the texts, and before a space there. Responses are truncated to
 * the sequence length, and the report counts them.
 *
 * A row is bad if a field is missing or empty, or if the prompt leaves no room for a response. It
 * is also bad if the responses are equal, before or after truncation. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_field_impl.h"
#include "datasets/prepare/rows.h"

/* A field of a row: a text, or messages. */
struct pair_field {
    const char *text;
    size_t bytes;
    struct chat_message *messages; /* NULL: the field is a text */
    int64_t message_count;
};

struct preference_encoder {
    const struct prepare_options *options;
    struct rows_example *out;
};

/* ---- fields of a row ---- */

static status require_same_type(const json_t *a, const json_t *b, const char *name)
{
    REQUIRE(json_typeof(a) == json_typeof(b), STATUS_DATA,
            "the fields '%s' and 'rejected' must both be strings, or both be lists of messages",
            name);
    return STATUS_OK;
}

static status get_field(const json_t *row, const char *name, const json_t **out)
{
    TRY(row_field_require(row, name, out));
    REQUIRE(json_is_string(*out) || json_is_array(*out), STATUS_DATA,
            "the field '%s' is neither a string nor a list of messages", name);
    return STATUS_OK;
}

static status read_field(const json_t *value, const char *name, struct pair_field *out)
{
    if (json_is_string(value)) {
        out->text = json_string_value(value);
        out->bytes = json_string_length(value);
        return STATUS_OK;
    }
    return chat_messages_read(value, name, &out->messages, &out->message_count);
}

static bool is_messages(const struct pair_field *p)
{
    return p->messages != NULL;
}

/* Returns the length of the common beginning. It ends between two characters, and before
 * a space. */
static size_t count_common_bytes(const struct pair_field *a, const struct pair_field *b)
{
    size_t limit = a->bytes < b->bytes ? a->bytes : b->bytes, common = 0;
    while (common < limit && a->text[common] == b->text[common]) {
        common++;
    }
    while (common > 0 && common < a->bytes && utf8_is_continuation(a->text[common])) {
        common--;
    }
    return common > 0 && common < limit && a->text[common - 1] == ' ' ? common - 1 : common;
}

static int64_t count_common_messages(const struct pair_field *a, const struct pair_field *b)
{
    int64_t limit = number_min(a->message_count, b->message_count), common = 0;
    while (common < limit && a->messages[common].role == b->messages[common].role &&
           a->messages[common].bytes == b->messages[common].bytes &&
           memcmp(a->messages[common].text, b->messages[common].text, a->messages[common].bytes) ==
               0) {
        common++;
    }
    return common;
}

/* Moves the common beginning of both responses to the prompt. Messages stay in their arrays. */
static void extract_prompt(struct pair_field *prompt, struct pair_field *chosen,
                           struct pair_field *rejected)
{
    *prompt = *chosen;
    if (is_messages(chosen)) {
        prompt->message_count = count_common_messages(chosen, rejected);
        chosen->messages += prompt->message_count;
        chosen->message_count -= prompt->message_count;
        rejected->messages += prompt->message_count;
        rejected->message_count -= prompt->message_count;
        return;
    }
    prompt->bytes = count_common_bytes(chosen, rejected);
    chosen->text += prompt->bytes;
    chosen->bytes -= prompt->bytes;
    rejected->text += prompt->bytes;
    rejected->bytes -= prompt->bytes;
}

static bool is_empty(const struct pair_field *p)
{
    return is_messages(p) ? p->message_count == 0 : p->bytes == 0;
}

/* ---- fields to tokens ---- */

/* Encodes the prompt and, unless it is NULL, the response. */
static status encode_conversation(const struct preference_encoder *p,
                                  const struct pair_field *prompt,
                                  const struct pair_field *response, struct chat_text *out)
{
    const struct prepare_options *o = p->options;
    TRY(chat_encode(o->chat_template, o->tokenizer, prompt->messages, prompt->message_count,
                    (struct chat_frame){.add_generation_prompt = true}, out));
    return response == NULL
               ? STATUS_OK
               : chat_encode(o->chat_template, o->tokenizer, response->messages,
                             response->message_count,
                             (struct chat_frame){.after_generation_prompt = true}, out);
}

static status encode_plain(const struct preference_encoder *p, const struct pair_field *prompt,
                           const struct pair_field *response, struct chat_text *out)
{
    size_t bytes = prompt->bytes + (response != NULL ? response->bytes : 0);
    char *text = NULL;
    TRY(ALLOCATE(text, bytes + 1, "a prompt and its response"));
    memcpy(text, prompt->text, prompt->bytes);
    if (response != NULL) {
        memcpy(text + prompt->bytes, response->text, response->bytes);
    }
    status result = chat_encode_plain(p->options->tokenizer, text, bytes, response != NULL, 0, out);
    free(text);
    return result;
}

static int64_t count_common_tokens(const struct token_list *a, const struct token_list *b)
{
    int64_t common = 0;
    while (common < a->count && common < b->count && a->ids[common] == b->ids[common]) {
        common++;
    }
    return common;
}

static status encode_texts(const struct preference_encoder *p, const struct pair_field *prompt,
                           const struct pair_field *chosen, const struct pair_field *rejected)
{
    status (*encode)(const struct preference_encoder *, const struct pair_field *,
                     const struct pair_field *, struct chat_text *) =
        is_messages(chosen) ? encode_conversation : encode_plain;
    struct chat_text *texts[] = {&p->out->prompt, &p->out->chosen, &p->out->rejected};
    for (int i = 0; i < 3; i++) {
        texts[i]->ids.count = texts[i]->loss_mask.count = 0;
    }
    TRY(encode(p, prompt, NULL, texts[0]));
    TRY(encode(p, prompt, chosen, texts[1]));
    return encode(p, prompt, rejected, texts[2]);
}

/* Returns whether the response was too long. */
static bool truncate_response(const struct preference_encoder *p, struct token_list *response)
{
    int64_t limit = p->options->sequence_tokens, tokens = response->count;
    p->out->longest_tokens = number_max(p->out->longest_tokens, tokens);
    response->count = number_min(tokens, limit);
    return tokens > limit;
}

/* Makes an example of the prompt and both responses. */
static status build_example(const struct preference_encoder *p)
{
    struct rows_example *out = p->out;
    const struct token_list *prompt_ids = &out->prompt.ids;
    struct token_list *chosen = &out->chosen.ids, *rejected = &out->rejected.ids;
    int64_t c = count_common_tokens(prompt_ids, chosen),
            r = count_common_tokens(prompt_ids, rejected);
    int64_t prompt = number_min(c, r);
    REQUIRE(prompt > 0, STATUS_DATA, "the prompt has no token that both responses keep");
    REQUIRE(prompt < p->options->sequence_tokens, STATUS_DATA,
            "the prompt has %" PRId64 " tokens and leaves no room for a response in %" PRId64
            " (--sequence-length)",
            prompt, p->options->sequence_tokens);
    out->overlong = truncate_response(p, chosen);
    out->overlong = truncate_response(p, rejected) || out->overlong;
    bool equal =
        chosen->count == rejected->count && count_common_tokens(chosen, rejected) == chosen->count;
    REQUIRE(!equal, STATUS_DATA, "the chosen response equals the rejected one%s",
            out->overlong ? " once they are truncated to --sequence-length" : "");
    TRY(token_list_append(&out->text.ids, prompt_ids->ids, prompt));
    TRY(token_list_append(&out->text.ids, chosen->ids + prompt, chosen->count - prompt));
    TRY(token_list_append(&out->text.ids, rejected->ids + prompt, rejected->count - prompt));
    out->prompt_tokens = (uint32_t)prompt;
    out->chosen_tokens = (uint32_t)(chosen->count - prompt);
    out->values[EXAMPLE_PROMPT] = &out->prompt_tokens;
    out->values[EXAMPLE_CHOSEN] = &out->chosen_tokens;
    out->learned_tokens = out->text.ids.count - prompt;
    return STATUS_OK;
}

/* ---- rows ---- */

static status encode_pair(const struct preference_encoder *p, const json_t *row,
                          const struct pair_field *prompt, const struct pair_field *chosen,
                          const struct pair_field *rejected)
{
    TRY(is_messages(chosen) ? row_field_require_template(p->options->chat_template) : STATUS_OK);
    REQUIRE(!is_empty(prompt), STATUS_DATA, "%s",
            json_object_get(row, "prompt") != NULL ? "the prompt is empty"
                                                   : "no field 'prompt', and the responses "
                                                     "have no common beginning");
    REQUIRE(!is_empty(chosen), STATUS_DATA, "the chosen response is empty");
    REQUIRE(!is_empty(rejected), STATUS_DATA, "the rejected response is empty");
    p->out->is_plain = !is_messages(chosen);
    TRY(encode_texts(p, prompt, chosen, rejected));
    return build_example(p);
}

static status encode_row(const struct prepare_options *options, const json_t *row,
                         struct rows_example *out)
{
    const struct preference_encoder p = {options, out};
    const json_t *chosen_value, *rejected_value, *prompt_value = NULL;
    struct pair_field prompt = {0}, chosen = {0}, rejected = {0};
    TRY(get_field(row, "chosen", &chosen_value));
    TRY(get_field(row, "rejected", &rejected_value));
    TRY(require_same_type(chosen_value, rejected_value, "chosen"));
    bool has_prompt = json_object_get(row, "prompt") != NULL;
    if (has_prompt) {
        TRY(get_field(row, "prompt", &prompt_value));
        TRY(require_same_type(prompt_value, rejected_value, "prompt"));
    }
    status result = read_field(chosen_value, "chosen", &chosen);
    struct chat_message *chosen_messages = chosen.messages, *rejected_messages = NULL;
    if (result == STATUS_OK) {
        result = read_field(rejected_value, "rejected", &rejected);
        rejected_messages = rejected.messages;
    }
    if (result == STATUS_OK && has_prompt) {
        result = read_field(prompt_value, "prompt", &prompt);
    } else if (result == STATUS_OK) {
        extract_prompt(&prompt, &chosen, &rejected);
    }
    if (result == STATUS_OK) {
        result = encode_pair(&p, row, &prompt, &chosen, &rejected);
    }
    free(chosen_messages);
    free(rejected_messages);
    free(has_prompt ? prompt.messages : NULL); /* otherwise they belong to chosen */
    return result;
}

status prepare_preferences(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    REQUIRE(options->sequence_tokens >= 2, STATUS_USAGE,
            "the sequence length is %" PRId64 " tokens; a prompt and a response need at least 2",
            options->sequence_tokens);
    return rows_prepare(&(struct rows_preparation){.options = options,
                                                   .report = out,
                                                   .kind = EXAMPLE_PREFERENCE_PAIRS,
                                                   .unit_name = "pairs",
                                                   .encode_row = encode_row});
}
