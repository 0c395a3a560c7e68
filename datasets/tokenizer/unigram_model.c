/* Unigram models of tokenizer.json, as transformers writes them for T5, XLM-RoBERTa and others.
 *
 * datasets/sentencepiece/unigram.h segments each word that the pre-tokenizer makes. Three rules are
 * those of Hugging Face `tokenizers`: scores and their sums are f64. Consecutive unknown characters
 * become one token. Every piece of the vocabulary is found in a text, also the piece of a special
 * token. */
#include "datasets/tokenizer/unigram_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/unigram_train.h"
#include "datasets/tokenizer/json_reader_impl.h"
#include "datasets/tokenizer/post_processor.h"
#include "datasets/tokenizer/steps.h"
#include "datasets/tokenizer/word_count.h"

/* Training: the characters of the vocabulary are this share of the text; the others are written as
 * bytes. This is the default of SentencePiece. */
#define CHARACTER_COVERAGE 0.9995
#define CODE_POINTS 0x110000u
/* The byte tokens and special tokens score this much below the pieces, so that their spelling in a
 * text (<0x0A>) is not read as the token. */
#define RESERVED_PENALTY 1000.0

/* U+2581 and the graphic ASCII characters, which are always in the vocabulary. */
static const char always[] =
    "\xE2\x96\x81!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    "[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";

static const char *const reserved[] = {"<unk>", "<s>", "</s>"};

enum { BYTE_TOKENS = 256, RESERVED = COUNT(reserved) + BYTE_TOKENS };

static status create_model(struct tokenizer *t, int64_t count)
{
    TRY(ALLOCATE(t->unigram, 1, "a Unigram model"));
    t->unigram->count = count;
    t->unigram->model.unknown = -1;
    return ALLOCATE(t->unigram->model.scores, count, "scores");
}

void unigram_model_free(struct unigram_model *u)
{
    if (u != NULL) {
        unigram_free(&u->model);
        free(u);
    }
}

static status build_trie(struct tokenizer *t)
{
    struct unigram_model *u = t->unigram;
    struct piece_key *keys = NULL;
    TRY(ALLOCATE(keys, u->count, "pieces"));
    for (int32_t id = 0; id < u->count; id++) {
        keys[id] = (struct piece_key){t->tokens[id].bytes, t->tokens[id].length, id};
    }
    status result = piece_trie_build(&u->model.trie, keys, u->count);
    free(keys);
    return result;
}

status unigram_model_build(struct tokenizer *t)
{
    struct unigram_model *u = t->unigram;
    double lowest = INFINITY;
    for (int64_t id = 0; id < u->count; id++) {
        lowest = fmin(lowest, u->model.scores[id]);
    }
    u->model.unknown_score = lowest - UNIGRAM_UNKNOWN_PENALTY;
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        const struct text_slot *slot = text_map_find(&t->by_bytes, text, strlen(text));
        u->byte_ids[byte] = slot == NULL ? -1 : (int32_t)slot->value;
    }
    return build_trie(t);
}

/* ---- encoding ---- */

/* Scratch memory for the words of a text. */
struct word_encoder {
    const struct tokenizer *t;
    struct token_list *out;
    struct unigram_step *steps; /* [capacity + 1] */
    uint32_t *ends;
    size_t capacity;
};

static status reserve_steps(struct word_encoder *e, size_t bytes)
{
    if (e->steps != NULL && bytes <= e->capacity) {
        return STATUS_OK;
    }
    size_t capacity = 2 * bytes + 64;
    REQUIRE(bytes < INT32_MAX / 2, STATUS_DATA,
            "a word of %zu bytes: the pre-tokenizer's words may have at most 1 GiB", bytes);
    TRY(GROW(e->ends, capacity + 1, "a word"));
    TRY(GROW(e->steps, capacity + 1, "a word"));
    e->capacity = capacity;
    return STATUS_OK;
}

