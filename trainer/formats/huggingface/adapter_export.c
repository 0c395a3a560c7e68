#include "trainer/formats/huggingface/adapter_export.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"

/* ---- merging ---- */

static status read_tensor(struct checkpoint_reader *reader, const struct manifest_tensor *t,
                          float **out)
{
    int64_t offset[2] = {0, 0}, shape[2];
    float *block = NULL;
    TRY(ALLOCATE(block, t->shape[0] * t->shape[1], t->name));
    *out = block;
    while (checkpoint_reader_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(reader, t, offset, shape, block));
        block += shape[0] * shape[1];
        checkpoint_reader_next_block(t, offset, shape);
    }
    return STATUS_OK;
}

/* Reads matrix "A" or "B" of an adapter; *out is NULL if the parameter has no adapter. */
static status read_matrix(struct checkpoint_reader *reader, const struct model_parameter *p,
                          const char *matrix, int64_t rows, int64_t columns, float **out)
{
    char name[MODEL_NAME_BYTES];
    int length = (int)(strlen(p->name) - strlen(".weight"));
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_%s.weight", length, p->name, matrix);
    const struct manifest_tensor *t =
        manifest_find_tensor(checkpoint_reader_manifest(reader), "model", name);
    if (t == NULL) {
        return STATUS_OK;
    }
    REQUIRE(t->dimensions == 2 && t->shape[0] == rows && t->shape[1] == columns, STATUS_CHECKPOINT,
            "%s does not have the shape [%" PRId64 ", %" PRId64 "] of the recipe", name, rows,
            columns);
    return read_tensor(reader, t, out);
}

status adapter_export_read(struct checkpoint_reader *adapters, const struct recipe *recipe,
                           const struct model_parameter *p, struct adapter_weights *out)
{
    int64_t rank = recipe->adapter.rank;
    struct model_adapter adapter = {.rank = rank,
                                    .alpha = (float)recipe->adapter.alpha,
                                    .rank_stabilized = recipe->adapter.rslora};
    *out = (struct adapter_weights){
        .rank = rank, .input_width = p->whole_columns, .scale = model_adapter_scale(&adapter)};
    if (p->dimensions != 2) {
        return STATUS_OK;
    }
    TRY(read_matrix(adapters, p, "A", rank, p->whole_columns, &out->a));
    TRY(read_matrix(adapters, p, "B", p->whole_rows, rank, &out->b));
    REQUIRE((out->a == NULL) == (out->b == NULL), STATUS_CHECKPOINT,
            "one of the two adapter matrices of %s is missing", p->name);
    return STATUS_OK;
}

void adapter_export_free(struct adapter_weights *adapter)
{
    free(adapter->a);
    free(adapter->b);
    *adapter = (struct adapter_weights){0};
}

void adapter_export_merge(const struct adapter_weights *adapter, bool transposed,
                          const int64_t offset[2], const int64_t shape[2], float *block)
{
    for (int64_t r = 0; r < shape[0] && adapter->a != NULL; r++) {
        for (int64_t c = 0; c < shape[1]; c++) {
            int64_t row = offset[0] + r, column = offset[1] + c;
            int64_t output = transposed ? column : row, input = transposed ? row : column;
            double sum = 0;
            for (int64_t k = 0; k < adapter->rank; k++) {
                sum += (double)adapter->b[output * adapter->rank + k] *
                       adapter->a[k * adapter->input_width + input];
            }
            float *w = &block[r * shape[1] + c];
            *w = (float)(*w + adapter->scale * sum);
        }
    }
}

/* ---- peft's format ---- */

/* Returns the start of that component of a module's name which ends at `end`. */
static int find_component(const char *name, int end)
{
    while (end > 0 && name[end - 1] != '.') {
        end--;
    }
    return end;
}

/* Appends the last component of the name of a matrix with an adapter, or the last two if it is
 * "dense", unless the list contains it. */
static void append_module(json_t *list, const struct model_parameter *p)
{
    int length = (int)(strlen(p->name) - strlen(".lora_A.weight"));
    int start = find_component(p->name, length);
    start = strncmp(p->name + start, "dense.", 6) == 0 ? find_component(p->name, start - 1) : start;
    json_t *name = json_stringn(p->name + start, (size_t)(length - start));
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_equal(json_array_get(list, i), name)) {
            json_decref(name);
            return;
        }
    }
    json_array_append_new(list, name);
}

/* Builds target_modules of adapters of all matrices. In peft, all-linear includes the dense layer
 * of a masked language model's head, so that a list of names replaces it. */
static json_t *build_all_modules(const struct recipe *r, const struct model_parameter *parameters,
                                 int count)
{
    if (r->objective != OBJECTIVE_MLM) {
        return json_string("all-linear");
    }
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        if (parameters[i].role == MODEL_ADAPTER_IN) {
            append_module(list, &parameters[i]);
        }
    }
    return list;
}

