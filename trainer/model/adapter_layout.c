/* The parameter layout of adapters: find the target matrices and append A and B for each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer/model/layout_impl.h"

bool layout_next_item(const char **cursor, char *item)
{
    static const char separators[] = ", ";
    *cursor += strspn(*cursor, separators);
    int length = (int)strcspn(*cursor, separators);
    snprintf(item, MODEL_NAME_BYTES, "%.*s", length, *cursor);
    *cursor += length;
    return length > 0;
}

/* Matches a name as the peft library does: the target equals the last components of the module
 * name. `name` ends with ".weight". */
static bool matches_target(const char *name, const char *target)
{
    size_t length = strlen(target), left = strlen(name) - strlen(".weight");
    return left > length && memcmp(name + left - length, target, length) == 0 &&
           name[left - length - 1] == '.';
}

static bool is_block_matrix(const struct model_parameter *p)
{
    switch (p->role) {
    case MODEL_QKV:
    case MODEL_PROJECTION:
    case MODEL_CROSS_QUERY:
    case MODEL_CROSS_KEY_VALUE:
    case MODEL_CROSS_PROJECTION:
    case MODEL_FC:
    case MODEL_FC_PROJECTION:
        return p->dimensions == 2;
    default:
        return false;
    }
}

static bool is_target(const struct model_config *c, const struct model_parameter *p)
{
    char item[MODEL_NAME_BYTES];
    for (const char *cursor = c->adapter.targets;
         is_block_matrix(p) && layout_next_item(&cursor, item);) {
        if (strcmp(item, "all-linear") == 0 || matches_target(p->name, item)) {
            return true;
        }
    }
    return false;
}

/* Appends A [rank, in] and B [out, rank], split like the matrix. */
static void append_adapter(struct layout *layout, struct model_parameter *p, struct shape matrix)
{
    int64_t rank = layout->config->adapter.rank;
    char name[MODEL_NAME_BYTES];
    int length = (int)(strlen(p->name) - strlen(".weight"));
    bool by_rows = matrix.split == SPLIT_ROWS;
    struct shape in = matrix, out = matrix; /* with their sections */
    in.rows = out.columns = rank;
    in.transposed = out.transposed = false;
    in.fused_count = out.fused_count = 0;
    in.init_std = out.init_std = 0;
    in.init_bound = 1.0f / sqrtf((float)matrix.columns);
    *(by_rows ? &in.split : &out.split) = SPLIT_NONE;
    p->adapter = layout->count;
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_A.weight", length, p->name);
    layout_append(layout, MODEL_ADAPTER_IN, in, name);
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_B.weight", length, p->name);
    layout_append(layout, MODEL_ADAPTER_OUT, out, name);
}

void layout_append_adapters(struct layout *layout)
{
    int end = layout->count, index = 0;
    for (int i = layout->block; i < end && layout->config->adapter.rank > 0; i++) {
        if (is_target(layout->config, &layout->parameters[i])) {
            layout->parameters[i].adapter_index = index++;
            append_adapter(layout, &layout->parameters[i], layout->shapes[i - layout->block]);
        }
    }
}

status model_adapters_per_layer(const struct model_config *config, int64_t layer, int *adapters)
{
    struct model_parameter *parameters = NULL;
    struct model_config small = *config; /* one block of each stack */
    int count = 0;
    int64_t elements, first = model_layer_stack(config, layer);
    *adapters = 0;
    if (config->adapter.rank == 0) {
        return STATUS_OK;
    }
    small.encoder_layers = config->encoder_layers > 0 ? 1 : 0;
    small.layers = small.encoder_layers + 1;
    TRY(model_layout(&small, 1, 0, &parameters, &count, &elements));
    for (int i = 0; i < count; i++) {
        *adapters += parameters[i].layer == first && parameters[i].adapter > 0;
    }
    free(parameters);
    return STATUS_OK;
}

status layout_check_targets(const struct layout *layout)
{
    char item[MODEL_NAME_BYTES];
    struct model_config one = *layout->config;
    const char *cursor = layout->config->adapter.rank > 0 ? layout->config->adapter.targets : "";
    while (layout_next_item(&cursor, item)) {
        bool found = false;
        one.adapter.targets = item;
        for (int i = 0; i < layout->count; i++) {
            found = found || is_target(&one, &layout->parameters[i]);
        }
        REQUIRE(found, STATUS_RECIPE,
                "adapter.targets: %s matches no matrix of a block of %s; use all-linear for all of "
                "them",
                item, layout->config->architecture);
    }
    return STATUS_OK;
}
