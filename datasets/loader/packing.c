#include "datasets/loader/packing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"

struct packing {
    struct packing_rules rules;
    int64_t room, count, capacity;
    int64_t
        *first; /* [count] of each example; once packed by bfd, from the longest to the shortest */
    int32_t *length; /* [count] */

    int64_t packs;   /* of bfd from here */
    int64_t *starts; /* [packs + 1] first slot of each pack */
    uint32_t *slots; /* [count] the example of each slot, where nothing is shuffled */
    int64_t *groups; /* [room + 2] those of length l are groups[room - l] to groups[room - l + 1] */
};

static bool is_packed(const struct packing *p)
{
    return p->rules.kind == PACKING_BFD || p->rules.kind == PACKING_BFD_SPLIT;
}

status packing_create(const struct packing_rules *rules, int64_t room, struct packing **out)
{
    *out = NULL;
    REQUIRE(rules->max_length >= 2 && rules->max_length <= room && room < INT32_MAX, STATUS_RECIPE,
            "examples of at most %lld tokens in sequences of %lld: 2 to the sequence length are "
            "possible",
            (long long)rules->max_length, (long long)room);
    struct packing *p = calloc(1, sizeof *p);
    REQUIRE(p != NULL, STATUS_INTERNAL, "out of memory: packing");
    p->rules = *rules;
    p->room = room;
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
        REQUIRE(p->count < UINT32_MAX, STATUS_DATA, "more than %lld examples in one source",
                (long long)p->count);
        int64_t *firsts = realloc(p->first, (size_t)capacity * sizeof *firsts);
        p->first = firsts != NULL ? firsts : p->first;
        int32_t *lengths = realloc(p->length, (size_t)capacity * sizeof *lengths);
        p->length = lengths != NULL ? lengths : p->length;
        REQUIRE(firsts != NULL && lengths != NULL, STATUS_INTERNAL, "out of memory: %lld examples",
                (long long)capacity);
        p->capacity = capacity;
    }
    p->first[p->count] = first;
    p->length[p->count++] = (int32_t)length;
    return STATUS_OK;
}

/* From the longest to the shortest, those of one length in the order of the files: a sort by counting. */
static status sort_examples(struct packing *p)
{
    size_t count = (size_t)p->count;
    int64_t *first = malloc(count * sizeof *first);
    int32_t *length = malloc(count * sizeof *length);
    p->groups = calloc((size_t)p->room + 2, sizeof *p->groups);
    if (first == NULL || length == NULL || p->groups == NULL) {
        free(first);
        free(length);
        RAISE(STATUS_INTERNAL, "out of memory: %lld examples", (long long)p->count);
    }
    for (int64_t i = 0; i < p->count; i++) {
        p->groups[p->room - p->length[i] + 1]++;
    }
    for (int64_t g = 0; g <= p->room; g++) {
        p->groups[g + 1] += p->groups[g];
    }
    for (int64_t i = 0; i < p->count; i++) { /* groups[g] moves on to where group g ends */
        int64_t to = p->groups[p->room - p->length[i]]++;
        first[to] = p->first[i];
        length[to] = p->length[i];
    }
    memmove(p->groups + 1, p->groups, ((size_t)p->room + 1) * sizeof *p->groups);
    p->groups[0] = 0;
    free(p->first);
    free(p->length);
    p->first = first;
    p->length = length;
    return STATUS_OK;
}

/* ---- best fit: the packs by the room that they have left ---- */

enum { NONE = UINT32_MAX };

struct fit {
    int64_t room;
    uint64_t *words,
        *summary; /* bit s: some pack has room for s tokens; bit w: words[w] is not 0 */
    uint32_t *oldest, *newest; /* [room + 1] of the packs with this room; NONE */
    uint32_t *next;            /* [packs] */
    uint32_t *pack;            /* [examples] the pack of each */
    uint32_t packs;
};

static void fit_free(struct fit *f)
{
    free(f->words);
    free(f->summary);
    free(f->oldest);
    free(f->newest);
    free(f->next);
    free(f->pack);
}

