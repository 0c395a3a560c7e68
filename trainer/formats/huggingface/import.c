/* Imports a model folder. The files must contain every tensor of the model exactly once, with its
 * shape, and no other tensor. Otherwise the import would silently produce another model.
 *
 * The exceptions are listed by name in architectures.c: masks and positions that old versions of
 * transformers saved, the second name of a tied tensor, and heads that the class does not have.
 * Such heads get random initial values, and the import prints a warning. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "build_info.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/formats/checkpoint/rewrite.h"
#include "trainer/formats/huggingface/added_tokens.h"
#include "trainer/formats/huggingface/huggingface_impl.h"
#include "trainer/formats/huggingface/tensor_aliases.h"
#include "trainer/formats/json/json_members.h"
#include "trainer/model/architecture.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

static const char weights_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const size_t index_limit_bytes = (size_t)64 << 20;
enum { MEMBER_BYTES_MAX = 1 << 20 }; /* of the index, except for weight_map */

const char *const huggingface_tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "source.spm",
    "target.spm",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "generation_config.json",
    "target_vocab.json",
    "target_tokenizer.json",
    NULL,
};

/* ---- files ---- */

status huggingface_import_open_file(struct huggingface_import_job *job, const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, job->folder, name));
    TRY(safetensors_open(path, &job->files[job->file_count]));
    job->file_count++;
    return STATUS_OK;
}

/* Opens a file of the index once. The file must be in the folder itself. */
static status open_indexed(struct huggingface_import_job *job, const char *index, const char *name,
                           const struct safetensors **out)
{
    REQUIRE(name != NULL && file_is_safe_name(name, 0), STATUS_DATA,
            "%s: weight_map names a file that cannot be in this folder", index);
    for (int i = 0; i < job->file_count; i++) {
        if (strcmp(strrchr(safetensors_path(job->files[i]), '/') + 1, name) == 0) {
            *out = job->files[i];
            return STATUS_OK;
        }
    }
    REQUIRE(job->file_count < HUGGINGFACE_FILES_MAX, STATUS_DATA,
            "%s: weight_map names more than %d files", index, HUGGINGFACE_FILES_MAX);
    TRY(huggingface_import_open_file(job, name));
    *out = job->files[job->file_count - 1];
    return STATUS_OK;
}

static status open_mapped(struct huggingface_import_job *job, struct json_members *index,
                          const char *tensor)
{
    const struct safetensors *file = NULL;
    char *name = NULL;
    TRY(json_members_is_next(index, '"') ? json_members_read_text(index, &name) : STATUS_OK);
    TRY(open_indexed(job, index->source, name, &file));
    REQUIRE(safetensors_find(file, tensor) != NULL, STATUS_DATA,
            "%s: %.200s is not in %s, the file that weight_map names", index->source, tensor,
            safetensors_path(file));
    return STATUS_OK;
}

static status open_map(struct huggingface_import_job *job, struct json_members *index)
{
    char *tensor;
    TRY(json_members_begin(index));
    TRY(json_members_next(index, &tensor));
    while (tensor != NULL) {
        TRY(open_mapped(job, index, tensor));
        TRY(json_members_next(index, &tensor));
    }
    return STATUS_OK;
}

/* Reads a member of the index. Only weight_map is used. The index is read one name at a time,
 * because a tree of it would take up to 17 times its size. */
static status read_index_member(struct huggingface_import_job *job, struct json_members *index,
                                const char *name)
{
    json_t *unused;
    if (strcmp(name, "weight_map") == 0 && json_members_is_next(index, '{')) {
        return open_map(job, index);
    }
    TRY(json_members_read(index, MEMBER_BYTES_MAX, &unused));
    json_decref(unused);
    return STATUS_OK;
}

static status read_index(struct huggingface_import_job *job, struct json_members *index)
{
    char *name;
    TRY(json_members_begin(index));
    TRY(json_members_next(index, &name));
    while (name != NULL) {
        TRY(read_index_member(job, index, name));
        TRY(json_members_next(index, &name));
    }
    REQUIRE(job->file_count > 0, STATUS_DATA, "%s: weight_map is missing or empty", index->source);
    return json_members_finish(index);
}

static status open_index(struct huggingface_import_job *job, const char *path)
{
    struct json_members index = {.source = path};
    TRY(file_read(path, index_limit_bytes, &index.text, &index.bytes));
    status result = read_index(job, &index);
    free(index.text);
    return result;
}

