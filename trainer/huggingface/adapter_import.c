/* Folders of peft's: adapter_config.json and adapter_model.safetensors. What has an adapter is what the tensors say, which
 * must be what target_modules says: the same matrices of every block. A tensor that is neither of an adapter nor of the head
 * of a task is refused by its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/weights/adapter_base.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/huggingface/adapter_export.h"
#include "trainer/huggingface/adapter_config.h"
#include "trainer/huggingface/huggingface_impl.h"
#include "trainer/setup/session.h"

static const char weights_name[] = "adapter_model.safetensors";

struct adapter_job {
    struct pretrained_job job;
    struct pretrained_adapter_settings settings;
    struct checkpoint_found found; /* the base */
    struct checkpoint_reader *base;
    struct model_config config;
};

bool pretrained_import_is_adapter(const char *folder)
{
    char path[FILE_PATH_BYTES];
    return file_join(path, folder, "adapter_config.json") == STATUS_OK && file_exists(path);
}

/* ---- the base ---- */

static status find_base(struct adapter_job *a, const char *base, struct recipe *out)
{
    struct comm *self = NULL;
    const char *named = a->settings.base;
    bool here = named != NULL && file_is_folder(named);
    REQUIRE(
        base != NULL || here, STATUS_USAGE,
        "%s: the model that it belongs to (base_model_name_or_path: %.200s) is no checkpoint here; "
        "name one with --base, which `bireme import` makes of a model folder",
        a->settings.path, named != NULL ? named : "null");
    TRY(comm_self_create(&self));
    status result = checkpoint_choose(self, base != NULL ? base : named, true, &a->found);
    KEEP_FIRST(result, comm_destroy(&self));
    TRY(result);
    TRY(recipe_parse(a->found.folder, a->found.recipe_text, strlen(a->found.recipe_text), NULL, 0,
                     out));
    REQUIRE(out->adapter.type[0] == '\0', STATUS_DATA,
            "%s holds adapters alone: --base takes the model that they are beside",
            a->found.folder);
    return checkpoint_reader_open(a->found.folder, &a->base);
}

static const struct manifest_tensor *in_base(const struct adapter_job *a,
                                             const struct model_parameter *p)
{
    return manifest_find(checkpoint_reader_manifest(a->base), "model", p->name);
}

static status sum_tensor(struct adapter_job *a, int number, const struct model_parameter *p,
                         float *buffer, struct base_model_sums *sums)
{
    int64_t offset[2] = {0, 0}, shape[2];
    const struct manifest_tensor *t = in_base(a, p);
    pretrained_shape(p, shape);
    REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_CHECKPOINT,
            "%s: %s is missing, or not of the shape [%lld, %lld] that its recipe asks for",
            a->found.folder, p->name, (long long)shape[0], (long long)shape[1]);
    while (checkpoint_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(a->base, t, offset, shape, buffer));
        base_model_add_block(sums, number, p, offset, shape, buffer);
        checkpoint_block_next(t, offset, shape);
    }
    return STATUS_OK;
}

/* What the frozen weights are known by. */
static status sum_base(struct adapter_job *a, char text[HASH_TEXT_BYTES])
{
    struct model_parameter *p = NULL;
    struct model_config alone = a->config;
    struct base_model_sums sums = {{0}};
    int count;
    int64_t elements;
    alone.adapter.rank = 0;
    TRY(model_layout(&alone, 1, 0, &p, &count, &elements));
    float *buffer = malloc((size_t)CHECKPOINT_READ_ELEMENTS * sizeof *buffer);
    status result = buffer != NULL ? STATUS_OK
                                   : status_raise(STATUS_INTERNAL, __FILE__, __LINE__,
                                                  "out of memory to read %s", a->found.folder);
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        if (!model_is_task_head(&alone, &p[i])) {
            result = sum_tensor(a, i, &p[i], buffer, &sums);
        }
    }
    free(buffer);
    free(p);
    base_model_text(&sums, text);
    return result;
}

/* ---- the recipe ---- */

