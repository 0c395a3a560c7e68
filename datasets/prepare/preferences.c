/* Preference pairs from JSON Lines: {"prompt", "chosen", "rejected"}, or the prompt is what both answers begin with.
 *
 * Fields are texts, or lists of messages where the tokenizer's folder has a chat template. As TRL has it: a text's answers
 * are encoded together with the prompt, end with the tokenizer's end token, and begin where the tokens of the prompt
 * alone and those of the whole part (a token that would reach over the boundary belongs to the answer); an implicit
 * prompt ends before the first difference, and before a blank there. Answers are cut at the sequence length, and counted.
 *
 * A row cannot be used where a part is missing or empty, where the answers are equal, also after they were cut, or
 * where the prompt leaves no room for them. */
#include <stdlib.h>
#include <string.h>

#include "datasets/prepare/input.h"

struct part { /* of a row: a text, or messages */
    const char *text;
    size_t bytes;
    struct chat_message *messages;
    int64_t count;
};

struct preferences {
    const struct prepare_options *options;
    struct row_example *out;
};

/* ---- parts of a row ---- */

static status same_kind(const json_t *a, const json_t *b, const char *name)
{
    REQUIRE(json_typeof(a) == json_typeof(b), STATUS_DATA,
            "\"%s\" and \"rejected\" are not both texts or both lists of messages", name);
    return STATUS_OK;
}

static status field_of(const json_t *row, const char *name, const json_t **out)
{
    *out = json_object_get(row, name);
    REQUIRE(*out != NULL, STATUS_DATA, "no field \"%s\"", name);
    REQUIRE(json_is_string(*out) || json_is_array(*out), STATUS_DATA,
            "the field \"%s\" is neither a text nor a list of messages", name);
    return STATUS_OK;
}

static status read_part(const json_t *value, const char *name, struct part *out)
{
    if (json_is_string(value)) {
        out->text = json_string_value(value);
        out->bytes = json_string_length(value);
        return STATUS_OK;
    }
    return chat_messages_read(value, name, &out->messages, &out->count);
}

static bool is_messages(const struct part *p)
{
    return p->messages != NULL;
}

/* Where two texts part: at the beginning of a character, and before the blank in front of it. */
static size_t common_bytes(const struct part *a, const struct part *b)
{
    size_t most = a->bytes < b->bytes ? a->bytes : b->bytes, at = 0;
    while (at < most && a->text[at] == b->text[at]) {
        at++;
    }
    while (at > 0 && at < a->bytes && ((unsigned char)a->text[at] & 0xc0) == 0x80) {
        at--;
    }
    return at > 0 && at < most && a->text[at - 1] == ' ' ? at - 1 : at;
}

static int64_t common_messages(const struct part *a, const struct part *b)
{
    int64_t most = a->count < b->count ? a->count : b->count, at = 0;
    while (at < most && a->messages[at].role == b->messages[at].role &&
           a->messages[at].bytes == b->messages[at].bytes &&
           memcmp(a->messages[at].text, b->messages[at].text, a->messages[at].bytes) == 0) {
        at++;
    }
    return at;
}

/* The prompt from what both answers begin with, which is taken off them. Messages stay in their arrays. */
static void take_prompt(struct part *prompt, struct part *chosen, struct part *rejected)
{
    *prompt = *chosen;
    if (is_messages(chosen)) {
        prompt->count = common_messages(chosen, rejected);
        chosen->messages += prompt->count;
        chosen->count -= prompt->count;
        rejected->messages += prompt->count;
        rejected->count -= prompt->count;
        return;
    }
    prompt->bytes = common_bytes(chosen, rejected);
    chosen->text += prompt->bytes;
    chosen->bytes -= prompt->bytes;
    rejected->text += prompt->bytes;
    rejected->bytes -= prompt->bytes;
}

static bool is_empty(const struct part *p)
{
    return is_messages(p) ? p->count == 0 : p->bytes == 0;
}

/* ---- to tokens ---- */

/* All of the text, or all messages, behind each other. */
static status encode_messages(const struct preferences *p, const struct part *prompt,
                              const struct part *answer, struct chat_text *out)
{
    const struct prepare_options *o = p->options;
    TRY(chat_encode(o->chat, o->tokenizer, prompt->messages, prompt->count,
                    (struct chat_frame){.reply = true}, out));
    return answer == NULL ? STATUS_OK
                          : chat_encode(o->chat, o->tokenizer, answer->messages, answer->count,
                                        (struct chat_frame){.continues = true}, out);
}

static status encode_texts(const struct preferences *p, const struct part *prompt,
                           const struct part *answer, struct chat_text *out)
{
    size_t bytes = prompt->bytes + (answer != NULL ? answer->bytes : 0);
    char *text = malloc(bytes + 1);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory: %zu bytes", bytes);
    memcpy(text, prompt->text, prompt->bytes);
    if (answer != NULL) {
        memcpy(text + prompt->bytes, answer->text, answer->bytes);
    }
    status result = chat_encode_plain(p->options->tokenizer, text, bytes, answer != NULL, 0, out);
    free(text);
    return result;
}

static int64_t common_tokens(const struct token_list *a, const struct token_list *b)
{
    int64_t at = 0;
    while (at < a->count && at < b->count && a->ids[at] == b->ids[at]) {
        at++;
    }
    return at;
}

