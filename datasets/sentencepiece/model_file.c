/* Reads tokenizer.model, a protobuf message (sentencepiece_model.proto).
 *
 * A file may be malicious. Its size is limited, and so are the number of pieces and their length.
 * All texts are valid UTF-8 without NUL, all scores are finite, and no text occurs twice. Fields
 * that describe the training are ignored. An unknown field of the normalizer or of a piece could
 * change ids, so it is an error. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/sentencepiece_impl.h"
#include "sentencepiece_model.pb-c.h"

#define PIECES_MAX ((size_t)1 << 20)
#define PIECE_BYTES_MAX ((size_t)7999) /* the limit of SentencePiece */
#define UNKNOWN_BYTES_MAX ((size_t)64)
#define FIELDS_MAX (PIECES_MAX + 1024)    /* of the model: one field per piece, and options */
#define INNER_FIELDS_MAX (4 * PIECES_MAX) /* of all pieces and options: three fields per piece */
#define DEFAULT_UNKNOWN_TEXT " \xe2\x81\x87 "

typedef PieceFile__ModelProto model_proto;
typedef PieceFile__NormalizerSpec normalizer_proto;
typedef PieceFile__TrainerSpec trainer_proto;
typedef PieceFile__ModelProto__SentencePiece piece_proto;

/* State of reading one file. */
struct model_reader {
    const char *path;
    struct sentencepiece *s;
};

#define NEED(r, condition, format, ...)                                                            \
    REQUIRE(condition, STATUS_DATA, "%s: " format, (r)->path, ##__VA_ARGS__)

static bool is_text(const ProtobufCBinaryData *data)
{
    return data->len == 0 || (utf8_is_valid((const char *)data->data, data->len) &&
                              memchr(data->data, '\0', data->len) == NULL);
}

/* Returns the byte of a piece <0x00> to <0xFF>; -1: it has another form. */
static int parse_byte(const struct sentencepiece_piece *piece)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *text = piece->text;
    if (piece->bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const char *high = memchr(digits, text[3], 16), *low = memchr(digits, text[4], 16);
    return high == NULL || low == NULL ? -1 : (int)(high - digits) * 16 + (int)(low - digits);
}

static status register_piece(const struct model_reader *r, int32_t id)
{
    struct sentencepiece *s = r->s;
    const struct sentencepiece_piece *piece = &s->pieces[id];
    bool is_normal = piece->type == SENTENCEPIECE_NORMAL ||
                     piece->type == SENTENCEPIECE_USER_DEFINED ||
                     piece->type == SENTENCEPIECE_UNUSED;
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(is_normal ? &s->normal : &s->other, NULL, piece->text, piece->bytes,
                             &slot, &is_new));
    NEED(r, is_new, "the piece '%.60s' has two ids, %" PRId64 " and %d", piece->text, slot->value,
         id);
    slot->value = id;
    if (piece->type == SENTENCEPIECE_UNKNOWN) {
        NEED(r, s->unknown < 0, "two pieces have the type UNKNOWN, %d and %d", s->unknown, id);
        s->unknown = id;
    }
    if (piece->type == SENTENCEPIECE_BYTE) {
        int byte = parse_byte(piece);
        NEED(r, byte >= 0, "the piece %d, '%.60s', has the type BYTE but is not <0x00> to <0xFF>",
             id, piece->text);
        NEED(r, s->byte_fallback,
             "the piece %d, '%.60s', has the type BYTE, but byte_fallback is false", id,
             piece->text);
        s->byte_ids[byte] = id;
    }
    return STATUS_OK;
}

static status read_piece(const struct model_reader *r, const piece_proto *p, int32_t id)
{
    NEED(r, p->piece.len > 0 && p->piece.len <= PIECE_BYTES_MAX && is_text(&p->piece),
         "the piece %d is not a text of 1 to %zu bytes in UTF-8 without NUL", id, PIECE_BYTES_MAX);
    struct sentencepiece_piece *piece = &r->s->pieces[id];
    TRY(text_store_copy(&r->s->store, (const char *)p->piece.data, p->piece.len, &piece->text));
    piece->bytes = p->piece.len;
    piece->score = p->score;
    piece->type = (enum sentencepiece_type)p->type;
    NEED(r, isfinite(piece->score), "the score of the piece %d, '%.60s', is not finite", id,
         piece->text);
    NEED(r,
         p->type >= PIECE_FILE__MODEL_PROTO__SENTENCE_PIECE__TYPE__NORMAL &&
             p->type <= PIECE_FILE__MODEL_PROTO__SENTENCE_PIECE__TYPE__BYTE,
         "the piece %d, '%.60s', has the unknown type %d", id, piece->text, (int)p->type);
    NEED(r, p->base.n_unknown_fields == 0,
         "the piece %d, '%.60s', has a field that is not supported", id, piece->text);
    return register_piece(r, id);
}

