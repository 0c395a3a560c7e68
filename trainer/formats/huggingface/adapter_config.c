#include "trainer/formats/huggingface/adapter_config_impl.h"

#include <string.h>

#include "base/memory.h"
#include "datasets/text/pattern.h"

/* ---- supported settings ---- */

/* These keys are read or do not affect trained weights. All others must be off. */
static const char *const accepted_keys[] = {
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

static bool is_accepted(const char *key)
{
    bool found = false;
    for (int i = 0; i < COUNT(accepted_keys); i++) {
        found = found || strcmp(accepted_keys[i], key) == 0;
    }
    return found;
}

static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Accepts initializations that keep the base weights. Others change them. */
static status check_initialization(const struct config_document *c)
{
    static const char *const initializations[] = {"gaussian", "eva", "orthogonal"};
    const json_t *value = config_get_field(c, "init_lora_weights");
    const char *name = json_string_value(value);
    bool supported = value == NULL || json_is_boolean(value);
    for (int i = 0; i < COUNT(initializations); i++) {
        supported = supported || (name != NULL && strcmp(initializations[i], name) == 0);
    }
    REQUIRE(supported, STATUS_UNAVAILABLE,
            "%s: init_lora_weights %.40s changes the base model and is not supported; convert the "
            "adapter with path_initial_model_for_weight_conversion of peft's save_pretrained",
            c->path, name != NULL ? name : "of another type");
    return STATUS_OK;
}

static status check_settings(const struct config_document *c)
{
    const char *type, *bias, *key;
    json_t *value;
    TRY(config_read_string(c, "peft_type", NULL, &type));
    REQUIRE(type != NULL && strcmp(type, "LORA") == 0, STATUS_UNAVAILABLE,
            "%s: peft_type %.40s is not supported; LORA is", c->path, type != NULL ? type : "null");
    TRY(config_read_string(c, "bias", NULL, &bias));
    REQUIRE(bias == NULL || strcmp(bias, "none") == 0, STATUS_UNAVAILABLE,
            "%s: bias %.40s is not supported; none is", c->path, bias);
    json_object_foreach(c->document, key, value)
    {
        REQUIRE(is_accepted(key) || is_off(value), STATUS_UNAVAILABLE, "%s: %.60s is not supported",
                c->path, key);
    }
    return check_initialization(c);
}

static status read_settings(struct adapter_config *out)
{
    const struct config_document *c = &out->file;
    double rank;
    TRY(check_settings(c));
    TRY(config_read_number(c, "r", 8, &rank));
    TRY(config_read_number(c, "lora_alpha", 8, &out->alpha));
    TRY(config_read_number(c, "lora_dropout", 0, &out->dropout));
    TRY(config_read_string(c, "base_model_name_or_path", NULL, &out->base_path));
    REQUIRE(rank >= 1 && rank <= 65536 && (double)(int64_t)rank >= rank, STATUS_DATA,
            "%s: r is %g; it must be an integer from 1 to 65536", c->path, rank);
    TRY(config_read_boolean(c, "use_rslora", false, &out->rslora));
    out->rank = (int64_t)rank;
    return STATUS_OK;
}

void adapter_config_free(struct adapter_config *c)
{
    json_decref(c->file.document);
    c->file.document = NULL;
}

status adapter_config_read(const char *folder, struct adapter_config *out)
{
    *out = (struct adapter_config){.rank = 0};
    TRY(config_document_read(folder, "adapter_config.json", &out->file));
    return read_settings(out);
}

/* ---- the task ---- */

static enum recipe_objective
get_sequence_objective(const struct huggingface_architecture *architecture, int64_t outputs)
{
    bool decoder = !recipe_architecture_is_encoder(architecture->architecture);
    return outputs > 1 ? OBJECTIVE_CLASSIFY : decoder ? OBJECTIVE_REWARD : OBJECTIVE_REGRESS;
}

/* Returns the objective of a class for which peft has no task_type. */
static enum recipe_objective
get_class_objective(const struct config_document *c,
                    const struct huggingface_architecture *architecture)
{
    const json_t *mapping = config_get_field(c, "auto_mapping");
    const char *name = json_string_value(json_object_get(mapping, "base_model_class"));
    return name != NULL && strstr(name, "ForMultipleChoice") != NULL ? OBJECTIVE_CHOOSE
                                                                     : architecture->objective;
}

status adapter_config_find_objective(const struct adapter_config *c,
                                     const struct huggingface_architecture *architecture,
                                     int64_t outputs, enum recipe_objective *out)
{
    static const struct {
        const char *task_type;
        enum recipe_objective objective;
    } types[] = {{"CAUSAL_LM", OBJECTIVE_CLM},
                 {"SEQ_2_SEQ_LM", OBJECTIVE_SEQ2SEQ},
                 {"TOKEN_CLS", OBJECTIVE_CLASSIFY_TOKENS},
                 {"QUESTION_ANS", OBJECTIVE_ANSWER},
                 {"FEATURE_EXTRACTION", OBJECTIVE_EMBED}};
    const char *type;
    TRY(config_read_string(&c->file, "task_type", NULL, &type));
    if (type == NULL) {
        *out = get_class_objective(&c->file, architecture);
        return STATUS_OK;
    }
    if (strcmp(type, "SEQ_CLS") == 0) {
        *out = get_sequence_objective(architecture, outputs);
        return STATUS_OK;
    }
    for (int i = 0; i < COUNT(types); i++) {
        if (strcmp(types[i].task_type, type) == 0) {
            *out = types[i].objective;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE, "%s: task_type %.40s is not supported", c->file.path, type);
}

/* ---- the modules ---- */

static bool ends_with_name(const char *module, const char *end)
{
    size_t module_bytes = strlen(module), end_bytes = strlen(end);
    bool matches = module_bytes >= end_bytes && strcmp(module + module_bytes - end_bytes, end) == 0;
    return matches && (module_bytes == end_bytes || module[module_bytes - end_bytes - 1] == '.');
}

static status matches_setting(const struct config_document *c, const char *key, const char *module,
                              bool *out)
{
    const json_t *value = config_get_field(c, key);
    *out = false;
    if (json_is_string(value)) {
        return pattern_matches(json_string_value(value), module, out);
    }
    REQUIRE(value == NULL || json_is_array(value), STATUS_DATA,
            "%s: %s is neither a string nor a list", c->path, key);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *end = json_string_value(json_array_get(value, i));
        REQUIRE(end != NULL, STATUS_DATA, "%s: %s is not a list of strings", c->path, key);
        *out = *out || ends_with_name(module, end);
    }
    return STATUS_OK;
}

status adapter_config_is_target(const struct adapter_config *c, const char *module, bool *out)
{
    const char *all = json_string_value(config_get_field(&c->file, "target_modules"));
    bool excluded;
    if (all != NULL && strcmp(all, "all-linear") == 0) {
        *out = true;
    } else {
        TRY(matches_setting(&c->file, "target_modules", module, out));
    }
    TRY(matches_setting(&c->file, "exclude_modules", module, &excluded));
    *out = *out && !excluded;
    return STATUS_OK;
}
