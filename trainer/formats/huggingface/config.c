/* Reads every key of config.json that changes the computation of a model; unsupported ones are
 * refused by name. The other keys (ids of special tokens, heads of other tasks) are ignored. */
#include "trainer/formats/huggingface/config.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "trainer/formats/huggingface/config_impl.h"
#include "trainer/setup/objective_spec.h"

/* Stores the objective, because several objectives share a class. transformers keeps unknown
 * keys. */
static const char objective_key[] = "bireme_objective";

/* ---- supported models ---- */

/* Reads `architectures` and collects the heads of all its classes. A task class must be the only
 * one, because a checkpoint has one head. */
static status read_classes(const struct config_document *c, struct huggingface_config *config,
                           enum recipe_objective *objective)
{
    const struct huggingface_architecture *architecture = config->architecture;
    const json_t *names = config_get_field(c, "architectures");
    *objective = architecture->objective;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        REQUIRE(name != NULL, STATUS_DATA, "%s: architectures is not a list of strings", c->path);
        const struct huggingface_class *class_row = huggingface_find_class(architecture, name);
        bool is_task =
            class_row == NULL && huggingface_class_objective(architecture, name, objective);
        bool supported = class_row != NULL || (is_task && json_array_size(names) == 1);
        const char *task = huggingface_task_class_suffix(architecture, OBJECTIVE_CLASSIFY);
        REQUIRE(supported, STATUS_UNAVAILABLE,
                "%s: the architecture %.60s is not supported; %s and %s are%s%s%s", c->path, name,
                architecture->classes[0].name, architecture->classes[1].name,
                task != NULL ? ", or alone the classes of tasks, for example " : "",
                task != NULL ? architecture->class_stem : "", task != NULL ? task : "");
        config->heads.has_lm_head |= class_row != NULL && class_row->has_lm_head;
        config->heads.has_label_head |= class_row == NULL || class_row->has_label_head;
    }
    return STATUS_OK;
}

static status read_architecture(const struct config_document *c, struct huggingface_config *config,
                                enum recipe_objective *objective)
{
    const char *type;
    char names[HUGGINGFACE_NAMES_BYTES];
    TRY(config_read_string(c, "model_type", NULL, &type));
    REQUIRE(type != NULL, STATUS_DATA,
            "%s: model_type is missing; is this a model in the format of transformers?", c->path);
    config->architecture = huggingface_find_architecture(type);
    REQUIRE(config->architecture != NULL, STATUS_UNAVAILABLE,
            "%s: model_type %.60s is not supported; %s are", c->path, type,
            huggingface_architecture_names(names));
    return read_classes(c, config, objective);
}

static status check_switches(const struct config_document *c,
                             const struct huggingface_architecture *architecture)
{
    for (int i = 0; i < HUGGINGFACE_SWITCHES_MAX && architecture->switches[i].name != NULL; i++) {
        bool value, required = architecture->switches[i].required;
        TRY(config_read_boolean(c, architecture->switches[i].name, required, &value));
        REQUIRE(value == required, STATUS_UNAVAILABLE, "%s: %s: %s is not supported", c->path,
                architecture->switches[i].name, value ? "true" : "false");
    }
    for (int i = 0; i < HUGGINGFACE_SIZES_MAX && architecture->fixed_sizes[i].name != NULL; i++) {
        int64_t value, supported = architecture->fixed_sizes[i].value;
        TRY(config_read_integer(c, architecture->fixed_sizes[i].name, supported, &value));
        REQUIRE(value == supported, STATUS_UNAVAILABLE,
                "%s: %s %" PRId64 " is not supported; %" PRId64 " is", c->path,
                architecture->fixed_sizes[i].name, value, supported);
    }
    REQUIRE(architecture->null_key == NULL || config_get_field(c, architecture->null_key) == NULL,
            STATUS_UNAVAILABLE, "%s: %s is not supported; only null is", c->path,
            architecture->null_key);
    REQUIRE(config_get_field(c, "quantization_config") == NULL, STATUS_UNAVAILABLE,
            "%s: quantization_config: quantized weights are not supported; save the model without "
            "quantization",
            c->path);
    return STATUS_OK;
}

