/* Exports a checkpoint. Tensors are copied block by block to model.safetensors in the order of the
 * model. As in transformers, a tied output matrix is omitted. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/staged_folder.h"
#include "datasets/chat/chat.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/huggingface/adapter_export.h"
#include "trainer/huggingface/config.h"
#include "trainer/huggingface/huggingface.h"
#include "trainer/huggingface/pad_token.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/session.h"
#include "trainer/weights/adapter_base.h"
#include "trainer/weights/fingerprint.h"

static const size_t tokenizer_limit_bytes = (size_t)256 << 20;

struct export_job {
    struct checkpoint_info found, base; /* base: only if `found` contains adapters alone */
    struct checkpoint_reader *reader;   /* model weights */
    struct checkpoint_reader *adapters; /* adapters and task head; NULL: none */
    bool adapters_only;                 /* write only the adapters, not the model */
    struct fingerprint sums;            /* fingerprint of the model weights read */
    struct recipe recipe;
    const struct huggingface_architecture *architecture;
    int64_t vocabulary;
    struct model_config config;
    struct model_parameter *parameters;
    int count;
    struct tokenizer *tokenizer; /* NULL: the checkpoint has none */
    struct pad_token pad;        /* of a reward model; no text: none */
    int64_t extra_rows;          /* rows of the embedding for a new pad token */
    struct labels labels;        /* of the task head; may be empty */
    char tokenizer_folder[FILE_PATH_BYTES];
    enum safetensors_dtype dtype;
    struct staged_folder folder;
};

/* ---- source ---- */

static status read_recipe(struct export_job *ex)
{
    const char *text = ex->found.recipe_text;
    char alone[] = "parallel.tensor=1", *overrides[] = {alone};
    return recipe_parse(ex->found.folder, text, strlen(text), overrides, 1, &ex->recipe);
}

