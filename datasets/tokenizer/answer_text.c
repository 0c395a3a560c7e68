#include "datasets/tokenizer/answer_text.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

enum { REPLACEMENT = 0xFFFD, BYTES_MOST = 4 };

/* What has been written, and the word at its end. */
struct form {
    char *text;
    size_t bytes, word; /* where the last run of word characters begins */
    bool in_word;
};

/* The white space of Python's str.split. */
static bool is_space(int32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
           code == 0x2028 || code == 0x2029 || utf8proc_category(code) == UTF8PROC_CATEGORY_ZS;
}

/* \w of Python's re, without the underscore, which is punctuation: letters and numbers of any script. */
static bool is_word(int32_t code)
{
    utf8proc_category_t c = utf8proc_category(code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

static void put(struct form *f, int32_t code)
{
    bool blank = f->bytes == 0 || f->text[f->bytes - 1] == ' ';
    if (code != ' ' || !blank) {
        f->bytes += (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)f->text + f->bytes);
    }
}

/* The word that has come to its end, if it is an article, becomes a blank. */
static void end_word(struct form *f)
{
    size_t length = f->bytes - f->word;
    const char *word = f->text + f->word;
    bool article = (length == 1 && word[0] == 'a') || (length == 2 && memcmp(word, "an", 2) == 0) ||
                   (length == 3 && memcmp(word, "the", 3) == 0);
    if (f->in_word && article) {
        f->bytes = f->word;
        put(f, ' ');
    }
    f->in_word = false;
}

static void add(struct form *f, int32_t code)
{
    if (code < 0x80 && ispunct(code)) { /* as if it had never been: "a.b" is the word "ab" */
        return;
    }
    if (code == 0x130) { /* capital i with a dot: the dot stays, as a mark of its own */
        add(f, 'i');
        add(f, 0x307);
        return;
    }
    code = utf8proc_tolower(code);
    if (!is_word(code)) {
        end_word(f);
    } else if (!f->in_word) {
        f->in_word = true;
        f->word = f->bytes;
    }
    put(f, is_space(code) ? ' ' : code);
}

status answer_text_normalise(const char *text, char **out)
{
    size_t bytes = strlen(text);
    struct form f = {.text = malloc(3 * bytes + BYTES_MOST + 1)}; /* U+FFFD for one byte */
    REQUIRE(f.text != NULL, STATUS_INTERNAL, "out of memory: an answer of %zu bytes", bytes);
    for (size_t at = 0; at < bytes;) {
        int32_t code = 0;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                 (utf8proc_ssize_t)(bytes - at), &code);
        add(&f, used > 0 ? code : REPLACEMENT);
        at += used > 0 ? (size_t)used : 1;
    }
    end_word(&f);
    f.bytes -= f.bytes > 0 && f.text[f.bytes - 1] == ' ';
    f.text[f.bytes] = '\0';
    *out = f.text;
    return STATUS_OK;
}
