#include "trainer/huggingface/adapter_config.h"

#include <string.h>

#include "datasets/tokenizer/pattern.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* ---- fields ---- */

/* NULL where it is missing or null. */
static const json_t *field(const struct pretrained_adapter_settings *s, const char *key)
{
    const json_t *value = json_object_get(s->document, key);
    return json_is_null(value) ? NULL : value;
}

static status read_text(const struct pretrained_adapter_settings *s, const char *key,
                        const char **out)
{
    const json_t *value = field(s, key);
    REQUIRE(value == NULL || json_is_string(value), STATUS_DATA, "%s: %s is not a text", s->path,
            key);
    *out = value != NULL ? json_string_value(value) : NULL;
    return STATUS_OK;
}

static status read_number(const struct pretrained_adapter_settings *s, const char *key,
                          double preset, double *out)
{
    const json_t *value = field(s, key);
    REQUIRE(value == NULL || json_is_number(value), STATUS_DATA, "%s: %s is not a number", s->path,
            key);
    *out = value != NULL ? json_number_value(value) : preset;
    return STATUS_OK;
}

/* ---- what this version has ---- */

/* These are read, or change nothing once there are weights; all others must be off. */
static const char *const known[] = {
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
};

static bool is_known(const char *key)
{
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        found = found || strcmp(known[i], key) == 0;
    }
    return found;
}

static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Ways to begin that leave the base as it is; others take something from its weights. */
static status check_beginning(const struct pretrained_adapter_settings *s)
{
    static const char *const ways[] = {"gaussian", "eva", "orthogonal"};
    const json_t *value = field(s, "init_lora_weights");
    const char *name = json_string_value(value);
    bool good = value == NULL || json_is_boolean(value);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        good = good || (name != NULL && strcmp(ways[i], name) == 0);
    }
    REQUIRE(
        good, STATUS_UNAVAILABLE,
        "%s: init_lora_weights %.40s, which changes the base, is not in this version; convert the "
        "adapter with path_initial_model_for_weight_conversion of peft's save_pretrained",
        s->path, name != NULL ? name : "of another type");
    return STATUS_OK;
}

static status check_kind(const struct pretrained_adapter_settings *s)
{
    const char *type, *bias, *key;
    json_t *value;
    TRY(read_text(s, "peft_type", &type));
    REQUIRE(type != NULL && strcmp(type, "LORA") == 0, STATUS_UNAVAILABLE,
            "%s: peft_type %.40s is not in this version; LORA is", s->path,
            type != NULL ? type : "null");
    TRY(read_text(s, "bias", &bias));
    REQUIRE(bias == NULL || strcmp(bias, "none") == 0, STATUS_UNAVAILABLE,
            "%s: bias %.40s is not in this version; none is", s->path, bias);
    json_object_foreach(s->document, key, value)
    {
        REQUIRE(is_known(key) || is_off(value), STATUS_UNAVAILABLE,
                "%s: %.60s is not in this version", s->path, key);
    }
    return check_beginning(s);
}

static status read_settings(struct pretrained_adapter_settings *s)
{
    double rank;
    const json_t *rslora = field(s, "use_rslora");
    TRY(check_kind(s));
    TRY(read_number(s, "r", 8, &rank));
    TRY(read_number(s, "lora_alpha", 8, &s->alpha));
    TRY(read_number(s, "lora_dropout", 0, &s->dropout));
    TRY(read_text(s, "base_model_name_or_path", &s->base));
    REQUIRE(rank >= 1 && rank <= 65536 && (double)(int64_t)rank >= rank, STATUS_DATA,
            "%s: r is %g, not a rank", s->path, rank);
    REQUIRE(rslora == NULL || json_is_boolean(rslora), STATUS_DATA,
            "%s: use_rslora is neither true nor false", s->path);
    s->rank = (int64_t)rank;
    s->rslora = json_is_true(rslora);
    return STATUS_OK;
}