static status resolve_checkpoint(const char *checkpoint, struct checkpoint_info *out)
{
    struct comm *self = NULL;
    TRY(comm_self_create(&self));
    status result = checkpoint_resolve(self, checkpoint, true, out);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* Opens the checkpoint; the recipe of a checkpoint of adapters contains the path of its base
 * model. */
static status open_readers(struct export_job *ex)
{
    bool has_adapters = ex->recipe.adapter.type != ADAPTER_NONE;
    REQUIRE(has_adapters || !ex->adapters_only, STATUS_USAGE,
            "%s holds no adapters: omit --adapter", ex->found.folder);
    if (!has_adapters) {
        return checkpoint_reader_open(ex->found.folder, &ex->reader);
    }
    TRY(checkpoint_reader_open(ex->found.folder, &ex->adapters));
    status result = resolve_checkpoint(ex->recipe.adapter.base, &ex->base);
    TRY(recipe_annotate_error(&ex->recipe, "adapter.base", result,
                              "The frozen model of these adapters is expected there"));
    return checkpoint_reader_open(ex->base.folder, &ex->reader);
}

/* Reads the vocabulary size from the embedding, because the recipe may not contain it. */
static status read_vocabulary(struct export_job *ex)
{
    const struct huggingface_architecture *architecture =
        huggingface_find_architecture(recipe_architecture_name(ex->recipe.model.architecture));
    REQUIRE(architecture != NULL, STATUS_UNAVAILABLE,
            "%s: model.architecture %s cannot be exported to transformers; %s can",
            ex->found.folder, recipe_architecture_name(ex->recipe.model.architecture),
            huggingface_architecture_names());
    const struct manifest *m = checkpoint_reader_manifest(ex->reader);
    const char *name = architecture->aliases[0].ours;
    const struct manifest_tensor *embedding = manifest_find_tensor(m, "model", name);
    REQUIRE(embedding != NULL, STATUS_CHECKPOINT, "%s holds no %s", ex->found.folder, name);
    ex->architecture = architecture;
    ex->vocabulary = embedding->shape[0];
    return STATUS_OK;
}

/* Returns the reader of a parameter. Adapters and the task head are in the checkpoint of
 * adapters. */
static struct checkpoint_reader *get_reader(const struct export_job *ex, int index)
{
    const struct model_parameter *p = &ex->parameters[index];
    bool is_trained = model_is_adapter(p) || model_is_task_head(&ex->config, p);
    return ex->adapters != NULL && is_trained ? ex->adapters : ex->reader;
}

static const struct manifest_tensor *find_tensor(const struct export_job *ex, int index)
{
    const struct manifest *m = checkpoint_reader_manifest(get_reader(ex, index));
    return manifest_find_tensor(m, "model", ex->parameters[index].name);
}

static status check_tensors(const struct export_job *ex)
{
    for (int i = 0; i < ex->count; i++) {
        const struct manifest_tensor *t = find_tensor(ex, i);
        int64_t shape[2];
        huggingface_tensor_shape(&ex->parameters[i], shape);
        REQUIRE(t != NULL && t->shape[0] == shape[0] && t->shape[1] == shape[1], STATUS_CHECKPOINT,
                "%s: %s is missing or does not have the shape [%" PRId64 ", %" PRId64
                "] of the recipe",
                ex->found.folder, ex->parameters[i].name, shape[0], shape[1]);
    }
    return STATUS_OK;
}

static void select_trained(struct export_job *ex)
{
    int trained = 0;
    for (int i = 0; i < ex->count; i++) {
        if (ex->parameters[i].trained) {
            ex->parameters[trained++] = ex->parameters[i];
        }
    }
    ex->count = trained;
}

/* Chooses the pad token of a reward model. A new one may need another row of the embedding. */
static status choose_pad_token(struct export_job *ex)
{
    if (ex->recipe.objective != OBJECTIVE_REWARD || ex->adapters_only) {
        return STATUS_OK;
    }
    TRY(pad_token_choose(ex->tokenizer, ex->tokenizer_folder, &ex->pad));
    ex->extra_rows = ex->pad.id < ex->vocabulary ? 0 : ex->pad.id + 1 - ex->vocabulary;
    if (ex->pad.is_new) {
        log_info("the export has the new pad token %s, id %d: transformers reads a reward at the "
                 "last token that is not the pad token",
                 ex->pad.text, ex->pad.id);
    }
    return STATUS_OK;
}

static status open_source(struct export_job *ex)
{
    int64_t elements;
    TRY(read_recipe(ex));
    TRY(open_readers(ex));
    TRY(read_vocabulary(ex));
    ex->config = derive_model_config(&ex->recipe, ex->vocabulary);
    if (!ex->adapters_only) {
        ex->config.adapter.rank = 0;
    }
    TRY(model_layout(&ex->config, 1, 0, &ex->parameters, &ex->count, &elements));
    if (ex->adapters_only) {
        select_trained(ex);
    }
    TRY(check_tensors(ex));
    TRY(file_join(ex->tokenizer_folder, ex->found.folder, "tokenizer"));
    TRY(objective_spec_head(&ex->recipe) != MODEL_HEAD_LM
            ? labels_read(ex->tokenizer_folder, &ex->labels)
            : STATUS_OK);
    if (!tokenizer_exists(ex->tokenizer_folder)) {
        return STATUS_OK;
    }
    TRY(tokenizer_open(ex->tokenizer_folder, &ex->tokenizer));
    return choose_pad_token(ex);
}

/* ---- weights ---- */

static int64_t count_extra_rows(const struct export_job *ex, int index)
{
    return ex->parameters[index].role == MODEL_TOKEN_TABLE ? ex->extra_rows : 0;
}

static status write_blocks(struct export_job *ex, int index, const struct adapter_weights *adapter,
                           float *buffer, struct safetensors_writer *writer)
{
    int64_t offset[2] = {0, 0}, shape[2];
    const struct manifest_tensor *t = find_tensor(ex, index);
    float norm_offset = huggingface_norm_offset(ex->architecture, &ex->parameters[index]);
    while (checkpoint_reader_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(get_reader(ex, index), t, offset, shape, buffer));
        if (ex->adapters != NULL && get_reader(ex, index) == ex->reader) {
            fingerprint_add_block(&ex->sums, index, &ex->parameters[index], offset, shape, buffer);
        }
        for (int64_t i = 0; i < shape[0] * shape[1] && norm_offset > 0; i++) {
            buffer[i] -= norm_offset;
        }
        adapter_export_merge(adapter, ex->parameters[index].transposed, offset, shape, buffer);
        TRY(safetensors_write(writer, buffer, shape[0] * shape[1]));
        checkpoint_reader_next_block(t, offset, shape);
    }
    return STATUS_OK;
}

