/* Converts a GGUF file to a model folder of transformers, for trainer/formats/huggingface. */
#include "trainer/formats/gguf/import.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/staged_folder.h"
#include "trainer/formats/gguf/gguf_impl.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/setup/derive.h"

struct gguf_import_job {
    struct gguf_file *file;
    const struct gguf_family *family;
    struct recipe recipe;
    struct model_config config;
    const struct architecture *architecture;
    const struct huggingface_architecture *huggingface;
    struct model_parameter *parameters;
    int count;
};

bool gguf_is_file(const char *path)
{
    char magic[4] = "";
    if (file_size(path) < (int64_t)sizeof magic) {
        return false;
    }
    FILE *file = fopen(path, "rb");
    bool is_read = file != NULL && fread(magic, 1, sizeof magic, file) == sizeof magic;
    if (file != NULL) {
        (void)fclose(file);
    }
    return is_read && memcmp(magic, "GGUF", sizeof magic) == 0;
}

/* ---- metadata ---- */

double gguf_get_number(const struct gguf_file *file, const char *name, double default_value)
{
    const struct gguf_key *key = gguf_find_key(file, name);
    return key != NULL && key->numbers != NULL && !key->is_list ? key->numbers[0] : default_value;
}

const char *gguf_get_text(const struct gguf_file *file, const char *name)
{
    const struct gguf_key *key = gguf_find_key(file, name);
    return key != NULL && key->texts != NULL && !key->is_list ? key->texts[0] : NULL;
}

/* Reads a number of the family: the shortest decimal that rounds to the stored f32, such as 1e-5
 * and not 9.99999975e-6. */
static double read_number(const struct gguf_import_job *job, const char *name, double default_value)
{
    char key[GGUF_NAME_BYTES], text[32];
    snprintf(key, sizeof key, "%s.%s", job->family->name, name);
    const struct gguf_key *found = gguf_find_key(job->file, key);
    double value = gguf_get_number(job->file, key, default_value);
    if (found == NULL || found->type != GGUF_VALUE_F32) {
        return value;
    }
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if ((float)strtod(text, NULL) == (float)value) {
            break;
        }
    }
    return strtod(text, NULL);
}

/* Reads an integer of the family, from 0 to 1e9. */
static status read_count(const struct gguf_import_job *job, const char *name, int64_t default_value,
                         int64_t *out)
{
    double value = read_number(job, name, (double)default_value);
    REQUIRE(value >= 0 && value <= 1e9 && value == floor(value), STATUS_DATA,
            "%s: %s.%s is not a whole number from 0 to 1000000000", gguf_path(job->file),
            job->family->name, name);
    *out = (int64_t)value;
    return STATUS_OK;
}

/* Reads a count of the family that must be present and above 0. */
static status read_size(const struct gguf_import_job *job, const char *name, int64_t *out)
{
    double value = read_number(job, name, 0);
    REQUIRE(value >= 1 && value <= 1e9 && value == floor(value), STATUS_DATA,
            "%s: %s.%s is missing or not a number from 1 to 1000000000", gguf_path(job->file),
            job->family->name, name);
    *out = (int64_t)value;
    return STATUS_OK;
}

/* Finds whether the output matrix is the token table: the file has no output matrix, or an equal
 * one. */
static status find_tied(const struct gguf_import_job *job, const struct gguf_tensor *table,
                        bool *tied)
{
    const struct gguf_tensor *output = gguf_find_tensor(job->file, "output.weight");
    *tied = output == NULL;
    return output != NULL ? gguf_compare_tensors(job->file, table, output, tied) : STATUS_OK;
}

static status read_sizes(struct gguf_import_job *job)
{
    struct recipe *r = &job->recipe;
    const struct gguf_tensor *table = gguf_find_tensor(job->file, "token_embd.weight");
    TRY(read_size(job, "block_count", &r->model.num_layers));
    TRY(read_size(job, "context_length", &r->model.max_position_embeddings));
    TRY(read_size(job, "embedding_length", &r->model.hidden_size));
    TRY(read_size(job, "feed_forward_length", &r->model.intermediate_size));
    TRY(read_size(job, "attention.head_count", &r->model.num_heads));
    REQUIRE(table != NULL && table->dimensions == 2, STATUS_DATA,
            "%s: the tensor token_embd.weight is missing or not a matrix", gguf_path(job->file));
    r->model.vocab_size = table->shape[1];
    TRY(read_count(job, "attention.head_count_kv", 0, &r->model.num_kv_heads));
    return find_tied(job, table, &r->model.tie_word_embeddings);
}

