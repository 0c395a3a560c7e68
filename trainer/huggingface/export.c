/* Tensors go from the checkpoint's files to model.safetensors in the order of the model, block by block; a tied
 * output matrix is left out, as transformers leaves it out. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "datasets/chat/chat.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/weights/adapter_base.h"
#include "base/staged_folder.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/setup/data.h"
#include "trainer/huggingface/huggingface.h"
#include "trainer/huggingface/adapter_export.h"
#include "trainer/huggingface/config.h"
#include "trainer/setup/session.h"

static const size_t tokenizer_limit_bytes = (size_t)256 << 20;

struct export_job {
    struct checkpoint_found found, base; /* the second where the first holds adapters alone */
    struct checkpoint_reader *reader;    /* of the model's weights */
    struct checkpoint_reader *adapters;  /* and of a task's head; NULL: there are none */
    bool alone;                          /* the adapters are written, not the model */
    struct base_model_sums sums;         /* of the model's weights, as they are read */
    struct recipe recipe;
    const struct pretrained_family *family;
    int64_t vocabulary;
    struct model_config config;
    struct model_parameter *parameters;
    int count;
    struct tokenizer *tokenizer; /* NULL: the checkpoint has none */
    struct labels labels;        /* of a task's head; none where it has no names */
    char tokenizer_folder[FILE_PATH_BYTES];
    enum safetensors_dtype dtype;
    struct checkpoint_output folder;
};

/* ---- what is exported ---- */

static status read_recipe(struct export_job *ex)
{
    const char *text = ex->found.recipe_text;
    char alone[] = "parallel.tensor=1", *overrides[] = {alone};
    return recipe_parse(ex->found.folder, text, strlen(text), overrides, 1, &ex->recipe);
}

static status choose(const char *checkpoint, struct checkpoint_found *out)
{
    struct comm *self = NULL;
    TRY(comm_self_create(&self));
    status result = checkpoint_choose(self, checkpoint, true, out);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* A checkpoint of adapters says where its model is. */
static status open_readers(struct export_job *ex)
{
    bool beside = ex->recipe.adapter.type[0] != '\0';
    REQUIRE(beside || !ex->alone, STATUS_USAGE, "%s holds no adapters: leave out --adapter",
            ex->found.folder);
    if (!beside) {
        return checkpoint_reader_open(ex->found.folder, &ex->reader);
    }
    TRY(checkpoint_reader_open(ex->found.folder, &ex->adapters));
    status result = choose(ex->recipe.adapter.base, &ex->base);
    TRY(recipe_blame(&ex->recipe, "adapter.base", result,
                     "The frozen model of these adapters is expected there"));
    return checkpoint_reader_open(ex->base.folder, &ex->reader);
}

/* The tokenizer's size, where the recipe has none, is that of the table. */
static status read_vocabulary(struct export_job *ex)
{
    const struct pretrained_family *family = pretrained_family(ex->recipe.model.architecture);
    REQUIRE(family != NULL, STATUS_UNAVAILABLE,
            "%s: model.architecture %s has no form in transformers that this version can write; "
            "%s do",
            ex->found.folder, ex->recipe.model.architecture, pretrained_types());
    const struct manifest *m = checkpoint_reader_manifest(ex->reader);
    const char *name = family->aliases[0].ours;
    const struct manifest_tensor *table = manifest_find(m, "model", name);
    REQUIRE(table != NULL, STATUS_CHECKPOINT, "%s holds no %s", ex->found.folder, name);
    ex->family = family;
    ex->vocabulary = table->shape[0];
    return STATUS_OK;
}

/* What is trained beside a model is with its adapters. */
static struct checkpoint_reader *reader_of(const struct export_job *ex, int index)
{
    const struct model_parameter *p = &ex->parameters[index];
    bool beside = model_is_adapter(p) || model_is_task_head(&ex->config, p);
    return ex->adapters != NULL && beside ? ex->adapters : ex->reader;
}

static const struct manifest_tensor *find(const struct export_job *ex, int index)
{
    const struct manifest *m = checkpoint_reader_manifest(reader_of(ex, index));
    return manifest_find(m, "model", ex->parameters[index].name);
}

static status check_tensors(const struct export_job *ex)
{
    for (int i = 0; i < ex->count; i++) {
        const struct manifest_tensor *t = find(ex, i);
        int64_t shape[2];
        pretrained_shape(&ex->parameters[i], shape);
        REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_CHECKPOINT,
                "%s: %s is missing, or not of the shape [%lld, %lld] that its recipe asks for",
                ex->found.folder, ex->parameters[i].name, (long long)shape[0], (long long)shape[1]);
    }
    return STATUS_OK;
}

