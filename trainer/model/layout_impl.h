/* A parameter layout under construction: shared by layout.c, adapter_layout.c and the files of the
 * sub-layers. */
#pragma once

#include "trainer/model/model_impl.h"

enum split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLUMNS };

/* Rows or columns of a parameter that are split over the ranks. */
struct section {
    int64_t whole; /* of all ranks */
    int64_t local; /* of one rank, with padding */
};

/* The shape of a whole parameter and how it is split over the tensor-parallel ranks. */
struct shape {
    int64_t rows, columns;
    int dimensions;
    bool transposed;
    float init_value, init_std, init_bound;
    enum split split;
    int section_count; /* 3 for a joint matrix of queries, keys and values */
    struct section sections[MODEL_SHARDS_MAX];
    int fused_count; /* as in struct model_parameter; 0: not fused */
};

struct layout {
    const struct model_config *config;
    const struct architecture *architecture;
    struct model_parameter *parameters;
    struct shape *shapes; /* of the current block's parameters, from its first one on */
    int block;            /* index of the current block's first parameter */
    int count;
    int64_t elements; /* length of the flat buffer */
    int64_t vectors;  /* total elements of vectors */
    int ranks, rank;
    int64_t layer;                          /* layer of the parameters that are appended next */
    int stack;                              /* and their stack */
    const struct architecture_names *names; /* of that stack */
    char prefix[MODEL_NAME_BYTES / 2];      /* of their names: "" or "BLOCK.LAYER." */
};

/* layout_append - append one parameter with its complete name. */
void layout_append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *name);

/* One of several matrices that read the same input and are one matrix for a GEMM. */
struct input_matrix {
    const char *name;
    int64_t rows;
    float init_factor; /* of the initial deviation */
};

/* layout_append_inputs - append matrices [rows, C] that read the stream, and their biases. The
 * ranks split the rows of each matrix. joint: their name if the file stores them as one matrix;
 * NULL: all weights precede all biases. */
void layout_append_inputs(struct layout *layout, enum model_role role, const char *joint,
                          const struct input_matrix *matrices, int count, bool bias);

/* layout_append_projection - append a projection [C, inputs] into the residual stream, and its
 * bias. The ranks split the columns of the matrix; each has the whole bias. */
void layout_append_projection(struct layout *layout, enum model_role role, int64_t inputs,
                              bool bias, const char *name);

/* layout_append_gain - append the weight of a norm [columns]. is_split: over the ranks. */
void layout_append_gain(struct layout *layout, enum model_role role, int64_t columns, bool is_split,
                        const char *name);

/* layout_next_item - copy the next item of a comma-separated list to item[MODEL_NAME_BYTES].
 * *cursor moves past the item. Returns false at the end of the list. */
bool layout_next_item(const char **cursor, char *item);

/* layout_append_adapters - append the adapters of the current block's matrices so far. */
void layout_append_adapters(struct layout *layout);

/* layout_check_targets - check that each adapter target matches a matrix.
 *
 * Errors    STATUS_RECIPE with the target that matches none */
status layout_check_targets(const struct layout *layout);