static const struct {
    const char *theirs;
    enum recipe_activation ours;
} activations[] = {
    {"gelu_new", RECIPE_GELU_TANH},   {"gelu_pytorch_tanh", RECIPE_GELU_TANH},
    {"gelu_fast", RECIPE_GELU_TANH},  {"gelu", RECIPE_GELU_ERF},
    {"gelu_python", RECIPE_GELU_ERF}, {"relu", RECIPE_RELU},
    {"relu2", RECIPE_RELU2},          {"silu", RECIPE_SILU},
    {"swish", RECIPE_SILU},
};

static const char gate_prefix[] = "gated-";

static status read_activation(const struct config_document *c,
                              const struct huggingface_architecture *architecture, struct recipe *r)
{
    enum recipe_activation *out = &r->model.activation;
    const char *name;
    TRY(config_read_string(c, architecture->activation_key, architecture->default_activation,
                           &name));
    if (architecture->head_activation_key != NULL) {
        const char *head;
        TRY(config_read_string(c, architecture->head_activation_key,
                               architecture->default_activation, &head));
        REQUIRE(strcmp(head, name) == 0, STATUS_UNAVAILABLE,
                "%s: %s %.60s is not supported; it must be %s, the same as %s", c->path,
                architecture->head_activation_key, head, name, architecture->activation_key);
    }
    if (strcmp(architecture->default_activation, "silu") == 0) {
        REQUIRE(strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0, STATUS_UNAVAILABLE,
                "%s: %s %.60s is not supported; silu is", c->path, architecture->activation_key,
                name);
        return STATUS_OK;
    }
    if (architecture->gelu_is_tanh) {
        REQUIRE(strcmp(name, "gelu") == 0, STATUS_UNAVAILABLE,
                "%s: %s %.60s is not supported; gelu is", c->path, architecture->activation_key,
                name);
        *out = RECIPE_GELU_TANH;
        return STATUS_OK;
    }
    if (architecture->has_gate_prefix && strncmp(name, gate_prefix, sizeof gate_prefix - 1) == 0) {
        name += sizeof gate_prefix - 1;
        name = strcmp(name, "gelu") == 0 ? "gelu_new" : name;
        r->model.gated_linear_unit = true;
    }
    bool gelu_only = recipe_architecture_is_rotary(architecture->architecture);
    for (int i = 0; i < COUNT(activations); i++) {
        bool allowed = !gelu_only || recipe_activation_is_gelu(activations[i].ours);
        if (allowed && strcmp(activations[i].theirs, name) == 0) {
            *out = activations[i].ours;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE,
          "%s: %s %.60s is not supported; gelu_new, gelu_pytorch_tanh, gelu_fast, gelu%s are",
          c->path, architecture->activation_key, name,
          gelu_only ? " and gelu_python" : ", gelu_python, relu, relu2 and silu");
}

/* ---- settings of the recipe ---- */

static status read_key(const struct config_document *c, const struct huggingface_key *key,
                       struct recipe *r)
{
    void *setting = (char *)r + key->recipe_offset;
    if (!key->is_integer) {
        return config_read_number(c, key->name, key->default_value, setting);
    }
    bool is_null = json_is_null(json_object_get(c->document, key->name));
    bool has_default = !is_null && key->default_value > 0;
    if (key->is_optional && config_get_field(c, key->name) == NULL && !has_default) {
        return STATUS_OK;
    }
    int64_t value;
    TRY(config_read_integer(c, key->name, (int64_t)key->default_value, &value));
    REQUIRE(value > 0, STATUS_DATA, "%s: %s is %" PRId64 "; it must be above 0", c->path, key->name,
            value);
    memcpy(setting, &value, sizeof value);
    return STATUS_OK;
}

static void warn_dropout(const struct config_document *c, const char *key, double theirs,
                         const struct recipe *r)
{
    if (theirs != r->model.dropout) {
        log_warning("DROPOUT-RATES", "%s: %s is %g, but training uses model.dropout, %g, for both",
                    c->path, key, theirs, r->model.dropout);
    }
}

static status check_dropout(const struct config_document *c,
                            const struct huggingface_architecture *architecture,
                            const struct recipe *r)
{
    double dropout;
    if (architecture->dropout_key == NULL) {
        return STATUS_OK;
    }
    TRY(config_read_number(c, architecture->dropout_key, architecture->default_dropout, &dropout));
    warn_dropout(c, architecture->dropout_key, dropout, r);
    return STATUS_OK;
}

static status read_encoder(const struct config_document *c, const struct huggingface_config *config,
                           struct recipe *r)
{
    bool roberta = config->architecture->architecture == ARCHITECTURE_ROBERTA;
    int64_t pad;
    const char *positions;
    TRY(config_read_string(c, "position_embedding_type", "absolute", &positions));
    REQUIRE(strcmp(positions, "absolute") == 0, STATUS_UNAVAILABLE,
            "%s: position_embedding_type %.60s is not supported; absolute is", c->path, positions);
    TRY(config_read_integer(c, "pad_token_id", 1, &pad));
    REQUIRE(!roberta || pad == 1, STATUS_UNAVAILABLE,
            "%s: pad_token_id %" PRId64 ": positions that begin with row %" PRId64
            " are not supported; "
            "with pad_token_id 1 they begin with row 2",
            c->path, pad, pad + 1);
    /* import.c also sets it if the weights contain the pooler */
    r->model.next_sentence =
        config->heads.has_label_head && objective_spec_head(r) == MODEL_HEAD_LM;
    return STATUS_OK;
}

/* ---- tasks ---- */

/* Warns about a reward model of another program, such as one that TRL trained with the end token as
 * pad token. */
static void warn_pad_token(const struct config_document *c, const struct recipe *r)
{
    const json_t *pad = config_get_field(c, "pad_token_id"),
                 *end = config_get_field(c, "eos_token_id");
    if (r->objective == OBJECTIVE_REWARD && config_get_field(c, objective_key) == NULL &&
        json_is_integer(pad) && json_equal(pad, end)) {
        log_warning("PAD-TOKEN",
                    "%s: pad_token_id is eos_token_id, so transformers reads the reward at the "
                    "token before the end token; bireme reads it at the end token",
                    c->path);
    }
}

/* Selects the objective of a class that several objectives share: the requested one, else the one
 * that the export stored in config.json. */
static status read_objective(const struct config_document *c,
                             const struct huggingface_architecture *architecture,
                             const char *requested, enum recipe_objective *objective)
{
    const char *name = json_string_value(json_array_get(config_get_field(c, "architectures"), 0));
    if (requested == NULL) {
        TRY(config_read_string(c, objective_key, NULL, &requested));
    }
    if (requested == NULL || strcmp(requested, recipe_objective_name(*objective)) == 0) {
        return STATUS_OK;
    }
    enum recipe_objective found = *objective;
    const char *suffix = recipe_objective_find(requested, &found)
                             ? huggingface_task_class_suffix(architecture, found)
                             : NULL;
    size_t stem_bytes = strlen(architecture->class_stem);
    bool is_match = suffix != NULL && name != NULL &&
                    strncmp(name, architecture->class_stem, stem_bytes) == 0 &&
                    strcmp(name + stem_bytes, suffix) == 0;
    REQUIRE(is_match, STATUS_USAGE, "%s: the objective of a %.60s is %s and not '%.60s'", c->path,
            name != NULL ? name : architecture->model_type, recipe_objective_name(*objective),
            requested);
    *objective = found;
    return STATUS_OK;
}

/* Reads id2label. transformers omits it for two labels with default names. */
static status read_labels(const struct config_document *c, struct labels *out, int64_t *count)
{
    const json_t *names = config_get_field(c, "id2label");
    char index[32], default_value[48];
    TRY(config_read_integer(c, "num_labels", 2, count));
    REQUIRE(names == NULL || json_is_object(names), STATUS_DATA, "%s: id2label is not an object",
            c->path);
    *count = names != NULL ? (int64_t)json_object_size(names) : *count;
    REQUIRE(*count > 0 && *count <= LABELS_MAX, STATUS_DATA,
            "%s: %" PRId64 " labels; 1 to %d are supported", c->path, *count, LABELS_MAX);
    for (int i = 0; i < *count; i++) {
        snprintf(index, sizeof index, "%d", i);
        snprintf(default_value, sizeof default_value, "LABEL_%d", i);
        const char *name =
            names != NULL ? json_string_value(json_object_get(names, index)) : default_value;
        REQUIRE(name != NULL && name[0] != '\0', STATUS_DATA, "%s: id2label has no name for %d",
                c->path, i);
        TRY(labels_add(out, name));
        REQUIRE(out->count == i + 1, STATUS_DATA, "%s: id2label has the name '%.200s' twice",
                c->path, name);
    }
    return STATUS_OK;
}

static bool has_single_output(enum recipe_objective objective)
{
    return objective == OBJECTIVE_REGRESS || objective == OBJECTIVE_REWARD ||
           objective == OBJECTIVE_CHOOSE;
}

/* Refuses heads of texts that read another row than the first one. */
static status check_pooling(const struct config_document *c,
                            const struct huggingface_architecture *architecture)
{
    const char *pooling = "cls";
    if (architecture->pooling_key != NULL) {
        TRY(config_read_string(c, architecture->pooling_key, "cls", &pooling));
    }
    REQUIRE(strcmp(pooling, "cls") == 0, STATUS_UNAVAILABLE,
            "%s: %s %.60s is not supported; cls is", c->path, architecture->pooling_key, pooling);
    return STATUS_OK;
}

/* Reads the settings of a task head. As in transformers, a head with one output and without
 * problem_type is a regression head. */
static status read_task(const struct config_document *c, struct huggingface_config *config,
                        bool requested, struct recipe *r)
{
    const char *problem;
    int64_t outputs;
    double dropout;
    enum model_head_kind head = objective_spec_head(r);
    if (head == MODEL_HEAD_SEQUENCE || head == MODEL_HEAD_MULTIPLE_CHOICE) {
        TRY(check_pooling(c, config->architecture));
    }
    TRY(read_labels(c, &config->labels, &outputs));
    TRY(config_read_string(c, "problem_type", outputs == 1 ? "regression" : "", &problem));
    if (r->objective == OBJECTIVE_CLASSIFY && !requested && strcmp(problem, "regression") == 0) {
        r->objective = OBJECTIVE_REGRESS;
    }
    REQUIRE(strcmp(problem, "multi_label_classification") != 0, STATUS_UNAVAILABLE,
            "%s: problem_type %s is not supported; single_label_classification and regression are",
            c->path, problem);
    bool is_encoder_choice = recipe_architecture_is_encoder(
                                 config->architecture->architecture) && /* id2label is not used */
                             r->objective == OBJECTIVE_CHOOSE;
    REQUIRE(outputs == 1 || is_encoder_choice || !has_single_output(r->objective),
            STATUS_UNAVAILABLE, "%s: %s has one output, but this head has %" PRId64, c->path,
            recipe_objective_name(r->objective), outputs);
    if (r->objective == OBJECTIVE_CLASSIFY || r->objective == OBJECTIVE_CLASSIFY_TOKENS) {
        r->model.num_labels = outputs;
    } else {
        labels_free(&config->labels);
    }
    const char *key = config->architecture->head_dropout_keys[r->objective == OBJECTIVE_ANSWER];
    key = key != NULL ? key : "classifier_dropout";
    TRY(config_read_number(c, key, r->model.dropout, &dropout));
    warn_dropout(c, key, dropout, r);
    return STATUS_OK;
}

static status read_biases(const struct config_document *c,
                          const struct huggingface_architecture *architecture, struct recipe *r)
{
    if (architecture->has_qkv_bias) {
        TRY(config_read_boolean(c, "use_qkv_bias", false, &r->model.use_qkv_bias));
    }
    if (architecture->has_attention_bias) {
        TRY(config_read_boolean(c, "attention_bias", false, &r->model.attention_bias));
    }
    return architecture->has_mlp_bias
               ? config_read_boolean(c, "mlp_bias", false, &r->model.mlp_bias)
               : STATUS_OK;
}

static status read_settings(const struct config_document *c, const char *requested,
                            struct recipe *r, struct huggingface_config *config)
{
    enum recipe_objective objective;
    TRY(read_architecture(c, config, &objective));
    const struct huggingface_architecture *architecture = config->architecture;
    TRY(read_objective(c, architecture, requested, &objective));
    r->model.architecture = architecture->architecture;
    r->objective = objective;
    TRY(check_switches(c, architecture));
    for (int i = 0; i < HUGGINGFACE_KEYS_MAX && architecture->keys[i].name != NULL; i++) {
        TRY(read_key(c, &architecture->keys[i], r));
    }
    if (architecture->fixed_epsilon > 0) {
        r->model.layer_norm_epsilon = architecture->fixed_epsilon;
    }
    TRY(read_activation(c, architecture, r));
    TRY(config_read_boolean(c, "tie_word_embeddings", architecture->tied_by_default,
                            &r->model.tie_word_embeddings));
    if (objective_spec_head(r) != MODEL_HEAD_LM) {
        TRY(read_task(c, config, requested != NULL, r));
        warn_pad_token(c, r);
    }
    TRY(check_dropout(c, architecture, r));
    TRY(read_biases(c, architecture, r));
    if (architecture->has_free_parts) {
        TRY(config_read_parts(c, r));
        return recipe_is_rotary(r) ? config_read_rotary(c, architecture, r) : STATUS_OK;
    }
    if (recipe_architecture_is_rotary(architecture->architecture)) {
        return config_read_rotary(c, architecture, r);
    }
    if (recipe_architecture_has_decoder(architecture->architecture)) {
        return config_read_seq2seq(c, architecture, r);
    }
    return recipe_architecture_is_encoder(architecture->architecture) ? read_encoder(c, config, r)
                                                                      : STATUS_OK;
}

status huggingface_config_check(const char *path, const struct recipe *r, struct recipe *out)
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
    return result == STATUS_RECIPE ? status_change(STATUS_DATA) : result;
}

