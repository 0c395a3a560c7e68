/* Which matrices have an adapter, and the places of its two. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer/model/layout_impl.h"

bool layout_next_word(const char **at, char *word)
{
    static const char separators[] = ", ";
    *at += strspn(*at, separators);
    int length = (int)strcspn(*at, separators);
    snprintf(word, MODEL_NAME_BYTES, "%.*s", length, *at);
    *at += length;
    return length > 0;
}

/* As peft finds modules: by the whole last parts of a name, here with ".weight" behind. */
static bool is_named(const char *name, const char *target)
{
    size_t length = strlen(target), left = strlen(name) - strlen(".weight");
    return left > length && memcmp(name + left - length, target, length) == 0 &&
           name[left - length - 1] == '.';
}

static bool is_target(const struct model_config *c, const struct model_parameter *p)
{
    char word[MODEL_NAME_BYTES];
    bool product = p->role == MODEL_QKV || p->role == MODEL_PROJECTION || p->role == MODEL_FC ||
                   p->role == MODEL_FC_PROJECTION;
    for (const char *at = c->adapter.targets;
         p->dimensions == 2 && product && layout_next_word(&at, word);) {
        if (strcmp(word, "all-linear") == 0 || is_named(p->name, word)) {
            return true;
        }
    }
    return false;
}

/* A [rank, in] and B [out, rank], split as the matrix is. */
static void append_adapter(struct layout *layout, struct model_parameter *p, struct shape of)
{
    int64_t rank = layout->config->adapter.rank;
    char name[MODEL_NAME_BYTES];
    int length = (int)(strlen(p->name) - strlen(".weight"));
    bool by_rows = of.split == SPLIT_ROWS;
    struct shape in = {.rows = rank,
                       .columns = of.columns,
                       .dimensions = 2,
                       .bound = 1.0f / sqrtf((float)of.columns),
                       .split = by_rows ? SPLIT_NONE : SPLIT_COLUMNS,
                       .blocks = 1,
                       .extent = of.extent};
    struct shape out = {.rows = of.rows,
                        .columns = rank,
                        .dimensions = 2,
                        .split = by_rows ? SPLIT_ROWS : SPLIT_NONE,
                        .blocks = of.blocks,
                        .extent = of.extent};
    p->adapter = layout->count;
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_A.weight", length, p->name);
    layout_append(layout, MODEL_ADAPTER_IN, in, name);
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_B.weight", length, p->name);
    layout_append(layout, MODEL_ADAPTER_OUT, out, name);
}

void layout_adapters(struct layout *layout)
{
    int end = layout->count, place = 0;
    for (int i = layout->block; i < end && layout->config->adapter.rank > 0; i++) {
        if (is_target(layout->config, &layout->parameters[i])) {
            layout->parameters[i].adapter_place = place++;
            append_adapter(layout, &layout->parameters[i], layout->shapes[i - layout->block]);
        }
    }
}

int model_adapters_of(const struct model_config *config)
{
    struct model_parameter *parameters = NULL;
    struct model_config one = *config;
    int count = 0, adapters = 0;
    int64_t elements;
    one.layers = 1;
    if (config->adapter.rank > 0 &&
        model_layout(&one, 1, 0, &parameters, &count, &elements) == STATUS_OK) {
        for (int i = 0; i < count; i++) {
            adapters += parameters[i].adapter > 0;
        }
    }
    free(parameters);
    return adapters;
}

status layout_check_targets(const struct layout *layout)
{
    char word[MODEL_NAME_BYTES];
    struct model_config one = *layout->config;
    const char *at = layout->config->adapter.rank > 0 ? layout->config->adapter.targets : "";
    while (layout_next_word(&at, word)) {
        bool found = false;
        one.adapter.targets = word;
        for (int i = 0; i < layout->count; i++) {
            found = found || is_target(&one, &layout->parameters[i]);
        }
        REQUIRE(found, STATUS_RECIPE,
                "adapter.targets: %s is no matrix of a block of %s; all-linear means all of them",
                word, layout->config->architecture);
    }
    return STATUS_OK;
}
