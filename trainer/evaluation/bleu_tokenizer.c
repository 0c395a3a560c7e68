/* A tokenizer is a list of rules, which are applied to the whole text one after the other. Each
 * rule corresponds to a regular expression of sacreBLEU: it puts spaces around characters or pairs
 * of characters. */
#include "trainer/evaluation/bleu_tokenizer.h"

#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/text/char_class.h"

typedef bool is_in_class(uint32_t code);

/* Where a rule puts spaces. c and d are characters of the two classes. */
enum spacing {
    SPACE_AROUND,      /* "c" becomes " c " */
    SPACE_BEFORE_PAIR, /* "cd" becomes " c d" */
    SPACE_AFTER_PAIR   /* "cd" becomes "c d " */
};

struct rule {
    enum spacing spacing;
    is_in_class *first, *second;
};

/* ---- classes ---- */

static bool is_ascii_symbol(uint32_t c)
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
           (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_not_digit(uint32_t c)
{
    return !is_digit(c);
}

static bool is_period_or_comma(uint32_t c)
{
    return c == '.' || c == ',';
}

static bool is_dash(uint32_t c)
{
    return c == '-';
}

static bool is_not_number(uint32_t c)
{
    return !char_class_is_number(c);
}

static bool is_any(uint32_t c)
{
    (void)c;
    return true;
}

static const struct rule rules_13a[] = {
    {SPACE_AROUND, is_ascii_symbol, NULL},
    {SPACE_AFTER_PAIR, is_not_digit, is_period_or_comma},
    {SPACE_BEFORE_PAIR, is_period_or_comma, is_not_digit},
    {SPACE_AFTER_PAIR, is_digit, is_dash},
};

static const struct rule rules_intl[] = {
    {SPACE_AFTER_PAIR, is_not_number, char_class_is_punctuation},
    {SPACE_BEFORE_PAIR, char_class_is_punctuation, is_not_number},
    {SPACE_AROUND, char_class_is_symbol, NULL},
};

static const struct rule rules_char[] = {{SPACE_AROUND, is_any, NULL}};

static const struct {
    const char *name;
    const struct rule *rules;
    int count;
} tokenizers[BLEU_TOKENIZERS] = {
    [BLEU_13A] = {"13a", rules_13a, COUNT(rules_13a)},
    [BLEU_INTL] = {"intl", rules_intl, COUNT(rules_intl)},
    [BLEU_CHAR] = {"char", rules_char, COUNT(rules_char)},
    [BLEU_NONE] = {"none", NULL, 0},
};

const char *bleu_tokenizer_name(enum bleu_tokenizer kind)
{
    return tokenizers[kind].name;
}

enum bleu_tokenizer bleu_tokenizer_find(const char *name)
{
    int kind = 0;
    while (kind < BLEU_TOKENIZERS && strcmp(tokenizers[kind].name, name) != 0) {
        kind++;
    }
    return (enum bleu_tokenizer)kind;
}

/* ---- rules ---- */

/* Appends one or two characters of these lengths, with the spaces of the rule. */
static status append_spaced(struct text_buffer *out, enum spacing spacing, const char *text,
                            size_t first_bytes, size_t second_bytes)
{
    TRY(spacing != SPACE_AFTER_PAIR ? text_buffer_append(out, " ", 1) : STATUS_OK);
    TRY(text_buffer_append(out, text, first_bytes));
    TRY(text_buffer_append(out, " ", 1));
    TRY(text_buffer_append(out, text + first_bytes, second_bytes));
    return spacing == SPACE_AFTER_PAIR ? text_buffer_append(out, " ", 1) : STATUS_OK;
}

/* Appends the text with the spaces of a rule. Matches do not overlap; the leftmost one counts. */
static status apply_rule(const struct rule *rule, const struct text_buffer *in,
                         struct text_buffer *out)
{
    for (size_t i = 0; i < in->count;) {
        uint32_t first, second = 0;
        size_t left = in->count - i, first_bytes = char_class_read(in->bytes + i, left, &first);
        bool pair = rule->spacing != SPACE_AROUND;
        size_t second_bytes =
            pair && first_bytes < left
                ? char_class_read(in->bytes + i + first_bytes, left - first_bytes, &second)
                : 0;
        bool matches = rule->first(first) && (!pair || (second_bytes > 0 && rule->second(second)));
        TRY(matches ? append_spaced(out, rule->spacing, in->bytes + i, first_bytes, second_bytes)
                    : text_buffer_append(out, in->bytes + i, first_bytes));
        i += first_bytes + (matches ? second_bytes : 0);
    }
    return STATUS_OK;
}

static void swap_buffers(struct text_buffer *a, struct text_buffer *b)
{
    struct text_buffer c = *a;
    *a = *b;
    *b = c;
    b->count = 0;
}

/* ---- the language-independent part of 13a ---- */

/* Replaces each occurrence of a text by another one that is not longer. */
static void replace_text(struct text_buffer *b, const char *from, const char *to)
{
    size_t from_bytes = strlen(from), to_bytes = strlen(to), count = 0;
    for (size_t i = 0; i < b->count;) {
        bool found = b->count - i >= from_bytes && memcmp(b->bytes + i, from, from_bytes) == 0;
        memmove(b->bytes + count, found ? to : b->bytes + i, found ? to_bytes : 1);
        count += found ? to_bytes : 1;
        i += found ? from_bytes : 1;
    }
    b->count = count;
}

/* Replaces the escapes of XML, and puts a space before and after the text. */
static status unescape_text(struct text_buffer *out, struct text_buffer *scratch)
{
    static const char *const replacements[][2] = {
        {"<skipped>", ""}, {"-\n", ""},   {"\n", " "},   {"&quot;", "\""},
        {"&amp;", "&"},    {"&lt;", "<"}, {"&gt;", ">"},
    };
    for (int i = 0; i < COUNT(replacements); i++) {
        replace_text(out, replacements[i][0], replacements[i][1]);
    }
    TRY(text_buffer_append(scratch, " ", 1));
    TRY(text_buffer_append(scratch, out->bytes, out->count));
    TRY(text_buffer_append(scratch, " ", 1));
    swap_buffers(out, scratch);
    return STATUS_OK;
}

/* Returns the length of a text without the white space at its end. */
static size_t count_trimmed(const char *text, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t code;
        length = char_class_read(text + i, bytes - i, &code);
        used = char_class_is_space(code) ? used : i + length;
    }
    return used;
}

status bleu_tokenizer_apply(enum bleu_tokenizer kind, const char *text, size_t bytes,
                            struct text_buffer *out, struct text_buffer *scratch)
{
    out->count = scratch->count = 0;
    TRY(text_buffer_append(out, text, count_trimmed(text, bytes)));
    TRY(kind == BLEU_13A ? unescape_text(out, scratch) : STATUS_OK);
    for (int i = 0; i < tokenizers[kind].count; i++) {
        TRY(apply_rule(&tokenizers[kind].rules[i], out, scratch));
        swap_buffers(out, scratch);
    }
    return STATUS_OK;
}