static status read_document(const struct config_document *c, const char *objective,
                            struct recipe *out, struct huggingface_config *config)
{
    struct recipe *r = NULL;
    TRY(ALLOCATE(r, 1, "a recipe"));
    recipe_set_defaults(r);
    snprintf(r->run_dir, sizeof r->run_dir, "runs/imported");
    r->train.max_steps = 1; /* required in a recipe; nothing is trained */
    status result = read_settings(c, objective, r, config);
    if (result == STATUS_OK) {
        result = huggingface_config_check(c->path, r, out);
    }
    free(r);
    return result;
}

status huggingface_config_read(const char *folder, const char *objective, struct recipe *out,
                               struct huggingface_config *config)
{
    *config = (struct huggingface_config){0};
    struct config_document c;
    status result = config_document_read(folder, "config.json", &c);
    if (result == STATUS_OK) {
        result = read_document(&c, objective, out, config);
    }
    json_decref(c.document);
    return result;
}

/* ---- writing ---- */

/* Writes null for a missing token, because the default of transformers is the token of the
 * published model. */
static void write_token(FILE *file, const char *key, int32_t id)
{
    if (id >= 0) {
        config_write_integer(file, key, id);
    } else {
        fprintf(file, "  \"%s\": null,\n", key);
    }
}

