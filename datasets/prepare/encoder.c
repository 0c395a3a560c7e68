/* Slots collect several chunks, so that small documents do not cost one submission each. */
#include "datasets/prepare/encoder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread/ordered_pool.h"
#include "datasets/prepare/splitter.h"

enum {
    SLOT_CHUNKS = 1024,
    SLOT_FULL_BYTES = 64 << 10,
    SLOT_BYTES = SLOT_FULL_BYTES + ENCODER_CHUNK_BYTES
};

struct chunk {
    size_t text_end; /* offset in the slot's text */
    int64_t tokens_end;
    bool continues_document; /* it is not the first chunk */
    bool ends_document;
    struct encoder_origin origin;
};

struct slot {
    char *text; /* [SLOT_BYTES] */
    size_t bytes;
    struct chunk chunks[SLOT_CHUNKS];
    int count;
    struct token_list tokens;
    struct status_note note; /* error of the worker */
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct encoder_sink sink;
    int32_t bos, eos;     /* ids around a document; -1: none */
    bool inside_document; /* the first chunk of the current document was written */
    bool adding;          /* the first chunk of the current document was added */
    struct slot *slot;    /* being filled */
    struct ordered_pool *pool;
};

static status encode_sentences(struct encoder *e, struct slot *s, const char *text, size_t bytes,
                               bool at_punctuation)
{
    for (size_t begin = 0; begin < bytes;) {
        size_t end = splitter_find_sentence_end(text, bytes, begin, at_punctuation);
        TRY(tokenizer_encode(e->tokenizer, text + begin, end - begin, false, &s->tokens));
        TRY(token_list_add(&s->tokens, ENCODER_SENTENCE_END));
        begin = end;
    }
    return STATUS_OK;
}

/* Encodes a chunk. The byte offset in the tokenizer's error counts from the chunk, so the file
 * position is added. */
static status encode_chunk(struct encoder *e, struct slot *s, const struct chunk *p, size_t begin)
{
    const char *text = s->text + begin;
    size_t bytes = p->text_end - begin;
    status result = e->sink.marks_sentences
                        ? encode_sentences(e, s, text, bytes, p->origin.split_at_punctuation)
                    : p->continues_document
                        ? tokenizer_encode_continued(e->tokenizer, text, bytes, &s->tokens)
                        : tokenizer_encode(e->tokenizer, text, bytes, false, &s->tokens);
    if (result == STATUS_OK) {
        return STATUS_OK;
    }
    struct status_note inner;
    status_take(&inner);
    RAISE(result, "%s%s%" PRId64 ": %.1500s", p->origin.path,
          p->origin.is_line ? ":" : ": in the text that starts at byte ", p->origin.position,
          inner.text);
}

static void encode_slot(void *encoder, void *slot)
{
    struct encoder *e = encoder;
    struct slot *s = slot;
    size_t begin = 0;
    s->tokens.count = 0;
    s->note.code = STATUS_OK;
    for (int i = 0; i < s->count; i++) {
        if (encode_chunk(e, s, &s->chunks[i], begin) != STATUS_OK) {
            status_take(&s->note);
            return;
        }
        s->chunks[i].tokens_end = s->tokens.count;
        begin = s->chunks[i].text_end;
    }
}

static status write_slot(void *encoder, void *slot)
{
    struct encoder *e = encoder;
    struct slot *s = slot;
    int64_t begin = 0;
    TRY(status_restore(&s->note));
    for (int i = 0; i < s->count; i++) {
        const struct chunk *p = &s->chunks[i];
        if (!e->inside_document && e->bos >= 0) {
            TRY(e->sink.write_tokens(e->sink.user, &e->bos, 1));
        }
        TRY(e->sink.write_tokens(e->sink.user, s->tokens.ids + begin, p->tokens_end - begin));
        begin = p->tokens_end;
        e->inside_document = !p->ends_document;
        if (p->ends_document) {
            TRY(e->sink.write_tokens(e->sink.user, &e->eos, e->eos >= 0 ? 1 : 0));
            TRY(e->sink.end_document(e->sink.user));
        }
    }
    s->count = 0;
    s->bytes = 0;
    return STATUS_OK;
}

static status open_slot(void *slot)
{
    struct slot *s = slot;
    return ALLOCATE(s->text, SLOT_BYTES, "encoding threads");
}

static void close_slot(void *slot)
{
    struct slot *s = slot;
    free(s->text);
    token_list_free(&s->tokens);
}

status encoder_open(const struct tokenizer *tokenizer, int workers, struct encoder_sink sink,
                    struct encoder **out)
{
    static const struct ordered_pool_callbacks encoding = {sizeof(struct slot), open_slot,
                                                           encode_slot, write_slot, close_slot};
    *out = NULL;
    struct encoder *e = NULL;
    TRY(ALLOCATE(e, 1, "an encoder"));
    e->tokenizer = tokenizer;
    e->sink = sink;
    e->bos = sink.marks_sentences ? -1 : tokenizer_bos(tokenizer);
    e->eos = sink.marks_sentences ? -1 : tokenizer_eos(tokenizer);
    status result = ordered_pool_open(&encoding, e, workers, &e->pool);
    if (result != STATUS_OK) {
        encoder_close(&e);
        return result;
    }
    e->slot = ordered_pool_slot(e->pool);
    *out = e;
    return STATUS_OK;
}

static status submit_slot(struct encoder *e)
{
    TRY(ordered_pool_submit(e->pool));
    e->slot = ordered_pool_slot(e->pool);
    return STATUS_OK;
}

status encoder_add_chunk(struct encoder *e, const char *text, size_t bytes, bool ends_document,
                         struct encoder_origin origin)
{
    struct slot *s = e->slot;
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
    s->chunks[s->count++] = (struct chunk){s->bytes, 0, e->adding, ends_document, origin};
    e->adding = !ends_document;
    bool full = s->bytes >= SLOT_FULL_BYTES || s->count == SLOT_CHUNKS;
    return full ? submit_slot(e) : STATUS_OK;
}

status encoder_drain(struct encoder *e)
{
    TRY(e->slot->count > 0 ? submit_slot(e) : STATUS_OK);
    return ordered_pool_drain(e->pool);
}

void encoder_close(struct encoder **encoder)
{
    if (*encoder != NULL) {
        ordered_pool_close(&(*encoder)->pool);
        free(*encoder);
        *encoder = NULL;
    }
}
