/* Draws the validation rows of the row objectives.
 *
 * A first pass counts the rows of each stratum: the rows with one label, or all rows. The second
 * pass draws from each stratum exactly its share of validation rows. A row is drawn with the
 * probability of the shares that are left (selection sampling), so the memory does not depend on
 * the number of rows. The draws depend only on the seed, the stratum and the order of the rows.
 *
 * Source    Knuth, The Art of Computer Programming, volume 2, section 3.4.2, algorithm S */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text_map.h"
#include "base/text_store.h"
#include "datasets/prepare/output.h"

struct row_stratum {
    int64_t rows;            /* of the first pass */
    int64_t validation_rows; /* how many of them to draw */
    int64_t seen, drawn;     /* of the second pass */
};

/* The split of all zeros draws no rows. */
struct row_split {
    enum prepare_split input; /* split of the current input */
    uint64_t seed;
    int count;                  /* of strata; 0: the rows are not drawn */
    struct row_stratum *strata; /* [count] */
};

/* row_split_open - allocate `count` strata.
 *
 * Memory    release it with row_split_close
 * Errors    STATUS_INTERNAL (out of memory) */
status row_split_open(struct row_split *s, int count, uint64_t seed);

/* row_split_plan - compute the validation rows of each stratum from its rows.
 *
 * The total is the rounded fraction of all rows. Small strata are an exception: a stratum of at
 * least two rows has at least one row in both sets; a stratum of one row is training data. */
void row_split_plan(struct row_split *s, double fraction);

/* row_split_choose - return the split of the next row of a stratum; s->input if rows are
 * not drawn. */
enum prepare_split row_split_choose(struct row_split *s, int stratum);

/* row_split_close - release the strata. */
void row_split_close(struct row_split *s);

/* Draws validation groups: all rows with the same text (a context) are in the same set. A first
 * pass adds the text of each row. Groups are drawn at random until they have the fraction of the
 * rows. The draws depend only on the seed and on the order in which the texts first occur. All
 * zeros: no groups. */
struct row_groups {
    struct text_map groups; /* digest of a text to the index of its group */
    struct text_store digests;
    int64_t rows, capacity;
    int64_t *group_rows; /* [groups.count] rows of each group */
    bool *is_validation; /* [groups.count] set by row_split_group_plan */
};

/* row_split_group_add - add the text of a row.
 *
 * Memory    about 150 bytes per different text
 * Errors    STATUS_INTERNAL (out of memory) */
status row_split_group_add(struct row_groups *s, const char *text, size_t bytes);

/* row_split_group_plan - draw the validation groups. Both sets get at least one group.
 *
 * Errors    STATUS_DATA if there is only one group; STATUS_INTERNAL (out of memory) */
status row_split_group_plan(struct row_groups *s, double fraction, uint64_t seed);

/* row_split_group_is_validation - set *out to whether rows with this text are validation rows. A
 * text that was not added is training data. */
status row_split_group_is_validation(const struct row_groups *s, const char *text, size_t bytes,
                                     bool *out);

/* row_split_group_close - release the memory. */
void row_split_group_close(struct row_groups *s);