static status read_pieces(const struct model_reader *r, const model_proto *m)
{
    struct sentencepiece *s = r->s;
    NEED(r, m->n_pieces > 0 && m->n_pieces <= PIECES_MAX,
         "it has %zu pieces; 1 to %zu are supported", m->n_pieces, PIECES_MAX);
    TRY(ALLOCATE(s->pieces, m->n_pieces, "pieces"));
    s->count = (int64_t)m->n_pieces;
    for (int32_t id = 0; id < s->count; id++) {
        TRY(read_piece(r, m->pieces[id], id));
    }
    NEED(r, s->unknown >= 0, "no piece has the type UNKNOWN");
    for (int byte = 0; byte < 256 && s->byte_fallback; byte++) {
        NEED(r, s->byte_ids[byte] >= 0,
             "byte_fallback is true, but the piece <0x%02X> of the type BYTE is missing", byte);
    }
    return STATUS_OK;
}

/* Returns the id of a control piece that the file names; otherwise of the default name. */
static int32_t find_control(const struct sentencepiece *s, const ProtobufCBinaryData *name,
                            const char *default_name)
{
    const char *text = name->len > 0 ? (const char *)name->data : default_name;
    const struct text_slot *slot =
        text_map_find(&s->other, text, name->len > 0 ? name->len : strlen(default_name));
    bool found = slot != NULL && s->pieces[slot->value].type == SENTENCEPIECE_CONTROL;
    return found ? (int32_t)slot->value : -1;
}

static status read_trainer(const struct model_reader *r, const trainer_proto *t)
{
    static const char *const names[] = {"0", "UNIGRAM", "BPE", "WORD", "CHAR"};
    struct sentencepiece *s = r->s;
    int type = (int)t->model_type;
    NEED(r,
         type == PIECE_FILE__TRAINER_SPEC__MODEL_TYPE__UNIGRAM ||
             type == PIECE_FILE__TRAINER_SPEC__MODEL_TYPE__BPE,
         "model_type %s is not supported; supported: UNIGRAM and BPE",
         type > 0 && type < 5 ? names[type] : "(unknown)");
    s->is_bpe = type == PIECE_FILE__TRAINER_SPEC__MODEL_TYPE__BPE;
    s->byte_fallback = t->byte_fallback;
    s->space_is_suffix = t->treat_whitespace_as_suffix;
    s->unknown_text = DEFAULT_UNKNOWN_TEXT;
    if (t->has_unk_surface) {
        NEED(r, t->unk_surface.len <= UNKNOWN_BYTES_MAX && is_text(&t->unk_surface),
             "unk_surface is not a text of at most %zu bytes in UTF-8 without NUL",
             UNKNOWN_BYTES_MAX);
        TRY(text_store_copy(&s->store, (const char *)t->unk_surface.data, t->unk_surface.len,
                            &s->unknown_text));
    }
    return STATUS_OK;
}

static status read_normalizer(const struct model_reader *r, const normalizer_proto *n)
{
    struct sentencepiece *s = r->s;
    NEED(r, n->base.n_unknown_fields == 0, "normalizer_spec has the field %u: not supported",
         (unsigned)n->base.unknown_fields[0].tag);
    s->add_dummy_prefix = n->add_dummy_prefix;
    s->remove_extra_whitespaces = n->remove_extra_whitespaces;
    s->escape_whitespaces = n->escape_whitespaces;
    return charsmap_open(&s->charsmap, n->precompiled_charsmap.data, n->precompiled_charsmap.len,
                         r->path);
}

/* Builds a trie of the normal pieces for Unigram, or of the user-defined pieces alone. */
static status build_trie(const struct sentencepiece *s, bool only_user_defined,
                         struct piece_trie *trie)
{
    struct piece_key *keys = NULL;
    TRY(ALLOCATE(keys, (size_t)s->count + 1, "the pieces of a model"));
    int64_t count = 0;
    for (int32_t id = 0; id < s->count; id++) {
        const struct sentencepiece_piece *p = &s->pieces[id];
        if (p->type == SENTENCEPIECE_USER_DEFINED ||
            (p->type == SENTENCEPIECE_NORMAL && !only_user_defined)) {
            keys[count++] = (struct piece_key){p->text, p->bytes, id};
        }
    }
    status result = piece_trie_build(trie, keys, count);
    free(keys);
    return result;
}

