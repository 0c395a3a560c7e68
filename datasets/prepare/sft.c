/* Rows of the objective sft. Each row becomes one example. Rows are not truncated.
 *
 * Decoders: an example has a loss mask for every token. Encoder-decoders: an example is a pair of
 * seq2seq. All messages before the answer are the source, and the answer is the target.
 * prepare_seq2seq writes the same ids for the same two texts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_field_impl.h"
#include "datasets/prepare/rows.h"
#include "datasets/prepare/seq2seq_impl.h"
#include "datasets/rows/columns.h"

struct row_encoder {
    const struct prepare_options *options;
    struct chat_text *text; /* tokens of the row */
    bool is_plain;          /* the row has texts instead of messages */
};

/* Encodes a prompt and its response, both lists of messages. */
static status encode_exchange(struct row_encoder *e, const struct chat_message *prompt,
                              int64_t prompt_count, const struct chat_message *response,
                              int64_t response_count)
{
    const struct prepare_options *o = e->options;
    TRY(chat_encode(o->chat_template, o->tokenizer, prompt, prompt_count,
                    (struct chat_frame){.add_generation_prompt = true}, e->text));
    return chat_encode(o->chat_template, o->tokenizer, response, response_count,
                       (struct chat_frame){.after_generation_prompt = true}, e->text);
}

static status encode_prompt_messages(struct row_encoder *e, const json_t *row)
{
    struct chat_message *prompt = NULL, *response = NULL;
    int64_t prompt_count = 0, response_count = 0;
    TRY(row_field_require_template(e->options->chat_template));
    TRY(chat_messages_read(json_object_get(row, "prompt"), "prompt", &prompt, &prompt_count));
    status result = chat_messages_read(json_object_get(row, "completion"), "completion", &response,
                                       &response_count);
    if (result == STATUS_OK) {
        result = encode_exchange(e, prompt, prompt_count, response, response_count);
    }
    free(prompt);
    free(response);
    return result;
}

/* Encodes prompt and completion as one text, as TRL does: the first tokens belong to the prompt, as
 * many as the prompt alone has. */
static status encode_joined(struct row_encoder *e, const char *prompt, size_t prompt_bytes,
                            const char *completion, size_t completion_bytes)
{
    const struct tokenizer *t = e->options->tokenizer;
    struct chat_text *out = e->text;
    TRY(chat_encode_plain(t, prompt, prompt_bytes, false, 0, out));
    int64_t prompt_tokens = out->ids.count;
    out->ids.count = out->loss_mask.count = 0;
    char *text = NULL;
    TRY(ALLOCATE(text, prompt_bytes + completion_bytes, "a row"));
    memcpy(text, prompt, prompt_bytes);
    memcpy(text + prompt_bytes, completion, completion_bytes);
    status result = chat_encode_plain(t, text, prompt_bytes + completion_bytes, true,
                                      EXAMPLE_IS_COMPLETION, out);
    free(text);
    for (int64_t i = 0; i < prompt_tokens && i < out->loss_mask.count; i++) {
        out->loss_mask.ids[i] = 0;
    }
    return result;
}

static status encode_prompt_completion(struct row_encoder *e, const json_t *row)
{
    const struct tokenizer *t = e->options->tokenizer;
    if (json_is_array(json_object_get(row, "prompt"))) {
        return encode_prompt_messages(e, row);
    }
    e->is_plain = true;
    struct text prompt, completion;
    TRY(jsonl_get_string(row, "prompt", &prompt.bytes, &prompt.count));
    TRY(row_field_text(row, "completion", &completion));
    if (e->options->join_encoding) {
        return encode_joined(e, prompt.bytes, prompt.count, completion.bytes, completion.count);
    }
    TRY(chat_encode_plain(t, prompt.bytes, prompt.count, false, 0, e->text));
    return chat_encode_plain(t, completion.bytes, completion.count, true, EXAMPLE_IS_COMPLETION,
                             e->text);
}

