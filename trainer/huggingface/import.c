/* Every tensor of the model must be there once, with its shape, and nothing else may be: a model that is
 * other than it says would be another model in silence. The exceptions go by name (pretrained_family.c): masks and
 * positions that old versions of transformers saved, a tied tensor's second name, and heads that the class does not
 * have, which begin with the random values that training would give them and are told. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "build_info.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint/rewrite.h"
#include "trainer/huggingface/huggingface_impl.h"
#include "trainer/setup/session.h"

static const char weights_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const size_t index_limit_bytes = (size_t)64 << 20;
enum { COMPARE_ELEMENTS = 1 << 16 };

const char *const pretrained_tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    NULL,
};

/* ---- files ---- */

status pretrained_import_open(struct pretrained_job *im, const char *name)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, im->folder, name));
    TRY(safetensors_open(path, &im->files[im->file_count]));
    im->file_count++;
    return STATUS_OK;
}

/* The file of a name in the index, opened once. It lies in the folder itself. */
static status open_indexed(struct pretrained_job *im, const char *index, const char *name,
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
    REQUIRE(im->file_count < PRETRAINED_FILES_MAX, STATUS_DATA, "%s: more than %d files", index,
            PRETRAINED_FILES_MAX);
    TRY(pretrained_import_open(im, name));
    *out = im->files[im->file_count - 1];
    return STATUS_OK;
}

static status open_map(struct pretrained_job *im, const char *index, const json_t *map)
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

static status open_index(struct pretrained_job *im, const char *path)
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

