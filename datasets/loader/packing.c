#include "datasets/loader/packing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

struct packing {
    struct packing_rules rules;
    int64_t pack_tokens, count, capacity;
    /* [count] first token and length of each example; with bfd sorted by decreasing length */
    int64_t *first;
    int32_t *length;

    int64_t packs;
    /* bfd only: */
    int64_t *starts; /* [packs + 1] first slot of each pack */
    uint32_t *slots; /* [count] the example in each slot, without shuffling */
    /* [pack_tokens + 2] examples of length n: groups[pack_tokens - n] up to the next group */
    int64_t *groups;
};

static bool is_best_fit(const struct packing *p)
{
    return p->rules.kind == PACKING_BFD || p->rules.kind == PACKING_BFD_SPLIT;
}

status packing_create(const struct packing_rules *rules, int64_t pack_tokens, struct packing **out)
{
    *out = NULL;
    REQUIRE(rules->max_length >= 2 && rules->max_length <= pack_tokens && pack_tokens < INT32_MAX,
            STATUS_RECIPE,
            "examples of at most %" PRId64 " tokens in sequences of %" PRId64
            ": the limit must be 2 to the sequence length",
            rules->max_length, pack_tokens);
    struct packing *p;
    TRY(ALLOCATE(p, 1, "packing"));
    p->rules = *rules;
    p->pack_tokens = pack_tokens;
    *out = p;
    return STATUS_OK;
}

void packing_destroy(struct packing **packing)
{
    struct packing *p = *packing;
    if (p == NULL) {
        return;
    }
    *packing = NULL;
    free(p->first);
    free(p->length);
    free(p->starts);
    free(p->slots);
    free(p->groups);
    free(p);
}

status packing_add(struct packing *p, int64_t first, int64_t length)
{
    if (p->count == p->capacity) {
        int64_t capacity = 2 * p->capacity + 1024;
        REQUIRE(p->count < UINT32_MAX, STATUS_DATA, "more than %" PRId64 " examples in one source",
                p->count);
        TRY(GROW(p->first, capacity, "examples to pack"));
        TRY(GROW(p->length, capacity, "examples to pack"));
        p->capacity = capacity;
    }
    p->first[p->count] = first;
    p->length[p->count++] = (int32_t)length;
    return STATUS_OK;
}

/* Sorts the examples by decreasing length. Examples of equal length stay in the order of the files.
 * It is a counting sort. */
static status sort_examples(struct packing *p)
{
    int64_t *first = NULL;
    int32_t *length = NULL;
    status result = ALLOCATE(first, p->count, "examples");
    KEEP_FIRST(result, ALLOCATE(length, p->count, "examples"));
    KEEP_FIRST(result, ALLOCATE(p->groups, (size_t)p->pack_tokens + 2, "groups of examples"));
    if (result != STATUS_OK) {
        free(first);
        free(length);
        return result;
    }
    for (int64_t i = 0; i < p->count; i++) {
        p->groups[p->pack_tokens - p->length[i] + 1]++;
    }
    for (int64_t g = 0; g <= p->pack_tokens; g++) {
        p->groups[g + 1] += p->groups[g];
    }
    for (int64_t i = 0; i < p->count; i++) { /* groups[g] advances to the end of group g */
        int64_t to = p->groups[p->pack_tokens - p->length[i]]++;
        first[to] = p->first[i];
        length[to] = p->length[i];
    }
    memmove(p->groups + 1, p->groups, ((size_t)p->pack_tokens + 1) * sizeof *p->groups);
    p->groups[0] = 0;
    free(p->first);
    free(p->length);
    p->first = first;
    p->length = length;
    return STATUS_OK;
}

/* ---- best fit: packs indexed by their free tokens ---- */

enum { NONE = UINT32_MAX };

/* For each number of free tokens, a queue of the packs that have it. */
struct fit {
    int64_t pack_tokens;
    uint64_t *words;           /* bit s: the queue of packs with s free tokens is not empty */
    uint64_t *summary;         /* bit w: words[w] is not 0 */
    uint32_t *oldest, *newest; /* [pack_tokens + 1] ends of each queue; NONE: empty */
    uint32_t *next;            /* [packs] next pack in its queue */
    uint32_t *pack;            /* [examples] pack of each example */
    uint32_t packs;
};

static void free_fit(struct fit *f)
{
    free(f->words);
    free(f->summary);
    free(f->oldest);
    free(f->newest);
    free(f->next);
    free(f->pack);
}

static status create_fit(struct fit *f, int64_t pack_tokens, int64_t examples)
{
    size_t words = (size_t)pack_tokens / 64 + 1, n = (size_t)pack_tokens + 1;
    *f = (struct fit){.pack_tokens = pack_tokens};
    TRY(ALLOCATE(f->words, words, "packing"));
    TRY(ALLOCATE(f->summary, words / 64 + 1, "packing"));
    TRY(ALLOCATE(f->oldest, n, "packing"));
    TRY(ALLOCATE(f->newest, n, "packing"));
    TRY(ALLOCATE(f->next, examples, "packing"));
    TRY(ALLOCATE(f->pack, examples, "packing"));
    memset(f->oldest, 0xff, n * sizeof *f->oldest);
    return STATUS_OK;
}

