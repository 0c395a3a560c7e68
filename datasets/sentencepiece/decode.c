/* Decodes the ids of a SentencePiece model to text. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/sentencepiece_impl.h"

#define REPLACEMENT_CHARACTER "\xef\xbf\xbd"

/* The text so far. A run of byte pieces is collected before it is written, because its bytes form
 * characters together. */
struct piece_decoder {
    const struct sentencepiece *s;
    bool skip_control;
    char *text;
    size_t count;
    bool at_start;      /* a space that begins the next piece is removed */
    bool start_removed; /* the piece before was the one without its space */
    char *bytes;        /* the run of byte pieces */
    size_t byte_count;
};

static void append_text(struct piece_decoder *d, const char *text, size_t bytes)
{
    memcpy(d->text + d->count, text, bytes);
    d->count += bytes;
}

/* Writes the characters of the byte pieces; each invalid byte becomes U+FFFD. */
static void end_bytes(struct piece_decoder *d)
{
    uint32_t code;
    for (size_t pos = 0; pos < d->byte_count;) {
        size_t length = utf8_read(d->bytes + pos, d->byte_count - pos, &code);
        append_text(d, length > 0 ? d->bytes + pos : REPLACEMENT_CHARACTER,
                    length > 0 ? length : 3);
        pos += length > 0 ? length : 1;
    }
    d->byte_count = 0;
}

/* Writes a piece with U+2581 replaced by a space. At the start of the text one such character is
 * removed. If the model removes repeated spaces, every piece loses one until text appears. */
static void append_piece(struct piece_decoder *d, const struct sentencepiece_piece *piece)
{
    const size_t mark = strlen(SENTENCEPIECE_SPACE);
    const char *text = piece->text, *end = text + piece->bytes;
    bool removes = d->at_start && (d->s->add_dummy_prefix || d->s->remove_extra_whitespaces);
    if (removes && piece->bytes >= mark && memcmp(text, SENTENCEPIECE_SPACE, mark) == 0) {
        text += mark;
        d->start_removed = !d->s->remove_extra_whitespaces;
    }
    for (const char *space; (space = strstr(text, SENTENCEPIECE_SPACE)) != NULL;) {
        append_text(d, text, (size_t)(space - text));
        append_text(d, " ", 1);
        text = space + mark;
    }
    append_text(d, text, (size_t)(end - text));
}

static void decode_id(struct piece_decoder *d, int32_t id)
{
    const struct sentencepiece_piece *piece = &d->s->pieces[id];
    if (piece->type == SENTENCEPIECE_BYTE) {
        const char hex[3] = {piece->text[3], piece->text[4], '\0'};
        d->bytes[d->byte_count++] = (char)strtol(hex, NULL, 16);
        return;
    }
    end_bytes(d);
    d->at_start = d->at_start && !d->start_removed && d->count == 0;
    d->start_removed = false;
    if (piece->type == SENTENCEPIECE_CONTROL) {
        append_text(d, piece->text, d->skip_control ? 0 : piece->bytes);
    } else if (piece->type == SENTENCEPIECE_UNKNOWN) {
        append_text(d, d->s->unknown_text, strlen(d->s->unknown_text));
    } else {
        append_piece(d, piece);
    }
}

status sentencepiece_decode(const struct sentencepiece *s, const int32_t *ids, int64_t count,
                            bool skip_control, bool continued, char **out, size_t *out_bytes)
{
    size_t bytes = 0, unknown_bytes = strlen(s->unknown_text);
    for (int64_t i = 0; i < count; i++) {
        const struct sentencepiece_piece *piece = &s->pieces[ids[i]];
        bytes += piece->type == SENTENCEPIECE_UNKNOWN ? unknown_bytes : piece->bytes;
    }
    struct piece_decoder d = {.s = s, .skip_control = skip_control, .at_start = !continued};
    TRY(ALLOCATE(d.text, bytes + 1, "a text"));
    status result = ALLOCATE(d.bytes, (size_t)count + 1, "a text");
    if (result != STATUS_OK) {
        free(d.text);
        return result;
    }
    for (int64_t i = 0; i < count; i++) {
        decode_id(&d, ids[i]);
    }
    end_bytes(&d);
    free(d.bytes);
    d.text[d.count] = '\0';
    *out = d.text;
    *out_bytes = d.count;
    return STATUS_OK;
}