static void write_boolean(FILE *file, const char *key, bool value)
{
    fprintf(file, "  \"%s\": %s,\n", key, value ? "true" : "false");
}

void huggingface_class_name(const struct recipe *r, char out[HUGGINGFACE_CLASS_BYTES])
{
    const struct huggingface_architecture *architecture =
        huggingface_find_architecture(recipe_architecture_name(r->model.architecture));
    bool use_second_class = architecture->classes[0].has_label_head && !r->model.next_sentence;
    const char *task = huggingface_task_class_suffix(architecture, r->objective);
    snprintf(out, HUGGINGFACE_CLASS_BYTES, "%s%s", task != NULL ? architecture->class_stem : "",
             task != NULL ? task : architecture->classes[use_second_class ? 1 : 0].name);
}

static void write_class(FILE *file, const struct huggingface_architecture *architecture,
                        const struct recipe *r)
{
    char name[HUGGINGFACE_CLASS_BYTES];
    huggingface_class_name(r, name);
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", name,
            architecture->model_type);
}

/* Writes the names of a head's outputs. transformers derives their number from them. */
static status write_labels(FILE *file, const struct recipe *r, const struct labels *labels)
{
    enum example_kind kind = objective_spec_example(r);
    bool is_single = has_single_output(r->objective);
    bool has_label_names = kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_CLASSIFY_TOKENS;
    json_t *names = json_object(), *numbers = json_object();
    char index[16];
    int failed = names == NULL || numbers == NULL;
    for (int i = 0; i < (is_single ? 1 : has_label_names ? labels->count : 0) && failed == 0; i++) {
        const char *name = is_single ? "LABEL_0" : labels->names[i];
        snprintf(index, sizeof index, "%d", i);
        failed = json_object_set_new(names, index, json_string(name)) != 0 ||
                 json_object_set_new(numbers, name, json_integer(i)) != 0;
    }
    if (failed == 0 && json_object_size(names) > 0) {
        fprintf(file, "  \"id2label\": ");
        failed = json_dumpf(names, file, JSON_COMPACT | JSON_ENSURE_ASCII);
        fprintf(file, ",\n  \"label2id\": ");
        failed = failed != 0 || json_dumpf(numbers, file, JSON_COMPACT | JSON_ENSURE_ASCII) != 0;
        fprintf(file, ",\n");
    }
    json_decref(names);
    json_decref(numbers);
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for the labels of config.json");
    if (kind == EXAMPLE_REGRESS || kind == EXAMPLE_CLASSIFY) {
        fprintf(file, "  \"problem_type\": \"%s\",\n",
                kind == EXAMPLE_REGRESS ? "regression" : "single_label_classification");
    }
    return STATUS_OK;
}

