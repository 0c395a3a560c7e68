/* Every field of config.json that changes what a model computes is read, or refused by its name where this
 * version does not have it; the others (ids of special tokens, the head of other tasks) are no settings here. */
#include "trainer/huggingface/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "trainer/setup/data.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* What the class alone does not tell. transformers keeps keys that it does not know. */
static const char objective_key[] = "bireme_objective";

/* What rope_parameters says beside rope_type; linear has the first. */
static const struct {
    const char *name;
    size_t setting;
} rope_numbers[] = {
    {"factor", offsetof(struct recipe, model.rope_factor)},
    {"low_freq_factor", offsetof(struct recipe, model.rope_low_freq_factor)},
    {"high_freq_factor", offsetof(struct recipe, model.rope_high_freq_factor)},
};

enum { ROPE_NUMBERS = sizeof rope_numbers / sizeof rope_numbers[0] };
static const char rope_positions_key[] = "original_max_position_embeddings";

static const char *const single_outputs[] = {"regress", "reward", "choose", NULL};

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

/* The classes that config.json names, and what they promise together. A task's class stands alone: a checkpoint has one
 * head. */
static status read_classes(const struct config *c, struct pretrained_promise *promise,
                           const char **objective)
{
    const struct pretrained_family *family = promise->family;
    const json_t *names = field(c, "architectures");
    *objective = family->objective;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        REQUIRE(name != NULL, STATUS_DATA, "%s: architectures is not a list of texts", c->path);
        const struct pretrained_class *one = pretrained_class(family, name);
        const char *task = one == NULL ? pretrained_task_objective(family, name) : NULL;
        bool known = one != NULL || (task != NULL && json_array_size(names) == 1);
        REQUIRE(known, STATUS_UNAVAILABLE,
                "%s: the architecture %.60s is not in this version; %s and %s are, or alone the "
                "classes of tasks, as %s%s",
                c->path, name, family->classes[0].name, family->classes[1].name, family->stem,
                pretrained_task_class(family, "classify"));
        promise->heads.predictions |= one != NULL && one->predictions;
        promise->heads.labels |= one == NULL || one->labels;
        *objective = task != NULL ? task : *objective;
    }
    return STATUS_OK;
}

static status read_family(const struct config *c, struct pretrained_promise *promise,
                          const char **objective)
{
    const char *type;
    TRY(read_text(c, "model_type", NULL, &type));
    REQUIRE(type != NULL, STATUS_DATA,
            "%s: model_type is missing; is this a model of transformers?", c->path);
    promise->family = pretrained_family(type);
    REQUIRE(promise->family != NULL, STATUS_UNAVAILABLE,
            "%s: model_type %.60s is not in this version; %s are", c->path, type,
            pretrained_types());
    return read_classes(c, promise, objective);
}

