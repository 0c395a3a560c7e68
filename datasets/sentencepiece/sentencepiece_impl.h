/* Internal declarations of the sentencepiece folder. */
#pragma once

#include "base/text_map.h"
#include "base/text_store.h"
#include "datasets/sentencepiece/charsmap.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/sentencepiece/unigram.h"

struct sentencepiece {
    char *data; /* the file */
    size_t data_bytes;
    struct sentencepiece_piece *pieces; /* [count] */
    int64_t count;
    struct text_store store; /* memory of the texts */
    struct text_map normal;  /* normal, user-defined and unused pieces -> id */
    struct text_map other;   /* unknown, control and byte pieces -> id */
    int32_t unknown, bos, eos;
    int32_t byte_ids[256]; /* -1 without byte fallback */
    bool byte_fallback;
    const char *unknown_text; /* decoded form of the unknown piece */

    bool is_bpe;
    struct unigram unigram;         /* if not is_bpe */
    struct piece_trie user_defined; /* values: ids */

    /* the normalizer */
    struct charsmap charsmap;
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
    bool space_is_suffix; /* the dummy space comes after the text */
};

/* The pieces of a text so far. */
struct sentencepiece_output {
    int32_t *ids;
    uint32_t *ends; /* end of each piece in the text, without byte fallback; NULL: not written */
    int64_t count;
    size_t end; /* of the last piece */
    bool after_unknown;
};

/* sentencepiece_merge - encode a normalized text by BPE.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status sentencepiece_merge(const struct sentencepiece *s, const char *text, size_t bytes,
                           struct sentencepiece_output *out);

/* sentencepiece_emit - append the next piece, text[0, bytes), with its id. An unknown piece becomes
 * its bytes, or one id together with the unknown piece before it. */
void sentencepiece_emit(const struct sentencepiece *s, int32_t id, const char *text, size_t bytes,
                        struct sentencepiece_output *out);
