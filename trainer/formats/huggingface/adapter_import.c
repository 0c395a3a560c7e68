/* Imports folders in peft's format: adapter_config.json and adapter_model.safetensors. The
 * tensors show which matrices have adapters. They must agree with target_modules and be the same
 * matrices in every block. A tensor that belongs neither to an adapter nor to a task head is
 * refused by name. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/reader.h"
#include "trainer/formats/huggingface/adapter_config_impl.h"
#include "trainer/formats/huggingface/adapter_export.h"
#include "trainer/formats/huggingface/huggingface_impl.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/fingerprint.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

static const char weights_name[] = "adapter_model.safetensors";

struct adapter_job {
    struct huggingface_import_job job;
    struct adapter_config settings;
    struct checkpoint_info found; /* the base checkpoint */
    struct checkpoint_reader *base;
    struct model_config config;
};

bool huggingface_is_adapter_folder(const char *folder)
{
    char path[FILE_PATH_BYTES];
    return file_join(path, folder, "adapter_config.json") == STATUS_OK && file_exists(path);
}

/* ---- the base model ---- */

static status find_base(struct adapter_job *import, const char *base, struct recipe *out)
{
    struct comm *self = NULL;
    const char *named_path = import->settings.base_path;
    bool is_local = named_path != NULL && file_is_folder(named_path);
    REQUIRE(base != NULL || is_local, STATUS_USAGE,
            "%s: the base model (base_model_name_or_path: %.200s) is not a local checkpoint; "
            "import its folder with `bireme import` and name the result with --base",
            import->settings.file.path, named_path != NULL ? named_path : "null");
    TRY(comm_self_create(&self));
    status result =
        checkpoint_resolve(self, base != NULL ? base : named_path, true, &import->found);
    KEEP_FIRST(result, comm_destroy(&self));
    TRY(result);
    TRY(saved_recipe_parse(&import->found, NULL, 0, out));
    REQUIRE(out->adapter.type == ADAPTER_NONE, STATUS_DATA,
            "%s contains only adapters; --base requires the checkpoint of a whole model",
            import->found.folder);
    return checkpoint_reader_open(import->found.folder, &import->base);
}

static const struct manifest_tensor *find_in_base(const struct adapter_job *import,
                                                  const struct model_parameter *p)
{
    return manifest_find_tensor(checkpoint_reader_manifest(import->base), "model", p->name);
}

static status fingerprint_tensor(struct adapter_job *import, int index,
                                 const struct model_parameter *p, float *buffer,
                                 struct fingerprint *sums)
{
    int64_t offset[2] = {0, 0}, shape[2];
    const struct manifest_tensor *t = find_in_base(import, p);
    huggingface_tensor_shape(p, shape);
    REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_CHECKPOINT,
            "%s: %s is missing or does not have the shape [%" PRId64 ", %" PRId64 "] of the recipe",
            import->found.folder, p->name, shape[0], shape[1]);
    while (checkpoint_reader_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(import->base, t, offset, shape, buffer));
        fingerprint_add_block(sums, index, p, offset, shape, buffer);
        checkpoint_reader_next_block(t, offset, shape);
    }
    return STATUS_OK;
}

/* Computes the fingerprint of the frozen weights. */
static status fingerprint_base(struct adapter_job *import, char text[HASH_TEXT_BYTES])
{
    struct model_parameter *p = NULL;
    struct model_config base_config = import->config;
    struct fingerprint sums = {{0}};
    int count;
    int64_t elements;
    base_config.adapter.rank = 0;
    TRY(model_layout(&base_config, 1, 0, &p, &count, &elements));
    float *buffer = NULL;
    status result = ALLOCATE(buffer, CHECKPOINT_READ_ELEMENTS, import->found.folder);
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        if (!model_is_task_head(&base_config, &p[i])) {
            result = fingerprint_tensor(import, i, &p[i], buffer, &sums);
        }
    }
    free(buffer);
    free(p);
    fingerprint_text(&sums, text);
    return result;
}

/* ---- the recipe ---- */

/* Returns the number of outputs of a sequence head, the rows of its last matrix; 0: no head. */
static int64_t count_outputs(const struct adapter_job *import)
{
    static const char *const names[] = {"classifier.weight", "classifier.out_proj.weight",
                                        "score.weight"};
    int64_t rows = 0;
    for (int i = 0; i < COUNT(names); i++) {
        char name[HUGGINGFACE_NAME_BYTES];
        snprintf(name, sizeof name, "base_model.model.%s", names[i]);
        const struct safetensors_tensor *t = safetensors_find(import->job.files[0], name);
        rows = t != NULL && t->dimensions == 2 ? t->shape[0] : rows;
    }
    return rows;
}

