#include "datasets/text/decoder.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/text/unicode_form.h"

status decoder_add(struct decoder *d, const struct decoder_step *step)
{
    TRY(GROW(d->steps, d->count + 1, "the steps of a decoder"));
    d->steps[d->count] = *step;
    d->steps[d->count].from = d->steps[d->count].to = NULL;
    d->count++;
    TRY(memory_copy_text(&d->steps[d->count - 1].from, step->from, "a decoder"));
    return memory_copy_text(&d->steps[d->count - 1].to, step->to, "a decoder");
}

void decoder_free(struct decoder *d)
{
    for (int i = 0; i < d->count; i++) {
        free(d->steps[i].from);
        free(d->steps[i].to);
    }
    free(d->steps);
    *d = (struct decoder){0};
}

void decoder_tokens_free(struct decoder_tokens *tokens)
{
    text_buffer_free(&tokens->text);
    free(tokens->ends);
    *tokens = (struct decoder_tokens){0};
}

/* Ends a token at the end of the text. */
static status end_token(struct decoder_tokens *t)
{
    TRY(RESERVE(t->ends, t->capacity, t->count + 1, "the ends of tokens"));
    t->ends[t->count++] = t->text.count;
    return STATUS_OK;
}

status decoder_append(struct decoder_tokens *tokens, const char *text, size_t bytes)
{
    TRY(text_buffer_append(&tokens->text, text, bytes));
    return end_token(tokens);
}

/* ---- steps: each reads the tokens `in` and appends to `out` ---- */

static status strip_token(const struct decoder_step *s, const char *text, size_t bytes,
                          bool continued, struct text_buffer *out)
{
    size_t length = strlen(s->from), begin = 0, end = bytes;
    for (int64_t i = 0; i < s->left && !continued && end - begin >= length &&
                        memcmp(text + begin, s->from, length) == 0;
         i++) {
        begin += length;
    }
    for (int64_t i = 0;
         i < s->right && end - begin >= length && memcmp(text + end - length, s->from, length) == 0;
         i++) {
        end -= length;
    }
    return text_buffer_append(out, text + begin, end - begin);
}

static int read_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int decoder_read_byte(const char *text, size_t bytes)
{
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    /* from_str_radix of Rust, which the package uses, accepts a sign: <0x+A> is 0x0A. */
    int high = text[3] == '+' ? 0 : read_hex_digit(text[3]), low = read_hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Ends a run of bytes: UTF-8 is one token; otherwise each byte becomes U+FFFD. */
static status end_byte_run(struct text_buffer *run, struct decoder_tokens *out)
{
    size_t count = run->count;
    run->count = 0;
    if (count == 0) {
        return STATUS_OK;
    }
    if (utf8_is_valid(run->bytes, count)) {
        return decoder_append(out, run->bytes, count);
    }
    for (size_t i = 0; i < count; i++) {
        TRY(decoder_append(out, "\xef\xbf\xbd", 3));
    }
    return STATUS_OK;
}

static status decode_bytes(const struct decoder_tokens *in, struct text_buffer *run,
                           struct decoder_tokens *out)
{
    size_t begin = 0;
    for (int64_t i = 0; i < in->count; begin = in->ends[i], i++) {
        const char *text = in->text.bytes + begin;
        size_t bytes = in->ends[i] - begin;
        int byte = bytes == 6 ? decoder_read_byte(text, bytes) : -1;
        if (byte >= 0) {
            TRY(text_buffer_append(run, &(char){(char)byte}, 1));
        } else {
            TRY(end_byte_run(run, out));
            TRY(decoder_append(out, text, bytes));
        }
    }
    return end_byte_run(run, out);
}

static status fuse_tokens(const struct decoder_tokens *in, struct decoder_tokens *out)
{
    return decoder_append(out, in->text.bytes, in->text.count);
}

/* Changes one token. */
static status change_token(const struct decoder_step *s, const char *text, size_t bytes, bool first,
                           bool last, bool continued, struct text_buffer *out)
{
    switch (s->kind) {
    case DECODER_STRIP:
        return strip_token(s, text, bytes, continued && first, out);
    case DECODER_METASPACE:
        return text_buffer_append_replaced(out, text, bytes, s->from,
                                           s->drops_first && first && !continued ? "" : " ");
    case DECODER_SUFFIX:
        return text_buffer_append_replaced(out, text, bytes, s->from, last ? "" : " ");
    default:
        return text_buffer_append_replaced(out, text, bytes, s->from, s->to);
    }
}

static status run_step(const struct decoder_step *s, const struct decoder_tokens *in,
                       bool continued, struct decoder_tokens *out)
{
    struct text_buffer run = {0};
    if (s->kind == DECODER_BYTE_FALLBACK) {
        status result = decode_bytes(in, &run, out);
        text_buffer_free(&run);
        return result;
    }
    if (s->kind == DECODER_FUSE) {
        return fuse_tokens(in, out);
    }
    size_t begin = 0;
    for (int64_t i = 0; i < in->count; begin = in->ends[i], i++) {
        TRY(change_token(s, in->text.bytes + begin, in->ends[i] - begin, i == 0, i + 1 == in->count,
                         continued, &out->text));
        TRY(end_token(out));
    }
    return STATUS_OK;
}

status decoder_run(const struct decoder *d, bool continued, struct decoder_tokens *tokens)
{
    struct decoder_tokens out = {0};
    size_t limit = tokens->text.count * DECODER_GROWTH + 1024;
    status result = STATUS_OK;
    for (int i = 0; i < d->count && result == STATUS_OK; i++) {
        out.text.count = 0;
        out.count = 0;
        result = run_step(&d->steps[i], tokens, continued, &out);
        REQUIRE_GOTO(result, done, result != STATUS_OK || out.text.count <= limit, STATUS_DATA,
                     "the tokenizer's decoder makes a text more than %d times as long",
                     DECODER_GROWTH);
        struct decoder_tokens swapped = *tokens;
        *tokens = out;
        out = swapped;
    }
done:
    decoder_tokens_free(&out);
    return result;
}