/* Rows of the last matrix of a head for whole texts; 0: there is none. */
static int64_t outputs_of(const struct adapter_job *a)
{
    static const char *const names[] = {"classifier.weight", "classifier.out_proj.weight",
                                        "score.weight"};
    int64_t rows = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[PRETRAINED_NAME_BYTES];
        snprintf(name, sizeof name, "base_model.model.%s", names[i]);
        const struct safetensors_tensor *t = safetensors_find(a->job.files[0], name);
        rows = t != NULL && t->dimensions == 2 ? t->shape[0] : rows;
    }
    return rows;
}

static status make_recipe(struct adapter_job *a, const struct recipe *base, struct recipe *r)
{
    const struct pretrained_family *family = a->job.promise.family;
    const char *objective;
    int64_t outputs = outputs_of(a);
    const struct manifest_tensor *table =
        manifest_find(checkpoint_reader_manifest(a->base), "model", family->aliases[0].ours);
    REQUIRE(table != NULL, STATUS_CHECKPOINT, "%s holds no %s", a->found.folder,
            family->aliases[0].ours);
    TRY(pretrained_adapter_settings_objective(&a->settings, family, outputs, &objective));
    recipe_preset(r);
    snprintf(r->run_dir, sizeof r->run_dir, "runs/imported");
    r->train.max_steps = 1; /* a recipe has to say; nothing is trained */
    snprintf(r->objective, sizeof r->objective, "%s", objective);
    r->model = base->model;
    r->model.vocab_size = table->shape[0];
    r->model.num_labels = outputs > 1 ? outputs : 0;
    r->data.sequence_length = base->data.sequence_length;
    char *whole = realpath(a->found.folder, NULL);
    REQUIRE(whole != NULL && strlen(whole) < sizeof r->adapter.base, STATUS_NO_INPUT,
            "%s: its whole path is unknown or too long", a->found.folder);
    snprintf(r->model.init_from, sizeof r->model.init_from, "%s", whole);
    snprintf(r->adapter.base, sizeof r->adapter.base, "%s", whole);
    free(whole);
    snprintf(r->adapter.type, sizeof r->adapter.type, "lora");
    r->adapter.rank = a->settings.rank;
    r->adapter.alpha = a->settings.alpha;
    r->adapter.dropout = a->settings.dropout;
    r->adapter.rslora = a->settings.rslora;
    snprintf(r->adapter.targets, sizeof r->adapter.targets,
             "all-linear"); /* until they are known */
    return STATUS_OK;
}

/* ---- which matrices ---- */

/* What the file calls a parameter: embed's models may have the prefix, or not. */
static const struct safetensors_tensor *in_file(const struct adapter_job *a,
                                                const struct model_parameter *p)
{
    char name[PRETRAINED_NAME_BYTES];
    struct model_config headed = a->config;
    pretrained_adapter_name(a->job.promise.family, &a->config, p, name);
    const struct safetensors_tensor *t = safetensors_find(a->job.files[0], name);
    headed.task = MODEL_WORDS;
    pretrained_adapter_name(a->job.promise.family, &headed, p, name);
    return t != NULL ? t : safetensors_find(a->job.files[0], name);
}

/* By the end of its name: the longest of these. */
static const char *word_of(const char *module)
{
    static const char *const words[] = {"attn.c_proj",
                                        "mlp.c_proj",
                                        "attention.output.dense",
                                        "intermediate.dense",
                                        "output.dense",
                                        "c_attn",
                                        "c_fc",
                                        "q_proj",
                                        "k_proj",
                                        "v_proj",
                                        "o_proj",
                                        "gate_proj",
                                        "up_proj",
                                        "down_proj",
                                        "query",
                                        "key",
                                        "value"};
    size_t length = strlen(module);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t tail = strlen(words[i]);
        if (length > tail && module[length - tail - 1] == '.' &&
            strcmp(module + length - tail, words[i]) == 0) {
            return words[i];
        }
    }
    return module;
}