static void write_key(FILE *file, const struct huggingface_key *key, const struct recipe *r)
{
    const void *setting = (const char *)r + key->recipe_offset;
    if (key->is_integer && key->is_optional && *(const int64_t *)setting == 0) {
        fprintf(file, "  \"%s\": null,\n", key->name);
    } else if (key->is_integer) {
        config_write_integer(file, key->name, *(const int64_t *)setting);
    } else {
        config_write_number(file, key->name, *(const double *)setting);
    }
}

static const char *get_activation_name(const struct huggingface_architecture *architecture,
                                       const struct recipe *r)
{
    const char *usual = architecture->default_activation;
    if (strcmp(usual, "silu") == 0 || architecture->gelu_is_tanh) {
        return usual;
    }
    switch (r->model.activation) {
    case RECIPE_GELU_ERF:
        return "gelu";
    case RECIPE_RELU:
        return "relu";
    case RECIPE_RELU2:
        return "relu2";
    case RECIPE_SILU:
        return "silu";
    case RECIPE_ACTIVATION_NULL:
    case RECIPE_GELU_TANH:
        break;
    }
    return strcmp(usual, "gelu_pytorch_tanh") == 0 ? usual : "gelu_new";
}

/* Writes the name of the activation, with the prefix of a gate. */
static void write_activation(FILE *file, const struct huggingface_architecture *architecture,
                             const struct recipe *r)
{
    bool gated = architecture->has_gate_prefix && r->model.gated_linear_unit;
    const char *name = get_activation_name(architecture, r);
    if (gated && recipe_activation_is_gelu(r->model.activation)) {
        name = r->model.activation == RECIPE_GELU_TANH ? "gelu" : "gelu_python";
    }
    fprintf(file, "  \"%s\": \"%s%s\",\n", architecture->activation_key, gated ? gate_prefix : "",
            name);
    if (architecture->head_activation_key != NULL) {
        fprintf(file, "  \"%s\": \"%s\",\n", architecture->head_activation_key, name);
    }
}