static status make_recipe(struct adapter_job *import, const struct recipe *base, struct recipe *r)
{
    const struct huggingface_architecture *architecture = import->job.config.architecture;
    enum recipe_objective objective;
    int64_t outputs = count_outputs(import);
    const char *table = huggingface_table_name(architecture, base, false);
    const struct manifest_tensor *embedding =
        manifest_find_tensor(checkpoint_reader_manifest(import->base), "model", table);
    REQUIRE(embedding != NULL, STATUS_CHECKPOINT, "%s holds no %s", import->found.folder, table);
    TRY(adapter_config_find_objective(&import->settings, architecture, outputs, &objective));
    recipe_set_defaults(r);
    snprintf(r->run_dir, sizeof r->run_dir, "runs/imported");
    r->train.max_steps = 1; /* required in a recipe; nothing is trained */
    r->objective = objective;
    r->model = base->model;
    r->model.vocab_size = embedding->shape[0];
    r->model.num_labels = outputs > 1 ? outputs : 0;
    r->data.sequence_length = base->data.sequence_length;
    char *absolute_path = realpath(import->found.folder, NULL);
    REQUIRE(absolute_path != NULL && strlen(absolute_path) < sizeof r->adapter.base,
            STATUS_NO_INPUT, "%s: its absolute path is unknown or too long", import->found.folder);
    snprintf(r->model.init_from, sizeof r->model.init_from, "%s", absolute_path);
    snprintf(r->adapter.base, sizeof r->adapter.base, "%s", absolute_path);
    free(absolute_path);
    r->adapter.type = ADAPTER_LORA;
    r->adapter.rank = import->settings.rank;
    r->adapter.alpha = import->settings.alpha;
    r->adapter.dropout = import->settings.dropout;
    r->adapter.rslora = import->settings.rslora;
    snprintf(r->adapter.targets, sizeof r->adapter.targets,
             "all-linear"); /* find_targets narrows it */
    return STATUS_OK;
}

/* ---- target modules ---- */

/* Finds a parameter in the file. Models without a head (objective embed) may have the name prefix
 * or not. */
static const struct safetensors_tensor *find_in_file(const struct adapter_job *import,
                                                     const struct model_parameter *p)
{
    char name[HUGGINGFACE_NAME_BYTES];
    struct model_config with_head = import->config;
    adapter_export_name(import->job.config.architecture, &import->config, p, name);
    const struct safetensors_tensor *t = safetensors_find(import->job.files[0], name);
    with_head.head = MODEL_HEAD_LM;
    adapter_export_name(import->job.config.architecture, &with_head, p, name);
    return t != NULL ? t : safetensors_find(import->job.files[0], name);
}

/* Writes peft's name of the matrix to which an A matrix belongs. */
static void get_module_name(const struct adapter_job *import, const struct model_parameter *in,
                            char out[HUGGINGFACE_NAME_BYTES])
{
    char name[HUGGINGFACE_NAME_BYTES];
    adapter_export_name(import->job.config.architecture, &import->config, in, name);
    const char *module = name + strlen("base_model.model.");
    int length = (int)(strlen(module) - strlen(".lora_A.weight"));
    snprintf(out, HUGGINGFACE_NAME_BYTES, "%.*s", length, module);
}

/* Returns whether a module has this name, or ends with it after a dot. */
static bool ends_with_name(const char *module, const char *name)
{
    size_t length = strlen(module), name_bytes = strlen(name);
    return length > name_bytes && module[length - name_bytes - 1] == '.' &&
           strcmp(module + length - name_bytes, name) == 0;
}

/* Returns whether all modules that end with the name have adapters in the file. */
static bool adapts_all(const struct adapter_job *import, const char *name)
{
    bool all = true;
    for (int i = 0; i < import->job.count; i++) {
        const struct model_parameter *p = &import->job.parameters[i];
        char module[HUGGINGFACE_NAME_BYTES];
        if (p->role == MODEL_ADAPTER_IN) {
            get_module_name(import, p, module);
            all = all && (!ends_with_name(module, name) || find_in_file(import, p) != NULL);
        }
    }
    return all;
}

static const char *const target_names[] = {
    "c_attn",
    "c_proj",
    "c_fc",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "out_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "query",
    "key",
    "value",
    "output.dense",
    "q_lin",
    "k_lin",
    "v_lin",
    "out_lin",
    "lin1",
    "lin2",
    "Wqkv",
    "Wo",
    "Wi",
    "q",
    "k",
    "v",
    "o",
    "wi",
    "wi_0",
    "wi_1",
    "wo",
    "fc1",
    "fc2",
    "attn.c_proj",
    "mlp.c_proj",
    "attention.output.dense",
    "intermediate.dense",
    "attention.dense",
    "ffn",
    "ffn_output",
    "attn.Wo",
    "mlp.Wo",
    "EncDecAttention.q",
    "EncDecAttention.k",
    "EncDecAttention.v",
    "EncDecAttention.o",
    "encoder_attn.q_proj",
    "encoder_attn.k_proj",
    "encoder_attn.v_proj",
    "encoder_attn.out_proj",
};