/* As peft calls the matrix of an adapter's first part. */
static void module_of(const struct adapter_job *a, const struct model_parameter *in,
                      char out[PRETRAINED_NAME_BYTES])
{
    char name[PRETRAINED_NAME_BYTES];
    pretrained_adapter_name(a->job.promise.family, &a->config, in, name);
    const char *module = name + strlen("base_model.model.");
    int length = (int)(strlen(module) - strlen(".lora_A.weight"));
    snprintf(out, PRETRAINED_NAME_BYTES, "%.*s", length, module);
}

static status add_word(struct recipe *r, const char *word)
{
    char known[RECIPE_NAME_BYTES], *to = r->adapter.targets;
    for (const char *at = to; recipe_list_next(&at, known, sizeof known);) {
        if (strcmp(known, word) == 0) {
            return STATUS_OK;
        }
    }
    size_t used = strlen(to), room = sizeof r->adapter.targets - used;
    int length = snprintf(to + used, room, "%s%s", used > 0 ? ", " : "", word);
    REQUIRE((size_t)length < room, STATUS_INTERNAL, "too many targets");
    return STATUS_OK;
}

/* The matrices that have adapters, from a layout where all have: by the ends of their names, or all of them. */
static status find_targets(struct adapter_job *a, struct recipe *r)
{
    bool all = true;
    r->adapter.targets[0] = '\0';
    for (int i = 0; i < a->job.count; i++) {
        const struct model_parameter *p = &a->job.parameters[i];
        char module[PRETRAINED_NAME_BYTES];
        bool wanted, there = in_file(a, p) != NULL;
        if (p->role != MODEL_ADAPTER_IN) {
            continue;
        }
        module_of(a, p, module);
        TRY(pretrained_adapter_settings_targets(&a->settings, module, &wanted));
        REQUIRE(wanted == there, STATUS_DATA,
                "%s %s an adapter of %s, which target_modules of %s %s", weights_name,
                there ? "holds" : "lacks", module, a->settings.path,
                there ? "leaves out" : "names");
        all = all && there;
        TRY(there ? add_word(r, word_of(module)) : STATUS_OK);
    }
    REQUIRE(r->adapter.targets[0] != '\0', STATUS_DATA,
            "%s holds no adapter of a matrix of a block of %s", a->settings.path,
            r->model.architecture);
    if (all) {
        snprintf(r->adapter.targets, sizeof r->adapter.targets, "all-linear");
    }
    return STATUS_OK;
}

/* ---- tensors ---- */

/* What is trained of a recipe's model, in the job. */
static status list_trained(struct adapter_job *a, const struct recipe *r)
{
    int count, kept = 0;
    int64_t elements;
    free(a->job.parameters);
    a->job.parameters = NULL;
    a->config = session_model_config(r, r->model.vocab_size);
    TRY(model_layout(&a->config, 1, 0, &a->job.parameters, &count, &elements));
    for (int i = 0; i < count; i++) {
        if (a->job.parameters[i].trained) {
            a->job.parameters[kept++] = a->job.parameters[i];
        }
    }
    a->job.count = kept;
    return STATUS_OK;
}

/* Of a head what is not there is the base's: peft saves no pooler unless it is told to. */
static status find_places(struct adapter_job *a)
{
    struct pretrained_job *job = &a->job;
    job->places = calloc((size_t)job->count, sizeof *job->places);
    REQUIRE(job->places != NULL, STATUS_INTERNAL, "out of memory for %d tensors", job->count);
    for (int i = 0; i < job->count; i++) {
        const struct model_parameter *p = &job->parameters[i];
        job->places[i] = (struct pretrained_place){job->files[0], in_file(a, p)};
        if (job->places[i].tensor != NULL) {
            TRY(pretrained_import_check(&job->places[i], p));
            continue;
        }
        int64_t shape[2];
        const struct manifest_tensor *t = in_base(a, p);
        pretrained_shape(p, shape);
        REQUIRE(!model_is_adapter(p), STATUS_DATA,
                "%s lacks %s, though others of its kind are there: adapters on some blocks alone "
                "are not "
                "in this version",
                safetensors_path(job->files[0]), p->name);
        REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_DATA,
                "%s lacks %s of the head, and so does the base %s", safetensors_path(job->files[0]),
                p->name, a->found.folder);
    }
    return STATUS_OK;
}

