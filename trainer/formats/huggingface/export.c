/* Exports a checkpoint. Tensors are copied block by block to model.safetensors in the order of the
 * model. As in transformers, a tied output matrix is omitted. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/staged_folder.h"
#include "datasets/chat/chat.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/formats/huggingface/adapter_export.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/formats/huggingface/export_source.h"
#include "trainer/formats/huggingface/huggingface.h"
#include "trainer/formats/huggingface/json_file.h"
#include "trainer/formats/huggingface/pad_token.h"
#include "trainer/formats/huggingface/tensor_aliases.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/session.h"

static const char generation_config_name[] = "generation_config.json";
static const size_t tokenizer_limit_bytes = (size_t)256 << 20;

struct export_job {
    struct export_source source;
    struct pad_token pad; /* of a decoder with a head; no text: none */
    int64_t extra_rows;   /* rows of the embedding for a new pad token */
    enum safetensors_dtype dtype;
    struct staged_folder folder;
};

/* Returns whether texts have the special tokens of an encoder. */
static bool has_encoder(const struct export_job *ex)
{
    enum recipe_architecture family = ex->source.architecture->architecture;
    return recipe_architecture_is_encoder(family) || recipe_architecture_has_decoder(family);
}

/* Chooses the pad token of a decoder with a head. A new token may need another embedding row. */
static status choose_pad_token(struct export_job *ex)
{
    const struct export_source *source = &ex->source;
    if (source->adapters_only) {
        return STATUS_OK;
    }
    if (source->recipe.objective == OBJECTIVE_REWARD) {
        TRY(pad_token_choose(source->tokenizer, source->tokenizer_folder, &ex->pad));
    } else if (source->tokenizer != NULL && !has_encoder(ex) &&
               objective_spec_head(&source->recipe) != MODEL_HEAD_LM) {
        TRY(pad_token_choose_or_end(source->tokenizer, source->tokenizer_folder, &ex->pad));
    }
    if (ex->pad.text[0] == '\0') {
        return STATUS_OK;
    }
    ex->extra_rows =
        ex->pad.id < ex->source.vocabulary ? 0 : ex->pad.id + 1 - ex->source.vocabulary;
    if (ex->pad.is_new) {
        log_text("the export has the new pad token %s, id %d: transformers reads a reward at the "
                 "last token that is not the pad token",
                 ex->pad.text, ex->pad.id);
    }
    return STATUS_OK;
}

/* ---- weights ---- */

static int64_t count_extra_rows(const struct export_job *ex, int index)
{
    return ex->source.parameters[index].role == MODEL_TOKEN_TABLE ? ex->extra_rows : 0;
}

static status write_values(void *user, const float *values, int64_t count)
{
    return safetensors_write(user, values, count);
}

/* Writes the zero rows of a new pad token. */
static status write_extra_rows(const struct export_job *ex, int index,
                               struct safetensors_writer *writer)
{
    int64_t elements = count_extra_rows(ex, index) * ex->source.parameters[index].whole_columns;
    float *zeros = NULL;
    TRY(ALLOCATE(zeros, elements + 1, "the pad token"));
    status result = safetensors_write(writer, zeros, elements);
    free(zeros);
    return result;
}

static status write_tensor(struct export_job *ex, int index, float *buffer,
                           struct safetensors_writer *writer)
{
    TRY(export_source_read(&ex->source, index, buffer, write_values, writer));
    return count_extra_rows(ex, index) > 0 ? write_extra_rows(ex, index, writer) : STATUS_OK;
}

/* Returns the number of copies of the token table in the file. For BART and mBART with an untied
 * output matrix, transformers reads one copy for each stack. */
static int count_stack_tables(const struct export_job *ex)
{
    const struct huggingface_architecture *architecture = ex->source.architecture;
    bool ties_always = architecture->architecture == ARCHITECTURE_T5;
    bool has_copies = architecture->has_stack_tables && !ties_always && !ex->source.adapters_only &&
                      !ex->source.recipe.model.tie_word_embeddings;
    return has_copies ? TENSOR_ALIASES_STACKS : 0;
}

/* Returns the index of the parameter that a tensor of the file contains. The copies of the token
 * table are the last tensors. */
static int get_parameter_index(const struct export_job *ex, int tensor)
{
    int index = tensor < ex->source.count ? tensor : 0;
    while (tensor >= ex->source.count && ex->source.parameters[index].role != MODEL_TOKEN_TABLE) {
        index++;
    }
    return index;
}