/* Finds the first of target_names that the module ends with and that has adapters in all modules
 * with this name. A module that ends with none of them keeps its full name. */
static status find_target_name(const struct adapter_job *import, const char *module,
                               const char **out)
{
    bool has_name = false;
    *out = module;
    for (int i = 0; i < COUNT(target_names); i++) {
        bool matches = ends_with_name(module, target_names[i]);
        if (matches && adapts_all(import, target_names[i])) {
            *out = target_names[i];
            return STATUS_OK;
        }
        has_name = has_name || matches;
    }
    REQUIRE(
        !has_name, STATUS_DATA,
        "%s holds an adapter of %s, but not of this matrix in each block; adapters in only some "
        "blocks are not supported",
        weights_name, module);
    return STATUS_OK;
}

static status add_target(struct recipe *r, const char *name)
{
    char *targets = r->adapter.targets;
    if (recipe_list_contains(targets, name)) {
        return STATUS_OK;
    }
    size_t used = strlen(targets), capacity = sizeof r->adapter.targets - used;
    int length = snprintf(targets + used, capacity, "%s%s", used > 0 ? ", " : "", name);
    REQUIRE((size_t)length < capacity, STATUS_INTERNAL, "the list of target modules is too long");
    return STATUS_OK;
}

/* Sets adapter.targets to the matrices with adapters, as name endings or all-linear. The job lists
 * the parameters of a model in which all matrices have adapters. */
static status find_targets(struct adapter_job *import, struct recipe *r)
{
    bool all = true;
    r->adapter.targets[0] = '\0';
    for (int i = 0; i < import->job.count; i++) {
        const struct model_parameter *p = &import->job.parameters[i];
        char module[HUGGINGFACE_NAME_BYTES];
        bool is_target, has_adapter = find_in_file(import, p) != NULL;
        if (p->role != MODEL_ADAPTER_IN) {
            continue;
        }
        get_module_name(import, p, module);
        TRY(adapter_config_is_target(&import->settings, module, &is_target));
        REQUIRE(is_target == has_adapter, STATUS_DATA,
                "%s %s an adapter of %s, which target_modules of %s %s", weights_name,
                has_adapter ? "holds" : "lacks", module, import->settings.file.path,
                has_adapter ? "does not name" : "names");
        all = all && has_adapter;
        const char *name = NULL;
        TRY(has_adapter ? find_target_name(import, module, &name) : STATUS_OK);
        TRY(has_adapter ? add_target(r, name) : STATUS_OK);
    }
    REQUIRE(r->adapter.targets[0] != '\0', STATUS_DATA,
            "%s contains no adapter for a matrix in a block of %s", import->settings.file.path,
            recipe_architecture_name(r->model.architecture));
    if (all) {
        snprintf(r->adapter.targets, sizeof r->adapter.targets, "all-linear");
    }
    return STATUS_OK;
}

/* ---- tensors ---- */

/* Lists the trained parameters of the recipe's model in the job. */
static status list_trained(struct adapter_job *import, const struct recipe *r)
{
    int count, trained = 0;
    int64_t elements;
    free(import->job.parameters);
    import->job.parameters = NULL;
    import->config = derive_model_config(r, r->model.vocab_size);
    TRY(model_layout(&import->config, 1, 0, &import->job.parameters, &count, &elements));
    for (int i = 0; i < count; i++) {
        if (import->job.parameters[i].trained) {
            import->job.parameters[trained++] = import->job.parameters[i];
        }
    }
    import->job.count = trained;
    return STATUS_OK;
}

/* Finds the source of each parameter. Missing tensors of the head come from the base model, because
 * peft saves the pooler only on request. */
static status find_sources(struct adapter_job *import)
{
    struct huggingface_import_job *job = &import->job;
    TRY(ALLOCATE(job->sources, job->count, "tensors"));
    for (int i = 0; i < job->count; i++) {
        const struct model_parameter *p = &job->parameters[i];
        job->sources[i] =
            (struct huggingface_tensor_source){job->files[0], find_in_file(import, p)};
        if (job->sources[i].tensor != NULL) {
            TRY(huggingface_import_check_tensor(&job->sources[i], p));
            continue;
        }
        int64_t shape[2];
        const struct manifest_tensor *t = find_in_base(import, p);
        huggingface_tensor_shape(p, shape);
        REQUIRE(
            !model_is_adapter(p), STATUS_DATA,
            "%s lacks %s, but has this adapter in other blocks; adapters in only some blocks are "
            "not supported",
            safetensors_path(job->files[0]), p->name);
        REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_DATA,
                "%s lacks %s of the head, and the base model %s lacks it too",
                safetensors_path(job->files[0]), p->name, import->found.folder);
    }
    return STATUS_OK;
}

