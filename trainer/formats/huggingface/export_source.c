/* Opens the checkpoint of an export and reads its tensors block by block. */
#include "trainer/formats/huggingface/export_source.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/formats/huggingface/adapter_export.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"

static status read_recipe(struct export_source *source)
{
    char alone[] = "parallel.tensor=1", *overrides[] = {alone};
    return saved_recipe_parse(&source->found, overrides, 1, &source->recipe);
}

static status resolve_checkpoint(const char *checkpoint, struct checkpoint_info *out)
{
    struct comm *self = NULL;
    TRY(comm_self_create(&self));
    status result = checkpoint_resolve(self, checkpoint, true, out);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* Opens the checkpoint; the recipe of an adapter checkpoint contains the path of its base model. */
static status open_readers(struct export_source *source)
{
    bool has_adapters = source->recipe.adapter.type != ADAPTER_NONE;
    REQUIRE(has_adapters || !source->adapters_only, STATUS_USAGE,
            "%s holds no adapters: omit --adapter", source->found.folder);
    if (!has_adapters) {
        return checkpoint_reader_open(source->found.folder, &source->reader);
    }
    TRY(checkpoint_reader_open(source->found.folder, &source->adapters));
    status result = resolve_checkpoint(source->recipe.adapter.base, &source->base);
    TRY(recipe_annotate_error(&source->recipe, "adapter.base", result,
                              "The frozen model of these adapters is expected there"));
    return checkpoint_reader_open(source->base.folder, &source->reader);
}

/* Reads the vocabulary size from the embedding, because the recipe may not contain it. */
static status read_vocabulary(struct export_source *source)
{
    const struct huggingface_architecture *architecture =
        huggingface_find_architecture(recipe_architecture_name(source->recipe.model.architecture));
    char names[HUGGINGFACE_NAMES_BYTES];
    REQUIRE(architecture != NULL, STATUS_UNAVAILABLE,
            "%s: model.architecture %s cannot be exported to transformers; %s can",
            source->found.folder, recipe_architecture_name(source->recipe.model.architecture),
            huggingface_architecture_names(names));
    const struct manifest *m = checkpoint_reader_manifest(source->reader);
    const char *name = huggingface_table_name(architecture, &source->recipe, false);
    const struct manifest_tensor *embedding = manifest_find_tensor(m, "model", name);
    REQUIRE(embedding != NULL, STATUS_CHECKPOINT, "%s holds no %s", source->found.folder, name);
    source->architecture = architecture;
    source->vocabulary = embedding->shape[0];
    return STATUS_OK;
}

/* Returns the reader of a parameter. Adapters and the task head are in the checkpoint of
 * adapters. */
static struct checkpoint_reader *get_reader(const struct export_source *source, int index)
{
    const struct model_parameter *p = &source->parameters[index];
    bool is_trained = model_is_adapter(p) || model_is_task_head(&source->config, p);
    return source->adapters != NULL && is_trained ? source->adapters : source->reader;
}

static const struct manifest_tensor *find_tensor(const struct export_source *source, int index)
{
    const struct manifest *m = checkpoint_reader_manifest(get_reader(source, index));
    return manifest_find_tensor(m, "model", source->parameters[index].name);
}

static status check_tensors(const struct export_source *source)
{
    for (int i = 0; i < source->count; i++) {
        const struct manifest_tensor *t = find_tensor(source, i);
        int64_t shape[2];
        huggingface_tensor_shape(&source->parameters[i], shape);
        REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_CHECKPOINT,
                "%s: %s is missing or does not have the shape [%" PRId64 ", %" PRId64
                "] of the recipe",
                source->found.folder, source->parameters[i].name, shape[0], shape[1]);
    }
    return STATUS_OK;
}

static void select_trained(struct export_source *source)
{
    int trained = 0;
    for (int i = 0; i < source->count; i++) {
        if (source->parameters[i].trained) {
            source->parameters[trained++] = source->parameters[i];
        }
    }
    source->count = trained;
}

static status read_tokenizer(struct export_source *source)
{
    TRY(file_join(source->tokenizer_folder, source->found.folder, "tokenizer"));
    TRY(objective_spec_head(&source->recipe) != MODEL_HEAD_LM
            ? labels_read(source->tokenizer_folder, &source->labels)
            : STATUS_OK);
    return tokenizer_exists(source->tokenizer_folder)
               ? tokenizer_open(source->tokenizer_folder, &source->tokenizer)
               : STATUS_OK;
}

status export_source_open(struct export_source *source, const char *checkpoint, bool adapters_only)
{
    int64_t elements;
    source->adapters_only = adapters_only;
    TRY(resolve_checkpoint(checkpoint, &source->found));
    TRY(read_recipe(source));
    TRY(open_readers(source));
    TRY(read_vocabulary(source));
    source->config = derive_model_config(&source->recipe, source->vocabulary);
    if (!adapters_only) {
        source->config.adapter.rank = 0;
    }
    TRY(model_layout(&source->config, 1, 0, &source->parameters, &source->count, &elements));
    if (adapters_only) {
        select_trained(source);
    }
    TRY(check_tensors(source));
    return read_tokenizer(source);
}

status export_source_close(struct export_source *source)
{
    status result = tokenizer_destroy(&source->tokenizer);
    labels_free(&source->labels);
    checkpoint_reader_close(&source->reader);
    checkpoint_reader_close(&source->adapters);
    free(source->found.recipe_text);
    free(source->base.recipe_text);
    free(source->parameters);
    source->parameters = NULL;
    return result;
}

/* ---- weights ---- */

static status read_blocks(struct export_source *source, int index,
                          const struct adapter_weights *adapter, float *buffer, export_sink sink,
                          void *user)
{
    int64_t offset[2] = {0, 0}, shape[2];
    const struct model_parameter *p = &source->parameters[index];
    const struct manifest_tensor *t = find_tensor(source, index);
    float norm_offset = huggingface_norm_offset(source->architecture, p);
    while (checkpoint_reader_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(get_reader(source, index), t, offset, shape, buffer));
        if (source->adapters != NULL && get_reader(source, index) == source->reader) {
            fingerprint_add_block(&source->sums, index, p, offset, shape, buffer);
        }
        for (int64_t i = 0; i < shape[0] * shape[1] && norm_offset > 0; i++) {
            buffer[i] -= norm_offset;
        }
        adapter_export_merge(adapter, p->transposed, offset, shape, buffer);
        TRY(sink(user, buffer, shape[0] * shape[1]));
        checkpoint_reader_next_block(t, offset, shape);
    }
    return STATUS_OK;
}

status export_source_read(struct export_source *source, int index, float *buffer, export_sink sink,
                          void *user)
{
    struct adapter_weights adapter = {0};
    status result = STATUS_OK;
    if (source->adapters != NULL && !source->adapters_only) {
        result = adapter_export_read(source->adapters, &source->recipe, &source->parameters[index],
                                     &adapter);
    }
    if (result == STATUS_OK) {
        result = read_blocks(source, index, &adapter, buffer, sink, user);
    }
    adapter_export_free(&adapter);
    return result;
}

status export_source_check_base(const struct export_source *source)
{
    char digest[HASH_TEXT_BYTES];
    fingerprint_text(&source->sums, digest);
    return source->adapters != NULL && !source->adapters_only
               ? adapter_base_check(&source->recipe, digest)
               : STATUS_OK;
}