static status write_tensors(struct export_job *ex, struct safetensors_writer *writer)
{
    float *buffer = NULL;
    TRY(ALLOCATE(buffer, CHECKPOINT_READ_ELEMENTS, ex->source.found.folder));
    status result = STATUS_OK;
    for (int i = 0; i < ex->source.count && result == STATUS_OK; i++) {
        result = write_tensor(ex, i, buffer, writer);
    }
    struct fingerprint sums = ex->source.sums; /* without the copies */
    for (int i = 0; i < count_stack_tables(ex) && result == STATUS_OK; i++) {
        result = write_tensor(ex, get_parameter_index(ex, ex->source.count + i), buffer, writer);
    }
    ex->source.sums = sums;
    free(buffer);
    return result;
}

/* Writes the tensor name for the class. The output bias of an untied encoder has another name (see
 * import.c), and a class may have another prefix. */
static void make_tensor_name(const struct export_job *ex, const char *name,
                             char out[HUGGINGFACE_NAME_BYTES])
{
    const struct huggingface_architecture *architecture = ex->source.architecture;
    const char *bias = architecture->aliases[1].ours;
    bool is_untied_bias =
        !ex->source.recipe.model.tie_word_embeddings && bias != NULL && strcmp(bias, name) == 0;
    const char *full_name = is_untied_bias ? architecture->aliases[1].theirs : name;
    const char *stripped = huggingface_strip_prefix(architecture, full_name);
    snprintf(out, HUGGINGFACE_NAME_BYTES, "%s%s",
             stripped != full_name
                 ? huggingface_name_prefix(architecture, ex->source.recipe.objective)
                 : "",
             stripped);
}

/* Sets the name and the shape of a tensor in the file. */
static void describe_tensor(const struct export_job *ex, int tensor,
                            char name[HUGGINGFACE_NAME_BYTES], struct safetensors_shape *shape)
{
    const struct export_source *source = &ex->source;
    int index = get_parameter_index(ex, tensor);
    const struct model_parameter *p = &source->parameters[index];
    if (tensor >= source->count) {
        snprintf(name, HUGGINGFACE_NAME_BYTES, "%s%s", source->architecture->prefix,
                 tensor_aliases_stack_tables[tensor - source->count]);
    } else if (source->adapters_only) {
        adapter_export_name(source->architecture, &source->config, p, name);
    } else {
        make_tensor_name(ex, p->name, name);
    }
    *shape = (struct safetensors_shape){.name = name, .dimensions = p->dimensions};
    huggingface_tensor_shape(p, shape->shape);
    if (huggingface_is_row(p)) {
        *shape = (struct safetensors_shape){
            .name = name, .dimensions = 2, .shape = {1, shape->shape[0]}};
    }
    shape->shape[0] += count_extra_rows(ex, index);
}