/* Sets the recipe's scaling of the rotary frequencies. GGUF files of Llama 3 store it as one factor
 * per frequency. The published models have the same settings except for the factor. */
static status read_rotary_factors(struct gguf_import_job *job, const struct gguf_tensor *tensor)
{
    struct rotary_scaling scaling = {.kind = ROTARY_LLAMA3,
                                     .original_positions = 8192,
                                     .low_frequency_factor = 1,
                                     .high_frequency_factor = 4};
    const struct rotary_scaling plain = {.kind = ROTARY_PLAIN};
    int64_t width = 2 * tensor->elements;
    double theta = job->recipe.model.rope_theta;
    bool equal = true;
    float *factors;
    REQUIRE(width == job->recipe.model.head_dim, STATUS_DATA,
            "%s: rope_freqs.weight has %" PRId64 " elements; the heads need %" PRId64,
            gguf_path(job->file), tensor->elements, job->recipe.model.head_dim / 2);
    TRY(ALLOCATE(factors, tensor->elements, "the rotary factors"));
    status result = gguf_read_tensor(job->file, tensor, factors);
    scaling.factor = result == STATUS_OK ? (double)factors[tensor->elements - 1] : 1;
    for (int64_t i = 0; i < width / 2 && equal && result == STATUS_OK; i++) {
        double expected =
            rotary_frequency(i, width, theta, &plain) / rotary_frequency(i, width, theta, &scaling);
        equal = fabs((double)factors[i] - expected) <= 1e-4 * expected;
    }
    free(factors);
    TRY(result);
    REQUIRE(equal, STATUS_UNAVAILABLE,
            "%s: the factors rope_freqs.weight differ from Llama 3.1, 3.2 and 3.3; import the "
            "model folder of transformers instead",
            gguf_path(job->file));
    job->recipe.model.rope_type = ROTARY_LLAMA3;
    job->recipe.model.rope_factor = scaling.factor;
    job->recipe.model.rope_low_freq_factor = scaling.low_frequency_factor;
    job->recipe.model.rope_high_freq_factor = scaling.high_frequency_factor;
    job->recipe.model.rope_original_positions = (int64_t)scaling.original_positions;
    return STATUS_OK;
}

static status read_scaling(struct gguf_import_job *job)
{
    char key[GGUF_NAME_BYTES];
    struct recipe *r = &job->recipe;
    snprintf(key, sizeof key, "%s.rope.scaling.type", job->family->name);
    const char *type = gguf_get_text(job->file, key);
    const struct gguf_tensor *factors = gguf_find_tensor(job->file, "rope_freqs.weight");
    if (factors != NULL) {
        return read_rotary_factors(job, factors);
    }
    if (type == NULL || strcmp(type, "none") == 0) {
        return STATUS_OK;
    }
    bool is_yarn = strcmp(type, "yarn") == 0;
    REQUIRE(is_yarn || strcmp(type, "linear") == 0, STATUS_UNAVAILABLE,
            "%s: %s %.60s is not supported; linear and yarn are", gguf_path(job->file), key, type);
    r->model.rope_type = is_yarn ? ROTARY_YARN : ROTARY_LINEAR;
    r->model.rope_factor = read_number(job, "rope.scaling.factor", 1);
    if (is_yarn) {
        TRY(read_size(job, "rope.scaling.original_context_length",
                      &r->model.rope_original_positions));
        r->model.rope_beta_fast = read_number(job, "rope.scaling.yarn_beta_fast", 32);
        r->model.rope_beta_slow = read_number(job, "rope.scaling.yarn_beta_slow", 1);
        r->model.rope_attention_factor = read_number(job, "rope.scaling.yarn_attn_factor", 0);
    }
    return STATUS_OK;
}

static bool has_full_attention(const void *numbers, int64_t layer)
{
    return ((const double *)numbers)[layer] == 0;
}