/* Nothing of the file is left out in silence. */
static status check_all_used(const struct adapter_job *a)
{
    int count;
    const struct safetensors_tensor *tensors = safetensors_tensors(a->job.files[0], &count);
    for (int t = 0; t < count; t++) {
        bool used = false;
        for (int i = 0; i < a->job.count; i++) {
            used = used || a->job.places[i].tensor == &tensors[t];
        }
        REQUIRE(
            used, STATUS_UNAVAILABLE,
            "%s: %s is no part of an adapter of a block's matrix, nor of the head of a task: what "
            "else is trained beside a model is not in this version",
            safetensors_path(a->job.files[0]), tensors[t].name);
    }
    return STATUS_OK;
}

static status fill_from_base(const struct pretrained_job *job, int index, const int64_t offset[2],
                             const int64_t shape[2], float *out)
{
    const struct adapter_job *a = job->user;
    return checkpoint_reader_read(a->base, in_base(a, &job->parameters[index]), offset, shape, out);
}

/* ---- all of it ---- */

/* The folder's own tokenizer, else the base's. */
static status write_all(struct adapter_job *a, const char *output,
                        struct pretrained_summary *summary)
{
    char beside[FILE_PATH_BYTES];
    TRY(pretrained_import_tokenizer(&a->job, a->job.folder, &summary->tokenizer));
    if (summary->tokenizer) {
        return pretrained_import_write(&a->job, output, a->job.folder, pretrained_tokenizer_files);
    }
    TRY(file_join(beside, a->found.folder, "tokenizer"));
    summary->tokenizer = file_is_folder(beside);
    return pretrained_import_write(&a->job, output, summary->tokenizer ? beside : NULL, NULL);
}

static status import_all(struct adapter_job *a, const char *base_path, const char *output,
                         struct recipe *base, struct recipe *made,
                         struct pretrained_summary *summary)
{
    struct recipe *recipe = a->job.recipe;
    TRY(pretrained_adapter_settings_read(a->job.folder, &a->settings));
    TRY(pretrained_import_open(&a->job, weights_name));
    TRY(find_base(a, base_path, base));
    a->job.promise.family = pretrained_family(base->model.architecture);
    REQUIRE(a->job.promise.family != NULL, STATUS_UNAVAILABLE,
            "%s: adapters of peft's beside model.architecture %s are not in this version",
            a->found.folder, base->model.architecture);
    TRY(make_recipe(a, base, made));
    TRY(list_trained(a, made));
    TRY(find_targets(a, made));
    TRY(list_trained(a, made));
    TRY(find_places(a));
    TRY(check_all_used(a));
    TRY(sum_base(a, made->adapter.base_weights));
    TRY(pretrained_config_check(a->settings.path, made, recipe));
    for (int i = 0; i < a->job.count; i++) {
        summary->parameters += a->job.parameters[i].whole_rows * a->job.parameters[i].whole_columns;
    }
    summary->tensors = a->job.count;
    summary->files = 1;
    return write_all(a, output, summary);
}

status pretrained_adapter_import(const char *folder, const char *base, const char *output,
                                 struct recipe *recipe, struct pretrained_summary *summary)
{
    *summary = (struct pretrained_summary){0};
    REQUIRE(!file_exists(output), STATUS_CREATE, "%s exists already; name a folder that does not",
            output);
    struct adapter_job *a = calloc(1, sizeof *a);
    struct recipe *recipes = calloc(2, sizeof *recipes);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, a != NULL && recipes != NULL, STATUS_INTERNAL,
                 "out of memory to import %s", folder);
    a->job.folder = folder;
    a->job.recipe = recipe;
    a->job.fill = fill_from_base;
    a->job.user = a;
    result = import_all(a, base, output, &recipes[0], &recipes[1], summary);
    pretrained_adapter_settings_free(&a->settings);
    checkpoint_reader_close(&a->base);
    free(a->found.recipe_text);
    pretrained_import_end(&a->job);
done:
    free(recipes);
    free(a);
    return result;
}
