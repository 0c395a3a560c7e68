/* Every field of config.json that changes what a GPT-2 computes is read, or refused by its name where this
 * version does not have it; the others (ids of special tokens, the head of other tasks) are no settings here. */
#include "trainer/pretrained_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

struct config {
    char path[FILE_PATH_BYTES];
    json_t *document;
};

/* ---- fields ---- */

/* NULL where it is missing or null. */
static const json_t *field(const struct config *c, const char *key)
{
    const json_t *value = json_object_get(c->document, key);
    return json_is_null(value) ? NULL : value;
}

static status read_integer(const struct config *c, const char *key, int64_t preset, int64_t *out)
{
    const json_t *value = field(c, key);
    REQUIRE(value == NULL || json_is_integer(value), STATUS_DATA, "%s: %s is not an integer",
            c->path, key);
    *out = value != NULL ? (int64_t)json_integer_value(value) : preset;
    return STATUS_OK;
}

static status read_number(const struct config *c, const char *key, double preset, double *out)
{
    const json_t *value = field(c, key);
    REQUIRE(value == NULL || json_is_number(value), STATUS_DATA, "%s: %s is not a number", c->path,
            key);
    *out = value != NULL ? json_number_value(value) : preset;
    return STATUS_OK;
}

static status read_boolean(const struct config *c, const char *key, bool preset, bool *out)
{
    const json_t *value = field(c, key);
    REQUIRE(value == NULL || json_is_boolean(value), STATUS_DATA,
            "%s: %s is neither true nor false", c->path, key);
    *out = value != NULL ? json_is_true(value) : preset;
    return STATUS_OK;
}

static status read_text(const struct config *c, const char *key, const char *preset,
                        const char **out)
{
    const json_t *value = field(c, key);
    REQUIRE(value == NULL || json_is_string(value), STATUS_DATA, "%s: %s is not a text", c->path,
            key);
    *out = value != NULL ? json_string_value(value) : preset;
    return STATUS_OK;
}

/* ---- what this version has ---- */

static status check_architecture(const struct config *c)
{
    const char *type;
    TRY(read_text(c, "model_type", NULL, &type));
    REQUIRE(type != NULL, STATUS_DATA,
            "%s: model_type is missing; is this a model of transformers?", c->path);
    REQUIRE(strcmp(type, "gpt2") == 0, STATUS_UNAVAILABLE,
            "%s: model_type %.60s is not in this version; gpt2 is", c->path, type);
    const json_t *names = field(c, "architectures");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        REQUIRE(name != NULL, STATUS_DATA, "%s: architectures is not a list of texts", c->path);
        REQUIRE(strcmp(name, "GPT2LMHeadModel") == 0 || strcmp(name, "GPT2Model") == 0,
                STATUS_UNAVAILABLE,
                "%s: the architecture %.60s is not in this version; GPT2LMHeadModel and GPT2Model "
                "are",
                c->path, name);
    }
    return STATUS_OK;
}

/* Switches of GPT2Config that change the mathematics. reorder_and_upcast_attn changes only the precision. */
static status check_switches(const struct config *c)
{
    static const struct {
        const char *key;
        bool wanted;
    } switches[] = {
        {"scale_attn_weights", true},
        {"scale_attn_by_inverse_layer_idx", false},
        {"add_cross_attention", false},
    };
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        bool value;
        TRY(read_boolean(c, switches[i].key, switches[i].wanted, &value));
        REQUIRE(value == switches[i].wanted, STATUS_UNAVAILABLE,
                "%s: %s: %s is not in this version", c->path, switches[i].key,
                value ? "true" : "false");
    }
    REQUIRE(field(c, "quantization_config") == NULL, STATUS_UNAVAILABLE,
            "%s: quantization_config: quantized weights are not in this version; save the model "
            "without",
            c->path);
    return STATUS_OK;
}

static const struct {
    const char *theirs, *ours;
} activations[] = {
    {"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu_fast", "gelu_tanh"},
    {"gelu", "gelu_erf"},      {"gelu_python", "gelu_erf"},
};

static status read_activation(const struct config *c, char out[RECIPE_NAME_BYTES])
{
    const char *name;
    TRY(read_text(c, "activation_function", "gelu_new", &name));
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (strcmp(activations[i].theirs, name) == 0) {
            snprintf(out, RECIPE_NAME_BYTES, "%s", activations[i].ours);
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE,
          "%s: activation_function %.60s is not in this version; gelu_new, gelu_pytorch_tanh, "
          "gelu_fast, gelu and gelu_python are",
          c->path, name);
}

/* ---- to a recipe ---- */

/* The presets are those of GPT2Config. */
static status read_sizes(const struct config *c, struct recipe *r)
{
    int64_t inner;
    TRY(read_integer(c, "n_layer", 12, &r->model.num_layers));
    TRY(read_integer(c, "n_embd", 768, &r->model.hidden_size));
    TRY(read_integer(c, "n_head", 12, &r->model.num_heads));
    TRY(read_integer(c, "n_positions", 1024, &r->model.max_position_embeddings));
    TRY(read_integer(c, "vocab_size", 50257, &r->model.vocab_size));
    TRY(read_integer(c, "n_inner", 0, &inner));
    bool given = field(c, "n_inner") != NULL;
    REQUIRE(r->model.num_layers > 0 && r->model.hidden_size > 0 && r->model.num_heads > 0 &&
                r->model.max_position_embeddings > 0 && r->model.vocab_size > 1 &&
                (!given || inner > 0),
            STATUS_DATA,
            "%s: n_layer, n_embd, n_head, n_positions, n_inner must be above 0, vocab_size above 1",
            c->path);
    r->model.intermediate_size = inner;
    return STATUS_OK;
}

