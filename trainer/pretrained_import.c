/* Every tensor of the model must be there once, with its shape, and nothing else may be: a model that is
 * other than it says would be another model in silence. The exceptions go by name: the causal masks that old
 * versions of transformers saved, and an output matrix that is the embedding. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "build_info.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint_source.h"
#include "trainer/pretrained.h"
#include "trainer/pretrained_config.h"
#include "trainer/session.h"

static const char weights_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const char prefix[] = "transformer.", head_name[] = "lm_head.weight";
static const size_t index_limit_bytes = (size_t)64 << 20;
enum { FILES_MAX = 512, COMPARE_ELEMENTS = 1 << 16 };

const char *const pretrained_tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    NULL,
};

/* Where a parameter lies. */
struct place {
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
};

struct import_job {
    const char *folder;
    struct recipe *recipe;
    struct model_parameter *parameters;
    int count;
    struct safetensors *files[FILES_MAX];
    int file_count;
    struct place *places;     /* of the parameters, in their order */
    struct manifest manifest; /* of the parameters, in their order */
};

/* ---- files ---- */

static status open_weights(struct import_job *im, const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, im->folder, name));
    TRY(safetensors_open(path, &im->files[im->file_count]));
    im->file_count++;
    return STATUS_OK;
}

/* The file of a name in the index, opened once. It lies in the folder itself. */
static status open_indexed(struct import_job *im, const char *index, const char *name,
                           const struct safetensors **out)
{
    REQUIRE(name != NULL && name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL,
            STATUS_DATA, "%s: weight_map names a file that is none of this folder", index);
    for (int i = 0; i < im->file_count; i++) {
        if (strcmp(strrchr(safetensors_path(im->files[i]), '/') + 1, name) == 0) {
            *out = im->files[i];
            return STATUS_OK;
        }
    }
    REQUIRE(im->file_count < FILES_MAX, STATUS_DATA, "%s: more than %d files", index, FILES_MAX);
    TRY(open_weights(im, name));
    *out = im->files[im->file_count - 1];
    return STATUS_OK;
}

static status open_map(struct import_job *im, const char *index, const json_t *map)
{
    const char *tensor;
    json_t *value;
    REQUIRE(json_is_object(map) && json_object_size(map) > 0, STATUS_DATA,
            "%s: weight_map is missing or empty", index);
    json_object_foreach((json_t *)map, tensor, value)
    {
        const struct safetensors *file = NULL;
        TRY(open_indexed(im, index, json_string_value(value), &file));
        REQUIRE(safetensors_find(file, tensor) != NULL, STATUS_DATA,
                "%s: %.200s is not in %s, as the index says", index, tensor,
                safetensors_path(file));
    }
    return STATUS_OK;
}

