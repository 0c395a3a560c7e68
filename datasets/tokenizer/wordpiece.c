/* The encoder follows a trie of bytes from the beginning of a word and stores the last piece that
 * ended. It needs at most (bytes of the word) x (bytes of the longest piece) steps, for any input.
 *
 * Source    Schuster, Nakajima 2012; the greedy split of Devlin et al. 2018, arXiv:1810.04805 */
#include "datasets/tokenizer/wordpiece.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/tokenizer/tokenizer_impl.h"

#define FREE UINT32_MAX
#define NODES_MAX ((int64_t)1 << 24) /* a node and a byte fit in 32 bits and never equal FREE */

static struct wordpiece_edge *find_edge(const struct wordpiece *w, uint32_t node,
                                        unsigned char byte)
{
    uint32_t from = node << 8 | byte;
    for (uint32_t pos = (uint32_t)text_map_hash_int(from) & w->edge_mask;;
         pos = (pos + 1) & w->edge_mask) {
        if (w->edges[pos].from == from || w->edges[pos].from == FREE) {
            return &w->edges[pos];
        }
    }
}

static uint32_t add_piece(struct wordpiece *w, uint32_t node, const char *text, size_t bytes,
                          uint32_t *nodes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        struct wordpiece_edge *edge = find_edge(w, node, byte);
        if (edge->from == FREE) {
            *edge = (struct wordpiece_edge){node << 8 | byte, (*nodes)++};
        }
        node = edge->to;
    }
    return node;
}

static bool is_continuation(const struct wordpiece *w, const struct token *token)
{
    size_t prefix = strlen(w->prefix);
    return token->length >= prefix && memcmp(token->bytes, w->prefix, prefix) == 0;
}

static status reserve_trie(const struct tokenizer *t, struct wordpiece *w)
{
    int64_t nodes = 2;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        nodes += t->tokens[id].in_model ? 2 * (int64_t)t->tokens[id].length : 0;
    }
    REQUIRE(nodes < NODES_MAX, STATUS_DATA,
            "%s: the pieces have more than %" PRId64 " bytes, which is not supported",
            t->source_path == NULL ? "training" : t->source_path, NODES_MAX / 2);
    int64_t slots = 16;
    while (slots < nodes * 2) {
        slots *= 2;
    }
    w->edge_mask = (uint32_t)(slots - 1);
    TRY(ALLOCATE(w->edges, slots, "pieces"));
    TRY(ALLOCATE(w->ids, nodes, "pieces"));
    memset(w->edges, 0xff, (size_t)slots * sizeof *w->edges);
    memset(w->ids, 0xff, (size_t)nodes * sizeof *w->ids);
    return STATUS_OK;
}

status wordpiece_build(struct tokenizer *t)
{
    struct wordpiece *w = t->wordpiece;
    TRY(reserve_trie(t, w));
    uint32_t nodes = 2;
    size_t prefix = strlen(w->prefix);
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (!token->in_model) {
            continue;
        }
        w->ids[add_piece(w, 0, token->bytes, token->length, &nodes)] = (int32_t)id;
        if (is_continuation(w, token)) {
            uint32_t node = add_piece(w, 1, token->bytes + prefix, token->length - prefix, &nodes);
            w->ids[node] = (int32_t)id;
        }
    }
    return STATUS_OK;
}

void wordpiece_free(struct wordpiece *w)
{
    if (w != NULL) {
        free(w->edges);
        free(w->ids);
        free(w);
    }
}

/* Returns the longest piece at the beginning of the text; -1: none. */
static int32_t find_longest_piece(const struct wordpiece *w, uint32_t node, const char *text,
                                  size_t bytes, size_t *length)
{
    int32_t best = -1;
    for (size_t i = 0; i < bytes; i++) {
        const struct wordpiece_edge *edge = find_edge(w, node, (unsigned char)text[i]);
        if (edge->from == FREE) {
            break;
        }
        node = edge->to;
        if (w->ids[node] >= 0) {
            best = w->ids[node];
            *length = i + 1;
        }
    }
    return best;
}

struct encode_context {
    const struct wordpiece *w;
    struct token_list *out;
};

static status encode_word(void *context, const char *word, size_t bytes, size_t characters)
{
    struct encode_context *e = context;
    struct token_list *out = e->out;
    int64_t before = out->count;
    bool in_vocabulary = (int64_t)characters <= e->w->max_word_chars;
    TRY(token_list_reserve(out, in_vocabulary ? (int64_t)bytes : 1));
    for (size_t pos = 0, length = 0; pos < bytes && in_vocabulary; pos += length) {
        int32_t id = find_longest_piece(e->w, pos > 0, word + pos, bytes - pos, &length);
        in_vocabulary = id >= 0;
        out->ids[out->count++] = id;
    }
    if (!in_vocabulary) {
        out->ids[before] = e->w->unknown;
        out->count = before + 1;
    }
    return STATUS_OK;
}

status wordpiece_encode(const struct tokenizer *t, const char *text, size_t bytes,
                        struct token_list *out)
{
    struct encode_context e = {t->wordpiece, out};
    return bert_text_split_words(&t->wordpiece->normalizer, text, bytes, encode_word, &e);
}

/* Replacements that the decoder of Hugging Face `tokenizers` applies, in this order, to each
 * token and the space before it. */
static const struct {
    const char *from, *to;
} cleanup_rules[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                     {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                     {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};

/* Replaces every occurrence of `from` in text[0, bytes) in place; `to` is not longer
 * than `from`. */
static size_t replace_all(char *text, size_t bytes, const char *from, const char *to)
{
    size_t from_bytes = strlen(from), to_bytes = strlen(to), used = 0;
    for (size_t pos = 0; pos < bytes;) {
        if (bytes - pos >= from_bytes && memcmp(text + pos, from, from_bytes) == 0) {
            memcpy(text + used, to, to_bytes);
            used += to_bytes;
            pos += from_bytes;
        } else {
            text[used++] = text[pos++];
        }
    }
    return used;
}

static size_t append_token(const struct wordpiece *w, const struct token *token, bool first,
                           char *out)
{
    size_t used = 0, skipped = 0;
    if (!first && is_continuation(w, token)) {
        skipped = strlen(w->prefix);
    } else if (!first) {
        out[used++] = ' ';
    }
    memcpy(out + used, token->bytes + skipped, token->length - skipped);
    used += token->length - skipped;
    for (int i = 0; i < COUNT(cleanup_rules) && w->cleanup; i++) {
        used = replace_all(out, used, cleanup_rules[i].from, cleanup_rules[i].to);
    }
    return used;
}

status wordpiece_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes)
{
    size_t capacity = 1;
    for (int64_t i = 0; i < count; i++) {
        capacity += t->tokens[ids[i]].length + 1;
    }
    char *text = NULL;
    TRY(ALLOCATE(text, capacity, "a text"));
    size_t used = 0;
    bool first = true;
    for (int64_t i = 0; i < count; i++) {
        const struct token *token = &t->tokens[ids[i]];
        if (!(skip_special && token->special)) {
            used += append_token(t->wordpiece, token, first, text + used);
            first = false;
        }
    }
    text[used] = '\0';
    *out = text;
    if (out_bytes != NULL) {
        *out_bytes = used;
    }
    return STATUS_OK;
}