/* Builds target_modules: the string "all-linear" or a list of names. */
static json_t *build_target_modules(const struct recipe *r,
                                    const struct model_parameter *parameters, int count)
{
    char target[RECIPE_NAME_BYTES];
    json_t *list = json_array();
    for (const char *next = r->adapter.targets; recipe_list_next(&next, target, sizeof target);) {
        if (strcmp(target, "all-linear") == 0) {
            json_decref(list);
            return build_all_modules(r, parameters, count);
        }
        json_array_append_new(list, json_string(target));
    }
    return list;
}

static json_t *build_number(double x)
{
    bool whole = !(fabs(x - nearbyint(x)) > 0);
    return whole ? json_integer((json_int_t)x) : json_real(x);
}

static const char name_prefix[] = "base_model.model.";

void adapter_export_name(const struct huggingface_architecture *architecture,
                         const struct model_config *config, const struct model_parameter *p,
                         char out[HUGGINGFACE_NAME_BYTES])
{
    const char *name = p->name + (model_is_adapter(p) ? strlen(name_prefix) : 0);
    const char *stripped = huggingface_strip_prefix(architecture, name);
    bool headless = config->head == MODEL_HEAD_NONE; /* a class without heads */
    const char *prefix = config->head == MODEL_HEAD_QA
                             ? huggingface_name_prefix(architecture, OBJECTIVE_ANSWER)
                             : architecture->prefix;
    snprintf(out, HUGGINGFACE_NAME_BYTES, "%s%s%s", name_prefix,
             headless || stripped == name ? "" : prefix, stripped);
}

static const char *get_task_type(const struct recipe *r)
{
    switch (objective_spec_head(r)) {
    case MODEL_HEAD_SEQUENCE:
        return "SEQ_CLS";
    case MODEL_HEAD_MULTIPLE_CHOICE:
        return derive_reads_last_row(r) ? "SEQ_CLS" : NULL;
    case MODEL_HEAD_TOKEN:
        return "TOKEN_CLS";
    case MODEL_HEAD_QA:
        return "QUESTION_ANS";
    case MODEL_HEAD_NONE:
        return "FEATURE_EXTRACTION";
    default:
        return r->objective == OBJECTIVE_MLM                            ? NULL
               : recipe_architecture_has_decoder(r->model.architecture) ? "SEQ_2_SEQ_LM"
                                                                        : "CAUSAL_LM";
    }
}

/* Builds modules_to_save: the modules of the task head, or null. */
static json_t *build_saved_modules(const struct model_config *config,
                                   const struct model_parameter *p, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const char *name = strstr(p[i].name, ".pooler.") != NULL ? "pooler" : p[i].name;
        size_t length = strcspn(name, "."), last = json_array_size(list);
        const char *previous = last > 0 ? json_string_value(json_array_get(list, last - 1)) : "";
        bool repeated = strlen(previous) == length && strncmp(previous, name, length) == 0;
        if (model_is_task_head(config, &p[i]) && !repeated) {
            json_array_append_new(list, json_stringn(name, length));
        }
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return json_null();
    }
    return list;
}

/* Builds auto_mapping: the class, if peft has no task_type for it, else null. */
static json_t *build_class(const struct recipe *r)
{
    char name[HUGGINGFACE_CLASS_BYTES], library[96];
    char type[RECIPE_NAME_BYTES]; /* as in names of Python modules */
    if (get_task_type(r) != NULL) {
        return json_null();
    }
    huggingface_class_name(r, name);
    snprintf(type, sizeof type, "%s",
             r->model.architecture == ARCHITECTURE_OPENAI_GPT
                 ? "openai"
                 : recipe_architecture_name(r->model.architecture));
    for (char *c = type; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    snprintf(library, sizeof library, "transformers.models.%.32s.modeling_%.32s", type, type);
    return json_pack("{s:s, s:s}", "base_model_class", name, "parent_library", library);
}

status adapter_export_write_config(const struct recipe *r, const struct model_config *config,
                                   const struct model_parameter *parameters, int count, FILE *file)
{
    bool transposed = r->model.architecture == ARCHITECTURE_GPT2 ||
                      r->model.architecture ==
                          ARCHITECTURE_OPENAI_GPT; /* it stores matrices as [inputs, outputs] */
    json_t *document = json_pack(
        "{s:s, s:s?, s:o, s:s, s:I, s:o, s:b, s:f, s:o, s:o, s:s, s:b, s:b}", "peft_type", "LORA",
        "task_type", get_task_type(r), "auto_mapping", build_class(r), "base_model_name_or_path",
        r->adapter.base, "r", (json_int_t)r->adapter.rank, "lora_alpha",
        build_number(r->adapter.alpha), "use_rslora", r->adapter.rslora, "lora_dropout",
        r->adapter.dropout, "target_modules", build_target_modules(r, parameters, count),
        "modules_to_save", build_saved_modules(config, parameters, count), "bias", "none",
        "fan_in_fan_out", transposed, "inference_mode", 1);
    int written = document != NULL ? json_dumpf(document, file, JSON_INDENT(2)) : -1;
    json_decref(document);
    REQUIRE(written == 0, STATUS_INTERNAL, "out of memory for adapter_config.json");
    return STATUS_OK;
}