static status write_weights(struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    struct safetensors_writer *writer = NULL;
    struct safetensors_shape *shapes = NULL;
    char(*names)[HUGGINGFACE_NAME_BYTES] = NULL;
    int count = ex->source.count + count_stack_tables(ex);
    status result = STATUS_OK;
    TRY(file_join(path, ex->folder.path,
                  ex->source.adapters_only ? "adapter_model.safetensors" : "model.safetensors"));
    TRY_GOTO(result, done, ALLOCATE(shapes, count, "tensors"));
    TRY_GOTO(result, done, ALLOCATE(names, count, "tensors"));
    for (int i = 0; i < count; i++) {
        describe_tensor(ex, i, names[i], &shapes[i]);
    }
    TRY_GOTO(result, done, safetensors_create(path, ex->dtype, shapes, count, &writer));
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
    struct huggingface_special_tokens tokens = {-1, -1, -1, -1};
    tokens.decoder_start = derive_decoder_start(&ex->source.recipe, ex->source.tokenizer);
    if (ex->source.tokenizer != NULL) {
        bool encoder = has_encoder(ex);
        struct tokenizer_specials specials = tokenizer_get_specials(ex->source.tokenizer);
        tokens.eos = tokenizer_eos(tokenizer_target(ex->source.tokenizer));
        int32_t begin = tokenizer_bos(ex->source.tokenizer);
        tokens.bos = encoder && tokens.eos >= 0 ? specials.cls : begin >= 0 ? begin : tokens.eos;
        tokens.pad = ex->pad.text[0] != '\0' ? ex->pad.id : encoder ? specials.pad : -1;
    }
    if (ex->source.architecture->architecture == ARCHITECTURE_MARIAN && tokens.pad < 0) {
        tokens.pad = tokens.decoder_start; /* as in the published models */
    }
    if (ex->source.architecture->architecture == ARCHITECTURE_ROBERTA) {
        if (tokens.pad >= 0 && tokens.pad != 1) {
            log_warning(
                "EXPORT",
                "%s: <pad> has the id %d; transformers requires 1 for RoBERTa and gives token 1 "
                "another position",
                ex->source.tokenizer_folder, tokens.pad);
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
    status result =
        huggingface_config_write(&ex->source.recipe, ex->source.vocabulary + ex->extra_rows, tokens,
                                 &ex->source.labels, ex->dtype, file);
    fclose(file);
    if (result == STATUS_OK) {
        result = write_text(ex, "config.json", text, bytes);
    }
    free(text);
    return result;
}

static status add_token(const struct export_job *ex, json_t *config, const char *key, int32_t id)
{
    char *text = NULL;
    size_t bytes = 0;
    if (id >= 0) {
        TRY(tokenizer_decode(ex->source.tokenizer, &id, 1, false, &text, &bytes));
        json_object_set_new(config, key, json_string(text));
        free(text);
    }
    return STATUS_OK;
}

static status add_tokens(const struct export_job *ex, json_t *config)
{
    struct huggingface_special_tokens tokens = get_special_tokens(ex);
    TRY(add_token(ex, config, "bos_token", tokens.bos));
    TRY(add_token(ex, config, "eos_token", tokenizer_eos(ex->source.tokenizer)));
    if (has_encoder(ex)) {
        struct tokenizer_specials specials = tokenizer_get_specials(ex->source.tokenizer);
        TRY(add_token(ex, config, "cls_token", specials.cls));
        TRY(add_token(ex, config, "sep_token", specials.sep));
        TRY(add_token(ex, config, "pad_token", specials.pad));
        TRY(add_token(ex, config, "mask_token", specials.mask));
        TRY(add_token(ex, config, "unk_token", specials.unknown));
    }
    return STATUS_OK;
}

/* Writes tokenizer_config.json, which AutoTokenizer requires in addition to tokenizer.json.
 * transformers reads tokenizer.model with the class of Llama, and spiece.model with the class of
 * T5. */
static status write_tokenizer_config(const struct export_job *ex)
{
    struct model_config model = derive_model_config(&ex->source.recipe, ex->source.vocabulary);
    enum tokenizer_kind kind = tokenizer_get_kind(ex->source.tokenizer);
    bool has_model_file = kind == TOKENIZER_SENTENCEPIECE;
    const char *model_class =
        ex->source.architecture->architecture == ARCHITECTURE_T5 ? "T5Tokenizer" : "LlamaTokenizer";
    json_t *config = json_pack("{s:s, s:I, s:b}", "tokenizer_class",
                               kind == TOKENIZER_MARIAN ? "MarianTokenizer"
                               : has_model_file         ? model_class
                                                        : "PreTrainedTokenizerFast",
                               "model_max_length", (json_int_t)model_positions(&model),
                               "clean_up_tokenization_spaces", 0);
    if (has_model_file) {
        json_object_set_new(config, "add_bos_token",
                            json_boolean(tokenizer_bos(ex->source.tokenizer) >= 0));
        json_object_set_new(config, "add_eos_token", json_false());
    }
    /* Without model_input_names no token type ids mark the second text of a pair. */
    if (recipe_architecture_token_types(ex->source.architecture->architecture) > 1 ||
        model.token_types > 1) {
        json_object_set_new(
            config, "model_input_names",
            json_pack("[s, s, s]", "input_ids", "token_type_ids", "attention_mask"));
    }
    status result = add_tokens(ex, config);
    if (result == STATUS_OK && has_model_file && tokenizer_find(ex->source.tokenizer, "<s>") >= 0) {
        json_object_set_new(config, "bos_token", json_string("<s>"));
    }
    if (result != STATUS_OK) {
        json_decref(config);
        return result;
    }
    return json_file_write(ex->folder.path, "tokenizer_config.json", config);
}

static status copy_file(const struct export_job *ex, const char *name)
{
    char path[FILE_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, ex->source.tokenizer_folder, name));
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
    return json_file_write(ex->folder.path, generation_config_name,
                           json_pack("{s:o}", "eos_token_id", eos));
}

/* Writes the chat template as a Jinja template of transformers. It replaces the template of an
 * imported tokenizer. */
static status write_chat_template(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    struct chat_template *chat = NULL;
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, ex->source.tokenizer_folder, CHAT_FILE));
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(chat_open(ex->source.tokenizer_folder, ex->source.tokenizer, &chat));
    status result = chat_jinja(chat, ex->source.tokenizer, &text, &bytes);
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