static status fit_make(struct fit *f, int64_t room, int64_t examples)
{
    size_t words = (size_t)room / 64 + 1, n = (size_t)room + 1;
    *f = (struct fit){.room = room};
    f->words = calloc(words, sizeof *f->words);
    f->summary = calloc(words / 64 + 1, sizeof *f->summary);
    f->oldest = malloc(n * sizeof *f->oldest);
    f->newest = malloc(n * sizeof *f->newest);
    f->next = malloc((size_t)examples * sizeof *f->next);
    f->pack = malloc((size_t)examples * sizeof *f->pack);
    REQUIRE(f->words != NULL && f->summary != NULL && f->oldest != NULL && f->newest != NULL &&
                f->next != NULL && f->pack != NULL,
            STATUS_INTERNAL, "out of memory: packing %lld examples", (long long)examples);
    memset(f->oldest, 0xff, n * sizeof *f->oldest);
    return STATUS_OK;
}

/* The least room of at least `wanted` that some pack has; -1: none has it. */
static int64_t fit_find(const struct fit *f, int64_t wanted)
{
    size_t word = (size_t)wanted / 64, words = (size_t)f->room / 64 + 1;
    uint64_t bits = f->words[word] >> (wanted % 64) << (wanted % 64);
    if (bits == 0) {
        size_t at = ++word / 64;
        uint64_t some = word < words ? f->summary[at] >> (word % 64) << (word % 64) : 0;
        while (some == 0 && word < words && ++at <= (words - 1) / 64) {
            some = f->summary[at];
        }
        if (some == 0) {
            return -1;
        }
        word = at * 64 + (size_t)__builtin_ctzll(some);
        bits = f->words[word];
    }
    return (int64_t)word * 64 + __builtin_ctzll(bits);
}

static void fit_put(struct fit *f, uint32_t pack, int64_t space)
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

static uint32_t fit_take(struct fit *f, int64_t space)
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

static void fit_all(struct fit *f, const struct packing *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        int64_t space = fit_find(f, p->length[i]);
        uint32_t pack = space < 0 ? f->packs++ : fit_take(f, space);
        f->pack[i] = pack;
        space = (space < 0 ? f->room : space) - p->length[i];
        if (space > 0) { /* a full pack is asked for no more */
            fit_put(f, pack, space);
        }
    }
}

/* Slots of a pack lie together, in the order in which they were filled. */
static status make_slots(struct packing *p, const struct fit *f)
{
    p->packs = f->packs;
    p->starts = calloc((size_t)p->packs + 2, sizeof *p->starts);
    p->slots = malloc((size_t)p->count * sizeof *p->slots);
    REQUIRE(p->starts != NULL && p->slots != NULL, STATUS_INTERNAL, "out of memory: %lld packs",
            (long long)p->packs);
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
    if (!is_packed(p) || p->count == 0) {
        p->packs = p->count;
        return STATUS_OK;
    }
    struct fit fit;
    TRY(sort_examples(p));
    status result = fit_make(&fit, p->room, p->count);
    if (result == STATUS_OK) {
        fit_all(&fit, p);
        result = make_slots(p, &fit);
    }
    fit_free(&fit);
    return result;
}

/* ---- the packs ---- */

const struct packing_rules *packing_rules_of(const struct packing *p)
{
    return &p->rules;
}

int64_t packing_packs(const struct packing *p)
{
    return p->packs;
}

int64_t packing_pack_examples(const struct packing *p, int64_t pack)
{
    return is_packed(p) ? p->starts[pack + 1] - p->starts[pack] : 1;
}

int64_t packing_pack_rows(const struct packing *p, int64_t pack)
{
    if (!is_packed(p)) {
        return p->length[pack] - 1;
    }
    int64_t rows = 0;
    for (int64_t i = p->starts[pack]; i < p->starts[pack + 1]; i++) {
        rows += p->length[p->slots[i]] - 1;
    }
    return rows;
}

void packing_example(const struct packing *p, const struct packing_epoch *epoch, int64_t pack,
                     int64_t index, int64_t *first, int64_t *length)
{
    int64_t at = pack;
    if (is_packed(p)) {
        at = p->slots[p->starts[pack] + index];
    }
    *length = p->length[at];
    if (is_packed(p) && epoch->shuffle) { /* another one of the same length */
        int64_t group = p->groups[p->room - *length];
        uint64_t count = (uint64_t)(p->groups[p->room - *length + 1] - group);
        uint64_t key = random_key(epoch->seed, RANDOM_PACKING, epoch->epoch,
                                  epoch->source << 32 ^ (uint64_t)*length);
        at = group + (int64_t)random_permute(key, (uint64_t)(at - group), count);
    }
    *first = p->first[at];
}