static status open_files(struct huggingface_import_job *job)
{
    char weights[FILE_PATH_BYTES], index[FILE_PATH_BYTES], pickle[FILE_PATH_BYTES];
    TRY(file_join(weights, job->folder, weights_name));
    TRY(file_join(index, job->folder, index_name));
    TRY(file_join(pickle, job->folder, "pytorch_model.bin"));
    if (file_exists(weights)) {
        return huggingface_import_open_file(job, weights_name);
    }
    if (file_exists(index)) {
        return open_index(job, index);
    }
    REQUIRE(!file_exists(pickle), STATUS_NO_INPUT,
            "%s contains pytorch_model.bin but no %s; load the model in transformers and save it "
            "with save_pretrained, which writes %s",
            job->folder, weights_name, weights_name);
    RAISE(STATUS_NO_INPUT, "%s holds neither %s nor %s", job->folder, weights_name, index_name);
}

/* ---- tensors ---- */

static status find_tensor(const struct huggingface_import_job *job, const char *name,
                          struct huggingface_tensor_source *out)
{
    for (int i = 0; i < job->file_count; i++) {
        const struct safetensors_tensor *t = safetensors_find(job->files[i], name);
        if (t == NULL) {
            continue;
        }
        REQUIRE(out->tensor == NULL, STATUS_DATA, "%s: %s is a duplicate (%s contains it as %s)",
                safetensors_path(job->files[i]), name, safetensors_path(out->file),
                out->tensor->name);
        *out = (struct huggingface_tensor_source){job->files[i], t};
    }
    return STATUS_OK;
}

status huggingface_import_check_tensor(const struct huggingface_tensor_source *source,
                                       const struct model_parameter *p)
{
    int64_t shape[2];
    const struct safetensors_tensor *t = source->tensor;
    huggingface_tensor_shape(p, shape);
    bool is_row =
        huggingface_is_row(p) && t->dimensions == 2 && t->shape[0] == 1 && t->shape[1] == shape[0];
    bool equal = is_row || (t->dimensions == p->dimensions && t->shape[0] == shape[0] &&
                            (p->dimensions == 1 || t->shape[1] == shape[1]));
    int64_t columns = t->dimensions > 1 ? t->shape[1] : 1;
    REQUIRE(equal, STATUS_DATA,
            "%s: %s has %d dimensions, [%" PRId64 ", %" PRId64
            "], but config.json requires %d, [%" PRId64 ", %" PRId64 "]",
            safetensors_path(source->file), t->name, t->dimensions,
            t->dimensions > 0 ? t->shape[0] : 1, columns, p->dimensions, shape[0], shape[1]);
    REQUIRE(t->dtype != SAFETENSORS_OTHER, STATUS_DATA,
            "%s: %s has dtype %s; supported are F32, F16 and BF16: save the model in one of them",
            safetensors_path(source->file), t->name, t->dtype_name);
    return STATUS_OK;
}

/* Finds a tensor under all its spellings: the name, without prefix, with the prefix of its class,
 * and as in early files. Only one of them may exist. */
static status find_any_spelling(const struct huggingface_import_job *job, const char *name,
                                struct huggingface_tensor_source *out)
{
    char legacy[MODEL_NAME_BYTES], prefixed[2 * MODEL_NAME_BYTES];
    const struct huggingface_architecture *architecture = job->config.architecture;
    const char *names[2] = {name, huggingface_legacy_name(name, legacy) ? legacy : NULL};
    for (int i = 0; i < 2 && names[i] != NULL; i++) {
        const char *stripped = huggingface_strip_prefix(architecture, names[i]);
        TRY(find_tensor(job, names[i], out));
        if (stripped != names[i]) {
            TRY(find_tensor(job, stripped, out));
        }
        snprintf(prefixed, sizeof prefixed, "%s%s",
                 huggingface_name_prefix(architecture, job->recipe->objective), stripped);
        if (stripped != names[i] && strcmp(prefixed, names[i]) != 0) {
            TRY(find_tensor(job, prefixed, out));
        }
    }
    return STATUS_OK;
}

/* Finds the tensor of a parameter. If the output matrix is not tied, the second name comes first:
 * transformers then reads cls.predictions.decoder.bias. */