/* Appends the ids of a run of unknown characters. */
static status append_unknown(const struct word_encoder *e, const char *text, size_t bytes,
                             size_t offset)
{
    const struct unigram_model *u = e->t->unigram;
    const struct text_slot *slot = text_map_find(&e->t->by_bytes, text, bytes);
    bool has_bytes = u->byte_fallback && slot == NULL;
    for (size_t i = 0; i < bytes && has_bytes; i++) {
        has_bytes = u->byte_ids[(unsigned char)text[i]] >= 0;
    }
    for (size_t i = 0; i < bytes && has_bytes; i++) {
        e->out->ids[e->out->count++] = u->byte_ids[(unsigned char)text[i]];
    }
    if (!has_bytes) {
        REQUIRE(slot != NULL || u->model.unknown >= 0, STATUS_DATA,
                "the text at byte %zu has no token, and the tokenizer has no unknown token",
                offset);
        e->out->ids[e->out->count++] = slot != NULL ? (int32_t)slot->value : u->model.unknown;
    }
    return STATUS_OK;
}

static status encode_word(void *context, const char *word, size_t bytes, size_t offset)
{
    struct word_encoder *e = context;
    TRY(reserve_steps(e, bytes));
    TRY(token_list_reserve(e->out, (int64_t)bytes));
    unigram_find_path(&e->t->unigram->model, word, bytes, e->steps);
    int64_t pieces = 0;
    for (size_t end = bytes; end > 0; end = e->steps[end].begin) {
        e->ends[pieces++] = (uint32_t)end;
    }
    size_t unknown_begin = 0; /* of the run of unknown characters before the piece */
    while (pieces-- > 0) {
        const struct unigram_step *step = &e->steps[e->ends[pieces]];
        if (step->id == e->t->unigram->model.unknown) {
            continue;
        }
        if (step->begin > unknown_begin) {
            TRY(append_unknown(e, word + unknown_begin, step->begin - unknown_begin, offset));
        }
        e->out->ids[e->out->count++] = step->id;
        unknown_begin = e->ends[pieces];
    }
    return bytes > unknown_begin
               ? append_unknown(e, word + unknown_begin, bytes - unknown_begin, offset)
               : STATUS_OK;
}

status unigram_model_encode(const struct tokenizer *t, const char *text, size_t bytes,
                            struct text_place place, struct token_list *out)
{
    struct word_encoder e = {.t = t, .out = out};
    status result =
        word_split_run(&t->split, text, bytes, place.at_start, place.continued, encode_word, &e);
    free(e.steps);
    free(e.ends);
    return result;
}

/* ---- tokenizer.json ---- */

static status read_piece(const struct json_reader *r, json_t *list, size_t index, json_t *ids)
{
    const json_t *entry = json_array_get(list, index), *text = json_array_get(entry, 0);
    const json_t *score = json_array_get(entry, 1);
    NEED(r,
         json_array_size(entry) == 2 && json_string_length(text) > 0 && json_is_number(score) &&
             isfinite(json_number_value(score)),
         "model.vocab[%zu] is not a piece and its score", index);
    NEED(r, json_object_get(ids, json_string_value(text)) == NULL,
         "model.vocab has the piece '" EXCERPT "' twice", json_string_value(text));
    REQUIRE(json_object_set_new(ids, json_string_value(text), json_integer((json_int_t)index)) == 0,
            STATUS_INTERNAL, "out of memory for the piece %zu", index);
    return STATUS_OK;
}

static status read_vocab(const struct json_reader *r, json_t *model, json_t **ids)
{
    TRY(json_reader_check_keys(r, model, "model", "|type|unk_id|vocab|byte_fallback|"));
    json_t *list = json_object_get(model, "vocab");
    NEED(r, json_array_size(list) > 0, "model.vocab is not a list with pieces in it");
    *ids = json_object();
    REQUIRE(*ids != NULL, STATUS_INTERNAL, "out of memory for %zu pieces", json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(read_piece(r, list, i, *ids));
    }
    return STATUS_OK;
}