/* Writes the zero rows of a new pad token. */
static status write_extra_rows(const struct export_job *ex, int index,
                               struct safetensors_writer *writer)
{
    int64_t elements = count_extra_rows(ex, index) * ex->parameters[index].whole_columns;
    float *zeros = calloc((size_t)elements + 1, sizeof *zeros);
    REQUIRE(zeros != NULL, STATUS_INTERNAL, "out of memory for the pad token");
    status result = safetensors_write(writer, zeros, elements);
    free(zeros);
    return result;
}

static status write_tensor(struct export_job *ex, int index, float *buffer,
                           struct safetensors_writer *writer)
{
    struct adapter_weights adapter = {0};
    status result = STATUS_OK;
    if (ex->adapters != NULL && !ex->adapters_only) {
        result = adapter_export_read(ex->adapters, &ex->recipe, &ex->parameters[index], &adapter);
    }
    if (result == STATUS_OK) {
        result = write_blocks(ex, index, &adapter, buffer, writer);
    }
    if (result == STATUS_OK && count_extra_rows(ex, index) > 0) {
        result = write_extra_rows(ex, index, writer);
    }
    adapter_export_free(&adapter);
    return result;
}

/* Checks that the adapters were merged into the base weights that they were trained with. */
static status check_base(const struct export_job *ex)
{
    char digest[HASH_TEXT_BYTES];
    fingerprint_text(&ex->sums, digest);
    return ex->adapters != NULL && !ex->adapters_only ? adapter_base_check(&ex->recipe, digest)
                                                      : STATUS_OK;
}

static status write_tensors(struct export_job *ex, struct safetensors_writer *writer)
{
    float *buffer = malloc((size_t)CHECKPOINT_READ_ELEMENTS * sizeof *buffer);
    REQUIRE(buffer != NULL, STATUS_INTERNAL, "out of memory while exporting %s", ex->found.folder);
    status result = STATUS_OK;
    for (int i = 0; i < ex->count && result == STATUS_OK; i++) {
        result = write_tensor(ex, i, buffer, writer);
    }
    free(buffer);
    return result;
}

/* Writes the tensor name for the class. The output bias of an untied encoder has another name (see
 * import.c), and a class may have another prefix. */
static void make_tensor_name(const struct export_job *ex, const char *name,
                             char out[HUGGINGFACE_NAME_BYTES])
{
    const struct huggingface_architecture *architecture = ex->architecture;
    const char *bias = architecture->aliases[1].ours;
    bool is_untied_bias =
        !ex->recipe.model.tie_word_embeddings && bias != NULL && strcmp(bias, name) == 0;
    const char *full_name = is_untied_bias ? architecture->aliases[1].theirs : name;
    const char *stripped = huggingface_strip_prefix(architecture, full_name);
    snprintf(out, HUGGINGFACE_NAME_BYTES, "%s%s",
             stripped != full_name ? huggingface_name_prefix(architecture, ex->recipe.objective)
                                   : "",
             stripped);
}

static status write_weights(struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    struct safetensors_writer *writer = NULL;
    TRY(file_join(path, ex->folder.path,
                  ex->adapters_only ? "adapter_model.safetensors" : "model.safetensors"));
    struct safetensors_shape *shapes = calloc((size_t)ex->count, sizeof *shapes);
    char(*names)[HUGGINGFACE_NAME_BYTES] = calloc((size_t)ex->count, sizeof *names);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, shapes != NULL && names != NULL, STATUS_INTERNAL,
                 "out of memory for %d tensors", ex->count);
    for (int i = 0; i < ex->count; i++) {
        make_tensor_name(ex, ex->parameters[i].name, names[i]);
        if (ex->adapters_only) {
            adapter_export_name(ex->architecture, &ex->config, &ex->parameters[i], names[i]);
        }
        shapes[i].name = names[i];
        shapes[i].dimensions = ex->parameters[i].dimensions;
        huggingface_tensor_shape(&ex->parameters[i], shapes[i].shape);
        shapes[i].shape[0] += count_extra_rows(ex, i);
    }
    TRY_GOTO(result, done, safetensors_create(path, ex->dtype, shapes, ex->count, &writer));
    result = write_tensors(ex, writer);
    KEEP_FIRST(result, safetensors_finish(&writer));
