#include "datasets/text/answer_text.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include <utf8proc.h>

#include "base/memory.h"
#include "datasets/text/char_class.h"

enum { REPLACEMENT = 0xFFFD, CHAR_BYTES_MAX = 4 };

/* The output, and the word at its end. */
struct answer_writer {
    char *text;
    size_t bytes, word; /* word: offset of the last run of word characters */
    bool in_word;
};

/* Returns whether the character matches \w of Python's re, except for the underscore, which is
 * punctuation. These are the letters and numbers of all scripts. */
static bool is_word_char(int32_t code)
{
    utf8proc_category_t c = utf8proc_category(code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

static void append_char(struct answer_writer *f, int32_t code)
{
    bool blank = f->bytes == 0 || f->text[f->bytes - 1] == ' ';
    if (code != ' ' || !blank) {
        f->bytes += (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)f->text + f->bytes);
    }
}

/* Ends the current word and replaces it by a space if it is an article. */
static void end_word(struct answer_writer *f)
{
    size_t length = f->bytes - f->word;
    const char *word = f->text + f->word;
    bool article = (length == 1 && word[0] == 'a') || (length == 2 && memcmp(word, "an", 2) == 0) ||
                   (length == 3 && memcmp(word, "the", 3) == 0);
    if (f->in_word && article) {
        f->bytes = f->word;
        append_char(f, ' ');
    }
    f->in_word = false;
}

static void add_char(struct answer_writer *f, int32_t code)
{
    if (code < 0x80 &&
        ispunct(code)) { /* removed, without a word boundary: "a.b" becomes the word "ab" */
        return;
    }
    if (code == 0x130) { /* capital i with a dot: the dot becomes a separate combining mark */
        add_char(f, 'i');
        add_char(f, 0x307);
        return;
    }
    code = utf8proc_tolower(code);
    if (!is_word_char(code)) {
        end_word(f);
    } else if (!f->in_word) {
        f->in_word = true;
        f->word = f->bytes;
    }
    append_char(f, char_class_is_space((uint32_t)code) ? ' ' : code);
}

status answer_text_normalize(const char *text, char **out)
{
    size_t bytes = strlen(text);
    struct answer_writer f = {0};
    /* 3: one byte may become U+FFFD */
    TRY(ALLOCATE(f.text, 3 * bytes + CHAR_BYTES_MAX + 1, "an answer"));
    for (size_t pos = 0; pos < bytes;) {
        int32_t code = 0;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)text + pos,
                                                 (utf8proc_ssize_t)(bytes - pos), &code);
        add_char(&f, used > 0 ? code : REPLACEMENT);
        pos += used > 0 ? (size_t)used : 1;
    }
    end_word(&f);
    f.bytes -= f.bytes > 0 && f.text[f.bytes - 1] == ' ';
    f.text[f.bytes] = '\0';
    *out = f.text;
    return STATUS_OK;
}
