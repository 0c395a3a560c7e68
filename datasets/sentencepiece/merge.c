/* The BPE of SentencePiece: joins neighboring symbols to pieces.
 *
 * A text starts as its characters; a user-defined piece is one symbol that is never joined. In each
 * step, the pair of neighbors that is the piece of the highest score (of equals, the leftmost) is
 * joined. The steps end if no pair is a piece. An unused piece is joined too, but at the end it is
 * divided again into the two symbols that formed it.
 *
 * Source    Sennrich, Haddow, Birch 2016, arXiv:1508.07909; Kudo, Richardson 2018 */
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/sentencepiece_impl.h"

#define DEPTH_MAX 100 /* of divisions of an unused piece, as in SentencePiece */

struct merge_symbol {
    int32_t previous, next; /* -1: none */
    uint32_t begin, bytes;  /* bytes 0: joined to the symbol before */
    bool is_fixed;          /* a user-defined piece */
};

/* Two neighboring symbols that are a piece. */
struct merge_pair {
    float score;
    int32_t left, right;
    uint32_t bytes; /* of both when the pair was found */
};

struct merger {
    const struct sentencepiece *s;
    const char *text;
    struct merge_symbol *symbols;
    struct merge_pair *heap; /* the best pair first */
    int64_t heap_count, heap_capacity;
    struct text_map splits; /* unused piece -> bytes of its left part */
};

static bool is_better(const void *first, const void *second)
{
    const struct merge_pair *a = first, *b = second;
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static status push_pair(struct merger *m, struct merge_pair pair)
{
    TRY(RESERVE(m->heap, m->heap_capacity, m->heap_count + 1, "pairs of symbols"));
    heap_push(m->heap, m->heap_count++, &pair, sizeof pair, is_better);
    return STATUS_OK;
}

static struct merge_pair pop_pair(struct merger *m)
{
    struct merge_pair pair;
    heap_pop(m->heap, m->heap_count--, &pair, sizeof pair, is_better);
    return pair;
}

/* Adds the pair of these symbols to the heap if it is a piece. */
static status add_pair(struct merger *m, int32_t left, int32_t right)
{
    if (left < 0 || right < 0 || m->symbols[left].is_fixed || m->symbols[right].is_fixed) {
        return STATUS_OK;
    }
    const struct merge_symbol *symbol = &m->symbols[left];
    const char *text = m->text + symbol->begin;
    uint32_t bytes = symbol->bytes + m->symbols[right].bytes;
    const struct text_slot *slot = text_map_find(&m->s->normal, text, bytes);
    if (slot == NULL) {
        return STATUS_OK;
    }
    if (m->s->pieces[slot->value].type == SENTENCEPIECE_UNUSED) {
        struct text_slot *split;
        bool is_new;
        TRY(text_map_find_or_add(&m->splits, NULL, text, bytes, &split, &is_new));
        split->value = symbol->bytes;
    }
    return push_pair(m, (struct merge_pair){m->s->pieces[slot->value].score, left, right, bytes});
}

/* Divides the text into its first symbols; returns their number. */
static int32_t split_text(struct merger *m, size_t bytes)
{
    int32_t count = 0;
    for (size_t pos = 0; pos < bytes;) {
        size_t fixed = piece_trie_longest(&m->s->user_defined, m->text + pos, bytes - pos);
        size_t length = fixed > 0 ? fixed : utf8_character_bytes(m->text + pos, bytes - pos);
        m->symbols[count] = (struct merge_symbol){.previous = count - 1,
                                                  .next = count + 1,
                                                  .begin = (uint32_t)pos,
                                                  .bytes = (uint32_t)length,
                                                  .is_fixed = fixed > 0};
        count++;
        pos += length;
    }
    m->symbols[count - 1].next = -1;
    return count;
}

static status join_pairs(struct merger *m)
{
    while (m->heap_count > 0) {
        struct merge_pair pair = pop_pair(m);
        struct merge_symbol *left = &m->symbols[pair.left], *right = &m->symbols[pair.right];
        if (left->bytes == 0 || right->bytes == 0 || left->bytes + right->bytes != pair.bytes) {
            continue; /* one of the symbols was joined to another one */
        }
        left->bytes = pair.bytes;
        right->bytes = 0;
        left->next = right->next;
        if (right->next >= 0) {
            m->symbols[right->next].previous = pair.left;
        }
        TRY(add_pair(m, left->previous, pair.left));
        TRY(add_pair(m, pair.left, left->next));
    }
    return STATUS_OK;
}

/* Writes the ids of a symbol; divides an unused piece. An unused piece that was not joined
 * is unknown. */
static void emit_symbol(const struct merger *m, const char *text, size_t bytes, int depth,
                        struct sentencepiece_output *out)
{
    const struct text_slot *slot = text_map_find(&m->s->normal, text, bytes);
    int32_t id = slot == NULL ? m->s->unknown : (int32_t)slot->value;
    if (m->s->pieces[id].type == SENTENCEPIECE_UNUSED && depth <= DEPTH_MAX) {
        const struct text_slot *split = text_map_find(&m->splits, text, bytes);
        if (split != NULL) {
            size_t left = (size_t)split->value;
            emit_symbol(m, text, left, depth + 1, out);
            emit_symbol(m, text + left, bytes - left, depth + 1, out);
            return;
        }
        id = m->s->unknown;
    }
    sentencepiece_emit(m->s, id, text, bytes, out);
}

status sentencepiece_merge(const struct sentencepiece *s, const char *text, size_t bytes,
                           struct sentencepiece_output *out)
{
    struct merger m = {.s = s, .text = text};
    status result = STATUS_OK;
    TRY_GOTO(result, done, GROW(m.symbols, bytes, "a text"));
    int32_t symbols = split_text(&m, bytes);
    for (int32_t i = 1; i < symbols; i++) {
        TRY_GOTO(result, done, add_pair(&m, i - 1, i));
    }
    TRY_GOTO(result, done, join_pairs(&m));
    for (int32_t i = 0; i >= 0; i = m.symbols[i].next) {
        emit_symbol(&m, text + m.symbols[i].begin, m.symbols[i].bytes, 0, out);
    }
done:
    text_map_free(&m.splits);
    free(m.symbols);
    free(m.heap);
    return result;
}