static status build_unigram(struct sentencepiece *s)
{
    struct unigram *u = &s->unigram;
    float lowest = FLT_MAX;
    TRY(build_trie(s, false, &u->trie));
    TRY(ALLOCATE(u->scores, s->count, "the scores of pieces"));
    TRY(ALLOCATE(u->is_user_defined, s->count, "the flags of pieces"));
    for (int64_t id = 0; id < s->count; id++) {
        u->scores[id] = s->pieces[id].score;
        u->is_user_defined[id] = s->pieces[id].type == SENTENCEPIECE_USER_DEFINED;
        if (s->pieces[id].type == SENTENCEPIECE_NORMAL) {
            lowest = fminf(lowest, s->pieces[id].score);
        }
    }
    u->unknown = s->unknown;
    u->unknown_score = lowest - (float)UNIGRAM_UNKNOWN_PENALTY;
    u->has_single_precision = true;
    return STATUS_OK;
}

static status read_model(const struct model_reader *r, const model_proto *m)
{
    static const trainer_proto no_trainer = PIECE_FILE__TRAINER_SPEC__INIT;
    static const normalizer_proto no_normalizer = PIECE_FILE__NORMALIZER_SPEC__INIT;
    const trainer_proto *trainer = m->trainer_spec != NULL ? m->trainer_spec : &no_trainer;
    struct sentencepiece *s = r->s;
    NEED(r, m->denormalizer_spec == NULL || m->denormalizer_spec->precompiled_charsmap.len == 0,
         "denormalizer_spec has a character map, which is not supported");
    TRY(read_trainer(r, trainer));
    TRY(read_normalizer(r, m->normalizer_spec != NULL ? m->normalizer_spec : &no_normalizer));
    TRY(read_pieces(r, m));
    s->bos = find_control(s, &trainer->bos_piece, "<s>");
    s->eos = find_control(s, &trainer->eos_piece, "</s>");
    TRY(build_trie(s, true, &s->user_defined));
    return s->is_bpe ? STATUS_OK : build_unigram(s);
}