static status open_files(struct pretrained_job *im)
{
    char whole[FILE_PATH_BYTES], index[FILE_PATH_BYTES], pickle[FILE_PATH_BYTES];
    TRY(file_join(whole, im->folder, weights_name));
    TRY(file_join(index, im->folder, index_name));
    TRY(file_join(pickle, im->folder, "pytorch_model.bin"));
    if (file_exists(whole)) {
        return pretrained_import_open(im, weights_name);
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

static status find_named(const struct pretrained_job *im, const char *name,
                         struct pretrained_place *out)
{
    for (int i = 0; i < im->file_count; i++) {
        const struct safetensors_tensor *t = safetensors_find(im->files[i], name);
        if (t == NULL) {
            continue;
        }
        REQUIRE(out->tensor == NULL, STATUS_DATA, "%s: %s is there too (in %s as %s)",
                safetensors_path(im->files[i]), name, safetensors_path(out->file),
                out->tensor->name);
        *out = (struct pretrained_place){im->files[i], t};
    }
    return STATUS_OK;
}

status pretrained_import_check(const struct pretrained_place *place,
                               const struct model_parameter *p)
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

/* The other name that a tied or renamed tensor may have; NULL: none. */
static const char *other_name(const struct pretrained_job *im, const char *name)
{
    const struct pretrained_family *family = im->promise.family;
    bool tied = im->recipe->model.tie_word_embeddings;
    for (int i = tied ? 0 : 1; i < PRETRAINED_ALIASES && family->aliases[i].ours != NULL; i++) {
        if (strcmp(family->aliases[i].ours, name) == 0) {
            return family->aliases[i].theirs;
        }
    }
    return NULL;
}

/* Under the name itself, without the prefix or with that of its class, and as early files spell it: once among all of
 * these. */
static status find_spelled(const struct pretrained_job *im, const char *name,
                           struct pretrained_place *out)
{
    char early[MODEL_NAME_BYTES], other[2 * MODEL_NAME_BYTES];
    const struct pretrained_family *family = im->promise.family;
    const char *names[2] = {name, pretrained_renamed(name, early) ? early : NULL};
    for (int i = 0; i < 2 && names[i] != NULL; i++) {
        const char *bare = pretrained_bare(family, names[i]);
        TRY(find_named(im, names[i], out));
        if (bare != names[i]) {
            TRY(find_named(im, bare, out));
        }
        snprintf(other, sizeof other, "%s%s", pretrained_prefix(family, im->recipe->objective),
                 bare);
        if (bare != names[i] && strcmp(other, names[i]) != 0) {
            TRY(find_named(im, other, out));
        }
    }
    return STATUS_OK;
}

/* An output bias that is not tied is the other one: transformers reads cls.predictions.decoder.bias then. */
static status find_parameter(const struct pretrained_job *im, const struct model_parameter *p,
                             struct pretrained_place *out)
{
    const char *other = other_name(im, p->name);
    bool first = other != NULL && !im->recipe->model.tie_word_embeddings;
    if (first) {
        TRY(find_named(im, other, out));
    }
    if (out->tensor == NULL) {
        TRY(find_spelled(im, p->name, out));
    }
    if (out->tensor == NULL && other != NULL) {
        TRY(find_named(im, other, out));
    }
    if (out->tensor == NULL && pretrained_may_lack(&im->promise.heads, p)) {
        return STATUS_OK;
    }
    REQUIRE(out->tensor != NULL, STATUS_DATA,
            "%s: %s is missing, which the model of its config.json has", im->folder, p->name);
    return pretrained_import_check(out, p);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

static bool is_parameter(const struct pretrained_job *im, const char *name)
{
    const struct pretrained_family *family = im->promise.family;
    const char *bare = pretrained_bare(family, name);
    for (int i = 0; i < im->count; i++) {
        char early[MODEL_NAME_BYTES];
        const char *ours = im->parameters[i].name;
        if (strcmp(pretrained_bare(family, ours), bare) == 0 ||
            (pretrained_renamed(ours, early) &&
             strcmp(pretrained_bare(family, early), bare) == 0)) {
            return true;
        }
    }
    return false;
}

/* Bits, not numbers: what is tied is one tensor. */
static status compare_tied(const struct pretrained_place *kept,
                           const struct pretrained_place *other)
{
    int64_t elements = kept->tensor->elements;
    bool same = other->tensor->elements == elements;
    float *a = malloc(2 * (size_t)COMPARE_ELEMENTS * sizeof *a);
    REQUIRE(a != NULL, STATUS_INTERNAL, "out of memory to compare %s", other->tensor->name);
    float *b = a + COMPARE_ELEMENTS;
    status result = STATUS_OK;
    for (int64_t at = 0; at < elements && same && result == STATUS_OK; at += COMPARE_ELEMENTS) {
        int64_t left = elements - at, n = left < COMPARE_ELEMENTS ? left : COMPARE_ELEMENTS;
        result = safetensors_read(kept->file, kept->tensor, at, n, a);
        KEEP_FIRST(result, safetensors_read(other->file, other->tensor, at, n, b));
        same = result == STATUS_OK && memcmp(a, b, (size_t)n * sizeof *a) == 0;
    }
    free(a);
    TRY(result);
    REQUIRE(same, STATUS_DATA,
            "%s: %s is not %s, and config.json says that they are tied; set tie_word_embeddings "
            "there to false if they are two",
            safetensors_path(other->file), other->tensor->name, kept->tensor->name);
    return STATUS_OK;
}

/* A second name of a parameter that is there: tied, and so the same bits; else nobody reads it. */
static status check_second(const struct pretrained_job *im, const struct safetensors *file,
                           const struct safetensors_tensor *t, bool *is_second)
{
    const struct pretrained_family *family = im->promise.family;
    *is_second = false;
    for (int i = 0; i < PRETRAINED_ALIASES && family->aliases[i].ours != NULL; i++) {
        if (strcmp(family->aliases[i].theirs, t->name) != 0) {
            continue;
        }
        *is_second = true;
        for (int p = 0; p < im->count && im->recipe->model.tie_word_embeddings; p++) {
            if (strcmp(im->parameters[p].name, family->aliases[i].ours) == 0) {
                struct pretrained_place other = {file, t};
                return compare_tied(&im->places[p], &other);
            }
        }
    }
    return STATUS_OK;
}

static bool ends_with_any(const char *name, const char *const *ends, int count)
{
    for (int i = 0; i < count && ends[i] != NULL; i++) {
        if (ends_with(name, ends[i])) {
            return true;
        }
    }
    return false;
}

static status check_other(const struct pretrained_job *im, const struct safetensors *file,
                          const struct safetensors_tensor *t)
{
    const struct pretrained_family *family = im->promise.family;
    bool second;
    if (ends_with_any(t->name, family->buffers, PRETRAINED_BUFFERS) || is_parameter(im, t->name)) {
        return STATUS_OK;
    }
    if (ends_with_any(t->name, family->unused, PRETRAINED_UNUSED)) {
        log_warning("IMPORT", "%s: %s is left out: a %s here has no use for it",
                    safetensors_path(file), t->name, family->type);
        return STATUS_OK;
    }
    TRY(check_second(im, file, t, &second));
    REQUIRE(second, STATUS_DATA, "%s holds %s, which a %s of this config.json does not have",
            safetensors_path(file), t->name, family->type);
    return STATUS_OK;
}

static void tell_lacking(const struct pretrained_job *im)
{
    int lacking = 0;
    const char *name = NULL;
    for (int i = 0; i < im->count; i++) {
        if (im->places[i].tensor == NULL) {
            lacking++;
            name = name != NULL ? name : im->parameters[i].name;
        }
    }
    if (lacking > 0) {
        log_warning("IMPORT",
                    "%s: %s and %d more tensors of heads that its class does not have begin with "
                    "random values and have to be trained",
                    im->folder, name, lacking - 1);
    }
}

static status find_all(struct pretrained_job *im)
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
    tell_lacking(im);
    return STATUS_OK;
}

/* ---- the checkpoint ---- */

/* A box of a head that no file has; in memory it lies as in the file, for heads are not turned. */
static status fill_box(const struct pretrained_job *im, int index, const int64_t offset[2],
                       const int64_t shape[2], float *out)
{
    const struct model_parameter *p = &im->parameters[index];
    int64_t width = p->dimensions == 2 ? p->whole_columns : 1;
    for (int64_t row = 0; row < shape[0]; row++) {
        for (int64_t column = 0; column < shape[1]; column++) {
            *out++ = model_initial(p, index, (uint64_t)im->recipe->seed,
                                   (offset[0] + row) * width + offset[1] + column);
        }
    }
    return STATUS_OK;
}

/* A box; whole rows lie together. */
static status read_box(void *context, const struct manifest_tensor *tensor, const int64_t offset[2],
                       const int64_t shape[2], float *out)
{
    const struct pretrained_job *im = context;
    const struct pretrained_place *place = &im->places[tensor - im->manifest.tensors];
    bool together = shape[1] == tensor->shape[1];
    if (place->tensor == NULL) {
        return im->fill(im, (int)(place - im->places), offset, shape, out);
    }
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

static status list_tensors(struct pretrained_job *im)
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

status pretrained_import_write(struct pretrained_job *im, const char *output,
                               const char *tokenizer_dir, const char *const *tokenizer_files)
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
    char *labels = NULL;
    TRY(im->promise.labels.count > 0 ? labels_write(&im->promise.labels, &labels) : STATUS_OK);
    struct checkpoint_source source = {
        .manifest = &im->manifest,
        .tokenizer_dir = tokenizer_dir,
        .tokenizer_files = tokenizer_files,
        .beside_name = LABELS_FILE,
        .beside_text = labels,
        .context = im,
        .read = read_box,
    };
    result = checkpoint_source_write(&source, output, 1);
    free(labels);
    return result;
}

/* ---- all of it ---- */

/* A tokenizer that cannot be read would make the checkpoint useless to whoever opens it. */
status pretrained_import_tokenizer(const struct pretrained_job *im, const char *folder, bool *there)
{
    struct tokenizer *t = NULL;
    *there = tokenizer_exists(folder);
    if (!*there) {
        return STATUS_OK;
    }
    TRY(tokenizer_open(folder, &t));
    int64_t ids = tokenizer_vocab_size(t), vocabulary = im->recipe->model.vocab_size;
    TRY(tokenizer_destroy(&t));
    REQUIRE(ids <= vocabulary, STATUS_DATA,
            "%s: the tokenizer has %lld ids, and by config.json vocab_size is %lld", folder,
            (long long)ids, (long long)vocabulary);
    return STATUS_OK;
}

/* Files of BERT have the pooler, and with it the labels' head, whatever their class has: where it is, it is taken. */
static status find_pooler(struct pretrained_job *im)
{
    struct pretrained_place place = {0};
    if (strcmp(im->recipe->objective, "mlm") == 0 &&
        strcmp(im->promise.family->type, "bert") == 0) {
        TRY(find_spelled(im, "bert.pooler.dense.weight", &place));
        im->recipe->model.next_sentence |= place.tensor != NULL;
    }
    return STATUS_OK;
}

static status import_all(struct pretrained_job *im, const char *objective, const char *output,
                         struct pretrained_summary *summary)
{
    int64_t elements;
    TRY(pretrained_config_read(im->folder, objective, im->recipe, &im->promise));
    TRY(pretrained_import_tokenizer(im, im->folder, &summary->tokenizer));
    TRY(open_files(im));
    TRY(find_pooler(im));
    struct model_config config = session_model_config(im->recipe, im->recipe->model.vocab_size);
    TRY(model_layout(&config, 1, 0, &im->parameters, &im->count, &elements));
    im->places = calloc((size_t)im->count, sizeof *im->places);
    REQUIRE(im->places != NULL, STATUS_INTERNAL, "out of memory for %d tensors", im->count);
    TRY(find_all(im));
    for (int i = 0; i < im->count; i++) {
        summary->parameters += im->parameters[i].whole_rows * im->parameters[i].whole_columns;
    }
    summary->tensors = im->count;
    summary->files = im->file_count;
    return pretrained_import_write(im, output, summary->tokenizer ? im->folder : NULL,
                                   pretrained_tokenizer_files);
}

void pretrained_import_end(struct pretrained_job *im)
{
    for (int i = 0; i < im->file_count; i++) {
        safetensors_close(&im->files[i]);
    }
    labels_free(&im->promise.labels);
    free(im->manifest.recipe);
    free(im->manifest.tensors);
    free(im->parameters);
    free(im->places);
}

status pretrained_import(const char *folder, const char *objective, const char *output,
                         struct recipe *recipe, struct pretrained_summary *summary)
{
    *summary = (struct pretrained_summary){0};
    REQUIRE(file_is_folder(folder), STATUS_NO_INPUT,
            "there is no folder %s; a model of the Hub is to be fetched first", folder);
    REQUIRE(!file_exists(output), STATUS_CREATE, "%s exists already; name a folder that does not",
            output);
    struct pretrained_job *im = calloc(1, sizeof *im);
    REQUIRE(im != NULL, STATUS_INTERNAL, "out of memory to import %s", folder);
    im->folder = folder;
    im->recipe = recipe;
    im->fill = fill_box;
    status result = import_all(im, objective, output, summary);
    pretrained_import_end(im);
    free(im);
    return result;
}
