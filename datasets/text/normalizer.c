#include "datasets/text/normalizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

status normalizer_add(struct normalizer *n, const struct normalizer_step *step)
{
    status result = GROW(n->steps, n->count + 1, "the steps of a normalizer");
    if (result != STATUS_OK) {
        precompiled_close(step->map);
        return result;
    }
    n->steps[n->count] = *step;
    n->steps[n->count].from = n->steps[n->count].to = NULL;
    n->count++;
    TRY(memory_copy_text(&n->steps[n->count - 1].from, step->from, "a normalizer"));
    return memory_copy_text(&n->steps[n->count - 1].to, step->to, "a normalizer");
}

void normalizer_free(struct normalizer *n)
{
    for (int i = 0; i < n->count; i++) {
        free(n->steps[i].from);
        free(n->steps[i].to);
        precompiled_close(n->steps[i].map);
    }
    free(n->steps);
    *n = (struct normalizer){0};
}

static status replace_blanks(const char *text, size_t bytes, const char *to,
                             struct text_buffer *out)
{
    for (size_t pos = 0; pos < bytes;) {
        size_t begin = pos;
        while (pos < bytes && text[pos] == ' ') {
            pos++;
        }
        bool is_run = pos - begin >= 2;
        size_t text_begin = is_run ? pos : begin;
        while (pos < bytes && text[pos] != ' ') {
            pos++;
        }
        TRY(is_run ? text_buffer_append(out, to, strlen(to)) : STATUS_OK);
        TRY(text_buffer_append(out, text + text_begin, pos - text_begin));
    }
    return STATUS_OK;
}

/* Returns the length of the white space character that ends before text[end]; 0: none. */
static size_t match_last_blank(const char *text, size_t end)
{
    for (size_t length = 1; length <= 3 && length <= end; length++) {
        uint32_t code = 0;
        if (utf8_read(text + end - length, length, &code) == length) {
            return unicode_form_is_white_space(code) ? length : 0;
        }
    }
    return 0;
}

static status strip_ends(const struct normalizer_step *step, const char *text, size_t bytes,
                         struct text_buffer *out)
{
    size_t begin = 0, end = bytes;
    uint32_t code = 0;
    for (size_t length; step->left && (length = utf8_read(text + begin, end - begin, &code)) > 0 &&
                        unicode_form_is_white_space(code);) {
        begin += length;
    }
    for (size_t length; step->right && end > begin && (length = match_last_blank(text, end)) > 0;) {
        end -= length;
    }
    return text_buffer_append(out, text + begin, end - begin);
}

static status prepend_text(const char *text, size_t bytes, const char *to, struct text_buffer *out)
{
    TRY(bytes > 0 ? text_buffer_append(out, to, strlen(to)) : STATUS_OK);
    return text_buffer_append(out, text, bytes);
}

static status run_step(const struct normalizer_step *step, const char *text, size_t bytes,
                       bool continued, struct text_buffer *out)
{
    switch (step->kind) {
    case NORMALIZER_NFC:
        return unicode_form_apply(UNICODE_FORM_NFC, text, bytes, out);
    case NORMALIZER_NFD:
        return unicode_form_apply(UNICODE_FORM_NFD, text, bytes, out);
    case NORMALIZER_NFKC:
        return unicode_form_apply(UNICODE_FORM_NFKC, text, bytes, out);
    case NORMALIZER_NFKD:
        return unicode_form_apply(UNICODE_FORM_NFKD, text, bytes, out);
    case NORMALIZER_LOWERCASE:
        return unicode_form_lower(text, bytes, out);
    case NORMALIZER_STRIP_ACCENTS:
        return unicode_form_strip_accents(text, bytes, out);
    case NORMALIZER_STRIP:
        return strip_ends(step, text, bytes, out);
    case NORMALIZER_PREPEND:
        return prepend_text(text, bytes, continued ? "" : step->to, out);
    case NORMALIZER_REPLACE:
        return text_buffer_append_replaced(out, text, bytes, step->from, step->to);
    case NORMALIZER_REPLACE_BLANKS:
        return replace_blanks(text, bytes, step->to, out);
    case NORMALIZER_PRECOMPILED:
        return precompiled_run(step->map, text, bytes, out);
    }
    return text_buffer_append(out, text, bytes);
}

status normalizer_run(const struct normalizer *n, const char *text, size_t bytes, bool continued,
                      struct text_buffer *out)
{
    struct text_buffer input = {0};
    size_t limit = bytes * NORMALIZER_GROWTH + 1024;
    status result = STATUS_OK;
    TRY(n->count == 0 ? text_buffer_append(out, text, bytes) : STATUS_OK);
    for (int i = 0; i < n->count && result == STATUS_OK; i++) {
        if (i > 0) { /* the output of the step before is the input of this step */
            struct text_buffer previous = *out;
            *out = input;
            input = previous;
            out->count = 0;
        }
        result = run_step(&n->steps[i], i > 0 ? input.bytes : text, i > 0 ? input.count : bytes,
                          continued, out);
        REQUIRE_GOTO(result, done, result != STATUS_OK || out->count <= limit, STATUS_DATA,
                     "the tokenizer's normalizer makes a text more than %d times as long",
                     NORMALIZER_GROWTH);
    }
done:
    text_buffer_free(&input);
    return result;
}