static status find_parameter(const struct huggingface_import_job *job,
                             const struct model_parameter *p, struct huggingface_tensor_source *out)
{
    const char *alias = tensor_aliases_find(job, p->name);
    bool is_alias_first = alias != NULL && !job->recipe->model.tie_word_embeddings;
    if (is_alias_first) {
        TRY(find_tensor(job, alias, out));
    }
    if (out->tensor == NULL) {
        TRY(find_any_spelling(job, p->name, out));
    }
    if (out->tensor == NULL && alias != NULL) {
        TRY(find_tensor(job, alias, out));
    }
    if (out->tensor == NULL && huggingface_may_be_missing(&job->config.heads, p)) {
        return STATUS_OK;
    }
    REQUIRE(out->tensor != NULL, STATUS_DATA,
            "%s: %s is missing, but the model of config.json has it", job->folder, p->name);
    return huggingface_import_check_tensor(out, p);
}

/* Adds a name to a set, without the prefix of the class. */
static status add_name(const struct huggingface_import_job *job, const char *name, json_t *names)
{
    const char *stripped = huggingface_strip_prefix(job->config.architecture, name);
    REQUIRE(json_object_set_new(names, stripped, json_true()) == 0, STATUS_INTERNAL,
            "out of memory for the names of %d tensors", job->count);
    return STATUS_OK;
}

/* Lists the names of all parameters, and their names in early files, without the prefix of the
 * class. The caller releases *names, also after an error. */
static status list_names(const struct huggingface_import_job *job, json_t **names)
{
    *names = json_object();
    for (int i = 0; i < job->count; i++) {
        char legacy[MODEL_NAME_BYTES];
        TRY(add_name(job, job->parameters[i].name, *names));
        TRY(huggingface_legacy_name(job->parameters[i].name, legacy) ? add_name(job, legacy, *names)
                                                                     : STATUS_OK);
    }
    return STATUS_OK;
}

static bool ends_with_any(const char *name, const char *const *ends, int count)
{
    for (int i = 0; i < count && ends[i] != NULL; i++) {
        if (text_has_suffix(name, ends[i])) {
            return true;
        }
    }
    return false;
}

/* Checks a tensor of a file. `names` are the names of the parameters (list_names). */
static status check_unmatched(const struct huggingface_import_job *job, const json_t *names,
                              const struct safetensors *file, const struct safetensors_tensor *t)
{
    const struct huggingface_architecture *architecture = job->config.architecture;
    bool is_alias;
    if (ends_with_any(t->name, architecture->buffer_suffixes, HUGGINGFACE_BUFFERS_MAX) ||
        json_object_get(names, huggingface_strip_prefix(architecture, t->name)) != NULL) {
        return STATUS_OK;
    }
    if (ends_with_any(t->name, architecture->unused_suffixes, HUGGINGFACE_UNUSED_MAX)) {
        log_warning("UNUSED-TENSOR", "%s: %s is skipped, because this %s model does not use it",
                    safetensors_path(file), t->name, architecture->model_type);
        return STATUS_OK;
    }
    if (architecture->has_logits_bias && strcmp(t->name, HUGGINGFACE_LOGITS_BIAS) == 0) {
        return STATUS_OK; /* it is 0 */
    }
    TRY(tensor_aliases_check(job, file, t, &is_alias));
    REQUIRE(is_alias, STATUS_DATA, "%s holds %s, which the %s model of config.json does not have",
            safetensors_path(file), t->name, architecture->model_type);
    return STATUS_OK;
}

static void warn_missing(const struct huggingface_import_job *job)
{
    int missing = 0;
    const char *name = NULL;
    for (int i = 0; i < job->count; i++) {
        if (job->sources[i].tensor == NULL) {
            missing++;
            name = name != NULL ? name : job->parameters[i].name;
        }
    }
    if (missing > 0) {
        log_warning(
            "RANDOM-HEAD",
            "%s does not contain all tensors of the heads; the missing ones are initialized "
            "randomly (%d: %s%s); train them before use",
            job->folder, missing, name, missing > 1 ? ", ..." : "");
    }
}

static status check_all_unmatched(const struct huggingface_import_job *job, const json_t *names)
{
    for (int i = 0; i < job->file_count; i++) {
        int count;
        const struct safetensors_tensor *tensors = safetensors_tensors(job->files[i], &count);
        for (int t = 0; t < count; t++) {
            TRY(check_unmatched(job, names, job->files[i], &tensors[t]));
        }
    }
    return STATUS_OK;
}

static status match_tensors(struct huggingface_import_job *job)
{
    json_t *names;
    for (int i = 0; i < job->count; i++) {
        TRY(find_parameter(job, &job->parameters[i], &job->sources[i]));
    }
    status result = list_names(job, &names);
    if (result == STATUS_OK) {
        result = check_all_unmatched(job, names);
    }
    json_decref(names);
    TRY(result);
    warn_missing(job);
    return STATUS_OK;
}