static status read_options(const struct json_reader *r, const json_t *model)
{
    const json_t *list = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_id");
    int64_t count = (int64_t)json_array_size(list);
    TRY(create_model(r->t, count));
    struct unigram_model *u = r->t->unigram;
    for (int64_t id = 0; id < count; id++) {
        u->model.scores[id] =
            json_number_value(json_array_get(json_array_get(list, (size_t)id), 1));
    }
    NEED(r,
         json_reader_is_null(unk) || (json_is_integer(unk) && json_integer_value(unk) >= 0 &&
                                      json_integer_value(unk) < count),
         "model.unk_id is neither null nor an id of model.vocab");
    u->model.unknown = json_reader_is_null(unk) ? -1 : (int32_t)json_integer_value(unk);
    return json_reader_read_bool(r, model, "model", "byte_fallback", false, &u->byte_fallback);
}

static status read_tokens(struct json_reader *r)
{
    TRY(json_reader_read_vocab(r, NULL));
    for (size_t i = 0; i < json_array_size(r->added); i++) {
        TRY(json_reader_read_added(r, json_array_get(r->added, i)));
    }
    return STATUS_OK;
}

/* Reads the file; *ids receives the ids of the pieces, which the caller frees. */
static status read_file(struct json_reader *r, json_t *root, json_t **ids)
{
    json_t *model = json_object_get(root, "model");
    int64_t vocab_size = 0;
    TRY(read_vocab(r, model, ids));
    r->vocab = *ids;
    r->added = json_object_get(root, "added_tokens");
    NEED(r, json_reader_is_null(r->added) || json_is_array(r->added), "added_tokens is not a list");
    TRY(json_reader_check_ids(r, &vocab_size));
    TRY(tokenizer_allocate(TOKENIZER_UNIGRAM, vocab_size, &r->t));
    r->t->source_path = r->path;
    TRY(read_options(r, model));
    TRY(steps_read_normalizer(r, json_object_get(root, "normalizer")));
    TRY(steps_read_split(r, json_object_get(root, "pre_tokenizer")));
    TRY(steps_read_decoder(r, json_object_get(root, "decoder")));
    TRY(read_tokens(r));
    return post_processor_read(r, json_object_get(root, "post_processor"));
}

status unigram_model_read(struct json_reader *r, json_t *root)
{
    json_t *ids = NULL;
    status result = read_file(r, root, &ids);
    r->vocab = NULL;
    json_decref(ids);
    return result;
}

json_t *unigram_model_to_json(const struct tokenizer *t)
{
    const struct unigram_model *u = t->unigram;
    json_t *vocab = json_array();
    for (int64_t id = 0; id < u->count && vocab != NULL; id++) {
        json_t *entry = json_pack("[s, f]", t->tokens[id].bytes, u->model.scores[id]);
        if (json_array_append_new(vocab, entry) != 0) {
            json_decref(vocab);
            return NULL;
        }
    }
    json_t *unk = u->model.unknown < 0 ? json_null() : json_integer(u->model.unknown);
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "Unigram", "unk_id", unk, "vocab", vocab,
                     "byte_fallback", u->byte_fallback ? 1 : 0);
}

/* ---- training ---- */

/* The input of the trainer: words that contain only the characters of the vocabulary. */
struct training {
    bool *in_alphabet; /* [CODE_POINTS] */
    int64_t alphabet;  /* number of characters */
    struct unigram_word *words;
    int64_t count;
};

struct character {
    uint32_t code;
    int64_t count;
};

static int compare_characters(const void *a, const void *b)
{
    const struct character *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count ? 1 : -1)
                                : (x->code > y->code) - (x->code < y->code);
}

