/* Text to ids by several threads, in order: slots of pieces go round a ring (prepare_ring.c). */
#include <stdlib.h>
#include <string.h>

#include "datasets/prepare/input.h"

enum {
    SLOT_PIECES = 1024,
    SLOT_FULL_BYTES = 64 << 10,
    SLOT_BYTES = SLOT_FULL_BYTES + PREPARE_PIECE_BYTES
};

struct piece {
    size_t text_end; /* in the slot */
    int64_t tokens_end;
    bool ends_document;
    struct origin origin;
};

struct slot {
    char *text; /* [SLOT_BYTES] */
    size_t bytes;
    struct piece pieces[SLOT_PIECES];
    int count;
    struct token_list tokens;
    struct status_note note;
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct sink sink;
    int32_t begin, eos; /* around a document; -1: none */
    bool inside;        /* of a document whose first piece was written */
    struct slot *now;   /* being filled */
    struct ring *ring;
};

static status encode_sentences(struct encoder *e, struct slot *s, const char *text, size_t bytes,
                               bool stops)
{
    for (size_t at = 0; at < bytes;) {
        size_t end = sentence_end(text, bytes, at, stops);
        TRY(tokenizer_encode(e->tokenizer, text + at, end - at, false, &s->tokens));
        TRY(token_list_reserve(&s->tokens, 1));
        s->tokens.ids[s->tokens.count++] = PREPARE_SENTENCE_END;
        at = end;
    }
    return STATUS_OK;
}

/* The tokenizer counts bytes from the piece's start; the user knows the file. */
static status encode_piece(struct encoder *e, struct slot *s, const struct piece *p, size_t begin)
{
    const char *text = s->text + begin;
    size_t bytes = p->text_end - begin;
    status result = e->sink.sentences
                        ? encode_sentences(e, s, text, bytes, p->origin.stops)
                        : tokenizer_encode(e->tokenizer, text, bytes, false, &s->tokens);
    if (result == STATUS_OK) {
        return STATUS_OK;
    }
    struct status_note inner;
    status_take(&inner);
    RAISE(result, "%s: in the text that begins at %s %lld: %.1500s", p->origin.path,
          p->origin.is_line ? "line" : "byte", (long long)p->origin.place, inner.text);
}

static void encode_slot(void *encoder, void *slot)
{
    struct encoder *e = encoder;
    struct slot *s = slot;
    size_t begin = 0;
    s->tokens.count = 0;
    s->note.code = STATUS_OK;
    for (int i = 0; i < s->count; i++) {
        if (encode_piece(e, s, &s->pieces[i], begin) != STATUS_OK) {
            status_take(&s->note);
            return;
        }
        s->pieces[i].tokens_end = s->tokens.count;
        begin = s->pieces[i].text_end;
    }
}

static status write_slot(void *encoder, void *slot)
{
    struct encoder *e = encoder;
    struct slot *s = slot;
    int64_t begin = 0;
    TRY(status_restore(&s->note));
    for (int i = 0; i < s->count; i++) {
        const struct piece *p = &s->pieces[i];
        if (!e->inside && e->begin >= 0) {
            TRY(e->sink.tokens(e->sink.to, &e->begin, 1));
        }
        TRY(e->sink.tokens(e->sink.to, s->tokens.ids + begin, p->tokens_end - begin));
        begin = p->tokens_end;
        e->inside = !p->ends_document;
        if (p->ends_document) {
            TRY(e->sink.tokens(e->sink.to, &e->eos, e->eos >= 0 ? 1 : 0));
            TRY(e->sink.end_document(e->sink.to));
        }
    }
    s->count = 0;
    s->bytes = 0;
    return STATUS_OK;
}

static status open_slot(void *slot)
{
    struct slot *s = slot;
    s->text = malloc(SLOT_BYTES);
    REQUIRE(s->text != NULL, STATUS_INTERNAL, "out of memory: encoding threads");
    return STATUS_OK;
}

static void close_slot(void *slot)
{
    struct slot *s = slot;
    free(s->text);
    token_list_free(&s->tokens);
}

status encoder_open(const struct tokenizer *tokenizer, int workers, struct sink sink,
                    struct encoder **out)
{
    static const struct ring_work encoding = {sizeof(struct slot), open_slot, encode_slot,
                                              write_slot, close_slot};
    *out = NULL;
    struct encoder *e = calloc(1, sizeof *e);
    REQUIRE(e != NULL, STATUS_INTERNAL, "out of memory: an encoder");
    e->tokenizer = tokenizer;
    e->sink = sink;
    e->begin = sink.sentences ? -1 : tokenizer_begin(tokenizer);
    e->eos = sink.sentences ? -1 : tokenizer_eos(tokenizer);
    status result = ring_open(&encoding, e, workers, &e->ring);
    if (result != STATUS_OK) {
        encoder_close(&e);
        return result;
    }
    e->now = ring_slot(e->ring);
    *out = e;
    return STATUS_OK;
}

static status submit(struct encoder *e)
{
    TRY(ring_submit(e->ring));
    e->now = ring_slot(e->ring);
    return STATUS_OK;
}

status encoder_piece(struct encoder *e, const char *text, size_t bytes, bool ends_document,
                     struct origin origin)
{
    struct slot *s = e->now;
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
    s->pieces[s->count++] = (struct piece){s->bytes, 0, ends_document, origin};
    bool full = s->bytes >= SLOT_FULL_BYTES || s->count == SLOT_PIECES;
    return full ? submit(e) : STATUS_OK;
}

status encoder_drain(struct encoder *e)
{
    TRY(e->now->count > 0 ? submit(e) : STATUS_OK);
    return ring_drain(e->ring);
}

void encoder_close(struct encoder **encoder)
{
    if (*encoder != NULL) {
        ring_close(&(*encoder)->ring);
        free(*encoder);
        *encoder = NULL;
    }
}
