/* Rows for supervised fine-tuning: each row becomes one example, whole, with the loss mask of every token. */
#include <stdlib.h>
#include <string.h>

#include "datasets/prepare/input.h"

struct rows {
    const struct prepare_options *options;
    struct chat_text *text; /* the row's */
};

bool prepare_is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (strchr(" \t\r\n\v\f", text[i]) == NULL || text[i] == '\0') {
            return false;
        }
    }
    return true;
}

static status require_template(const struct rows *r)
{
    REQUIRE(r->options->chat != NULL, STATUS_DATA,
            "messages need a chat template: give --chat-template, one of " CHAT_NAMES " or a file");
    return STATUS_OK;
}

/* A prompt and its answer, both as messages. */
static status add_exchange(struct rows *r, const struct chat_message *prompt, int64_t prompts,
                           const struct chat_message *answer, int64_t answers)
{
    const struct prepare_options *o = r->options;
    TRY(chat_encode(o->chat, o->tokenizer, prompt, prompts, (struct chat_frame){.reply = true},
                    r->text));
    return chat_encode(o->chat, o->tokenizer, answer, answers,
                       (struct chat_frame){.continues = true}, r->text);
}

static status add_conversation(struct rows *r, const json_t *row)
{
    struct chat_message *prompt = NULL, *answer = NULL;
    int64_t prompts = 0, answers = 0;
    TRY(require_template(r));
    TRY(chat_messages_read(json_object_get(row, "prompt"), "prompt", &prompt, &prompts));
    status result =
        chat_messages_read(json_object_get(row, "completion"), "completion", &answer, &answers);
    if (result == STATUS_OK) {
        result = add_exchange(r, prompt, prompts, answer, answers);
    }
    free(prompt);
    free(answer);
    return result;
}

static status add_pair(struct rows *r, const json_t *row)
{
    const struct tokenizer *t = r->options->tokenizer;
    if (json_is_array(json_object_get(row, "prompt"))) {
        return add_conversation(r, row);
    }
    const char *prompt, *completion;
    size_t prompt_bytes, completion_bytes;
    TRY(jsonl_text(row, "prompt", &prompt, &prompt_bytes));
    TRY(jsonl_text(row, "completion", &completion, &completion_bytes));
    REQUIRE(!prepare_is_blank(completion, completion_bytes), STATUS_DATA,
            "the field \"completion\" is empty");
    TRY(chat_encode_plain(t, prompt, prompt_bytes, false, 0, r->text));
    return chat_encode_plain(t, completion, completion_bytes, true, EXAMPLE_IS_COMPLETION, r->text);
}

static status add_alpaca(struct rows *r, const json_t *row)
{
    struct chat_message prompt = {.role = CHAT_USER}, answer = {.role = CHAT_ASSISTANT};
    TRY(require_template(r));
    TRY(jsonl_text(row, "instruction", &prompt.text, &prompt.bytes));
    TRY(jsonl_text(row, "output", &answer.text, &answer.bytes));
    REQUIRE(!prepare_is_blank(prompt.text, prompt.bytes), STATUS_DATA,
            "the field \"instruction\" is empty");
    REQUIRE(!prepare_is_blank(answer.text, answer.bytes), STATUS_DATA,
            "the field \"output\" is empty");
    if (json_object_get(row, "input") != NULL) {
        TRY(jsonl_text(row, "input", &prompt.input, &prompt.input_bytes));
        prompt.input = prepare_is_blank(prompt.input, prompt.input_bytes) ? NULL : prompt.input;
    }
    return add_exchange(r, &prompt, 1, &answer, 1);
}

static status add_messages(struct rows *r, const json_t *row, const char *field)
{
    struct chat_message *messages = NULL;
    int64_t count = 0;
    TRY(require_template(r));
    TRY(chat_messages_read(json_object_get(row, field), field, &messages, &count));
    status result = chat_encode(r->options->chat, r->options->tokenizer, messages, count,
                                (struct chat_frame){0}, r->text);
    free(messages);
    return result;
}

static status add_text(struct rows *r, const json_t *row)
{
    const char *text;
    size_t bytes;
    TRY(jsonl_text(row, "text", &text, &bytes));
    REQUIRE(!prepare_is_blank(text, bytes), STATUS_DATA, "the field \"text\" is empty");
    return chat_encode_plain(r->options->tokenizer, text, bytes, true, 0, r->text);
}

/* By the fields that a row has. */
static status add_row(struct rows *r, const json_t *row, bool *everything)
{
    *everything = false;
    if (json_object_get(row, "prompt") != NULL || json_object_get(row, "completion") != NULL) {
        return add_pair(r, row);
    }
    if (json_object_get(row, "instruction") != NULL) {
        return add_alpaca(r, row);
    }
    *everything = true;
    if (json_object_get(row, "messages") != NULL) {
        return add_messages(r, row, "messages");
    }
    if (json_object_get(row, "conversations") != NULL) {
        return add_messages(r, row, "conversations");
    }
    REQUIRE(json_object_get(row, "text") != NULL, STATUS_DATA,
            "none of the fields \"prompt\" with \"completion\", \"messages\", \"text\", "
            "\"instruction\" with \"output\"");
    return add_text(r, row);
}

/* Marks what is learned where nothing is asked for; the first token of a text is never predicted. */
static int64_t mark_preset(struct chat_text *text, bool everything, int64_t limit)
{
    int64_t learned = 0;
    for (int64_t i = 0; i < text->marks.count; i++) {
        int32_t *mark = &text->marks.ids[i];
        bool preset = everything || (*mark & EXAMPLE_IS_COMPLETION) != 0;
        *mark |= preset ? EXAMPLE_IS_PRESET : 0;
        learned += preset && i > 0 && i < limit;
    }
    return learned;
}

static status encode_row(const struct prepare_options *options, const json_t *row,
                         struct row_example *out)
{
    struct rows r = {options, &out->text};
    int64_t most = options->sequence_tokens > 0 ? options->sequence_tokens : INT64_MAX;
    bool everything = false;
    TRY(add_row(&r, row, &everything));
    int64_t tokens = out->text.ids.count;
    out->learned_tokens = mark_preset(&out->text, everything, most);
    REQUIRE(out->learned_tokens > 0, STATUS_DATA,
            "nothing to learn: %lld token%s, and what is learned does not begin within %lld",
            (long long)tokens, tokens == 1 ? "" : "s",
            (long long)(options->sequence_tokens > 0 ? most : tokens));
    out->longest = tokens;
    out->over_long = tokens > most;
    out->values[EXAMPLE_LOSS_MASK] = (const uint32_t *)out->text.marks.ids;
    return STATUS_OK;
}

status prepare_sft(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct output *output = NULL;
    enum output_side side = OUTPUT_AS_SPLIT;
    return rows_prepare(&(struct row_preparation){.options = options,
                                                  .report = out,
                                                  .kind = EXAMPLE_SFT,
                                                  .what = "rows",
                                                  .output = &output,
                                                  .side = &side,
                                                  .encode = encode_row});
}
