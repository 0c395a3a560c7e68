/* A layout while it is made: architecture.c's, and of adapters (adapter_layout.c). */
#pragma once

#include "trainer/model/model_impl.h"

enum split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLUMNS };

/* A whole parameter, and how it is shared out. */
struct shape {
    int64_t rows, columns;
    int dimensions;
    bool transposed;
    float initial, deviation, bound;
    enum split split;
    int blocks;     /* query, key and value lie one after the other, and each is split; else 1 */
    int64_t extent; /* of a rank's part of a block along the split, with padding */
    int joined;     /* it and those behind it are one matrix: nothing in between; else 0 */
};

struct layout {
    const struct model_config *config;
    struct model_parameter *parameters;
    struct shape *shapes; /* of the block's parameters, from its first one on */
    int block;            /* its first parameter */
    int count;
    int64_t elements;
    int64_t vectors; /* elements of these */
    int ranks, rank;
    int64_t layer; /* what is appended now belongs to */
};

void layout_append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *name);

/* layout_next_word - the next of a comma-separated list into word[MODEL_NAME_BYTES]; false: there is none. */
bool layout_next_word(const char **at, char *word);

/* layout_adapters - those of the block that is being appended, for the matrices that it has by now. */
void layout_adapters(struct layout *layout);

/* layout_check_targets - every word of the targets is some matrix's name.  Errors: STATUS_RECIPE naming one */
status layout_check_targets(const struct layout *layout);