static status read_dropout(const struct config *c, struct recipe *r)
{
    double embeddings;
    TRY(read_number(c, "resid_pdrop", 0.1, &r->model.dropout));
    TRY(read_number(c, "embd_pdrop", 0.1, &embeddings));
    TRY(read_number(c, "attn_pdrop", 0.1, &r->model.attention_dropout));
    if (embeddings != r->model.dropout) {
        log_warning("IMPORT",
                    "%s: embd_pdrop %g is not resid_pdrop %g; model.dropout is the latter, for "
                    "both (in training alone)",
                    c->path, embeddings, r->model.dropout);
    }
    return STATUS_OK;
}

static status read_settings(const struct config *c, struct recipe *r)
{
    TRY(check_architecture(c));
    TRY(check_switches(c));
    TRY(read_sizes(c, r));
    TRY(read_activation(c, r->model.activation));
    TRY(read_dropout(c, r));
    TRY(read_number(c, "layer_norm_epsilon", 1e-5, &r->model.layer_norm_epsilon));
    TRY(read_number(c, "initializer_range", 0.02, &r->model.initializer_range));
    return read_boolean(c, "tie_word_embeddings", true, &r->model.tie_word_embeddings);
}

/* Ranges and contradictions are the recipe's own business: it is read back from its text. */
static status check_recipe(const char *path, const struct recipe *r, struct recipe *out)
{
    char *text = NULL, name[FILE_PATH_BYTES + 32];
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for a recipe");
    status result = recipe_write(r, file);
    fclose(file);
    snprintf(name, sizeof name, "%s as a recipe", path);
    if (result == STATUS_OK) {
        result = recipe_parse(name, text, bytes, NULL, 0, out);
    }
    free(text);
    if (result == STATUS_RECIPE) {
        struct status_note note;
        status_take(&note);
        RAISE(STATUS_DATA, "%s", note.text);
    }
    return result;
}

static status read_config(const struct config *c, struct recipe *out)
{
    struct recipe *r = malloc(sizeof *r);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory for a recipe");
    recipe_preset(r);
    snprintf(r->run_dir, sizeof r->run_dir, "runs/imported");
    r->train.max_steps = 1; /* a recipe has to say; nothing is trained */
    status result = read_settings(c, r);
    if (result == STATUS_OK) {
        result = check_recipe(c->path, r, out);
    }
    free(r);
    return result;
}

status pretrained_config_read(const char *folder, struct recipe *out)
{
    struct config c = {.document = NULL};
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    TRY(file_join(c.path, folder, "config.json"));
    TRY(file_read(c.path, CONFIG_BYTES_MAX, &text, &bytes));
    c.document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    REQUIRE(c.document != NULL, STATUS_DATA, "%s:%d:%d: %s", c.path, error.line, error.column,
            error.text);
    status result = json_is_object(c.document) ? read_config(&c, out)
                                               : status_raise(STATUS_DATA, __FILE__, __LINE__,
                                                              "%s: not a JSON object", c.path);
    json_decref(c.document);
    return result;
}

/* ---- from a recipe ---- */

static void write_number(FILE *file, const char *key, double value)
{
    char text[TEXT_NUMBER_BYTES];
    fprintf(file, "  \"%s\": %s,\n", key, text_from_number(value, text));
}

static void write_integer(FILE *file, const char *key, int64_t value)
{
    fprintf(file, "  \"%s\": %lld,\n", key, (long long)value);
}

/* transformers' own default would be GPT-2's 50256. */
static void write_token(FILE *file, const char *key, int32_t id)
{
    if (id >= 0) {
        write_integer(file, key, id);
    } else {
        fprintf(file, "  \"%s\": null,\n", key);
    }
}

status pretrained_config_write(const struct recipe *r, int64_t vocabulary, int32_t end,
                               enum safetensors_dtype dtype, FILE *file)
{
    bool erf = strcmp(r->model.activation, "gelu_erf") == 0;
    fprintf(file, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n");
    write_integer(file, "vocab_size", vocabulary);
    write_integer(file, "n_positions", r->model.max_position_embeddings);
    write_integer(file, "n_embd", r->model.hidden_size);
    write_integer(file, "n_layer", r->model.num_layers);
    write_integer(file, "n_head", r->model.num_heads);
    write_integer(file, "n_inner", r->model.intermediate_size);
    fprintf(file, "  \"activation_function\": \"%s\",\n", erf ? "gelu" : "gelu_new");
    write_number(file, "resid_pdrop", r->model.dropout);
    write_number(file, "embd_pdrop", r->model.dropout);
    write_number(file, "attn_pdrop", r->model.attention_dropout);
    write_number(file, "layer_norm_epsilon", r->model.layer_norm_epsilon);
    write_number(file, "initializer_range", r->model.initializer_range);
    fprintf(file, "  \"scale_attn_weights\": true,\n");
    fprintf(file, "  \"scale_attn_by_inverse_layer_idx\": false,\n");
    fprintf(file, "  \"tie_word_embeddings\": %s,\n",
            r->model.tie_word_embeddings ? "true" : "false");
    write_token(file, "bos_token_id", end);
    write_token(file, "eos_token_id", end);
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n",
            dtype == SAFETENSORS_BF16 ? "bfloat16" : "float32");
    REQUIRE(!ferror(file), STATUS_WRITE, "config.json cannot be written");
    return STATUS_OK;
}

void pretrained_shape(const struct model_parameter *p, int64_t shape[2])
{
    bool turned = p->transposed || p->dimensions == 1;
    shape[0] = turned ? p->whole_columns : p->whole_rows;
    shape[1] = turned ? p->whole_rows : p->whole_columns;
}