void pretrained_adapter_settings_free(struct pretrained_adapter_settings *s)
{
    json_decref(s->document);
    s->document = NULL;
}

status pretrained_adapter_settings_read(const char *folder, struct pretrained_adapter_settings *out)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    *out = (struct pretrained_adapter_settings){.document = NULL};
    TRY(file_join(out->path, folder, "adapter_config.json"));
    TRY(file_read(out->path, CONFIG_BYTES_MAX, &text, &bytes));
    out->document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    REQUIRE(out->document != NULL, STATUS_DATA, "%s:%d:%d: %s", out->path, error.line, error.column,
            error.text);
    REQUIRE(json_is_object(out->document), STATUS_DATA, "%s: not a JSON object", out->path);
    return read_settings(out);
}

/* ---- the task ---- */

static const char *objective_of_texts(const struct pretrained_family *family, int64_t outputs)
{
    bool decoder = strcmp(family->objective, "clm") == 0;
    return outputs > 1 ? "classify" : decoder ? "reward" : "regress";
}

/* Where peft has no type of task. */
static const char *objective_of_class(const struct pretrained_adapter_settings *s,
                                      const struct pretrained_family *family)
{
    const json_t *mapping = field(s, "auto_mapping");
    const char *name = json_string_value(json_object_get(mapping, "base_model_class"));
    return name != NULL && strstr(name, "ForMultipleChoice") != NULL ? "choose" : family->objective;
}

status pretrained_adapter_settings_objective(const struct pretrained_adapter_settings *s,
                                             const struct pretrained_family *family,
                                             int64_t outputs, const char **out)
{
    static const struct {
        const char *theirs, *ours;
    } types[] = {{"CAUSAL_LM", "clm"},
                 {"TOKEN_CLS", "classify_tokens"},
                 {"QUESTION_ANS", "answer"},
                 {"FEATURE_EXTRACTION", "embed"}};
    const char *type;
    TRY(read_text(s, "task_type", &type));
    *out = NULL;
    if (type == NULL) {
        *out = objective_of_class(s, family);
    } else if (strcmp(type, "SEQ_CLS") == 0) {
        *out = objective_of_texts(family, outputs);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0] && type != NULL; i++) {
        *out = strcmp(types[i].theirs, type) == 0 ? types[i].ours : *out;
    }
    REQUIRE(*out != NULL, STATUS_UNAVAILABLE, "%s: task_type %.40s is not in this version", s->path,
            type);
    return STATUS_OK;
}

/* ---- the modules ---- */

static bool is_end(const char *module, const char *end)
{
    size_t length = strlen(module), tail = strlen(end);
    bool ends = length >= tail && strcmp(module + length - tail, end) == 0;
    return ends && (length == tail || module[length - tail - 1] == '.');
}

static status matches(const struct pretrained_adapter_settings *s, const char *key,
                      const char *module, bool *out)
{
    const json_t *value = field(s, key);
    *out = false;
    if (json_is_string(value)) {
        return pattern_matches(json_string_value(value), module, out);
    }
    REQUIRE(value == NULL || json_is_array(value), STATUS_DATA,
            "%s: %s is neither a text nor a list", s->path, key);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *end = json_string_value(json_array_get(value, i));
        REQUIRE(end != NULL, STATUS_DATA, "%s: %s is not a list of texts", s->path, key);
        *out = *out || is_end(module, end);
    }
    return STATUS_OK;
}

status pretrained_adapter_settings_targets(const struct pretrained_adapter_settings *s,
                                           const char *module, bool *out)
{
    const char *all = json_string_value(field(s, "target_modules"));
    bool excluded;
    if (all != NULL && strcmp(all, "all-linear") == 0) {
        *out = true;
    } else {
        TRY(matches(s, "target_modules", module, out));
    }
    TRY(matches(s, "exclude_modules", module, &excluded));
    *out = *out && !excluded;
    return STATUS_OK;
}