static status check_switches(const struct config *c, const struct pretrained_family *family)
{
    for (int i = 0; i < PRETRAINED_SWITCHES && family->switches[i].name != NULL; i++) {
        bool value, wanted = family->switches[i].wanted;
        TRY(read_boolean(c, family->switches[i].name, wanted, &value));
        REQUIRE(value == wanted, STATUS_UNAVAILABLE, "%s: %s: %s is not in this version", c->path,
                family->switches[i].name, value ? "true" : "false");
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

static status read_activation(const struct config *c, const struct pretrained_family *family,
                              char out[RECIPE_NAME_BYTES])
{
    const char *name;
    TRY(read_text(c, family->activation_key, family->activation, &name));
    if (strcmp(family->activation, "silu") == 0) {
        REQUIRE(strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0, STATUS_UNAVAILABLE,
                "%s: %s %.60s is not in this version; silu is", c->path, family->activation_key,
                name);
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (strcmp(activations[i].theirs, name) == 0) {
            snprintf(out, RECIPE_NAME_BYTES, "%s", activations[i].ours);
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE,
          "%s: %s %.60s is not in this version; gelu_new, gelu_pytorch_tanh, gelu_fast, gelu and "
          "gelu_python are",
          c->path, family->activation_key, name);
}

/* ---- to a recipe ---- */

static status read_key(const struct config *c, const struct pretrained_key *key, struct recipe *r)
{
    void *setting = (char *)r + key->setting;
    if (!key->integer) {
        return read_number(c, key->name, key->preset, setting);
    }
    if (key->optional && field(c, key->name) == NULL) {
        return STATUS_OK;
    }
    int64_t value;
    TRY(read_integer(c, key->name, (int64_t)key->preset, &value));
    REQUIRE(value > 0, STATUS_DATA, "%s: %s is %lld; it must be above 0", c->path, key->name,
            (long long)value);
    memcpy(setting, &value, sizeof value);
    return STATUS_OK;
}

static void warn_dropout(const struct config *c, const char *key, double theirs,
                         const struct recipe *r)
{
    if (theirs != r->model.dropout) {
        log_warning("IMPORT", "%s: %s %g is not model.dropout, %g, which is for both (in training)",
                    c->path, key, theirs, r->model.dropout);
    }
}

static status read_gpt2(const struct config *c, struct recipe *r)
{
    double embeddings;
    TRY(read_number(c, "embd_pdrop", 0.1, &embeddings));
    warn_dropout(c, "embd_pdrop", embeddings, r);
    return STATUS_OK;
}

static status read_encoder(const struct config *c, const struct pretrained_promise *promise,
                           struct recipe *r)
{
    bool roberta = strcmp(promise->family->type, "roberta") == 0;
    int64_t pad;
    const char *positions;
    TRY(read_text(c, "position_embedding_type", "absolute", &positions));
    REQUIRE(strcmp(positions, "absolute") == 0, STATUS_UNAVAILABLE,
            "%s: position_embedding_type %.60s is not in this version; absolute is", c->path,
            positions);
    TRY(read_integer(c, "pad_token_id", 1, &pad));
    REQUIRE(!roberta || pad == 1, STATUS_UNAVAILABLE,
            "%s: pad_token_id %lld: positions that begin with row %lld are not in this version; "
            "with 1 they begin with row 2",
            c->path, (long long)pad, (long long)pad + 1);
    /* import looks at the weights too */
    r->model.next_sentence = promise->heads.labels && job_data_task(r) == MODEL_WORDS;
    return STATUS_OK;
}

static status read_rope_type(const struct config *c, struct recipe *r)
{
    const char *type, *older;
    TRY(read_text(c, "type", "default", &older));
    TRY(read_text(c, "rope_type", older, &type));
    bool linear = strcmp(type, "linear") == 0, llama3 = strcmp(type, "llama3") == 0;
    REQUIRE(linear || llama3 || strcmp(type, "default") == 0, STATUS_UNAVAILABLE,
            "%s: the rope_type %.60s is not in this version; default, linear and llama3 are",
            c->path, type);
    snprintf(r->model.rope_type, sizeof r->model.rope_type, "%s", type);
    for (int i = 0; i < (llama3 ? ROPE_NUMBERS : linear ? 1 : 0); i++) {
        double *value = (double *)((char *)r + rope_numbers[i].setting);
        REQUIRE(field(c, rope_numbers[i].name) != NULL, STATUS_DATA, "%s: %s has no %s", c->path,
                type, rope_numbers[i].name);
        TRY(read_number(c, rope_numbers[i].name, 0, value));
    }
    if (!llama3) {
        return STATUS_OK;
    }
    TRY(read_integer(c, rope_positions_key, r->model.max_position_embeddings,
                     &r->model.rope_original_positions));
    REQUIRE(r->model.rope_original_positions > 0, STATUS_DATA, "%s: %s is %lld; it must be above 0",
            c->path, rope_positions_key, (long long)r->model.rope_original_positions);
    return STATUS_OK;
}

/* rope_parameters of transformers 5, or before it rope_theta and rope_scaling. */
static status read_rotary(const struct config *c, struct recipe *r)
{
    const json_t *inside = field(c, "rope_parameters");
    const json_t *scaling = inside != NULL ? inside : field(c, "rope_scaling");
    struct config nested = *c;
    int64_t head;
    TRY(read_number(c, "rope_theta", 10000, &r->model.rope_theta));
    if (scaling != NULL) {
        REQUIRE(json_is_object(scaling), STATUS_DATA, "%s: %s is not an object", c->path,
                inside != NULL ? "rope_parameters" : "rope_scaling");
        nested.document = (json_t *)scaling;
        TRY(read_number(&nested, "rope_theta", r->model.rope_theta, &r->model.rope_theta));
        TRY(read_rope_type(&nested, r));
    }
    TRY(read_integer(c, "head_dim", r->model.hidden_size / r->model.num_heads, &head));
    REQUIRE(head == r->model.hidden_size / r->model.num_heads, STATUS_UNAVAILABLE,
            "%s: head_dim %lld, and hidden_size / num_attention_heads is %lld: heads of another "
            "width are not in this version",
            c->path, (long long)head, (long long)(r->model.hidden_size / r->model.num_heads));
    return STATUS_OK;
}

/* ---- tasks ---- */

/* Of a class that several objectives have in common: the one that is asked for, or was when the folder was written. */
static status read_objective(const struct config *c, const struct pretrained_family *family,
                             const char *asked, const char **objective)
{
    const char *name = json_string_value(json_array_get(field(c, "architectures"), 0));
    if (asked == NULL) {
        TRY(read_text(c, objective_key, NULL, &asked));
    }
    if (asked == NULL || strcmp(asked, *objective) == 0) {
        return STATUS_OK;
    }
    const char *end = pretrained_task_class(family, asked);
    size_t stem = strlen(family->stem);
    bool fits = end != NULL && name != NULL && strncmp(name, family->stem, stem) == 0 &&
                strcmp(name + stem, end) == 0;
    REQUIRE(fits, STATUS_USAGE, "%s: a %.60s is not for the objective %.60s but for %s", c->path,
            name != NULL ? name : family->type, asked, *objective);
    *objective = asked;
    return STATUS_OK;
}

/* id2label; transformers leaves it out where it is two numbered names. */
static status read_labels(const struct config *c, struct labels *out, int64_t *count)
{
    const json_t *names = field(c, "id2label");
    char number[32], preset[48];
    TRY(read_integer(c, "num_labels", 2, count));
    REQUIRE(names == NULL || json_is_object(names), STATUS_DATA, "%s: id2label is not an object",
            c->path);
    *count = names != NULL ? (int64_t)json_object_size(names) : *count;
    REQUIRE(*count > 0 && *count <= LABELS_MAX, STATUS_DATA, "%s: %lld labels; 1 to %d can be",
            c->path, (long long)*count, LABELS_MAX);
    for (int i = 0; i < *count; i++) {
        snprintf(number, sizeof number, "%d", i);
        snprintf(preset, sizeof preset, "LABEL_%d", i);
        const char *name =
            names != NULL ? json_string_value(json_object_get(names, number)) : preset;
        REQUIRE(name != NULL && name[0] != '\0', STATUS_DATA, "%s: id2label has no name for %d",
                c->path, i);
        TRY(labels_add(out, name));
        REQUIRE(out->count == i + 1, STATUS_DATA, "%s: id2label has the name \"%.200s\" twice",
                c->path, name);
    }
    return STATUS_OK;
}

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words != NULL && strcmp(*words, word) != 0) {
        words++;
    }
    return *words != NULL;
}

/* A head with one output and nothing said of it is regression's, as transformers has it. */
static status read_task(const struct config *c, struct pretrained_promise *promise, bool asked,
                        struct recipe *r)
{
    static const char *const named[] = {"classify", "classify_tokens", NULL};
    const char *problem;
    int64_t outputs;
    double dropout;
    TRY(read_labels(c, &promise->labels, &outputs));
    TRY(read_text(c, "problem_type", outputs == 1 ? "regression" : "", &problem));
    if (strcmp(r->objective, "classify") == 0 && !asked && strcmp(problem, "regression") == 0) {
        snprintf(r->objective, sizeof r->objective, "regress");
    }
    REQUIRE(strcmp(problem, "multi_label_classification") != 0, STATUS_UNAVAILABLE,
            "%s: problem_type %s is not in this version; single_label_classification and "
            "regression are",
            c->path, problem);
    bool questions = strcmp(promise->family->objective, "mlm") == 0 && /* whatever id2label says */
                     strcmp(r->objective, "choose") == 0;
    REQUIRE(outputs == 1 || questions || !is_one_of(r->objective, single_outputs),
            STATUS_UNAVAILABLE, "%s: %s has one output in this version, and this head has %lld",
            c->path, r->objective, (long long)outputs);
    if (is_one_of(r->objective, named)) {
        r->model.num_labels = outputs;
    } else {
        labels_free(&promise->labels);
    }
    TRY(read_number(c, "classifier_dropout", r->model.dropout, &dropout));
    warn_dropout(c, "classifier_dropout", dropout, r);
    return STATUS_OK;
}

static status read_settings(const struct config *c, const char *asked, struct recipe *r,
                            struct pretrained_promise *promise)
{
    const char *objective;
    TRY(read_family(c, promise, &objective));
    const struct pretrained_family *family = promise->family;
    TRY(read_objective(c, family, asked, &objective));
    snprintf(r->model.architecture, sizeof r->model.architecture, "%s", family->type);
    snprintf(r->objective, sizeof r->objective, "%s", objective);
    TRY(check_switches(c, family));
    for (int i = 0; i < PRETRAINED_KEYS && family->keys[i].name != NULL; i++) {
        TRY(read_key(c, &family->keys[i], r));
    }
    TRY(read_activation(c, family, r->model.activation));
    TRY(read_boolean(c, "tie_word_embeddings", family->tied, &r->model.tie_word_embeddings));
    if (job_data_task(r) != MODEL_WORDS) {
        TRY(read_task(c, promise, asked != NULL, r));
    }
    if (strcmp(family->type, "gpt2") == 0) {
        return read_gpt2(c, r);
    }
    return strcmp(family->type, "llama") == 0 ? read_rotary(c, r) : read_encoder(c, promise, r);
}

/* Ranges and contradictions are the recipe's own business: it is read back from its text. */
status pretrained_config_check(const char *path, const struct recipe *r, struct recipe *out)
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

static status read_config(const struct config *c, const char *objective, struct recipe *out,
                          struct pretrained_promise *promise)
{
    struct recipe *r = malloc(sizeof *r);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory for a recipe");
    recipe_preset(r);
    snprintf(r->run_dir, sizeof r->run_dir, "runs/imported");
    r->train.max_steps = 1; /* a recipe has to say; nothing is trained */
    status result = read_settings(c, objective, r, promise);
    if (result == STATUS_OK) {
        result = pretrained_config_check(c->path, r, out);
    }
    free(r);
    return result;
}

status pretrained_config_read(const char *folder, const char *objective, struct recipe *out,
                              struct pretrained_promise *promise)
{
    *promise = (struct pretrained_promise){0};
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
    status result = json_is_object(c.document) ? read_config(&c, objective, out, promise)
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

/* transformers' own default would be that of the published model. */
static void write_token(FILE *file, const char *key, int32_t id)
{
    if (id >= 0) {
        write_integer(file, key, id);
    } else {
        fprintf(file, "  \"%s\": null,\n", key);
    }
}

static void write_boolean(FILE *file, const char *key, bool value)
{
    fprintf(file, "  \"%s\": %s,\n", key, value ? "true" : "false");
}

void pretrained_class_name(const struct recipe *r, char out[PRETRAINED_CLASS_BYTES])
{
    const struct pretrained_family *family = pretrained_family(r->model.architecture);
    bool second = family->classes[0].labels && !r->model.next_sentence;
    const char *task = pretrained_task_class(family, r->objective);
    snprintf(out, PRETRAINED_CLASS_BYTES, "%s%s", task != NULL ? family->stem : "",
             task != NULL ? task : family->classes[second ? 1 : 0].name);
}

static void write_class(FILE *file, const struct pretrained_family *family, const struct recipe *r)
{
    char name[PRETRAINED_CLASS_BYTES];
    pretrained_class_name(r, name);
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", name,
            family->type);
}

/* Names of a head's outputs; transformers counts them. */
static status write_labels(FILE *file, const struct recipe *r, const struct labels *labels)
{
    enum example_kind kind = job_data_kind(r);
    bool one = is_one_of(r->objective, single_outputs);
    bool named = kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_CLASSIFY_TOKENS;
    json_t *names = json_object(), *numbers = json_object();
    char number[16];
    int failed = names == NULL || numbers == NULL;
    for (int i = 0; i < (one ? 1 : named ? labels->count : 0) && failed == 0; i++) {
        const char *name = one ? "LABEL_0" : labels->names[i];
        snprintf(number, sizeof number, "%d", i);
        failed = json_object_set_new(names, number, json_string(name)) != 0 ||
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

static void write_key(FILE *file, const struct pretrained_key *key, const struct recipe *r)
{
    const void *setting = (const char *)r + key->setting;
    if (key->integer) {
        write_integer(file, key->name, *(const int64_t *)setting);
    } else {
        write_number(file, key->name, *(const double *)setting);
    }
}

/* rope_theta for versions before 5, too. */
static void write_rotary(FILE *file, const struct recipe *r)
{
    bool llama3 = strcmp(r->model.rope_type, "llama3") == 0;
    bool plain = strcmp(r->model.rope_type, "default") == 0;
    char text[TEXT_NUMBER_BYTES];
    write_number(file, "rope_theta", r->model.rope_theta);
    if (plain) {
        return;
    }
    fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"%s\"", r->model.rope_type);
    for (int i = 0; i < (llama3 ? ROPE_NUMBERS : 1); i++) {
        const double *value = (const double *)((const char *)r + rope_numbers[i].setting);
        fprintf(file, ", \"%s\": %s", rope_numbers[i].name, text_from_number(*value, text));
    }
    if (llama3) {
        fprintf(file, ", \"%s\": %lld", rope_positions_key,
                (long long)r->model.rope_original_positions);
    }
    fprintf(file, "},\n");
}

static void write_settings(FILE *file, const struct pretrained_family *family,
                           const struct recipe *r)
{
    bool erf = strcmp(r->model.activation, "gelu_erf") == 0;
    bool silu = strcmp(family->activation, "silu") == 0;
    for (int i = 0; i < PRETRAINED_KEYS && family->keys[i].name != NULL; i++) {
        write_key(file, &family->keys[i], r);
    }
    for (int i = 0; i < PRETRAINED_SWITCHES && family->switches[i].name != NULL; i++) {
        write_boolean(file, family->switches[i].name, family->switches[i].wanted);
    }
    fprintf(file, "  \"%s\": \"%s\",\n", family->activation_key,
            silu  ? "silu"
            : erf ? "gelu"
                  : "gelu_new");
    write_boolean(file, "tie_word_embeddings", r->model.tie_word_embeddings);
    if (strcmp(family->type, "gpt2") == 0) {
        write_number(file, "embd_pdrop", r->model.dropout);
    } else if (strcmp(family->type, "llama") == 0) {
        write_rotary(file, r);
    }
}

status pretrained_config_write(const struct recipe *recipe, int64_t vocabulary,
                               struct pretrained_tokens tokens, const struct labels *labels,
                               enum safetensors_dtype dtype, FILE *file)
{
    const struct pretrained_family *family = pretrained_family(recipe->model.architecture);
    REQUIRE(family != NULL, STATUS_UNAVAILABLE,
            "model.architecture %s has no form in transformers that this version can write; %s do",
            recipe->model.architecture, pretrained_types());
    struct recipe *r = malloc(sizeof *r);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory for config.json");
    *r = *recipe;
    r->model.vocab_size = vocabulary;
    write_class(file, family, r);
    if (job_data_task(r) != MODEL_WORDS) {
        fprintf(file, "  \"%s\": \"%s\",\n", objective_key, r->objective);
    }
    write_settings(file, family, r);
    status result = write_labels(file, r, labels);
    if (job_data_task(r) != MODEL_WORDS && tokens.pad < 0) {
        tokens.pad = tokens.end; /* decoders' heads look for the last token that is none of these */
    }
    write_token(file, "bos_token_id", tokens.begin);
    write_token(file, "eos_token_id", tokens.end);
    write_token(file, "pad_token_id", tokens.pad);
    fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n",
            dtype == SAFETENSORS_BF16 ? "bfloat16" : "float32");
    free(r);
    TRY(result);
    REQUIRE(!ferror(file), STATUS_WRITE, "config.json cannot be written");
    return STATUS_OK;
}