/* Returns a JSON number, or null for a missing token. */
static json_t *make_token_json(int32_t id)
{
    return id >= 0 ? json_integer(id) : json_null();
}

/* Writes generation_config.json of an encoder-decoder, unless the import has kept one: the special
 * tokens, and no token that transformers forces by default. */
static status write_start_token(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, ex->folder.path, generation_config_name));
    if (!recipe_architecture_has_decoder(ex->source.architecture->architecture) ||
        file_exists(path)) {
        return STATUS_OK;
    }
    struct huggingface_special_tokens tokens = get_special_tokens(ex);
    return json_file_write(ex->folder.path, generation_config_name,
                           json_pack("{s:o, s:o, s:o, s:n}", "decoder_start_token_id",
                                     make_token_json(tokens.decoder_start), "eos_token_id",
                                     make_token_json(tokens.eos), "pad_token_id",
                                     make_token_json(tokens.pad), "forced_eos_token_id"));
}

static status write_tokenizer(const struct export_job *ex)
{
    char path[FILE_PATH_BYTES];
    for (const char *const *name = huggingface_tokenizer_files; *name != NULL; name++) {
        TRY(copy_file(ex, *name));
    }
    TRY(file_join(path, ex->folder.path, "tokenizer.json"));
    if (!file_exists(path)) { /* the checkpoint has only vocab.txt or tokenizer.model */
        TRY(tokenizer_save(ex->source.tokenizer, ex->folder.path));
    }
    TRY(write_chat_template(ex));
    TRY(write_start_token(ex));
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
    REQUIRE(file != NULL, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create %s: %s", path, strerror(errno));
    status result = adapter_export_write_config(&ex->source.recipe, &ex->source.config,
                                                ex->source.parameters, ex->source.count, file);
    bool closed = fclose(file) == 0;
    REQUIRE(closed, STATUS_WRITE, "cannot write %s: %s", path, strerror(errno));
    return result;
}

static status write_folder(struct export_job *ex)
{
    TRY(write_weights(ex));
    if (ex->source.adapters_only) {
        return write_adapter_config(ex);
    }
    TRY(export_source_check_base(&ex->source));
    TRY(write_config(ex));
    return ex->source.tokenizer != NULL ? write_tokenizer(ex) : STATUS_OK;
}

static int64_t count_elements(const struct export_job *ex)
{
    int64_t elements = 0;
    for (int i = 0; i < ex->source.count + count_stack_tables(ex); i++) {
        int index = get_parameter_index(ex, i);
        const struct model_parameter *p = &ex->source.parameters[index];
        elements += (p->whole_rows + count_extra_rows(ex, index)) * p->whole_columns;
    }
    return elements;
}

static status export_folder(struct export_job *ex, const char *checkpoint, const char *output,
                            bool adapter, struct huggingface_summary *summary)
{
    TRY(export_source_open(&ex->source, checkpoint, adapter));
    enum recipe_architecture family = ex->source.recipe.model.architecture;
    REQUIRE(!adapter || !recipe_architecture_is_free(family), STATUS_UNAVAILABLE,
            "peft has no class for the adapters of a %s; export the merged model, without "
            "--adapter",
            recipe_architecture_name(family));
    TRY(choose_pad_token(ex));
    *summary =
        (struct huggingface_summary){count_elements(ex), ex->source.count + count_stack_tables(ex),
                                     1, ex->source.tokenizer != NULL};
    double bytes = (double)summary->parameters * (ex->dtype == SAFETENSORS_BF16 ? 2 : 4);
    TRY(staged_folder_create(output, bytes, &ex->folder));
    return staged_folder_finish(&ex->folder, write_folder(ex));
}

status huggingface_export(const char *checkpoint, const char *output, enum safetensors_dtype dtype,
                          bool adapter, struct huggingface_summary *summary)
{
    REQUIRE(!file_exists(output), STATUS_CREATE,
            "%s already exists; name a folder that does not exist", output);
    struct export_job *ex = NULL;
    TRY(ALLOCATE(ex, 1, checkpoint));
    ex->dtype = dtype;
    status result = export_folder(ex, checkpoint, output, adapter, summary);
    KEEP_FIRST(result, export_source_close(&ex->source));
    free(ex);
    return result;
}