static status encode_all(const struct preferences *p, const struct part *prompt,
                         const struct part *chosen, const struct part *rejected)
{
    status (*encode)(const struct preferences *, const struct part *, const struct part *,
                     struct chat_text *) = is_messages(chosen) ? encode_messages : encode_texts;
    struct chat_text *texts[] = {&p->out->prompt, &p->out->chosen, &p->out->rejected};
    for (int i = 0; i < 3; i++) {
        texts[i]->ids.count = texts[i]->marks.count = 0;
    }
    TRY(encode(p, prompt, NULL, texts[0]));
    TRY(encode(p, prompt, chosen, texts[1]));
    return encode(p, prompt, rejected, texts[2]);
}

static status add_tokens(struct token_list *to, const struct token_list *from, int64_t first)
{
    int64_t count = from->count - first;
    TRY(token_list_reserve(to, count));
    memcpy(to->ids + to->count, from->ids + first, (size_t)count * sizeof *to->ids);
    to->count += count;
    return STATUS_OK;
}

/* Whether there was anything to cut. */
static bool cut(const struct preferences *p, struct token_list *answer)
{
    int64_t most = p->options->sequence_tokens, tokens = answer->count;
    p->out->longest = tokens > p->out->longest ? tokens : p->out->longest;
    answer->count = tokens > most ? most : tokens;
    return tokens > most;
}

/* The three lists of tokens as an example. */
static status join_pair(const struct preferences *p)
{
    struct row_example *out = p->out;
    const struct token_list *first = &out->prompt.ids;
    struct token_list *chosen = &out->chosen.ids, *rejected = &out->rejected.ids;
    int64_t c = common_tokens(first, chosen), r = common_tokens(first, rejected);
    int64_t prompt = c < r ? c : r;
    REQUIRE(prompt > 0, STATUS_DATA, "no token of the prompt stays in front of the answers");
    REQUIRE(prompt < p->options->sequence_tokens, STATUS_DATA,
            "the prompt has %lld tokens and leaves no room for answers in %lld "
            "(--sequence-length)",
            (long long)prompt, (long long)p->options->sequence_tokens);
    out->over_long = cut(p, chosen);
    out->over_long = cut(p, rejected) || out->over_long;
    bool equal =
        chosen->count == rejected->count && common_tokens(chosen, rejected) == chosen->count;
    REQUIRE(!equal, STATUS_DATA, "the chosen answer equals the rejected one%s",
            out->over_long ? " once they are cut at --sequence-length" : "");
    TRY(add_tokens(&out->text.ids, first, 0));
    out->text.ids.count = prompt;
    TRY(add_tokens(&out->text.ids, chosen, prompt));
    TRY(add_tokens(&out->text.ids, rejected, prompt));
    out->prompt_tokens = (uint32_t)prompt;
    out->chosen_tokens = (uint32_t)(chosen->count - prompt);
    out->values[EXAMPLE_PROMPT] = &out->prompt_tokens;
    out->values[EXAMPLE_CHOSEN] = &out->chosen_tokens;
    out->learned_tokens = out->text.ids.count - prompt;
    return STATUS_OK;
}

/* ---- rows ---- */

static status use_parts(const struct preferences *p, const json_t *row, const struct part *prompt,
                        const struct part *chosen, const struct part *rejected)
{
    REQUIRE(!is_messages(chosen) || p->options->chat != NULL, STATUS_DATA,
            "messages need a chat template in the tokenizer's folder");
    REQUIRE(!is_empty(prompt), STATUS_DATA, "%s",
            json_object_get(row, "prompt") != NULL ? "the prompt is empty"
                                                   : "no field \"prompt\", and the answers have "
                                                     "no common beginning");
    REQUIRE(!is_empty(chosen), STATUS_DATA, "the chosen answer is empty");
    REQUIRE(!is_empty(rejected), STATUS_DATA, "the rejected answer is empty");
    TRY(encode_all(p, prompt, chosen, rejected));
    return join_pair(p);
}

static status encode_row(const struct prepare_options *options, const json_t *row,
                         struct row_example *out)
{
    const struct preferences p = {options, out};
    const json_t *chosen_value, *rejected_value, *prompt_value = NULL;
    struct part prompt = {0}, chosen = {0}, rejected = {0};
    TRY(field_of(row, "chosen", &chosen_value));
    TRY(field_of(row, "rejected", &rejected_value));
    TRY(same_kind(chosen_value, rejected_value, "chosen"));
    bool explicit = json_object_get(row, "prompt") != NULL;
    if (explicit) {
        TRY(field_of(row, "prompt", &prompt_value));
        TRY(same_kind(prompt_value, rejected_value, "prompt"));
    }
    status result = read_part(chosen_value, "chosen", &chosen);
    struct chat_message *first = chosen.messages, *second = NULL;
    if (result == STATUS_OK) {
        result = read_part(rejected_value, "rejected", &rejected);
        second = rejected.messages;
    }
    if (result == STATUS_OK && explicit) {
        result = read_part(prompt_value, "prompt", &prompt);
    } else if (result == STATUS_OK) {
        take_prompt(&prompt, &chosen, &rejected);
    }
    if (result == STATUS_OK) {
        result = use_parts(&p, row, &prompt, &chosen, &rejected);
    }
    free(first);
    free(second);
    free(explicit ? prompt.messages : NULL);
    return result;
}

status prepare_preferences(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    REQUIRE(options->sequence_tokens >= 2, STATUS_USAGE,
            "sequences of %lld tokens; a prompt and an answer have 2 at least",
            (long long)options->sequence_tokens);
    struct output *output = NULL;
    enum output_side side = OUTPUT_AS_SPLIT;
    return rows_prepare(&(struct row_preparation){.options = options,
                                                  .report = out,
                                                  .kind = EXAMPLE_PREFERENCE_PAIRS,
                                                  .what = "pairs",
                                                  .output = &output,
                                                  .side = &side,
                                                  .encode = encode_row});
}
