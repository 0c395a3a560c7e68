#include "datasets/prepare/row_split.h"

#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"

enum { DIGEST_BYTES = 32 }; /* half of a SHA-256 in hexadecimal digits */

/* ---- strata ---- */

status row_split_open(struct row_split *s, int count, uint64_t seed)
{
    s->seed = seed;
    TRY(ALLOCATE(s->strata, count, "the split of labels"));
    s->count = count;
    return STATUS_OK;
}

void row_split_close(struct row_split *s)
{
    free(s->strata);
    *s = (struct row_split){0};
}

void row_split_plan(struct row_split *s, double fraction)
{
    int64_t rows = 0, before = 0;
    /* Rounds the sums, so that rounding errors do not add up. */
    for (int i = 0; i < s->count; i++) {
        struct row_stratum *stratum = &s->strata[i];
        rows += stratum->rows;
        int64_t until = (int64_t)floor((double)rows * fraction + 0.5);
        stratum->validation_rows =
            stratum->rows < 2 ? 0 : number_clamp(until - before, 1, stratum->rows - 1);
        before = until;
    }
}

enum prepare_split row_split_choose(struct row_split *s, int stratum)
{
    if (s->count == 0 || s->input != PREPARE_SPLIT_BY_FRACTION) {
        return s->input;
    }
    struct row_stratum *t = &s->strata[stratum];
    int64_t rows_left = t->rows - t->seen, draws_left = t->validation_rows - t->drawn;
    uint64_t key = random_key(s->seed, RANDOM_SPLIT, 1 + (uint64_t)stratum, 0);
    bool drawn = rows_left > 0 &&
                 (int64_t)random_below(key, (uint64_t)t->seen, (uint64_t)rows_left) < draws_left;
    t->seen++;
    t->drawn += drawn;
    return drawn ? PREPARE_SPLIT_VALIDATION : PREPARE_SPLIT_TRAIN;
}

/* ---- groups ---- */

status row_split_group_add(struct row_groups *s, const char *text, size_t bytes)
{
    char digest[HASH_TEXT_BYTES];
    struct text_slot *slot = NULL;
    bool is_new = false;
    int64_t count = (int64_t)s->groups.count;
    TRY(hash_memory(text, bytes, digest));
    TRY(text_map_find_or_add(&s->groups, &s->digests, digest, DIGEST_BYTES, &slot, &is_new));
    if (is_new) {
        slot->value = count;
        if (count == s->capacity) {
            TRY(GROW(s->group_rows, 2 * s->capacity + 64, "the contexts"));
            s->capacity = 2 * s->capacity + 64;
        }
        s->group_rows[count] = 0;
    }
    s->group_rows[slot->value]++;
    s->rows++;
    return STATUS_OK;
}

status row_split_group_plan(struct row_groups *s, double fraction, uint64_t seed)
{
    uint64_t groups = s->groups.count, key = random_key(seed, RANDOM_SPLIT, 0, 1);
    int64_t wanted = prepare_output_count_validation(s->rows, fraction), rows = 0;
    REQUIRE(groups > 1, STATUS_DATA,
            "all rows have the same context, which cannot be divided into a training and a "
            "validation set; give --validation-input");
    TRY(ALLOCATE(s->is_validation, groups, "the contexts"));
    for (uint64_t i = 0; i + 1 < groups && (i == 0 || rows < wanted); i++) {
        uint64_t group = random_permute(key, i, groups);
        s->is_validation[group] = true;
        rows += s->group_rows[group];
    }
    return STATUS_OK;
}

status row_split_group_is_validation(const struct row_groups *s, const char *text, size_t bytes,
                                     bool *out)
{
    char digest[HASH_TEXT_BYTES];
    TRY(hash_memory(text, bytes, digest));
    const struct text_slot *slot = text_map_find(&s->groups, digest, DIGEST_BYTES);
    *out = slot != NULL && s->is_validation[slot->value];
    return STATUS_OK;
}

void row_split_group_close(struct row_groups *s)
{
    text_map_free(&s->groups);
    text_store_free(&s->digests);
    free(s->group_rows);
    free(s->is_validation);
    *s = (struct row_groups){0};
}