static void keep_trained(struct export_job *ex)
{
    int kept = 0;
    for (int i = 0; i < ex->count; i++) {
        if (ex->parameters[i].trained) {
            ex->parameters[kept++] = ex->parameters[i];
        }
    }
    ex->count = kept;
}

static status open_source(struct export_job *ex)
{
    int64_t elements;
    TRY(read_recipe(ex));
    TRY(open_readers(ex));
    TRY(read_vocabulary(ex));
    ex->config = session_model_config(&ex->recipe, ex->vocabulary);
    if (!ex->alone) {
        ex->config.adapter.rank = 0;
    }
    TRY(model_layout(&ex->config, 1, 0, &ex->parameters, &ex->count, &elements));
    if (ex->alone) {
        keep_trained(ex);
    }
    TRY(check_tensors(ex));
    TRY(file_join(ex->tokenizer_folder, ex->found.folder, "tokenizer"));
    TRY(job_data_task(&ex->recipe) != MODEL_WORDS ? labels_read(ex->tokenizer_folder, &ex->labels)
                                                  : STATUS_OK);
    return tokenizer_exists(ex->tokenizer_folder)
               ? tokenizer_open(ex->tokenizer_folder, &ex->tokenizer)
               : STATUS_OK;
}

/* ---- weights ---- */

static status write_blocks(struct export_job *ex, int index,
                           const struct pretrained_adapter *adapter, float *buffer,
                           struct safetensors_writer *writer)
{
    int64_t offset[2] = {0, 0}, shape[2];
    const struct manifest_tensor *t = find(ex, index);
    while (checkpoint_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(reader_of(ex, index), t, offset, shape, buffer));
        if (ex->adapters != NULL && reader_of(ex, index) == ex->reader) {
            base_model_add_block(&ex->sums, index, &ex->parameters[index], offset, shape, buffer);
        }
        pretrained_adapter_merge(adapter, ex->parameters[index].transposed, offset, shape, buffer);
        TRY(safetensors_write(writer, buffer, shape[0] * shape[1]));
        checkpoint_block_next(t, offset, shape);
    }
    return STATUS_OK;
}

static status write_tensor(struct export_job *ex, int index, float *buffer,
                           struct safetensors_writer *writer)
{
    struct pretrained_adapter adapter = {0};
    status result = STATUS_OK;
    if (ex->adapters != NULL && !ex->alone) {
        result =
            pretrained_adapter_read(ex->adapters, &ex->recipe, &ex->parameters[index], &adapter);
    }
    if (result == STATUS_OK) {
        result = write_blocks(ex, index, &adapter, buffer, writer);
    }
    pretrained_adapter_free(&adapter);
    return result;
}

/* What the adapters were put into is what they were trained beside. */
static status check_base(const struct export_job *ex)
{
    char digest[HASH_TEXT_BYTES];
    base_model_text(&ex->sums, digest);
    return ex->adapters != NULL && !ex->alone ? base_model_check(&ex->recipe, digest) : STATUS_OK;
}

static status write_tensors(struct export_job *ex, struct safetensors_writer *writer)
{
    float *buffer = malloc((size_t)CHECKPOINT_READ_ELEMENTS * sizeof *buffer);
    REQUIRE(buffer != NULL, STATUS_INTERNAL, "out of memory to export %s", ex->found.folder);
    status result = STATUS_OK;
    for (int i = 0; i < ex->count && result == STATUS_OK; i++) {
        result = write_tensor(ex, i, buffer, writer);
    }
    free(buffer);
    return result;
}

/* An encoder's output bias has another name where nothing is tied (pretrained_import.c); a class may have another prefix. */
static void file_name(const struct export_job *ex, const char *name,
                      char out[PRETRAINED_NAME_BYTES])
{
    const struct pretrained_family *family = ex->family;
    const char *bias = family->aliases[1].ours;
    bool other = !ex->recipe.model.tie_word_embeddings && bias != NULL && strcmp(bias, name) == 0;
    const char *theirs = other ? family->aliases[1].theirs : name;
    const char *bare = pretrained_bare(family, theirs);
    snprintf(out, PRETRAINED_NAME_BYTES, "%s%s",
             bare != theirs ? pretrained_prefix(family, ex->recipe.objective) : "", bare);
}

