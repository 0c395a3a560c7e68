/* A token for each character: the training text's code points in ascending order, nothing else.
 *
 * In the file it is a BPE model without merges and without a pre-tokenizer, whose decoder joins the
 * tokens: the Python package then splits a text into its characters and looks each one up. (That
 * package drops a character that it does not know; here it is an error.) */
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/corpus.h"
#include "datasets/tokenizer/tokenizer_impl.h"

#define CODE_POINTS 0x110000u

status char_build(struct tokenizer *t)
{
    uint32_t code = 0;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (token->in_model && token->bytes != NULL &&
            pretokenise_character(token->bytes, token->length, &code) == token->length &&
            code >= t->char_limit) {
            t->char_limit = code + 1;
        }
    }
    t->char_ids = malloc(((size_t)t->char_limit + 1) * sizeof *t->char_ids);
    REQUIRE(t->char_ids != NULL, STATUS_INTERNAL, "out of memory: %u characters", t->char_limit);
    memset(t->char_ids, 0xff, ((size_t)t->char_limit + 1) * sizeof *t->char_ids);
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (token->in_model && token->bytes != NULL &&
            pretokenise_character(token->bytes, token->length, &code) == token->length) {
            t->char_ids[code] = (int32_t)id;
        }
    }
    return STATUS_OK;
}

status char_encode(const struct tokenizer *t, const char *text, size_t bytes, size_t offset,
                   struct token_list *out)
{
    TRY(token_list_reserve(out, (int64_t)bytes));
    for (size_t at = 0; at < bytes;) {
        uint32_t code;
        size_t length = pretokenise_character(text + at, bytes - at, &code);
        REQUIRE(length > 0, STATUS_DATA, "byte 0x%02x at offset %zu of the text is not UTF-8",
                (unsigned char)text[at], offset + at);
        int32_t id = code < t->char_limit ? t->char_ids[code] : -1;
        REQUIRE(id >= 0, STATUS_DATA,
                "the character U+%04X at byte %zu of the text is not in the tokenizer's vocabulary",
                code, offset + at);
        out->ids[out->count++] = id;
        at += length;
    }
    return STATUS_OK;
}

static status note_characters(const struct corpus_piece *piece, bool *seen)
{
    for (size_t at = 0; at < piece->bytes;) {
        uint32_t code;
        size_t length = pretokenise_character(piece->text + at, piece->bytes - at, &code);
        REQUIRE(length > 0 && code != 0, STATUS_DATA, "%s: byte 0x%02x at offset %lld is not %s",
                piece->path, (unsigned char)piece->text[at],
                (long long)(piece->offset + (int64_t)at), length > 0 ? "text" : "UTF-8");
        seen[code] = true;
        at += length;
    }
    return STATUS_OK;
}

static status read_characters(char *const *files, int count, bool *seen)
{
    struct corpus *corpus = NULL;
    TRY(corpus_open(files, count, &corpus));
    struct corpus_piece piece = {0};
    status result = STATUS_OK;
    do {
        TRY_GOTO(result, done, corpus_next(corpus, &piece));
        TRY_GOTO(result, done, note_characters(&piece, seen));
    } while (piece.bytes > 0);
done:
    corpus_piece_free(&piece);
    corpus_close(corpus);
    return result;
}

static status make(const bool *seen, int64_t vocab_size, struct tokenizer **out)
{
    int64_t count = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        count += seen[code];
    }
    REQUIRE(count > 0, STATUS_DATA, "the input is empty: there is no character to learn");
    REQUIRE(vocab_size == 0 || count <= vocab_size, STATUS_USAGE,
            "the input has %lld different characters, --vocab-size allows %lld", (long long)count,
            (long long)vocab_size);
    TRY(tokenizer_allocate(TOKENIZER_CHAR, count, out));
    int64_t id = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        if (seen[code]) {
            char text[4];
            TRY(tokenizer_set(*out, id, text, pretokenise_put(code, text)));
            (*out)->tokens[id].in_model = true;
            (*out)->tokens[id].literal = true;
            id++;
        }
    }
    return tokenizer_finish(*out);
}

status char_train(int64_t vocab_size, char *const *files, int count, struct tokenizer **out)
{
    bool *seen = calloc(CODE_POINTS, sizeof *seen);
    REQUIRE(seen != NULL, STATUS_INTERNAL, "out of memory: a table of characters");
    status result = read_characters(files, count, seen);
    if (result == STATUS_OK) {
        result = make(seen, vocab_size, out);
    }
    free(seen);
    return result;
}