/* Adds the characters that are always in the vocabulary, as if each occurred once. */
static void add_usual_characters(struct training *t, struct character *characters)
{
    for (size_t pos = 0; pos < sizeof always - 1; t->alphabet++) {
        uint32_t code = 0;
        pos += utf8_read(always + pos, sizeof always - 1 - pos, &code);
        t->in_alphabet[code] = true;
        characters[code].count++;
    }
}

/* Selects the usual characters, and the most frequent ones until all are the wanted share of
 * the text. */
static void choose_alphabet(struct training *t, struct character *characters)
{
    int64_t total = 0, covered = 0;
    add_usual_characters(t, characters);
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        total += characters[code].count;
    }
    qsort(characters, CODE_POINTS, sizeof *characters, compare_characters);
    for (uint32_t i = 0; i < CODE_POINTS && characters[i].count > 0 &&
                         (double)covered < CHARACTER_COVERAGE * (double)total;
         i++) {
        t->alphabet += !t->in_alphabet[characters[i].code];
        t->in_alphabet[characters[i].code] = true;
        covered += characters[i].count;
    }
}

static status find_alphabet(struct training *t, const struct word_count *words)
{
    struct character *characters = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(characters, CODE_POINTS, "an alphabet"));
    TRY_GOTO(result, done, ALLOCATE(t->in_alphabet, CODE_POINTS, "an alphabet"));
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        characters[code].code = code;
    }
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        for (size_t pos = 0; slot->text != NULL && pos < slot->bytes;) {
            uint32_t code = 0;
            pos += utf8_read(slot->text + pos, slot->bytes - pos, &code);
            characters[code].count += slot->value;
        }
    }
    choose_alphabet(t, characters);
done:
    free(characters);
    return result;
}

/* Adds the parts of a word that are within the alphabet. There is room for all of them. */
static void add_word_parts(struct training *t, const struct text_slot *slot)
{
    size_t begin = 0;
    for (size_t pos = 0; pos < slot->bytes;) {
        uint32_t code = 0;
        size_t bytes = utf8_read(slot->text + pos, slot->bytes - pos, &code);
        if (!t->in_alphabet[code]) {
            if (pos > begin) {
                t->words[t->count++] =
                    (struct unigram_word){slot->text + begin, (uint32_t)(pos - begin), slot->value};
            }
            begin = pos + bytes;
        }
        pos += bytes;
    }
    if (slot->bytes > begin) {
        t->words[t->count++] =
            (struct unigram_word){slot->text + begin, (uint32_t)(slot->bytes - begin), slot->value};
    }
}

static int compare_words(const void *a, const void *b)
{
    const struct unigram_word *x = a, *y = b;
    int difference = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (difference != 0 || x->bytes != y->bytes) {
        return difference != 0 ? difference : (x->bytes > y->bytes) - (x->bytes < y->bytes);
    }
    return (x->count > y->count) - (x->count < y->count);
}

/* Lists the words in byte order, because the order of the slots is random. */
static status list_words(struct training *t, const struct word_count *words)
{
    size_t parts = sizeof always;
    for (size_t i = 0; i < words->map.capacity; i++) {
        parts += words->map.slots[i].text != NULL ? words->map.slots[i].bytes / 2 + 1 : 0;
    }
    TRY(ALLOCATE(t->words, parts, "words"));
    for (size_t i = 0; i < words->map.capacity; i++) {
        if (words->map.slots[i].text != NULL) {
            add_word_parts(t, &words->map.slots[i]);
        }
    }
    for (size_t pos = 0; pos < sizeof always - 1;) {
        uint32_t bytes = (uint32_t)utf8_character_bytes(always + pos, sizeof always - 1 - pos);
        t->words[t->count++] = (struct unigram_word){always + pos, bytes, 1};
        pos += bytes;
    }
    qsort(t->words, (size_t)t->count, sizeof *t->words, compare_words);
    return STATUS_OK;
}

/* Appends a piece to the list model.vocab. */
static bool append_piece(json_t *vocab, const char *text, size_t bytes, double score)
{
    json_t *entry = json_pack("[s%, f]", text, bytes, score);
    return json_array_append_new(vocab, entry) == 0;
}