/* Reads an integer of the wire format. Returns false at the end of the message. */
static bool read_varint(const uint8_t *data, size_t bytes, size_t *pos, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && *pos < bytes; shift += 7) {
        uint8_t byte = data[(*pos)++];
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* Counts the fields of a message up to the first damaged one. If inner is not NULL, adds the fields
 * of the messages in this message to *inner. These have field numbers up to LAST_MESSAGE. */
static size_t count_fields(const uint8_t *data, size_t bytes, size_t *inner)
{
    enum { VARINT = 0, FIXED_64 = 1, LENGTH = 2, FIXED_32 = 5, LAST_MESSAGE = 5 };
    size_t count = 0;
    uint64_t tag, value = 0;
    for (size_t pos = 0; read_varint(data, bytes, &pos, &tag); count++) {
        int type = (int)(tag & 7);
        bool has_value = type == VARINT || type == LENGTH;
        if (has_value && !read_varint(data, bytes, &pos, &value)) {
            break;
        }
        size_t length = type == FIXED_64   ? 8
                        : type == FIXED_32 ? 4
                        : type == LENGTH   ? (size_t)value
                                           : 0;
        if ((!has_value && length == 0) || length > bytes - pos) {
            break;
        }
        if (type == LENGTH && inner != NULL && tag >> 3 <= LAST_MESSAGE) {
            *inner += count_fields(data + pos, length, NULL);
        }
        pos += length;
    }
    return count;
}

/* Refuses a file with so many fields that protobuf-c would allocate many times its size. */
static status check_fields(const struct model_reader *r, const char *data, size_t bytes)
{
    size_t inner = 0, count = count_fields((const uint8_t *)data, bytes, &inner);
    NEED(r, count <= FIELDS_MAX && inner <= INNER_FIELDS_MAX,
         "it has %zu fields, and %zu in its messages; at most %zu and %zu are supported", count,
         inner, FIELDS_MAX, INNER_FIELDS_MAX);
    return STATUS_OK;
}

static status create_model(const char *data, size_t bytes, struct sentencepiece **out)
{
    struct sentencepiece *s = NULL;
    TRY(ALLOCATE(s, 1, "a tokenizer"));
    *out = s;
    s->unknown = s->bos = s->eos = -1;
    memset(s->byte_ids, 0xff, sizeof s->byte_ids);
    TRY(ALLOCATE(s->data, bytes + 1, "a model"));
    memcpy(s->data, data, bytes);
    s->data_bytes = bytes;
    return STATUS_OK;
}

status sentencepiece_open(const char *data, size_t bytes, const char *path,
                          struct sentencepiece **out)
{
    struct model_reader r = {.path = path};
    *out = NULL;
    NEED(&r, bytes <= SENTENCEPIECE_FILE_BYTES_MAX, "it has %zu bytes; at most %zu are supported",
         bytes, SENTENCEPIECE_FILE_BYTES_MAX);
    TRY(check_fields(&r, data, bytes));
    model_proto *m = piece_file__model_proto__unpack(NULL, bytes, (const uint8_t *)data);
    NEED(&r, m != NULL, "it is not a SentencePiece model: the protobuf message is damaged");
    status result = create_model(data, bytes, &r.s);
    KEEP_FIRST(result, result == STATUS_OK ? read_model(&r, m) : result);
    piece_file__model_proto__free_unpacked(m, NULL);
    if (result != STATUS_OK) {
        sentencepiece_close(&r.s);
    }
    *out = r.s;
    return result;
}

void sentencepiece_close(struct sentencepiece **model)
{
    struct sentencepiece *s = *model;
    if (s == NULL) {
        return;
    }
    unigram_free(&s->unigram);
    piece_trie_free(&s->user_defined);
    charsmap_close(&s->charsmap);
    text_map_free(&s->normal);
    text_map_free(&s->other);
    text_store_free(&s->store);
    free(s->pieces);
    free(s->data);
    free(s);
    *model = NULL;
}

/* ---- new models ---- */

/* Changes the existing piece, or fills *added. Returns whether *added is used. */
static bool set_control(const struct sentencepiece *s, model_proto *m, char *text,
                        piece_proto *added)
{
    const struct text_slot *slot = text_map_find(&s->other, text, strlen(text));
    slot = slot != NULL ? slot : text_map_find(&s->normal, text, strlen(text));
    piece_proto *piece = slot != NULL ? m->pieces[slot->value] : added;
    if (slot == NULL) {
        piece_file__model_proto__sentence_piece__init(added);
        added->has_piece = true;
        added->piece = (ProtobufCBinaryData){.data = (uint8_t *)text, .len = strlen(text)};
        added->has_score = true;
    }
    if (slot == NULL || s->pieces[slot->value].type != SENTENCEPIECE_UNKNOWN) {
        piece->has_type = true;
        piece->type = PIECE_FILE__MODEL_PROTO__SENTENCE_PIECE__TYPE__CONTROL;
    }
    return slot == NULL;
}

static status pack_and_open(const model_proto *m, const char *path, struct sentencepiece **out)
{
    size_t bytes = piece_file__model_proto__get_packed_size(m);
    uint8_t *data = NULL;
    TRY(ALLOCATE(data, bytes + 1, "a model"));
    piece_file__model_proto__pack(m, data);
    status result = sentencepiece_open((const char *)data, bytes, path, out);
    free(data);
    return result;
}

status sentencepiece_add_control(const struct sentencepiece *s, char *const *texts, int count,
                                 struct sentencepiece **out)
{
    *out = NULL;
    model_proto *m = piece_file__model_proto__unpack(NULL, s->data_bytes, (const uint8_t *)s->data);
    piece_proto *added = NULL, **all = NULL;
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, m != NULL, STATUS_INTERNAL, "out of memory for %d added tokens",
                 count);
    TRY_GOTO(result, done, ALLOCATE(added, (size_t)count + 1, "added tokens"));
    TRY_GOTO(result, done, ALLOCATE(all, (size_t)s->count + (size_t)count + 1, "added tokens"));
    piece_proto **read = m->pieces;
    memcpy(all, read, m->n_pieces * sizeof *all);
    size_t total = m->n_pieces, first = total;
    for (int i = 0; i < count; i++) {
        piece_proto *piece = &added[total - first];
        if (set_control(s, m, texts[i], piece)) {
            all[total++] = piece;
        }
    }
    m->pieces = all;
    m->n_pieces = total;
    result = pack_and_open(m, "the tokenizer with added tokens", out);
    m->pieces = read;
    m->n_pieces = first;
done:
    free(added);
    free(all);
    if (m != NULL) {
        piece_file__model_proto__free_unpacked(m, NULL);
    }
    return result;
}

