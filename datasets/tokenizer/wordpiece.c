/* Encoding walks a trie of bytes from the word's beginning and remembers the last piece that ended: at most
 * (bytes of the word) times (bytes of the longest piece) steps, however hostile text and vocabulary are.
 *
 * Source    Schuster, Nakajima 2012; the greedy cut of Devlin et al. 2018, arXiv:1810.04805 */
#include "datasets/tokenizer/wordpiece.h"

#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/tokenizer_impl.h"

#define FREE UINT32_MAX
#define NODES_MOST ((int64_t)1 << 24) /* a node and a byte fit 32 bits, and FREE is none of them */

static struct wordpiece_edge *edge_of(const struct wordpiece *w, uint32_t node, unsigned char byte)
{
    uint32_t from = node << 8 | byte;
    for (uint32_t at = (uint32_t)text_map_mix(from) & w->edge_mask;; at = (at + 1) & w->edge_mask) {
        if (w->edges[at].from == from || w->edges[at].from == FREE) {
            return &w->edges[at];
        }
    }
}

static uint32_t add_piece(struct wordpiece *w, uint32_t node, const char *text, size_t bytes,
                          uint32_t *nodes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        struct wordpiece_edge *edge = edge_of(w, node, byte);
        if (edge->from == FREE) {
            *edge = (struct wordpiece_edge){node << 8 | byte, (*nodes)++};
        }
        node = edge->to;
    }
    return node;
}

static bool goes_on(const struct wordpiece *w, const struct token *token)
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
    REQUIRE(nodes < NODES_MOST, STATUS_DATA,
            "%s: the pieces have more than %lld bytes, which is not supported",
            t->origin == NULL ? "training" : t->origin, (long long)NODES_MOST / 2);
    int64_t slots = 16;
    while (slots < nodes * 2) {
        slots *= 2;
    }
    w->edge_mask = (uint32_t)(slots - 1);
    w->edges = malloc((size_t)slots * sizeof *w->edges);
    w->ids = malloc((size_t)nodes * sizeof *w->ids);
    REQUIRE(w->edges != NULL && w->ids != NULL, STATUS_INTERNAL, "out of memory: %lld pieces",
            (long long)t->vocab_size);
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
        if (goes_on(w, token)) {
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

/* The longest piece that text begins with; -1: none. */
static int32_t longest(const struct wordpiece *w, uint32_t node, const char *text, size_t bytes,
                       size_t *length)
{
    int32_t best = -1;
    for (size_t i = 0; i < bytes; i++) {
        const struct wordpiece_edge *edge = edge_of(w, node, (unsigned char)text[i]);
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

struct encoding {
    const struct wordpiece *w;
    struct token_list *out;
};

static status encode_word(void *context, const char *word, size_t bytes, size_t characters)
{
    struct encoding *e = context;
    struct token_list *out = e->out;
    int64_t before = out->count;
    bool known = (int64_t)characters <= e->w->characters_most;
    TRY(token_list_reserve(out, known ? (int64_t)bytes : 1));
    for (size_t at = 0, length = 0; at < bytes && known; at += length) {
        int32_t id = longest(e->w, at > 0, word + at, bytes - at, &length);
        known = id >= 0;
        out->ids[out->count++] = id;
    }
    if (!known) {
        out->ids[before] = e->w->unknown;
        out->count = before + 1;
    }
    return STATUS_OK;
}

status wordpiece_encode(const struct tokenizer *t, const char *text, size_t bytes,
                        struct token_list *out)
{
    struct encoding e = {t->wordpiece, out};
    return bert_text_words(&t->wordpiece->text, text, bytes, encode_word, &e);
}

/* What the package's decoder replaces, in its order, in each token with the blank before it. */
static const struct {
    const char *from, *to;
} cleanups[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};

/* Every occurrence of `from` in text[bytes], which is not shorter than `to`; in place. */
static size_t replace(char *text, size_t bytes, const char *from, const char *to)
{
    size_t from_bytes = strlen(from), to_bytes = strlen(to), used = 0;
    for (size_t at = 0; at < bytes;) {
        if (bytes - at >= from_bytes && memcmp(text + at, from, from_bytes) == 0) {
            memcpy(text + used, to, to_bytes);
            used += to_bytes;
            at += from_bytes;
        } else {
            text[used++] = text[at++];
        }
    }
    return used;
}

static size_t put_token(const struct wordpiece *w, const struct token *token, bool first, char *out)
{
    size_t used = 0, skipped = 0;
    if (!first && goes_on(w, token)) {
        skipped = strlen(w->prefix);
    } else if (!first) {
        out[used++] = ' ';
    }
    memcpy(out + used, token->bytes + skipped, token->length - skipped);
    used += token->length - skipped;
    for (size_t i = 0; i < sizeof cleanups / sizeof *cleanups && w->cleanup; i++) {
        used = replace(out, used, cleanups[i].from, cleanups[i].to);
    }
    return used;
}

status wordpiece_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes)
{
    size_t room = 1;
    for (int64_t i = 0; i < count; i++) {
        room += t->tokens[ids[i]].length + 1;
    }
    char *text = malloc(room);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory: %zu bytes of text", room);
    size_t used = 0;
    bool first = true;
    for (int64_t i = 0; i < count; i++) {
        const struct token *token = &t->tokens[ids[i]];
        if (!(skip_special && token->special)) {
            used += put_token(t->wordpiece, token, first, text + used);
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