static json_t *build_vocab(const struct unigram_piece *pieces, int64_t count)
{
    json_t *vocab = json_array();
    double low = (count > 0 ? pieces[count - 1].score : 0) - RESERVED_PENALTY;
    bool fits = vocab != NULL;
    for (int i = 0; i < COUNT(reserved) && fits; i++) {
        fits = append_piece(vocab, reserved[i], strlen(reserved[i]), low);
    }
    for (int byte = 0; byte < BYTE_TOKENS && fits; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        fits = append_piece(vocab, text, strlen(text), low);
    }
    for (int64_t i = 0; i < count && fits; i++) {
        fits = append_piece(vocab, pieces[i].text, pieces[i].bytes, pieces[i].score);
    }
    if (!fits) {
        json_decref(vocab);
        return NULL;
    }
    return vocab;
}

static json_t *build_added_tokens(void)
{
    json_t *added = json_array();
    for (int id = 0; id < COUNT(reserved) && added != NULL; id++) {
        json_t *token =
            json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", reserved[id],
                      "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
        if (json_array_append_new(added, token) != 0) {
            json_decref(added);
            return NULL;
        }
    }
    return added;
}

/* Builds tokenizer.json with the normalizer and decoder of Llama 2, so that decoding gives the
 * same text. */
static status create_tokenizer(const struct unigram_piece *pieces, int64_t count,
                               struct tokenizer **out)
{
    static const char steps[] =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
        "\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"\u2581\"}]},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\","
        "\"prepend_scheme\":\"never\",\"split\":true},\"post_processor\":null,"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
        "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}}";
    json_t *root = json_loads(steps, 0, NULL);
    json_t *model = json_pack("{s:s, s:i, s:o, s:b}", "type", "Unigram", "unk_id", 0, "vocab",
                              build_vocab(pieces, count), "byte_fallback", 1);
    bool fits = json_object_set_new(root, "added_tokens", build_added_tokens()) == 0;
    fits = json_object_set_new(root, "model", model) == 0 && fits;
    char *text = fits ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a vocabulary");
    status result = tokenizer_from_text(text, strlen(text), "the trained tokenizer", out);
    free(text);
    return result;
}

static status train_pieces(const struct word_count *words, int64_t vocab_size, int workers,
                           struct training *t, struct tokenizer **out)
{
    struct unigram_piece *pieces = NULL;
    int64_t count = 0;
    TRY(find_alphabet(t, words));
    REQUIRE(RESERVED + t->alphabet <= vocab_size, STATUS_USAGE,
            "a vocabulary of %" PRId64 " is too small: this text needs %" PRId64
            " (%d special tokens, %d bytes, and its characters)",
            vocab_size, RESERVED + t->alphabet, COUNT(reserved), (int)BYTE_TOKENS);
    TRY(list_words(t, words));
    TRY(unigram_train(t->words, t->count, vocab_size - RESERVED, workers, &pieces, &count));
    status result = create_tokenizer(pieces, count, out);
    free(pieces);
    return result;
}

status unigram_model_train(int64_t vocab_size, const struct corpus_source *source, int workers,
                           struct tokenizer **out)
{
    REQUIRE(vocab_size > RESERVED && vocab_size <= TOKENIZER_VOCAB_MAX, STATUS_USAGE,
            "a vocabulary of %" PRId64 ": unigram takes %d to %" PRId64, vocab_size,
            (int)RESERVED + 1, TOKENIZER_VOCAB_MAX);
    struct word_count words;
    struct training t = {0};
    TRY(word_count_spaces(UNIGRAM_WORD_BYTES, source, workers, &words));
    status result = train_pieces(&words, vocab_size, workers < 1 ? 1 : workers, &t, out);
    free(t.in_alphabet);
    free(t.words);
    word_count_free(&words);
    return result;
}