/* ---- the checkpoint ---- */

/* Fills a block of a head that no file has with initial values. Heads are not transposed, so memory
 * and file have the same orientation. */
static status fill_initial(const struct huggingface_import_job *job, int index,
                           const int64_t offset[2], const int64_t shape[2], float *out)
{
    const struct model_parameter *p = &job->parameters[index];
    int64_t width = p->dimensions == 2 ? p->whole_columns : 1;
    for (int64_t row = 0; row < shape[0]; row++) {
        for (int64_t column = 0; column < shape[1]; column++) {
            *out++ = model_initial_value(p, index, (uint64_t)job->recipe->seed,
                                         (offset[0] + row) * width + offset[1] + column);
        }
    }
    return STATUS_OK;
}

/* Returns how many rows of a block are in the file. */
static int64_t count_stored_rows(const struct huggingface_import_job *job,
                                 const struct huggingface_tensor_source *source, int64_t first,
                                 int64_t rows)
{
    int64_t file_rows = source->tensor->shape[0];
    if (job->new_rows == NULL || job->new_rows[source - job->sources] == NULL ||
        first + rows <= file_rows) {
        return rows;
    }
    return first < file_rows ? file_rows - first : 0;
}

/* Copies the rows of a block after the `stored` ones of the file. */
static void copy_new_rows(const struct huggingface_import_job *job,
                          const struct huggingface_tensor_source *source, int64_t stored,
                          int64_t columns, const int64_t offset[2], const int64_t shape[2],
                          float *out)
{
    for (int64_t r = stored; r < shape[0]; r++) {
        int64_t row = offset[0] + r - source->tensor->shape[0];
        memcpy(out + r * shape[1], job->new_rows[source - job->sources] + row * columns + offset[1],
               (size_t)shape[1] * sizeof *out);
    }
}

/* Reads a block. Whole rows are contiguous in the file. */
static status read_block(void *context, const struct manifest_tensor *tensor,
                         const int64_t offset[2], const int64_t shape[2], float *out)
{
    const struct huggingface_import_job *job = context;
    const struct huggingface_tensor_source *source = &job->sources[tensor - job->manifest.tensors];
    bool contiguous = shape[1] == tensor->shape[1];
    float norm_offset =
        huggingface_norm_offset(job->config.architecture, &job->parameters[source - job->sources]);
    if (source->tensor == NULL) {
        return job->fill_missing(job, (int)(source - job->sources), offset, shape, out);
    }
    int64_t stored = count_stored_rows(job, source, offset[0], shape[0]);
    copy_new_rows(job, source, stored, tensor->shape[1], offset, shape, out);
    int64_t runs = contiguous ? stored > 0 : stored;
    int64_t length = contiguous ? stored * shape[1] : shape[1];
    for (int64_t r = 0; r < runs; r++) {
        int64_t first = (offset[0] + r) * tensor->shape[1] + offset[1];
        float *run = out + r * length;
        TRY(safetensors_read(source->file, source->tensor, first, length, run));
        for (int64_t i = 0; i < length; i++) {
            REQUIRE(isfinite(run[i]), STATUS_DATA,
                    "%s: element %" PRId64
                    " of %s is %g: the weights are damaged, or training diverged",
                    safetensors_path(source->file), first + i, source->tensor->name,
                    (double)run[i]);
            run[i] += norm_offset;
        }
    }
    return STATUS_OK;
}

static status list_tensors(struct huggingface_import_job *job)
{
    REQUIRE(job->count > 0, STATUS_INTERNAL, "%d tensors", job->count);
    for (int i = 0; i < job->count; i++) {
        const struct model_parameter *p = &job->parameters[i];
        int64_t shape[2];
        huggingface_tensor_shape(p, shape);
        TRY(manifest_add_tensor(&job->manifest, "model", p->name, DTYPE_F32, p->dimensions, shape));
    }
    return STATUS_OK;
}