static void write_settings(FILE *file, const struct huggingface_architecture *architecture,
                           const struct recipe *r)
{
    for (int i = 0; i < HUGGINGFACE_KEYS_MAX && architecture->keys[i].name != NULL; i++) {
        write_key(file, &architecture->keys[i], r);
    }
    for (int i = 0; i < HUGGINGFACE_SWITCHES_MAX && architecture->switches[i].name != NULL; i++) {
        write_boolean(file, architecture->switches[i].name, architecture->switches[i].required);
    }
    for (int i = 0; i < HUGGINGFACE_SIZES_MAX && architecture->fixed_sizes[i].name != NULL; i++) {
        config_write_integer(file, architecture->fixed_sizes[i].name,
                             architecture->fixed_sizes[i].value);
    }
    if (architecture->null_key != NULL) {
        fprintf(file, "  \"%s\": null,\n", architecture->null_key);
    }
    if (architecture->has_qkv_bias) {
        write_boolean(file, "use_qkv_bias", r->model.use_qkv_bias);
    }
    if (architecture->has_attention_bias) {
        write_boolean(file, "attention_bias", r->model.attention_bias);
    }
    if (architecture->has_mlp_bias) {
        write_boolean(file, "mlp_bias", r->model.mlp_bias);
    }
    for (int i = 0; i < 2 && architecture->head_dropout_keys[i] != NULL; i++) {
        config_write_number(file, architecture->head_dropout_keys[i], r->model.dropout);
    }
    if (architecture->pooling_key != NULL) {
        fprintf(file, "  \"%s\": \"cls\",\n", architecture->pooling_key);
    }
    write_activation(file, architecture, r);
    write_boolean(file, "tie_word_embeddings", r->model.tie_word_embeddings);
    if (architecture->architecture == ARCHITECTURE_GPT2 ||
        architecture->architecture == ARCHITECTURE_OPENAI_GPT) {
        config_write_number(file, "embd_pdrop", r->model.dropout);
    }
    if (architecture->has_free_parts) {
        config_write_parts(file, r);
    }
    if (recipe_architecture_has_decoder(architecture->architecture)) {
        config_write_seq2seq(file, architecture, r);
    }
    if (recipe_is_rotary(r)) {
        config_write_rotary(file, architecture, r);
    }
}