static status write_weights(struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    struct safetensors_writer *writer = NULL;
    TRY(file_join(path, ex->folder.path,
                  ex->alone ? "adapter_model.safetensors" : "model.safetensors"));
    struct safetensors_shape *shapes = calloc((size_t)ex->count, sizeof *shapes);
    char(*names)[PRETRAINED_NAME_BYTES] = calloc((size_t)ex->count, sizeof *names);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, shapes != NULL && names != NULL, STATUS_INTERNAL,
                 "out of memory for %d tensors", ex->count);
    for (int i = 0; i < ex->count; i++) {
        file_name(ex, ex->parameters[i].name, names[i]);
        if (ex->alone) {
            pretrained_adapter_name(ex->family, &ex->config, &ex->parameters[i], names[i]);
        }
        shapes[i].name = names[i];
        shapes[i].dimensions = ex->parameters[i].dimensions;
        pretrained_shape(&ex->parameters[i], shapes[i].shape);
    }
    TRY_GOTO(result, done, safetensors_create(path, ex->dtype, shapes, ex->count, &writer));
    result = write_tensors(ex, writer);
    KEEP_FIRST(result, safetensors_finish(&writer));
done:
    free(shapes);
    free(names);
    return result;
}

/* ---- the small files ---- */

static status write_text(const struct export_job *ex, const char *name, const char *text,
                         size_t bytes)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, ex->folder.path, name));
    return file_write(path, text, bytes);
}

/* RoBERTa's positions are counted from its pad token on, so that there is one without a tokenizer too. */
static struct pretrained_tokens tokens_of(const struct export_job *ex)
{
    struct pretrained_tokens tokens = {-1, -1, -1};
    if (ex->tokenizer != NULL) {
        bool encoder = strcmp(ex->family->objective, "mlm") == 0;
        struct tokenizer_specials specials = tokenizer_specials_of(ex->tokenizer);
        tokens.end = tokenizer_eos(ex->tokenizer);
        int32_t begin = tokenizer_begin(ex->tokenizer);
        tokens.begin = encoder && tokens.end >= 0 ? specials.cls : begin >= 0 ? begin : tokens.end;
        tokens.pad = encoder ? specials.pad : -1;
    }
    if (strcmp(ex->family->type, "roberta") == 0) {
        if (tokens.pad >= 0 && tokens.pad != 1) {
            log_warning("EXPORT",
                        "%s: <pad> has the id %d; transformers takes 1 for RoBERTa's padding, and "
                        "gives that token another position",
                        ex->tokenizer_folder, tokens.pad);
        }
        tokens.pad = 1;
    }
    return tokens;
}

static status write_config(const struct export_job *ex)
{
    char *text = NULL;
    size_t bytes = 0;
    struct pretrained_tokens tokens = tokens_of(ex);
    FILE *file = open_memstream(&text, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for config.json");
    status result =
        pretrained_config_write(&ex->recipe, ex->vocabulary, tokens, &ex->labels, ex->dtype, file);
    fclose(file);
    if (result == STATUS_OK) {
        result = write_text(ex, "config.json", text, bytes);
    }
    free(text);
    return result;
}

static status write_json(const struct export_job *ex, const char *name, json_t *document)
{
    char *text = json_dumps(document, JSON_INDENT(2));
    json_decref(document);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for %s", name);
    status result = write_text(ex, name, text, strlen(text));
    free(text);
    return result;
}

static status put_token(const struct export_job *ex, json_t *config, const char *key, int32_t id)
{
    char *text = NULL;
    size_t bytes = 0;
    if (id >= 0) {
        TRY(tokenizer_decode(ex->tokenizer, &id, 1, false, &text, &bytes));
        json_object_set_new(config, key, json_string(text));
        free(text);
    }
    return STATUS_OK;
}

static status put_tokens(const struct export_job *ex, json_t *config)
{
    struct pretrained_tokens tokens = tokens_of(ex);
    TRY(put_token(ex, config, "bos_token", tokens.begin));
    TRY(put_token(ex, config, "eos_token", tokens.end));
    if (strcmp(ex->family->objective, "mlm") == 0) {
        struct tokenizer_specials specials = tokenizer_specials_of(ex->tokenizer);
        TRY(put_token(ex, config, "cls_token", specials.cls));
        TRY(put_token(ex, config, "sep_token", specials.sep));
        TRY(put_token(ex, config, "pad_token", specials.pad));
        TRY(put_token(ex, config, "mask_token", specials.mask));
        TRY(put_token(ex, config, "unk_token", specials.unknown));
    }
    return STATUS_OK;
}

/* What AutoTokenizer asks for beside tokenizer.json. */
static status write_tokenizer_config(const struct export_job *ex)
{
    struct model_config model = session_model_config(&ex->recipe, ex->vocabulary);
    json_t *config = json_pack("{s:s, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "model_max_length", (json_int_t)model_positions(&model),
                               "clean_up_tokenization_spaces", 0);
    if (strcmp(ex->family->type, "bert") == 0) { /* else a pair's second text is not marked */
        json_object_set_new(
            config, "model_input_names",
            json_pack("[s, s, s]", "input_ids", "token_type_ids", "attention_mask"));
    }
    status result = put_tokens(ex, config);
    if (result != STATUS_OK) {
        json_decref(config);
        return result;
    }
    return write_json(ex, "tokenizer_config.json", config);
}

static status copy_file(const struct export_job *ex, const char *name)
{
    char path[FILE_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, ex->tokenizer_folder, name));
    if (file_size(path) < 0) {
        return STATUS_OK;
    }
    TRY(file_read(path, tokenizer_limit_bytes, &text, &bytes));
    status result = write_text(ex, name, text, bytes);
    free(text);
    return result;
}