status huggingface_import_write_checkpoint(struct huggingface_import_job *job, const char *output,
                                           const char *tokenizer_dir,
                                           const char *const *tokenizer_files)
{
    size_t bytes = 0;
    TRY(list_tensors(job));
    FILE *file = open_memstream(&job->manifest.recipe, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for the recipe");
    status result = recipe_write(job->recipe, file);
    fclose(file);
    TRY(result);
    TRY(memory_copy_text(&job->manifest.version, BUILD_VERSION " " BUILD_COMMIT, "a manifest"));
    TRY(memory_copy_text(&job->manifest.data_fingerprint, "", "a manifest"));
    char *labels = NULL;
    TRY(job->config.labels.count > 0 ? labels_to_json(&job->config.labels, &labels) : STATUS_OK);
    struct checkpoint_source source = {
        .manifest = &job->manifest,
        .tokenizer_dir = tokenizer_dir,
        .tokenizer_files = tokenizer_files,
        .extra_file_name = LABELS_FILE,
        .extra_file_text = labels,
        .context = job,
        .read = read_block,
    };
    result = checkpoint_rewrite(&source, output, 1);
    free(labels);
    return result;
}

/* ---- the whole import ---- */

status huggingface_import_check_tokenizer(const struct huggingface_import_job *job,
                                          const char *folder, bool *exists)
{
    struct tokenizer *t = NULL;
    *exists = tokenizer_exists(folder);
    if (!*exists) {
        return STATUS_OK;
    }
    TRY(tokenizer_open(folder, &t));
    int64_t ids = tokenizer_vocab_size(t), vocabulary = job->recipe->model.vocab_size;
    int64_t targets = tokenizer_vocab_size(tokenizer_target(t));
    int64_t decoder = derive_decoder_vocabulary(job->recipe, vocabulary);
    TRY(tokenizer_destroy(&t));
    REQUIRE(ids <= vocabulary, STATUS_DATA,
            "%s: the tokenizer has %" PRId64 " ids, but vocab_size in config.json is %" PRId64,
            folder, ids, vocabulary);
    REQUIRE(targets <= decoder, STATUS_DATA,
            "%s: the tokenizer has %" PRId64 " ids of targets, but the decoder in config.json has "
            "%" PRId64,
            folder, targets, decoder);
    return STATUS_OK;
}

/* Imports the head of two labels of BERT or ALBERT if the files contain the pooler. Files may
 * contain both even if the class does not use them. */
static status find_pooler(struct huggingface_import_job *job)
{
    struct huggingface_tensor_source source = {0};
    if (job->recipe->objective == OBJECTIVE_MLM &&
        recipe_architecture_has_next_sentence(job->config.architecture->architecture)) {
        const char *type = job->config.architecture->model_type;
        char name[MODEL_NAME_BYTES];
        snprintf(name, sizeof name, "%s.weight", model_architecture(type)->names->pooler);
        TRY(find_any_spelling(job, name, &source));
        job->recipe->model.next_sentence |= source.tensor != NULL;
    }
    return STATUS_OK;
}

/* Unties the output matrix of T5 1.1 if the files contain it. The class of transformers 5 always
 * stores tie_word_embeddings as true. */
static status find_output_matrix(struct huggingface_import_job *job)
{
    struct huggingface_tensor_source source = {0};
    if (job->recipe->model.architecture == ARCHITECTURE_T5 &&
        job->recipe->model.scale_decoder_outputs == RECIPE_FALSE) {
        TRY(find_tensor(job, "lm_head.weight", &source));
        job->recipe->model.tie_word_embeddings = source.tensor == NULL;
    }
    return STATUS_OK;
}

/* Imports the constant bias of the logits if it is not 0. */
static status find_logits_bias(struct huggingface_import_job *job)
{
    struct huggingface_tensor_source source = {0};
    float values[1024];
    if (!job->config.architecture->has_logits_bias) {
        return STATUS_OK;
    }
    TRY(find_tensor(job, HUGGINGFACE_LOGITS_BIAS, &source));
    int64_t elements = source.tensor != NULL ? source.tensor->elements : 0;
    for (int64_t first = 0; first < elements; first += COUNT(values)) {
        int64_t left = elements - first, count = number_min(left, COUNT(values));
        TRY(safetensors_read(source.file, source.tensor, first, count, values));
        for (int64_t i = 0; i < count; i++) {
            job->recipe->model.final_logits_bias |= values[i] != 0;
        }
    }
    return STATUS_OK;
}

/* Lists the parameters of the recipe's model in the job. */
static status lay_out_model(struct huggingface_import_job *job)
{
    int64_t elements;
    free(job->parameters);
    job->parameters = NULL;
    struct model_config config = derive_model_config(job->recipe, job->recipe->model.vocab_size);
    return model_layout(&config, 1, 0, &job->parameters, &job->count, &elements);
}

/* Grows the vocabulary to the ids of the extended tokenizer, and computes the new rows of the
 * matrices that have one row per id. */
static status grow_vocabulary(struct huggingface_import_job *job, int64_t ids)
{
    int64_t before = job->recipe->model.vocab_size;
    if (ids <= before) {
        return STATUS_OK;
    }
    REQUIRE(job->recipe->model.share_encoder_decoder_embeddings, STATUS_UNAVAILABLE,
            "%s: tokens cannot be added to a model with two token tables", job->folder);
    REQUIRE(!job->recipe->model.final_logits_bias, STATUS_UNAVAILABLE,
            "%s: tokens cannot be added to a model with %s", job->folder, HUGGINGFACE_LOGITS_BIAS);
    job->recipe->model.vocab_size = ids;
    TRY(lay_out_model(job));
    TRY(ALLOCATE(job->new_rows, job->count, "new rows of the embedding"));
    for (int i = 0; i < job->count; i++) {
        const struct safetensors_tensor *t = job->sources[i].tensor;
        int64_t shape[2];
        huggingface_tensor_shape(&job->parameters[i], shape);
        bool grows = t != NULL && t->shape[0] == before && shape[0] == ids;
        TRY(grows ? added_tokens_compute_rows(job, i, &job->new_rows[i]) : STATUS_OK);
    }
    log_text("the vocabulary grows from %" PRId64 " to %" PRId64
             " ids; the new rows begin near the mean of the others",
             before, ids);
    return STATUS_OK;
}

/* Writes the checkpoint with the extended tokenizer, which is kept in a temporary folder. */
static status write_extended(struct huggingface_import_job *job, const char *output)
{
    char folder[FILE_PATH_BYTES];
    int64_t ids = 0;
    int used = snprintf(folder, sizeof folder, "%s.tokenizer-%ld", output, (long)getpid());
    REQUIRE(used < (int)sizeof folder, STATUS_USAGE, "path too long: %s", output);
    status result = added_tokens_make_tokenizer(job, folder, &ids);
    if (result == STATUS_OK) {
        result = grow_vocabulary(job, ids);
    }
    if (result == STATUS_OK) {
        result =
            huggingface_import_write_checkpoint(job, output, folder, huggingface_tokenizer_files);
    }
    file_discard_tree(folder);
    return result;
}

static status import_folder(struct huggingface_import_job *job, const char *objective,
                            const char *output, struct huggingface_summary *summary)
{
    TRY(huggingface_config_read(job->folder, objective, job->recipe, &job->config));
    TRY(huggingface_import_check_tokenizer(job, job->folder, &summary->tokenizer));
    TRY(open_files(job));
    TRY(find_pooler(job));
    TRY(find_output_matrix(job));
    TRY(find_logits_bias(job));
    TRY(lay_out_model(job));
    TRY(ALLOCATE(job->sources, job->count, "tensors"));
    TRY(match_tensors(job));
    for (int i = 0; i < job->count; i++) {
        summary->parameters += job->parameters[i].whole_rows * job->parameters[i].whole_columns;
    }
    summary->tensors = job->count;
    summary->files = job->file_count;
    if (job->token_count > 0) {
        return write_extended(job, output);
    }
    return huggingface_import_write_checkpoint(job, output, summary->tokenizer ? job->folder : NULL,
                                               huggingface_tokenizer_files);
}

void huggingface_import_close(struct huggingface_import_job *job)
{
    for (int i = 0; i < job->file_count; i++) {
        safetensors_close(&job->files[i]);
    }
    labels_free(&job->config.labels);
    manifest_destroy(&job->manifest);
    for (int i = 0; i < job->count && job->new_rows != NULL; i++) {
        free(job->new_rows[i]);
    }
    free(job->new_rows);
    free(job->parameters);
    free(job->sources);
}

status huggingface_import(const char *folder, const char *objective, const char *output,
                          char *const *tokens, int token_count, struct recipe *recipe,
                          struct huggingface_summary *summary)
{
    *summary = (struct huggingface_summary){0};
    REQUIRE(file_is_folder(folder), STATUS_NO_INPUT,
            "there is no folder %s; download models of the Hugging Face Hub first", folder);
    REQUIRE(!file_exists(output), STATUS_CREATE,
            "%s already exists; name a folder that does not exist", output);
    struct huggingface_import_job *job = NULL;
    TRY(ALLOCATE(job, 1, folder));
    job->folder = folder;
    job->recipe = recipe;
    job->fill_missing = fill_initial;
    job->tokens = tokens;
    job->token_count = token_count;
    status result = import_folder(job, objective, output, summary);
    huggingface_import_close(job);
    free(job);
    return result;
}