/* Returns the smallest number of free tokens of any pack that is at least `wanted`; -1: none. */
static int64_t find_space(const struct fit *f, int64_t wanted)
{
    size_t word = (size_t)wanted / 64, words = (size_t)f->pack_tokens / 64 + 1;
    uint64_t bits = f->words[word] >> (wanted % 64) << (wanted % 64);
    if (bits == 0) {
        size_t summary_word = ++word / 64;
        uint64_t summary_bits =
            word < words ? f->summary[summary_word] >> (word % 64) << (word % 64) : 0;
        while (summary_bits == 0 && word < words && ++summary_word <= (words - 1) / 64) {
            summary_bits = f->summary[summary_word];
        }
        if (summary_bits == 0) {
            return -1;
        }
        word = summary_word * 64 + (size_t)__builtin_ctzll(summary_bits);
        bits = f->words[word];
    }
    return (int64_t)word * 64 + __builtin_ctzll(bits);
}

/* Appends a pack to the queue of packs with `space` free tokens. */
static void push_pack(struct fit *f, uint32_t pack, int64_t space)
{
    f->next[pack] = NONE;
    if (f->oldest[space] == NONE) {
        f->oldest[space] = pack;
        f->words[space / 64] |= UINT64_C(1) << (space % 64);
        f->summary[space / 4096] |= UINT64_C(1) << (space / 64 % 64);
    } else {
        f->next[f->newest[space]] = pack;
    }
    f->newest[space] = pack;
}

/* Removes and returns the oldest pack with `space` free tokens. */
static uint32_t pop_pack(struct fit *f, int64_t space)
{
    uint32_t pack = f->oldest[space];
    f->oldest[space] = f->next[pack];
    if (f->oldest[space] == NONE) {
        f->words[space / 64] &= ~(UINT64_C(1) << (space % 64));
        if (f->words[space / 64] == 0) {
            f->summary[space / 4096] &= ~(UINT64_C(1) << (space / 64 % 64));
        }
    }
    return pack;
}

/* Assigns each example to a pack. */
static void assign_packs(struct fit *f, const struct packing *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        int64_t space = find_space(f, p->length[i]);
        uint32_t pack = space < 0 ? f->packs++ : pop_pack(f, space);
        f->pack[i] = pack;
        space = (space < 0 ? f->pack_tokens : space) - p->length[i];
        if (space > 0) { /* full packs are in no queue */
            push_pack(f, pack, space);
        }
    }
}

/* Lists the examples of each pack in the order in which they were added. */
static status list_pack_examples(struct packing *p, const struct fit *f)
{
    p->packs = f->packs;
    TRY(ALLOCATE(p->starts, p->packs + 2, "packs"));
    TRY(ALLOCATE(p->slots, p->count, "packs"));
    for (int64_t i = 0; i < p->count; i++) {
        p->starts[f->pack[i] + 2]++;
    }
    for (int64_t k = 2; k <= p->packs; k++) {
        p->starts[k + 1] += p->starts[k];
    }
    for (int64_t i = 0; i < p->count; i++) {
        p->slots[p->starts[f->pack[i] + 1]++] = (uint32_t)i;
    }
    return STATUS_OK;
}

status packing_finish(struct packing *p)
{
    if (!is_best_fit(p) || p->count == 0) {
        p->packs = p->count;
        return STATUS_OK;
    }
    struct fit fit;
    TRY(sort_examples(p));
    status result = create_fit(&fit, p->pack_tokens, p->count);
    if (result == STATUS_OK) {
        assign_packs(&fit, p);
        result = list_pack_examples(p, &fit);
    }
    free_fit(&fit);
    return result;
}

/* ---- the packs ---- */

const struct packing_rules *packing_get_rules(const struct packing *p)
{
    return &p->rules;
}

int64_t packing_pack_count(const struct packing *p)
{
    return p->packs;
}

int64_t packing_pack_examples(const struct packing *p, int64_t pack)
{
    return is_best_fit(p) ? p->starts[pack + 1] - p->starts[pack] : 1;
}

int64_t packing_pack_rows(const struct packing *p, int64_t pack)
{
    if (!is_best_fit(p)) {
        return p->length[pack] - 1;
    }
    int64_t rows = 0;
    for (int64_t i = p->starts[pack]; i < p->starts[pack + 1]; i++) {
        rows += p->length[p->slots[i]] - 1;
    }
    return rows;
}

void packing_get_example(const struct packing *p, const struct packing_epoch *epoch, int64_t pack,
                         int64_t index, int64_t *first, int64_t *length)
{
    int64_t example = pack;
    if (is_best_fit(p)) {
        example = p->slots[p->starts[pack] + index];
    }
    *length = p->length[example];
    if (is_best_fit(p) && epoch->shuffle) { /* select another example of the same length */
        int64_t group = p->groups[p->pack_tokens - *length];
        uint64_t count = (uint64_t)(p->groups[p->pack_tokens - *length + 1] - group);
        uint64_t key = random_key(epoch->seed, RANDOM_PACKING, epoch->epoch,
                                  epoch->source << 32 ^ (uint64_t)*length);
        example = group + (int64_t)random_permute(key, (uint64_t)(example - group), count);
    }
    *first = p->first[example];
}