/* Reads the window of local layers, which is in all layers but every n-th. */
static status read_windows(struct gguf_import_job *job)
{
    char key[GGUF_NAME_BYTES];
    struct recipe *r = &job->recipe;
    bool global_first = job->huggingface->pattern.global_first;
    int64_t layers = r->model.num_layers, pattern = job->huggingface->pattern.default_value;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", job->family->name);
    const struct gguf_key *found = gguf_find_key(job->file, key);
    TRY(read_count(job, "attention.sliding_window", 0, &r->model.sliding_window));
    if (job->huggingface->rope_bases[1].key != NULL) {
        r->model.rope_local_base_freq = read_number(job, "rope.freq_base_swa", 10000);
    }
    if (found != NULL && found->numbers != NULL && !found->is_list) {
        TRY(read_count(job, "attention.sliding_window_pattern", pattern, &pattern));
    } else if (found != NULL && found->numbers != NULL && found->count >= layers) {
        int64_t wrong = huggingface_find_interval(found->numbers, layers, has_full_attention,
                                                  global_first, &pattern);
        REQUIRE(wrong < 0, STATUS_UNAVAILABLE,
                "%s: %s has full attention in layers that are not every layer number %" PRId64
                ", or not in all of these; this is not supported",
                gguf_path(job->file), key, pattern);
    }
    r->model.sliding_window_pattern = pattern;
    return STATUS_OK;
}

/* Reads how many columns of a head are rotated. */
static status read_rotary_width(struct gguf_import_job *job)
{
    struct recipe *r = &job->recipe;
    bool may_be_partial = job->huggingface->rotary_factor > 0;
    int64_t rotated;
    TRY(read_count(job, "rope.dimension_count", r->model.head_dim, &rotated));
    REQUIRE(rotated == r->model.head_dim || (may_be_partial && rotated < r->model.head_dim),
            STATUS_UNAVAILABLE,
            "%s: %" PRId64 " of %" PRId64 " columns of a head are rotated; %s supports %s",
            gguf_path(job->file), rotated, r->model.head_dim, job->family->architecture,
            may_be_partial ? "at most all of them" : "only all of them");
    if (may_be_partial) {
        double width = (double)r->model.head_dim, factor = (double)rotated / width;
        bool is_less = (int64_t)(width * factor) < rotated; /* the product is rounded */
        r->model.partial_rotary_factor = is_less ? nextafter(factor, 1) : factor;
    }
    return STATUS_OK;
}

/* Reads the settings of T5. In a file with logit_scale, the norm contains the scale of the outputs
 * of the decoder. In files of other programs, scale_decoder_outputs stays null and follows from
 * tie_word_embeddings. */
static status read_relative(struct gguf_import_job *job)
{
    struct recipe *r = &job->recipe;
    int64_t start;
    TRY(read_size(job, "attention.key_length", &r->model.head_dim));
    TRY(read_count(job, "decoder_block_count", r->model.num_layers, &r->model.num_decoder_layers));
    TRY(read_size(job, "attention.relative_buckets_count",
                  &r->model.relative_attention_num_buckets));
    TRY(read_count(job, "decoder_start_token_id", 0, &start));
    r->model.relative_attention_max_distance = job->family->max_distance;
    r->model.decoder_start_token_id = start;
    r->model.gated_linear_unit = gguf_find_tensor(job->file, "enc.blk.0.ffn_gate.weight") != NULL;
    r->model.activation = r->model.gated_linear_unit ? RECIPE_GELU_TANH : RECIPE_RELU;
    if (read_number(job, "logit_scale", 0) > 0) {
        r->model.scale_decoder_outputs = RECIPE_FALSE;
    }
    return STATUS_OK;
}

/* Reads the settings of Gemma 2 and 3 that the sizes of the model determine. */
static void read_fixed_scale(struct gguf_import_job *job)
{
    struct recipe *r = &job->recipe;
    double scale = gguf_family_scale(job->family, r->model.num_layers, r->model.hidden_size,
                                     r->model.num_heads, r->model.head_dim);
    r->model.query_pre_attn_scalar = llround(1 / (scale * scale));
    if (job->family->has_softcaps) {
        r->model.attn_logit_softcapping = read_number(job, "attn_logit_softcapping", 50);
        r->model.final_logit_softcapping = read_number(job, "final_logit_softcapping", 30);
    }
}

