#include "trainer/formats/huggingface/tensor_aliases.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"

enum { COMPARE_ELEMENTS = 1 << 16 };

const char *const tensor_aliases_stack_tables[TENSOR_ALIASES_STACKS] = {
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
};

/* Returns the name of the parameter with an alias. The first one is the token table. */
static const char *get_aliased(const struct huggingface_import_job *job, int alias)
{
    const struct huggingface_architecture *architecture = job->config.architecture;
    return alias == 0 ? huggingface_table_name(architecture, job->recipe, true)
                      : architecture->aliases[alias].ours;
}

const char *tensor_aliases_find(const struct huggingface_import_job *job, const char *name)
{
    const struct huggingface_architecture *architecture = job->config.architecture;
    bool tied = job->recipe->model.tie_word_embeddings;
    for (int i = tied ? 0 : 1; i < HUGGINGFACE_ALIASES_MAX && architecture->aliases[i].ours != NULL;
         i++) {
        if (strcmp(get_aliased(job, i), name) == 0) {
            return architecture->aliases[i].theirs;
        }
    }
    return NULL;
}

static bool is_stack_table(const struct huggingface_architecture *architecture, const char *name)
{
    const char *stripped = huggingface_strip_prefix(architecture, name);
    return architecture->has_stack_tables &&
           (strcmp(stripped, tensor_aliases_stack_tables[0]) == 0 ||
            strcmp(stripped, tensor_aliases_stack_tables[1]) == 0);
}

static status compare_bits(const struct huggingface_tensor_source *a,
                           const struct huggingface_tensor_source *b, bool *equal)
{
    int64_t elements = a->tensor->elements;
    float *values = NULL;
    *equal = b->tensor->elements == elements;
    TRY(ALLOCATE(values, 2 * COMPARE_ELEMENTS, b->tensor->name));
    float *others = values + COMPARE_ELEMENTS;
    status result = STATUS_OK;
    for (int64_t offset = 0; offset < elements && *equal && result == STATUS_OK;
         offset += COMPARE_ELEMENTS) {
        int64_t left = elements - offset, n = number_min(left, COMPARE_ELEMENTS);
        result = safetensors_read(a->file, a->tensor, offset, n, values);
        KEEP_FIRST(result, safetensors_read(b->file, b->tensor, offset, n, others));
        *equal = result == STATUS_OK && memcmp(values, others, (size_t)n * sizeof *values) == 0;
    }
    free(values);
    return result;
}

/* Compares a tensor with the tensor of a parameter. *equal is true if no parameter has the name. */
static status compare_with_parameter(const struct huggingface_import_job *job, const char *name,
                                     const struct huggingface_tensor_source *other, bool *equal)
{
    *equal = true;
    for (int i = 0; i < job->count; i++) {
        if (strcmp(job->parameters[i].name, name) == 0) {
            return compare_bits(&job->sources[i], other, equal);
        }
    }
    return STATUS_OK;
}

static status check_second_name(const struct huggingface_import_job *job, int alias,
                                const struct huggingface_tensor_source *other)
{
    const char *name = get_aliased(job, alias);
    bool equal = true;
    if (job->recipe->model.tie_word_embeddings) {
        TRY(compare_with_parameter(job, name, other, &equal));
    }
    REQUIRE(
        equal, STATUS_DATA,
        "%s: %s differs from %s, but config.json ties them; set tie_word_embeddings to false in "
        "config.json if they are two tensors",
        safetensors_path(other->file), other->tensor->name, name);
    return STATUS_OK;
}

/* Refuses a token table of a stack that differs from the shared one. transformers would use it for
 * this stack. */
static status check_stack_table(const struct huggingface_import_job *job,
                                const struct huggingface_tensor_source *other)
{
    const char *name = get_aliased(job, 0);
    bool equal;
    TRY(compare_with_parameter(job, name, other, &equal));
    REQUIRE(equal, STATUS_UNAVAILABLE,
            "%s: %s differs from %s; separate token tables of a %s model are not supported",
            safetensors_path(other->file), other->tensor->name, name,
            job->config.architecture->model_type);
    return STATUS_OK;
}

status tensor_aliases_check(const struct huggingface_import_job *job,
                            const struct safetensors *file, const struct safetensors_tensor *tensor,
                            bool *is_alias)
{
    const struct huggingface_architecture *architecture = job->config.architecture;
    const struct huggingface_tensor_source other = {file, tensor};
    *is_alias = is_stack_table(architecture, tensor->name);
    TRY(*is_alias ? check_stack_table(job, &other) : STATUS_OK);
    for (int i = 0; i < HUGGINGFACE_ALIASES_MAX && architecture->aliases[i].ours != NULL; i++) {
        if (strcmp(architecture->aliases[i].theirs, tensor->name) == 0) {
            *is_alias = true;
            TRY(check_second_name(job, i, &other));
        }
    }
    return STATUS_OK;
}