/* ---- properties ---- */

const char *sentencepiece_data(const struct sentencepiece *s, size_t *bytes)
{
    *bytes = s->data_bytes;
    return s->data;
}

int64_t sentencepiece_count(const struct sentencepiece *s)
{
    return s->count;
}

struct sentencepiece_piece sentencepiece_get_piece(const struct sentencepiece *s, int32_t id)
{
    return s->pieces[id];
}

bool sentencepiece_is_bpe(const struct sentencepiece *s)
{
    return s->is_bpe;
}

bool sentencepiece_adds_space(const struct sentencepiece *s)
{
    return s->add_dummy_prefix;
}

bool sentencepiece_merges_spaces(const struct sentencepiece *s)
{
    return s->remove_extra_whitespaces;
}

bool sentencepiece_has_usual_spaces(const struct sentencepiece *s)
{
    return s->escape_whitespaces && !s->space_is_suffix;
}

const struct charsmap *sentencepiece_charsmap(const struct sentencepiece *s)
{
    return &s->charsmap;
}

bool sentencepiece_has_bytes(const struct sentencepiece *s)
{
    return s->byte_fallback;
}

int32_t sentencepiece_bos(const struct sentencepiece *s)
{
    return s->bos;
}

int32_t sentencepiece_eos(const struct sentencepiece *s)
{
    return s->eos;
}

static ProtobufCBinaryData make_data(const char *text)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)text, .len = strlen(text)};
}

static void fill_piece(const struct sentencepiece_piece *piece, piece_proto *out)
{
    piece_file__model_proto__sentence_piece__init(out);
    out->has_piece = out->has_score = out->has_type = true;
    out->piece = make_data(piece->text);
    out->score = piece->score;
    out->type = (PieceFile__ModelProto__SentencePiece__Type)piece->type;
}

static void fill_normalizer(const struct sentencepiece_design *d, normalizer_proto *out)
{
    out->has_name = out->has_add_dummy_prefix = out->has_remove_extra_whitespaces = true;
    out->name = make_data(d->charsmap_bytes > 0 ? "user_defined" : "identity");
    out->add_dummy_prefix = d->adds_space;
    out->remove_extra_whitespaces = d->merges_spaces;
    out->has_precompiled_charsmap = d->charsmap_bytes > 0;
    out->precompiled_charsmap =
        (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)d->charsmap, .len = d->charsmap_bytes};
}

status sentencepiece_create(const struct sentencepiece_design *d, const char *path,
                            struct sentencepiece **out)
{
    model_proto m = PIECE_FILE__MODEL_PROTO__INIT;
    trainer_proto trainer = PIECE_FILE__TRAINER_SPEC__INIT;
    normalizer_proto normalizer = PIECE_FILE__NORMALIZER_SPEC__INIT;
    piece_proto *all = NULL, **list = NULL;
    status result = STATUS_OK;
    *out = NULL;
    TRY_GOTO(result, done, ALLOCATE(all, (size_t)d->count + 1, path));
    TRY_GOTO(result, done, ALLOCATE(list, (size_t)d->count + 1, path));
    trainer.has_model_type = trainer.has_byte_fallback = true;
    trainer.model_type = d->is_bpe ? PIECE_FILE__TRAINER_SPEC__MODEL_TYPE__BPE
                                   : PIECE_FILE__TRAINER_SPEC__MODEL_TYPE__UNIGRAM;
    for (int64_t i = 0; i < d->count; i++) {
        fill_piece(&d->pieces[i], &all[i]);
        list[i] = &all[i];
        trainer.byte_fallback |= d->pieces[i].type == SENTENCEPIECE_BYTE;
    }
    trainer.has_bos_piece = d->bos != NULL;
    trainer.has_eos_piece = d->eos != NULL;
    trainer.bos_piece = d->bos != NULL ? make_data(d->bos) : trainer.bos_piece;
    trainer.eos_piece = d->eos != NULL ? make_data(d->eos) : trainer.eos_piece;
    fill_normalizer(d, &normalizer);
    m.pieces = list;
    m.n_pieces = (size_t)d->count;
    m.trainer_spec = &trainer;
    m.normalizer_spec = &normalizer;
    result = pack_and_open(&m, path, out);
done:
    free(all);
    free(list);
    return result;
}