static status read_rotary(struct gguf_import_job *job)
{
    struct recipe *r = &job->recipe;
    int64_t head_dim = r->model.hidden_size / r->model.num_heads;
    TRY(read_count(job, "attention.key_length", head_dim, &r->model.head_dim));
    r->model.rope_theta = read_number(job, "rope.freq_base", 10000);
    TRY(read_rotary_width(job));
    bool has_query_bias = gguf_find_tensor(job->file, "blk.0.attn_q.bias") != NULL;
    r->model.use_qkv_bias = job->huggingface->has_qkv_bias && has_query_bias;
    r->model.attention_bias = job->huggingface->has_attention_bias && has_query_bias;
    r->model.mlp_bias =
        job->huggingface->has_mlp_bias && gguf_find_tensor(job->file, "blk.0.ffn_up.bias") != NULL;
    if (job->family->rotates_every_fourth) {
        r->model.no_rope_layer_interval = 4;
    }
    if (r->model.architecture == ARCHITECTURE_GRANITE) {
        r->model.embedding_multiplier = read_number(job, "embedding_scale", 1);
        r->model.attention_multiplier = read_number(job, "attention.scale", 1);
        r->model.residual_multiplier = read_number(job, "residual_scale", 1);
        r->model.logits_scaling = read_number(job, "logit_scale", 1);
    }
    if (job->family->fixed_scale) {
        read_fixed_scale(job);
    }
    TRY(job->family->stores_window
            ? read_count(job, "attention.sliding_window", 0, &r->model.sliding_window)
            : STATUS_OK);
    TRY(job->huggingface->pattern.key != NULL ? read_windows(job) : STATUS_OK);
    return read_scaling(job);
}

/* Refuses a file with clipped queries, keys and values, as in some versions of OLMo 7B. */
static status check_clipping(const struct gguf_import_job *job)
{
    double limit = read_number(job, "attention.clamp_kqv", 0);
    REQUIRE(!(limit > 0), STATUS_UNAVAILABLE,
            "%s: %s.attention.clamp_kqv is %g; clipped queries, keys and values are not supported",
            gguf_path(job->file), job->family->name, limit);
    return STATUS_OK;
}

/* Finds the architecture. RoBERTa, DistilBERT and BERT share a name: only RoBERTa has a BPE
 * tokenizer, and only DistilBERT has no token types. */
static status find_family(struct gguf_import_job *job)
{
    char names[256];
    const char *name = gguf_get_text(job->file, "general.architecture");
    const char *tokenizer = gguf_get_text(job->file, "tokenizer.ggml.model");
    REQUIRE(name != NULL, STATUS_DATA, "%s: general.architecture is missing", gguf_path(job->file));
    job->family = gguf_find_named_family(name);
    REQUIRE(job->family != NULL, STATUS_UNAVAILABLE,
            "%s: the architecture %.60s is not supported; supported are %s", gguf_path(job->file),
            name, gguf_family_names(names, sizeof names));
    if (strcmp(name, "bert") == 0 && tokenizer != NULL && strcmp(tokenizer, "gpt2") == 0) {
        job->family = gguf_find_family("roberta");
    } else if (strcmp(name, "bert") == 0 &&
               gguf_find_tensor(job->file, "token_types.weight") == NULL) {
        job->family = gguf_find_family("distilbert");
    }
    job->huggingface = huggingface_find_architecture(job->family->architecture);
    job->architecture = model_architecture(job->family->architecture);
    return check_clipping(job);
}

/* Builds the recipe of the model from the metadata. */
static status read_model(struct gguf_import_job *job)
{
    struct recipe *r = NULL, *draft = &job->recipe;
    TRY(ALLOCATE(r, 1, "a recipe"));
    recipe_set_defaults(draft);
    snprintf(draft->run_dir, sizeof draft->run_dir, "runs/imported");
    draft->train.max_steps = 1; /* required in a recipe; nothing is trained */
    draft->model.architecture = job->huggingface->architecture;
    /* The files of encoders contain no head. */
    draft->objective =
        job->architecture->attention.causal ? job->huggingface->objective : OBJECTIVE_EMBED;
    status result = read_sizes(job);
    bool is_rms = job->architecture->norm.kind == NORM_RMS;
    draft->model.layer_norm_epsilon = read_number(
        job, is_rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 1e-5);
    if (result == STATUS_OK && architecture_is_rotary(job->architecture)) {
        result = read_rotary(job);
    } else if (result == STATUS_OK && job->family->max_distance > 0) {
        result = read_relative(job);
    } else if (!job->architecture->attention.causal) {
        const struct gguf_tensor *types = gguf_find_tensor(job->file, "token_types.weight");
        draft->model.type_vocab_size =
            types != NULL && types->dimensions == 2 ? types->shape[1] : 0;
    }
    if (!job->architecture->attention.causal) {
        draft->model.tie_word_embeddings = true;
    }
    if (result == STATUS_OK) {
        result = huggingface_config_check(gguf_path(job->file), draft, r);
    }
    if (result == STATUS_OK) {
        *draft = *r;
        job->config = derive_model_config(draft, draft->model.vocab_size);
    }
    free(r);
    return result;
}