done:
    free(shapes);
    free(names);
    return result;
}

/* ---- configuration and tokenizer files ---- */

static status write_text(const struct export_job *ex, const char *name, const char *text,
                         size_t bytes)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, ex->folder.path, name));
    return file_write(path, text, bytes);
}

/* Returns the special tokens. RoBERTa always has pad token 1, even without a tokenizer, because its
 * positions start after the id of the pad token. */
static struct huggingface_special_tokens get_special_tokens(const struct export_job *ex)
{
    struct huggingface_special_tokens tokens = {-1, -1, -1};
    if (ex->tokenizer != NULL) {
        bool encoder = recipe_architecture_is_encoder(ex->architecture->architecture);
        struct tokenizer_specials specials = tokenizer_get_specials(ex->tokenizer);
        tokens.eos = tokenizer_eos(ex->tokenizer);
        int32_t begin = tokenizer_bos(ex->tokenizer);
        tokens.bos = encoder && tokens.eos >= 0 ? specials.cls : begin >= 0 ? begin : tokens.eos;
        tokens.pad = ex->pad.text[0] != '\0' ? ex->pad.id : encoder ? specials.pad : -1;
    }
    if (ex->architecture->architecture == ARCHITECTURE_ROBERTA) {
        if (tokens.pad >= 0 && tokens.pad != 1) {
            log_warning(
                "EXPORT",
                "%s: <pad> has the id %d; transformers requires 1 for RoBERTa and gives token 1 "
                "another position",
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
    struct huggingface_special_tokens tokens = get_special_tokens(ex);
    FILE *file = open_memstream(&text, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for config.json");
    status result = huggingface_config_write(&ex->recipe, ex->vocabulary + ex->extra_rows, tokens,
                                             &ex->labels, ex->dtype, file);
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

static status add_token(const struct export_job *ex, json_t *config, const char *key, int32_t id)
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

static status add_tokens(const struct export_job *ex, json_t *config)
{
    struct huggingface_special_tokens tokens = get_special_tokens(ex);
    TRY(add_token(ex, config, "bos_token", tokens.bos));
    TRY(add_token(ex, config, "eos_token", tokens.eos));
    if (recipe_architecture_is_encoder(ex->architecture->architecture)) {
        struct tokenizer_specials specials = tokenizer_get_specials(ex->tokenizer);
        TRY(add_token(ex, config, "cls_token", specials.cls));
        TRY(add_token(ex, config, "sep_token", specials.sep));
        TRY(add_token(ex, config, "pad_token", specials.pad));
        TRY(add_token(ex, config, "mask_token", specials.mask));
        TRY(add_token(ex, config, "unk_token", specials.unknown));
    }
    return STATUS_OK;
}

/* Writes tokenizer_config.json, which AutoTokenizer requires besides tokenizer.json. transformers
 * reads tokenizer.model with the class of Llama. */
static status write_tokenizer_config(const struct export_job *ex)
{
    struct model_config model = derive_model_config(&ex->recipe, ex->vocabulary);
    bool has_model_file = tokenizer_get_kind(ex->tokenizer) == TOKENIZER_SENTENCEPIECE;
    json_t *config =
        json_pack("{s:s, s:I, s:b}", "tokenizer_class",
                  has_model_file ? "LlamaTokenizer" : "PreTrainedTokenizerFast", "model_max_length",
                  (json_int_t)model_positions(&model), "clean_up_tokenization_spaces", 0);
    if (has_model_file) {
        json_object_set_new(config, "add_bos_token",
                            json_boolean(tokenizer_bos(ex->tokenizer) >= 0));
        json_object_set_new(config, "add_eos_token", json_false());
    }
    /* Without model_input_names no token type ids mark the second text of a pair. */
    if (ex->architecture->architecture == ARCHITECTURE_BERT) {
        json_object_set_new(
            config, "model_input_names",
            json_pack("[s, s, s]", "input_ids", "token_type_ids", "attention_mask"));
    }
    status result = add_tokens(ex, config);
    if (result == STATUS_OK && has_model_file && tokenizer_find(ex->tokenizer, "<s>") >= 0) {
        json_object_set_new(config, "bos_token", json_string("<s>"));
    }
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

/* Writes generation_config.json. If the end-of-turn token is not the tokenizer's end token, both
 * end a sequence, as in Llama 3. */
static status write_generation_config(const struct export_job *ex, int32_t end_of_turn)
{
    int32_t tokenizer_end = get_special_tokens(ex).eos;
    json_t *eos = tokenizer_end == end_of_turn || tokenizer_end < 0
                      ? json_pack("i", end_of_turn)
                      : json_pack("[i, i]", tokenizer_end, end_of_turn);
    return write_json(ex, "generation_config.json", json_pack("{s:o}", "eos_token_id", eos));
}

/* Writes the chat template as a Jinja template of transformers. It replaces the template of an
 * imported tokenizer. */
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
    for (const char *const *name = huggingface_tokenizer_files; *name != NULL; name++) {
        TRY(copy_file(ex, *name));
    }
    TRY(file_join(path, ex->folder.path, "tokenizer.json"));
    if (!file_exists(path)) { /* the checkpoint has only vocab.txt or tokenizer.model */
        TRY(tokenizer_save(ex->tokenizer, ex->folder.path));
    }
    TRY(write_chat_template(ex));
    TRY(file_join(path, ex->folder.path, "tokenizer_config.json"));
    TRY(file_exists(path) ? STATUS_OK : write_tokenizer_config(ex));
    return ex->pad.text[0] != '\0' ? pad_token_write(&ex->pad, ex->folder.path) : STATUS_OK;
}

/* ---- the whole export ---- */

static status write_adapter_config(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, ex->folder.path, "adapter_config.json"));
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL, STATUS_CREATE, "cannot create %s", path);
    status result =
        adapter_export_write_config(&ex->recipe, &ex->config, ex->parameters, ex->count, file);
    bool closed = fclose(file) == 0;
    REQUIRE(closed, STATUS_WRITE, "cannot write %s", path);
    return result;
}

static status write_folder(struct export_job *ex)
{
    TRY(write_weights(ex));
    if (ex->adapters_only) {
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
        int64_t rows = ex->parameters[i].whole_rows + count_extra_rows(ex, i);
        elements += rows * ex->parameters[i].whole_columns;
    }
    return elements;
}

static status export_folder(struct export_job *ex, const char *checkpoint, const char *output,
                            struct huggingface_summary *summary)
{
    TRY(resolve_checkpoint(checkpoint, &ex->found));
    TRY(open_source(ex));
    *summary =
        (struct huggingface_summary){count_elements(ex), ex->count, 1, ex->tokenizer != NULL};
    double bytes = (double)summary->parameters * (ex->dtype == SAFETENSORS_BF16 ? 2 : 4);
    TRY(staged_folder_create(output, bytes, &ex->folder));
    return staged_folder_finish(&ex->folder, write_folder(ex));
}

status huggingface_export(const char *checkpoint, const char *output, enum safetensors_dtype dtype,
                          bool adapter, struct huggingface_summary *summary)
{
    REQUIRE(!file_exists(output), STATUS_CREATE,
            "%s already exists; name a folder that does not exist", output);
    struct export_job *ex = calloc(1, sizeof *ex);
    REQUIRE(ex != NULL, STATUS_INTERNAL, "out of memory while exporting %s", checkpoint);
    ex->dtype = dtype;
    ex->adapters_only = adapter;
    status result = export_folder(ex, checkpoint, output, summary);
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