/* Refuses models that the classes of transformers cannot hold. */
static status check_export(const struct huggingface_architecture *a, const struct recipe *r)
{
    REQUIRE(!a->gelu_is_tanh || r->model.activation == RECIPE_GELU_TANH, STATUS_UNAVAILABLE,
            "a %s is exported only with model.activation gelu_tanh: transformers has no other "
            "activation for it",
            a->model_type);
    REQUIRE(a->architecture != ARCHITECTURE_MARIAN || r->model.tie_word_embeddings,
            STATUS_UNAVAILABLE, "a %s with model.tie_word_embeddings: false cannot be exported",
            a->model_type);
    REQUIRE(!(a->fixed_epsilon > 0) || r->model.layer_norm_epsilon == a->fixed_epsilon,
            STATUS_UNAVAILABLE,
            "a %s with model.layer_norm_epsilon %g cannot be exported: transformers has only %g",
            a->model_type, r->model.layer_norm_epsilon, a->fixed_epsilon);
    REQUIRE(!a->has_fixed_inner || r->model.intermediate_size == 4 * r->model.hidden_size,
            STATUS_UNAVAILABLE,
            "a %s with model.intermediate_size %" PRId64 " cannot be exported: transformers has "
            "only 4 times hidden_size",
            a->model_type, r->model.intermediate_size);
    REQUIRE(objective_spec_head(r) == MODEL_HEAD_LM ||
                huggingface_task_class_suffix(a, r->objective) != NULL,
            STATUS_UNAVAILABLE, "transformers has no class for a %s with the objective %s",
            a->model_type, recipe_objective_name(r->objective));
    return STATUS_OK;
}

status huggingface_config_write(const struct recipe *recipe, int64_t vocabulary,
                                struct huggingface_special_tokens tokens,
                                const struct labels *labels, enum safetensors_dtype dtype,
                                FILE *file)
{
    const struct huggingface_architecture *architecture =
        huggingface_find_architecture(recipe_architecture_name(recipe->model.architecture));
    char names[HUGGINGFACE_NAMES_BYTES];
    REQUIRE(architecture != NULL, STATUS_UNAVAILABLE,
            "model.architecture %s cannot be exported to transformers; %s can",
            recipe_architecture_name(recipe->model.architecture),
            huggingface_architecture_names(names));
    TRY(check_export(architecture, recipe));
    struct recipe *r = NULL;
    TRY(ALLOCATE(r, 1, "config.json"));
    *r = *recipe;
    r->model.vocab_size = vocabulary;
    if (r->model.rope_type == ROTARY_DYNAMIC) { /* transformers has one key for both lengths */
        r->model.max_position_embeddings = r->model.rope_original_positions;
    }
    write_class(file, architecture, r);
    if (objective_spec_head(r) != MODEL_HEAD_LM) {
        fprintf(file, "  \"%s\": \"%s\",\n", objective_key, recipe_objective_name(r->objective));
    }
    write_settings(file, architecture, r);
    status result = write_labels(file, r, labels);
    /* Heads of decoders read the last token that is not a pad token. The texts of a reward model
     * end with the end token, so it is not its pad token (pad_token.h). */
    if (objective_spec_head(r) != MODEL_HEAD_LM && r->objective != OBJECTIVE_REWARD &&
        tokens.pad < 0) {
        tokens.pad = tokens.eos;
    }
    write_token(file, "bos_token_id", tokens.bos);
    write_token(file, "eos_token_id", tokens.eos);
    write_token(file, "pad_token_id", tokens.pad);
    if (recipe_architecture_has_decoder(architecture->architecture)) {
        write_token(file, "decoder_start_token_id", tokens.decoder_start);
    }
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n",
            dtype == SAFETENSORS_BF16 ? "bfloat16" : "float32");
    free(r);
    TRY(result);
    REQUIRE(fflush(file) == 0 && !ferror(file), STATUS_WRITE, "cannot write config.json: %s",
            strerror(errno));
    return STATUS_OK;
}