/* ---- weights ---- */

/* Returns the number of rows of a position table that the file lacks. No token uses these rows. */
static int64_t count_unused_rows(const struct gguf_import_job *job, const struct model_parameter *p)
{
    return p->role == MODEL_POSITION_TABLE ? job->architecture->embedding.first_position : 0;
}

static status find_tensor(const struct gguf_import_job *job, const struct model_parameter *p,
                          const struct gguf_tensor **out)
{
    char name[GGUF_NAME_BYTES];
    *out = NULL;
    if (!gguf_tensor_name(job->architecture, p->name, name)) {
        return STATUS_OK;
    }
    const struct gguf_tensor *t = *out = gguf_find_tensor(job->file, name);
    int64_t rows = p->whole_rows - count_unused_rows(job, p);
    bool fits =
        t != NULL && t->shape[0] == p->whole_columns &&
        (p->dimensions == 1 ? t->dimensions == 1 : t->dimensions == 2 && t->shape[1] == rows);
    REQUIRE(fits, STATUS_DATA,
            "%s: the tensor %s is missing or does not have the shape [%" PRId64 ", %" PRId64 "]",
            gguf_path(job->file), name, rows, p->whole_columns);
    return STATUS_OK;
}

/* Restores the order of transformers: in[rows, columns] from the order of gguf_export. */
static void restore_order(const struct gguf_import_job *job, const struct model_parameter *p,
                          const struct gguf_tensor *t, float *out, const float *in)
{
    int64_t heads = gguf_count_reordered_heads(job->family, &job->config, t->name);
    int64_t columns = p->dimensions == 1 ? 1 : p->whole_columns;
    int64_t rows = p->dimensions == 1 ? p->whole_columns : p->whole_rows;
    if (heads > 0) {
        gguf_reorder_heads(out, in, heads, rows, columns, false);
    } else if (p->transposed && p->dimensions == 2) {
        gguf_transpose(out, in, rows, columns);
    } else {
        int64_t unused = count_unused_rows(job, p) * columns;
        memset(out, 0, (size_t)unused * sizeof *out);
        memcpy(out + unused, in, (size_t)(rows * columns - unused) * sizeof *out);
    }
    float offset = huggingface_norm_offset(job->huggingface, p);
    for (int64_t i = 0; i < rows * columns && offset > 0; i++) {
        out[i] -= offset;
    }
}

static status write_tensor(const struct gguf_import_job *job, const struct model_parameter *p,
                           const struct gguf_tensor *t, struct safetensors_writer *writer)
{
    int64_t elements = p->whole_rows * p->whole_columns;
    float *read = NULL, *ordered = NULL;
    status result = ALLOCATE(read, elements, t->name);
    KEEP_FIRST(result, result == STATUS_OK ? ALLOCATE(ordered, elements, t->name) : result);
    KEEP_FIRST(result, result == STATUS_OK ? gguf_read_tensor(job->file, t, read) : result);
    if (result == STATUS_OK) {
        restore_order(job, p, t, ordered, read);
        result = safetensors_write(writer, ordered, elements);
    }
    free(read);
    free(ordered);
    return result;
}

static status write_tensors(const struct gguf_import_job *job, const struct safetensors_shape *list,
                            const int *parameters, const char *path, int count)
{
    struct safetensors_writer *writer = NULL;
    TRY(safetensors_create(path, SAFETENSORS_F32, list, count, &writer));
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        const struct model_parameter *p = &job->parameters[parameters[i]];
        const struct gguf_tensor *t;
        result = find_tensor(job, p, &t);
        KEEP_FIRST(result, result == STATUS_OK ? write_tensor(job, p, t, writer) : result);
    }
    if (result != STATUS_OK) {
        struct status_note first;
        status_take(&first);
        (void)safetensors_finish(&writer);
        status_clear();
        return status_restore(&first);
    }
    return safetensors_finish(&writer);
}