static status read_alpaca(const json_t *row, struct chat_message *prompt,
                          struct chat_message *response)
{
    struct text instruction, output;
    TRY(row_field_text(row, "instruction", &instruction));
    TRY(row_field_text(row, "output", &output));
    prompt->text = instruction.bytes;
    prompt->bytes = instruction.count;
    response->text = output.bytes;
    response->bytes = output.count;
    if (json_object_get(row, "input") != NULL) {
        TRY(jsonl_get_string(row, "input", &prompt->input, &prompt->input_bytes));
        prompt->input =
            row_field_is_blank(prompt->input, prompt->input_bytes) ? NULL : prompt->input;
    }
    return STATUS_OK;
}

static status encode_alpaca(struct row_encoder *e, const json_t *row)
{
    struct chat_message prompt = {.role = CHAT_USER}, response = {.role = CHAT_ASSISTANT};
    TRY(row_field_require_template(e->options->chat_template));
    TRY(read_alpaca(row, &prompt, &response));
    return encode_exchange(e, &prompt, 1, &response, 1);
}

static status encode_messages(struct row_encoder *e, const json_t *row, const char *field)
{
    struct chat_message *messages = NULL;
    int64_t count = 0;
    TRY(row_field_require_template(e->options->chat_template));
    TRY(chat_messages_read(json_object_get(row, field), field, &messages, &count));
    status result = chat_encode(e->options->chat_template, e->options->tokenizer, messages, count,
                                (struct chat_frame){0}, e->text);
    free(messages);
    return result;
}

static status encode_text(struct row_encoder *e, const json_t *row)
{
    struct text text;
    e->is_plain = true;
    TRY(row_field_text(row, "text", &text));
    return chat_encode_plain(e->options->tokenizer, text.bytes, text.count, true, 0, e->text);
}

/* Selects the encoding by the fields of the row. Sets *whole_text if the row has no
 * separate completion. */
static status encode_fields(struct row_encoder *e, const json_t *row, bool *whole_text)
{
    *whole_text = false;
    if (json_object_get(row, "prompt") != NULL || json_object_get(row, "completion") != NULL) {
        return encode_prompt_completion(e, row);
    }
    if (json_object_get(row, "instruction") != NULL) {
        return encode_alpaca(e, row);
    }
    *whole_text = true;
    if (json_object_get(row, "messages") != NULL) {
        return encode_messages(e, row, "messages");
    }
    if (json_object_get(row, "conversations") != NULL) {
        return encode_messages(e, row, "conversations");
    }
    TRY(json_object_get(row, "text") != NULL
            ? STATUS_OK
            : columns_raise_missing(row, "prompt' with 'completion', 'messages', 'text', or "
                                         "'instruction' with 'output"));
    return encode_text(e, row);
}

/* Marks the tokens of the default loss mask. Returns how many of the first `limit` tokens it
 * contains; the first token of a text is never predicted. */
static int64_t mark_default_tokens(struct chat_text *text, bool whole_text, int64_t limit)
{
    int64_t learned = 0;
    for (int64_t i = 0; i < text->loss_mask.count; i++) {
        int32_t *bits = &text->loss_mask.ids[i];
        bool is_default = whole_text || (*bits & EXAMPLE_IS_COMPLETION) != 0;
        *bits |= is_default ? EXAMPLE_IS_DEFAULT : 0;
        learned += is_default && i > 0 && i < limit;
    }
    return learned;
}

static status encode_row(const struct prepare_options *options, const json_t *row,
                         struct rows_example *out)
{
    struct row_encoder e = {.options = options, .text = &out->text};
    int64_t limit = options->sequence_tokens > 0 ? options->sequence_tokens : INT64_MAX;
    bool whole_text = false;
    TRY(encode_fields(&e, row, &whole_text));
    int64_t tokens = out->text.ids.count;
    out->learned_tokens = mark_default_tokens(&out->text, whole_text, limit);
    REQUIRE(out->learned_tokens > 0, STATUS_DATA,
            "nothing to learn: the row has %" PRId64
            " token%s, and no token to learn within the first %" PRId64,
            tokens, tokens == 1 ? "" : "s", options->sequence_tokens > 0 ? limit : tokens);
    out->longest_tokens = tokens;
    out->overlong = tokens > limit;
    out->is_plain = e.is_plain;
    out->values[EXAMPLE_LOSS_MASK] = (const uint32_t *)out->text.loss_mask.ids;
    return STATUS_OK;
}