/* A list of tokens ends a text where the end of a turn is not the tokenizer's own end, as in Llama 3's folders. */
static status write_generation_config(const struct export_job *ex, int32_t end_of_turn)
{
    int32_t end = tokens_of(ex).end;
    json_t *ends = end == end_of_turn || end < 0 ? json_pack("i", end_of_turn)
                                                 : json_pack("[i, i]", end, end_of_turn);
    return write_json(ex, "generation_config.json", json_pack("{s:o}", "eos_token_id", ends));
}

/* The chat template in transformers' language, in place of one that came with an imported tokenizer. */
static status write_chat_template(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    struct chat_template *chat = NULL;
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, ex->tokenizer_folder, CHAT_FILE));
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(chat_open(ex->tokenizer_folder, ex->tokenizer, &chat));
    status result = chat_jinja(chat, ex->tokenizer, &text, &bytes);
    if (result == STATUS_OK) {
        result = write_text(ex, "chat_template.jinja", text, bytes);
    }
    if (result == STATUS_OK) {
        result = write_generation_config(ex, chat_end_of_turn(chat));
    }
    free(text);
    chat_close(&chat);
    return result;
}

static status write_tokenizer(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    for (const char *const *name = pretrained_tokenizer_files; *name != NULL; name++) {
        TRY(copy_file(ex, *name));
    }
    TRY(file_join(path, ex->folder.path, "tokenizer.json"));
    if (!file_exists(path)) { /* a vocab.txt alone */
        TRY(tokenizer_save(ex->tokenizer, ex->folder.path));
    }
    TRY(write_chat_template(ex));
    TRY(file_join(path, ex->folder.path, "tokenizer_config.json"));
    return file_exists(path) ? STATUS_OK : write_tokenizer_config(ex);
}

/* ---- all of it ---- */

static status write_adapter_config(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, ex->folder.path, "adapter_config.json"));
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL, STATUS_CREATE, "cannot create %s", path);
    status result =
        pretrained_adapter_config(&ex->recipe, &ex->config, ex->parameters, ex->count, file);
    bool written = fclose(file) == 0;
    REQUIRE(written, STATUS_WRITE, "cannot write %s", path);
    return result;
}

static status write_all(struct export_job *ex)
{
    TRY(write_weights(ex));
    if (ex->alone) {
        return write_adapter_config(ex);
    }
    TRY(check_base(ex));
    TRY(write_config(ex));
    return ex->tokenizer != NULL ? write_tokenizer(ex) : STATUS_OK;
}

static int64_t count_elements(const struct export_job *ex)
{
    int64_t elements = 0;
    for (int i = 0; i < ex->count; i++) {
        elements += ex->parameters[i].whole_rows * ex->parameters[i].whole_columns;
    }
    return elements;
}

static status export_all(struct export_job *ex, const char *checkpoint, const char *output,
                         struct pretrained_summary *summary)
{
    TRY(choose(checkpoint, &ex->found));
    TRY(open_source(ex));
    *summary = (struct pretrained_summary){count_elements(ex), ex->count, 1, ex->tokenizer != NULL};
    double bytes = (double)summary->parameters * (ex->dtype == SAFETENSORS_BF16 ? 2 : 4);
    TRY(checkpoint_output_create(output, bytes, &ex->folder));
    return checkpoint_output_finish(&ex->folder, write_all(ex));
}

status pretrained_export(const char *checkpoint, const char *output, enum safetensors_dtype dtype,
                         bool adapter, struct pretrained_summary *summary)
{
    REQUIRE(!file_exists(output), STATUS_CREATE, "%s exists already; name a folder that does not",
            output);
    struct export_job *ex = calloc(1, sizeof *ex);
    REQUIRE(ex != NULL, STATUS_INTERNAL, "out of memory to export %s", checkpoint);
    ex->dtype = dtype;
    ex->alone = adapter;
    status result = export_all(ex, checkpoint, output, summary);
    KEEP_FIRST(result, tokenizer_destroy(&ex->tokenizer));
    labels_free(&ex->labels);
    checkpoint_reader_close(&ex->reader);
    checkpoint_reader_close(&ex->adapters);
    free(ex->found.recipe_text);
    free(ex->base.recipe_text);
    free(ex->parameters);
    free(ex);
    return result;
}