/* Writes model.safetensors with the tensors that the file contains. */
static status write_weights(const struct gguf_import_job *job, const char *folder)
{
    char path[FILE_PATH_BYTES];
    struct safetensors_shape *list = NULL;
    int *parameters = NULL, count = 0;
    TRY(file_join(path, folder, "model.safetensors"));
    status result = ALLOCATE(list, job->count, "the tensors of a GGUF file");
    KEEP_FIRST(result, result == STATUS_OK ? ALLOCATE(parameters, job->count, "tensors") : result);
    for (int i = 0; i < job->count && result == STATUS_OK; i++) {
        const struct model_parameter *p = &job->parameters[i];
        const struct gguf_tensor *t;
        result = find_tensor(job, p, &t);
        if (t != NULL && result == STATUS_OK) {
            list[count].name = p->name;
            list[count].dimensions = p->dimensions;
            huggingface_tensor_shape(p, list[count].shape);
            parameters[count++] = i;
        }
    }
    KEEP_FIRST(result,
               result == STATUS_OK ? write_tensors(job, list, parameters, path, count) : result);
    free(list);
    free(parameters);
    return result;
}

/* ---- the model folder ---- */

static status write_config(const struct gguf_import_job *job, const char *folder)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    const struct labels none = {0};
    TRY(file_join(path, folder, "config.json"));
    FILE *file = open_memstream(&text, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for config.json");
    const struct huggingface_special_tokens tokens = {
        -1, -1, -1, (int32_t)job->recipe.model.decoder_start_token_id};
    status result = huggingface_config_write(&job->recipe, job->recipe.model.vocab_size, tokens,
                                             &none, SAFETENSORS_F32, file);
    (void)fclose(file);
    if (result == STATUS_OK) {
        result = file_write(path, text, bytes);
    }
    free(text);
    return result;
}

/* Creates the folder and its missing parents. `folder` ends with XXXXXX, which random characters
 * replace, so that no other program can foresee the name. */
static status make_temporary_folder(char *folder)
{
    char parent[FILE_PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", folder);
    char *slash = strrchr(parent, '/');
    if (slash != NULL && slash != parent) {
        *slash = '\0';
        TRY(file_make_folders(parent));
    }
    REQUIRE(mkdtemp(folder) != NULL, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create the folder %s: %s", folder, strerror(errno));
    return STATUS_OK;
}

static status write_folder(struct gguf_import_job *job, char *folder)
{
    int64_t elements;
    bool has_tokenizer;
    TRY(find_family(job));
    TRY(read_model(job));
    TRY(model_layout(&job->config, 1, 0, &job->parameters, &job->count, &elements));
    TRY(make_temporary_folder(folder));
    TRY(staged_folder_check_space(folder, 8.0 * (double)elements)); /* and the checkpoint */
    TRY(write_config(job, folder));
    TRY(write_weights(job, folder));
    return gguf_read_tokenizer(job->file, folder, &has_tokenizer);
}

status gguf_import(const char *path, const char *objective, const char *output, char *const *tokens,
                   int token_count, struct recipe *recipe, struct huggingface_summary *summary)
{
    char folder[FILE_PATH_BYTES];
    REQUIRE(!file_exists(output), STATUS_CREATE,
            "%s already exists; name a folder that does not exist", output);
    int used = snprintf(folder, sizeof folder, "%s.gguf-XXXXXX", output);
    REQUIRE(used < (int)sizeof folder, STATUS_USAGE, "path too long: %s", output);
    struct gguf_import_job *job = NULL;
    TRY(ALLOCATE(job, 1, path));
    status result = gguf_open(path, &job->file);
    KEEP_FIRST(result, result == STATUS_OK ? write_folder(job, folder) : result);
    KEEP_FIRST(result, result == STATUS_OK ? huggingface_import(folder, objective, output, tokens,
                                                                token_count, recipe, summary)
                                           : result);
    gguf_close(&job->file);
    free(job->parameters);
    free(job);
    file_discard_tree(folder);
    return result;
}
