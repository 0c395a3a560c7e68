/* Character tokenizer: one token per character, in the code point order of the training text.
 *
 * In the file it is a BPE model without merges and without a pre-tokenizer, with a decoder that
 * joins the tokens. Hugging Face `tokenizers` then splits a text into characters and looks each
 * one up. That package drops unknown characters; here they are an error. */
#include "datasets/tokenizer/char.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/rows/corpus.h"
#include "datasets/tokenizer/tokenizer_impl.h"

#define CODE_POINTS 0x110000u

status char_build(struct tokenizer *t)
{
    uint32_t code = 0;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (token->in_model && token->bytes != NULL &&
            utf8_read(token->bytes, token->length, &code) == token->length &&
            code >= t->char_limit) {
            t->char_limit = code + 1;
        }
    }
    TRY(ALLOCATE(t->char_ids, (size_t)t->char_limit + 1, "characters"));
    memset(t->char_ids, 0xff, ((size_t)t->char_limit + 1) * sizeof *t->char_ids);
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (token->in_model && token->bytes != NULL &&
            utf8_read(token->bytes, token->length, &code) == token->length) {
            t->char_ids[code] = (int32_t)id;
        }
    }
    return STATUS_OK;
}

status char_raise_missing(const char *text, size_t length, uint32_t code, size_t offset)
{
    const uint32_t delete = 0x7f, no_break_space = 0xa0; /* with control characters between them */
    bool visible = code > ' ' && (code < delete || code > no_break_space);
    RAISE(STATUS_DATA,
          "the character U+%04X%s%.*s%s at byte %zu of the text is not in the tokenizer's "
          "vocabulary",
          code, visible ? " '" : "", visible ? (int)length : 0, text, visible ? "'" : "", offset);
}

status char_encode(const struct tokenizer *t, const char *text, size_t bytes, size_t offset,
                   struct token_list *out)
{
    TRY(token_list_reserve(out, (int64_t)bytes));
    for (size_t pos = 0; pos < bytes;) {
        uint32_t code;
        size_t length = utf8_read(text + pos, bytes - pos, &code);
        REQUIRE(length > 0, STATUS_DATA, "byte 0x%02x at offset %zu of the text is not UTF-8",
                (unsigned char)text[pos], offset + pos);
        int32_t id = code < t->char_limit ? t->char_ids[code] : -1;
        TRY(id >= 0 ? STATUS_OK : char_raise_missing(text + pos, length, code, offset + pos));
        out->ids[out->count++] = id;
        pos += length;
    }
    return STATUS_OK;
}

static status record_characters(const struct corpus_chunk *chunk, bool *seen)
{
    for (size_t pos = 0; pos < chunk->bytes;) {
        uint32_t code;
        size_t length = utf8_read(chunk->text + pos, chunk->bytes - pos, &code);
        REQUIRE(length > 0 && code != 0, STATUS_DATA,
                "%s: byte 0x%02x at offset %" PRId64 " is not %s", chunk->path,
                (unsigned char)chunk->text[pos], chunk->offset + (int64_t)pos,
                length > 0 ? "text" : "UTF-8; " UTF8_REMEDY);
        seen[code] = true;
        pos += length;
    }
    return STATUS_OK;
}

static status read_characters(const struct corpus_source *source, bool *seen)
{
    struct corpus *corpus = NULL;
    TRY(corpus_open(source, &corpus));
    struct corpus_chunk chunk = {0};
    status result = STATUS_OK;
    do {
        TRY_GOTO(result, done, corpus_next(corpus, &chunk));
        TRY_GOTO(result, done, record_characters(&chunk, seen));
    } while (chunk.bytes > 0);
done:
    corpus_chunk_free(&chunk);
    corpus_close(corpus);
    return result;
}

static status create_tokenizer(const bool *seen, int64_t vocab_size, struct tokenizer **out)
{
    int64_t count = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        count += seen[code];
    }
    REQUIRE(count > 0, STATUS_DATA, "the input is empty: it has no characters");
    REQUIRE(vocab_size == 0 || count <= vocab_size, STATUS_USAGE,
            "the input has %" PRId64 " different characters, but --vocab-size is %" PRId64, count,
            vocab_size);
    TRY(tokenizer_allocate(TOKENIZER_CHAR, count, out));
    int64_t id = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        if (seen[code]) {
            char text[4];
            TRY(tokenizer_set_token(*out, id, text, utf8_write(code, text)));
            (*out)->tokens[id].in_model = true;
            (*out)->tokens[id].literal = true;
            id++;
        }
    }
    return tokenizer_finish(*out);
}

status char_train(int64_t vocab_size, const struct corpus_source *source, struct tokenizer **out)
{
    bool *seen = NULL;
    TRY(ALLOCATE(seen, CODE_POINTS, "a table of characters"));
    status result = read_characters(source, seen);
    if (result == STATUS_OK) {
        result = create_tokenizer(seen, vocab_size, out);
    }
    free(seen);
    return result;
}