/* ---- encoder-decoders ---- */

/* Makes the pair of a conversation and the answer to it. */
static status encode_answered(const struct prepare_options *o, const struct chat_message *messages,
                              int64_t count, const struct chat_message *answer,
                              struct rows_example *out)
{
    TRY(row_field_require_template(o->chat_template));
    TRY(chat_encode_prompt(o->chat_template, o->tokenizer, messages, count, true, &out->text.ids));
    int64_t source_tokens = out->text.ids.count;
    TRY(chat_encode_answer(o->chat_template, o->tokenizer, answer, &out->text.ids));
    return seq2seq_finish_pair(o, source_tokens, out);
}

static status encode_conversation(const struct prepare_options *o, const json_t *row,
                                  const char *field, struct rows_example *out)
{
    struct chat_message *messages = NULL;
    int64_t count = 0;
    TRY(chat_messages_read(json_object_get(row, field), field, &messages, &count));
    status result = count > 1 ? encode_answered(o, messages, count - 1, &messages[count - 1], out)
                              : RAISE_STATUS(STATUS_DATA,
                                             "the field '%s' has one message; an "
                                             "encoder-decoder needs a prompt and an answer",
                                             field);
    free(messages);
    return result;
}

static status encode_prompt_answer(const struct prepare_options *o, const json_t *row,
                                   struct rows_example *out)
{
    struct chat_message *prompt = NULL, *answer = NULL;
    int64_t prompt_count = 0, answer_count = 0;
    TRY(chat_messages_read(json_object_get(row, "prompt"), "prompt", &prompt, &prompt_count));
    status result = chat_messages_read(json_object_get(row, "completion"), "completion", &answer,
                                       &answer_count);
    if (result == STATUS_OK) {
        result = answer_count == 1 ? encode_answered(o, prompt, prompt_count, answer, out)
                                   : RAISE_STATUS(STATUS_DATA,
                                                  "the completion has %" PRId64 " messages; an "
                                                  "encoder-decoder needs one, the answer",
                                                  answer_count);
    }
    free(prompt);
    free(answer);
    return result;
}

static status encode_texts(const struct prepare_options *o, const json_t *row,
                           struct rows_example *out)
{
    struct text prompt = {0}, completion = {0};
    TRY(row_field_text(row, "prompt", &prompt));
    TRY(row_field_text(row, "completion", &completion));
    out->is_plain = true;
    return seq2seq_encode_pair(o, &prompt, &completion, out);
}

static status encode_alpaca_pair(const struct prepare_options *o, const json_t *row,
                                 struct rows_example *out)
{
    struct chat_message prompt = {.role = CHAT_USER}, answer = {.role = CHAT_ASSISTANT};
    TRY(read_alpaca(row, &prompt, &answer));
    return encode_answered(o, &prompt, 1, &answer, out);
}

static status encode_pair(const struct prepare_options *options, const json_t *row,
                          struct rows_example *out)
{
    bool has_messages = json_object_get(row, "messages") != NULL;
    if (json_is_array(json_object_get(row, "prompt"))) {
        return encode_prompt_answer(options, row, out);
    }
    if (json_object_get(row, "prompt") != NULL || json_object_get(row, "completion") != NULL) {
        return encode_texts(options, row, out);
    }
    if (json_object_get(row, "instruction") != NULL) {
        return encode_alpaca_pair(options, row, out);
    }
    TRY(has_messages || json_object_get(row, "conversations") != NULL
            ? STATUS_OK
            : columns_raise_missing(row, "prompt' with 'completion', 'messages', or "
                                         "'instruction' with 'output"));
    return encode_conversation(options, row, has_messages ? "messages" : "conversations", out);
}

status prepare_sft(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    bool has_pairs = options->encoder_decoder;
    TRY(has_pairs ? seq2seq_check_options(options) : STATUS_OK);
    return rows_prepare(
        &(struct rows_preparation){.options = options,
                                   .report = out,
                                   .kind = has_pairs ? EXAMPLE_SEQ2SEQ : EXAMPLE_SFT,
                                   .unit_name = has_pairs ? "pairs" : "rows",
                                   .encode_row = has_pairs ? encode_pair : encode_row});
}