static status open_index(struct import_job *im, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    TRY(file_read(path, index_limit_bytes, &text, &bytes));
    json_t *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    REQUIRE(index != NULL, STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    status result = open_map(im, path, json_object_get(index, "weight_map"));
    json_decref(index);
    return result;
}

static status open_files(struct import_job *im)
{
    char whole[FILE_PATH_BYTES], index[FILE_PATH_BYTES], pickle[FILE_PATH_BYTES];
    TRY(file_join(whole, im->folder, weights_name));
    TRY(file_join(index, im->folder, index_name));
    TRY(file_join(pickle, im->folder, "pytorch_model.bin"));
    if (file_exists(whole)) {
        return open_weights(im, weights_name);
    }
    if (file_exists(index)) {
        return open_index(im, index);
    }
    REQUIRE(!file_exists(pickle), STATUS_NO_INPUT,
            "%s holds pytorch_model.bin and no %s; load it in transformers and save it again with "
            "save_pretrained, which writes %s",
            im->folder, weights_name, weights_name);
    RAISE(STATUS_NO_INPUT, "%s holds neither %s nor %s", im->folder, weights_name, index_name);
}

/* ---- tensors ---- */

static status find_named(const struct import_job *im, const char *name, struct place *out)
{
    for (int i = 0; i < im->file_count; i++) {
        const struct safetensors_tensor *t = safetensors_find(im->files[i], name);
        if (t == NULL) {
            continue;
        }
        REQUIRE(out->tensor == NULL, STATUS_DATA, "%s: %s is there too (in %s as %s)",
                safetensors_path(im->files[i]), name, safetensors_path(out->file),
                out->tensor->name);
        *out = (struct place){im->files[i], t};
    }
    return STATUS_OK;
}

/* GPT2Model saves its tensors without the prefix that they have in GPT2LMHeadModel. */
static const char *bare(const char *name)
{
    size_t length = sizeof prefix - 1;
    return strncmp(name, prefix, length) == 0 ? name + length : name;
}

static status check_shape(const struct place *place, const struct model_parameter *p)
{
    int64_t shape[2];
    const struct safetensors_tensor *t = place->tensor;
    pretrained_shape(p, shape);
    bool same = t->dimensions == p->dimensions && t->shape[0] == shape[0] &&
                (p->dimensions == 1 || t->shape[1] == shape[1]);
    long long columns = t->dimensions > 1 ? (long long)t->shape[1] : 1;
    REQUIRE(same, STATUS_DATA,
            "%s: %s has %d dimensions, [%lld, %lld], and by config.json %d, [%lld, %lld]",
            safetensors_path(place->file), t->name, t->dimensions,
            t->dimensions > 0 ? (long long)t->shape[0] : 1, columns, p->dimensions,
            (long long)shape[0], (long long)shape[1]);
    REQUIRE(t->dtype != SAFETENSORS_OTHER, STATUS_DATA,
            "%s: %s has the dtype %s; F32, F16 and BF16 can be read: save the model in one of them",
            safetensors_path(place->file), t->name, t->dtype_name);
    return STATUS_OK;
}

static status find_parameter(const struct import_job *im, const struct model_parameter *p,
                             struct place *out)
{
    TRY(find_named(im, p->name, out));
    if (strcmp(bare(p->name), p->name) != 0) {
        TRY(find_named(im, bare(p->name), out));
    }
    bool embedding = p == im->parameters && im->recipe->model.tie_word_embeddings;
    if (out->tensor == NULL &&
        embedding) { /* tied: a file may hold it under the head's name alone */
        TRY(find_named(im, head_name, out));
    }
    REQUIRE(out->tensor != NULL, STATUS_DATA,
            "%s: %s is missing, which the model of its config.json has", im->folder, p->name);
    return check_shape(out, p);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

static bool is_parameter(const struct import_job *im, const char *name)
{
    for (int i = 0; i < im->count; i++) {
        if (strcmp(bare(im->parameters[i].name), bare(name)) == 0) {
            return true;
        }
    }
    return false;
}

/* Bits, not numbers: what is tied is one tensor. */
static status compare_tied(const struct place *embedding, const struct place *head)
{
    int64_t elements = embedding->tensor->elements;
    bool same = head->tensor->elements == elements;
    float *a = malloc(2 * (size_t)COMPARE_ELEMENTS * sizeof *a);
    REQUIRE(a != NULL, STATUS_INTERNAL, "out of memory to compare %s", head_name);
    float *b = a + COMPARE_ELEMENTS;
    status result = STATUS_OK;
    for (int64_t at = 0; at < elements && same && result == STATUS_OK; at += COMPARE_ELEMENTS) {
        int64_t left = elements - at, n = left < COMPARE_ELEMENTS ? left : COMPARE_ELEMENTS;
        result = safetensors_read(embedding->file, embedding->tensor, at, n, a);
        KEEP_FIRST(result, safetensors_read(head->file, head->tensor, at, n, b));
        same = result == STATUS_OK && memcmp(a, b, (size_t)n * sizeof *a) == 0;
    }
    free(a);
    TRY(result);
    REQUIRE(same, STATUS_DATA,
            "%s: %s is not %s, and config.json says that they are tied; set tie_word_embeddings "
            "there to false if they are two",
            safetensors_path(head->file), head_name, embedding->tensor->name);
    return STATUS_OK;
}

static status check_other(const struct import_job *im, const struct safetensors *file,
                          const struct safetensors_tensor *t)
{
    bool mask = ends_with(t->name, ".attn.bias") || ends_with(t->name, ".attn.masked_bias");
    if (mask || is_parameter(im, t->name)) {
        return STATUS_OK;
    }
    if (strcmp(t->name, head_name) == 0) { /* no parameter: the two are tied */
        struct place head = {file, t};
        return compare_tied(&im->places[0], &head);
    }
    RAISE(STATUS_DATA, "%s holds %s, which a GPT-2 of this config.json does not have",
          safetensors_path(file), t->name);
}

static status find_all(struct import_job *im)
{
    for (int i = 0; i < im->count; i++) {
        TRY(find_parameter(im, &im->parameters[i], &im->places[i]));
    }
    for (int i = 0; i < im->file_count; i++) {
        int count;
        const struct safetensors_tensor *tensors = safetensors_tensors(im->files[i], &count);
        for (int t = 0; t < count; t++) {
            TRY(check_other(im, im->files[i], &tensors[t]));
        }
    }
    return STATUS_OK;
}

/* ---- the checkpoint ---- */

/* A box; whole rows lie together. */
static status read_box(void *context, const struct manifest_tensor *tensor, const int64_t offset[2],
                       const int64_t shape[2], float *out)
{
    const struct import_job *im = context;
    const struct place *place = &im->places[tensor - im->manifest.tensors];
    bool together = shape[1] == tensor->shape[1];
    int64_t runs = together ? 1 : shape[0], length = together ? shape[0] * shape[1] : shape[1];
    for (int64_t r = 0; r < runs; r++) {
        int64_t first = (offset[0] + r) * tensor->shape[1] + offset[1];
        float *run = out + r * length;
        TRY(safetensors_read(place->file, place->tensor, first, length, run));
        for (int64_t i = 0; i < length; i++) {
            REQUIRE(isfinite(run[i]), STATUS_DATA,
                    "%s: element %lld of %s is %g: the weights are damaged, or training diverged",
                    safetensors_path(place->file), (long long)(first + i), place->tensor->name,
                    (double)run[i]);
        }
    }
    return STATUS_OK;
}

static status list_tensors(struct import_job *im)
{
    static char family[] = "model";
    struct manifest *m = &im->manifest;
    REQUIRE(im->count > 0, STATUS_INTERNAL, "%d tensors", im->count);
    m->tensors = calloc((size_t)im->count, sizeof *m->tensors);
    REQUIRE(m->tensors != NULL, STATUS_INTERNAL, "out of memory for %d tensors", im->count);
    for (int i = 0; i < im->count; i++) {
        struct model_parameter *p = &im->parameters[i];
        m->tensors[i] = (struct manifest_tensor){
            .family = family, .name = p->name, .dimensions = p->dimensions};
        pretrained_shape(p, m->tensors[i].shape);
    }
    m->tensor_count = im->count;
    return STATUS_OK;
}

static status write_checkpoint(struct import_job *im, const char *output, bool tokenizer)
{
    static char version[] = BUILD_VERSION " " BUILD_COMMIT, unknown[] = "";
    size_t bytes = 0;
    TRY(list_tensors(im));
    FILE *file = open_memstream(&im->manifest.recipe, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for a recipe");
    status result = recipe_write(im->recipe, file);
    fclose(file);
    TRY(result);
    im->manifest.version = version;
    im->manifest.data_fingerprint = unknown;
    struct checkpoint_source source = {
        .manifest = &im->manifest,
        .tokenizer_dir = tokenizer ? im->folder : NULL,
        .tokenizer_files = pretrained_tokenizer_files,
        .context = im,
        .read = read_box,
    };
    return checkpoint_source_write(&source, output, 1);
}

/* ---- all of it ---- */

/* A tokenizer that cannot be read would make the checkpoint useless to whoever opens it. */
static status check_tokenizer(const struct import_job *im, bool *there)
{
    char path[FILE_PATH_BYTES];
    struct tokenizer *t = NULL;
    TRY(file_join(path, im->folder, pretrained_tokenizer_files[0]));
    *there = file_exists(path);
    if (!*there) {
        return STATUS_OK;
    }
    TRY(tokenizer_open(im->folder, &t));
    int64_t ids = tokenizer_vocab_size(t), vocabulary = im->recipe->model.vocab_size;
    TRY(tokenizer_destroy(&t));
    REQUIRE(ids <= vocabulary, STATUS_DATA,
            "%s has %lld ids, and by config.json vocab_size is %lld", path, (long long)ids,
            (long long)vocabulary);
    return STATUS_OK;
}

static status import_all(struct import_job *im, const char *output,
                         struct pretrained_summary *summary)
{
    int64_t elements;
    TRY(pretrained_config_read(im->folder, im->recipe));
    struct model_config config = session_model_config(im->recipe, im->recipe->model.vocab_size);
    TRY(check_tokenizer(im, &summary->tokenizer));
    TRY(open_files(im));
    TRY(model_layout(&config, 1, 0, &im->parameters, &im->count, &elements));
    im->places = calloc((size_t)im->count, sizeof *im->places);
    REQUIRE(im->places != NULL, STATUS_INTERNAL, "out of memory for %d tensors", im->count);
    TRY(find_all(im));
    for (int i = 0; i < im->count; i++) {
        summary->parameters += im->places[i].tensor->elements;
    }
    summary->tensors = im->count;
    summary->files = im->file_count;
    return write_checkpoint(im, output, summary->tokenizer);
}

status pretrained_import(const char *folder, const char *output, struct recipe *recipe,
                         struct pretrained_summary *summary)
{
    *summary = (struct pretrained_summary){0};
    REQUIRE(file_is_folder(folder), STATUS_NO_INPUT,
            "there is no folder %s; a model of the Hub is to be fetched first", folder);
    REQUIRE(!file_exists(output), STATUS_CREATE, "%s exists already; name a folder that does not",
            output);
    struct import_job *im = calloc(1, sizeof *im);
    REQUIRE(im != NULL, STATUS_INTERNAL, "out of memory to import %s", folder);
    im->folder = folder;
    im->recipe = recipe;
    status result = import_all(im, output, summary);
    for (int i = 0; i < im->file_count; i++) {
        safetensors_close(&im->files[i]);
    }
    free(im->manifest.recipe);
    free(im->manifest.tensors);
    free(im->parameters);
    free(im->places);
    free(im);
    return result;
}