/* Refuses files with tensors that the import would ignore. */
static status check_all_used(const struct adapter_job *import)
{
    int count;
    const struct safetensors_tensor *tensors = safetensors_tensors(import->job.files[0], &count);
    for (int t = 0; t < count; t++) {
        bool used = false;
        for (int i = 0; i < import->job.count; i++) {
            used = used || import->job.sources[i].tensor == &tensors[t];
        }
        REQUIRE(
            used, STATUS_UNAVAILABLE,
            "%s: %s belongs neither to an adapter of a block's matrix nor to a task head; other "
            "trained parameters are not supported",
            safetensors_path(import->job.files[0]), tensors[t].name);
    }
    return STATUS_OK;
}

static status fill_from_base(const struct huggingface_import_job *job, int index,
                             const int64_t offset[2], const int64_t shape[2], float *out)
{
    const struct adapter_job *import = job->fill_context;
    return checkpoint_reader_read(import->base, find_in_base(import, &job->parameters[index]),
                                  offset, shape, out);
}

/* ---- the whole import ---- */

/* Writes the checkpoint with the tokenizer of the folder or, without one, of the base model. */
static status write_checkpoint(struct adapter_job *import, const char *output,
                               struct huggingface_summary *summary)
{
    char base_tokenizer[FILE_PATH_BYTES];
    TRY(huggingface_import_check_tokenizer(&import->job, import->job.folder, &summary->tokenizer));
    if (summary->tokenizer) {
        return huggingface_import_write_checkpoint(&import->job, output, import->job.folder,
                                                   huggingface_tokenizer_files);
    }
    TRY(file_join(base_tokenizer, import->found.folder, "tokenizer"));
    summary->tokenizer = file_is_folder(base_tokenizer);
    return huggingface_import_write_checkpoint(&import->job, output,
                                               summary->tokenizer ? base_tokenizer : NULL, NULL);
}

static status import_folder(struct adapter_job *import, const char *base_path, const char *output,
                            struct recipe *base, struct recipe *draft,
                            struct huggingface_summary *summary)
{
    struct recipe *recipe = import->job.recipe;
    TRY(adapter_config_read(import->job.folder, &import->settings));
    TRY(huggingface_import_open_file(&import->job, weights_name));
    TRY(find_base(import, base_path, base));
    import->job.config.architecture =
        huggingface_find_architecture(recipe_architecture_name(base->model.architecture));
    REQUIRE(import->job.config.architecture != NULL, STATUS_UNAVAILABLE,
            "%s: peft adapters for model.architecture %s are not supported", import->found.folder,
            recipe_architecture_name(base->model.architecture));
    TRY(make_recipe(import, base, draft));
    TRY(list_trained(import, draft));
    TRY(find_targets(import, draft));
    TRY(list_trained(import, draft));
    TRY(find_sources(import));
    TRY(check_all_used(import));
    TRY(fingerprint_base(import, draft->adapter.base_weights));
    TRY(huggingface_config_check(import->settings.file.path, draft, recipe));
    for (int i = 0; i < import->job.count; i++) {
        summary->parameters +=
            import->job.parameters[i].whole_rows * import->job.parameters[i].whole_columns;
    }
    summary->tensors = import->job.count;
    summary->files = 1;
    return write_checkpoint(import, output, summary);
}

status huggingface_import_adapter(const char *folder, const char *base, const char *output,
                                  struct recipe *recipe, struct huggingface_summary *summary)
{
    *summary = (struct huggingface_summary){0};
    REQUIRE(!file_exists(output), STATUS_CREATE,
            "%s already exists; name a folder that does not exist", output);
    struct adapter_job *import = NULL;
    struct recipe *recipes = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(import, 1, folder));
    TRY_GOTO(result, done, ALLOCATE(recipes, 2, folder));
    import->job.folder = folder;
    import->job.recipe = recipe;
    import->job.fill_missing = fill_from_base;
    import->job.fill_context = import;
    result = import_folder(import, base, output, &recipes[0], &recipes[1], summary);
    adapter_config_free(&import->settings);
    checkpoint_reader_close(&import->base);
    free(import->found.recipe_text);
    huggingface_import_close(&import->job);
done:
    free(recipes);
    free(import);
    return result;
}
