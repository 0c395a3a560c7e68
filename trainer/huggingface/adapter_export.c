#include "trainer/huggingface/adapter_export.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/setup/data.h"
#include "trainer/huggingface/config.h"

/* ---- into the matrices ---- */

static status read_whole(struct checkpoint_reader *reader, const struct manifest_tensor *t,
                         float **out)
{
    int64_t offset[2] = {0, 0}, shape[2];
    float *to = malloc((size_t)(t->shape[0] * t->shape[1]) * sizeof *to);
    REQUIRE(to != NULL, STATUS_INTERNAL, "out of memory for %s", t->name);
    *out = to;
    while (checkpoint_block(t, offset, shape)) {
        TRY(checkpoint_reader_read(reader, t, offset, shape, to));
        to += shape[0] * shape[1];
        checkpoint_block_next(t, offset, shape);
    }
    return STATUS_OK;
}

/* "A" or "B" of a matrix; *out NULL: it has none. */
static status read_part(struct checkpoint_reader *reader, const struct model_parameter *p,
                        const char *part, int64_t rows, int64_t columns, float **out)
{
    char name[MODEL_NAME_BYTES];
    int length = (int)(strlen(p->name) - strlen(".weight"));
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_%s.weight", length, p->name, part);
    const struct manifest_tensor *t =
        manifest_find(checkpoint_reader_manifest(reader), "model", name);
    if (t == NULL) {
        return STATUS_OK;
    }
    REQUIRE(t->dimensions == 2 && t->shape[0] == rows && t->shape[1] == columns, STATUS_CHECKPOINT,
            "%s is not of the shape [%lld, %lld] that the recipe asks for", name, (long long)rows,
            (long long)columns);
    return read_whole(reader, t, out);
}

status pretrained_adapter_read(struct checkpoint_reader *adapters, const struct recipe *recipe,
                               const struct model_parameter *p, struct pretrained_adapter *out)
{
    int64_t rank = recipe->adapter.rank;
    struct model_adapter adapter = {
        .rank = rank, .alpha = (float)recipe->adapter.alpha, .by_root = recipe->adapter.rslora};
    *out = (struct pretrained_adapter){
        .rank = rank, .inputs = p->whole_columns, .scale = model_adapter_scale(&adapter)};
    if (p->dimensions != 2) {
        return STATUS_OK;
    }
    TRY(read_part(adapters, p, "A", rank, p->whole_columns, &out->in));
    TRY(read_part(adapters, p, "B", p->whole_rows, rank, &out->out));
    REQUIRE((out->in == NULL) == (out->out == NULL), STATUS_CHECKPOINT,
            "of the two matrices of the adapter of %s one is missing", p->name);
    return STATUS_OK;
}

void pretrained_adapter_free(struct pretrained_adapter *adapter)
{
    free(adapter->in);
    free(adapter->out);
    *adapter = (struct pretrained_adapter){0};
}

void pretrained_adapter_merge(const struct pretrained_adapter *adapter, bool transposed,
                              const int64_t offset[2], const int64_t shape[2], float *block)
{
    for (int64_t r = 0; r < shape[0] && adapter->in != NULL; r++) {
        for (int64_t c = 0; c < shape[1]; c++) {
            int64_t row = offset[0] + r, column = offset[1] + c;
            int64_t output = transposed ? column : row, input = transposed ? row : column;
            double sum = 0;
            for (int64_t k = 0; k < adapter->rank; k++) {
                sum += (double)adapter->out[output * adapter->rank + k] *
                       adapter->in[k * adapter->inputs + input];
            }
            float *w = &block[r * shape[1] + c];
            *w = (float)(*w + adapter->scale * sum);
        }
    }
}

/* ---- peft's ---- */

/* peft takes the word alone for all, and a list of names. */
static json_t *targets_of(const struct recipe *r)
{
    char word[RECIPE_NAME_BYTES];
    json_t *list = json_array();
    for (const char *at = r->adapter.targets; recipe_list_next(&at, word, sizeof word);) {
        if (strcmp(word, "all-linear") == 0) {
            json_decref(list);
            return json_string(word);
        }
        json_array_append_new(list, json_string(word));
    }
    return list;
}

static json_t *number_of(double x)
{
    bool whole = !(fabs(x - nearbyint(x)) > 0);
    return whole ? json_integer((json_int_t)x) : json_real(x);
}

static const char before[] = "base_model.model.";

void pretrained_adapter_name(const struct pretrained_family *family,
                             const struct model_config *config, const struct model_parameter *p,
                             char out[PRETRAINED_NAME_BYTES])
{
    const char *name = p->name + (model_is_adapter(p) ? strlen(before) : 0);
    const char *bare = pretrained_bare(family, name);
    bool headless = config->task == MODEL_VECTORS; /* the class without heads */
    const char *prefix =
        config->task == MODEL_SPANS ? pretrained_prefix(family, "answer") : family->prefix;
    snprintf(out, PRETRAINED_NAME_BYTES, "%s%s%s", before, headless || bare == name ? "" : prefix,
             bare);
}

static const char *task_type(const struct recipe *r)
{
    switch (job_data_task(r)) {
    case MODEL_TEXTS:
        return "SEQ_CLS";
    case MODEL_CHOICES:
        return job_data_last_rows(r) ? "SEQ_CLS" : NULL;
    case MODEL_TOKENS:
        return "TOKEN_CLS";
    case MODEL_SPANS:
        return "QUESTION_ANS";
    case MODEL_VECTORS:
        return "FEATURE_EXTRACTION";
    default:
        return strcmp(r->objective, "mlm") == 0 ? NULL : "CAUSAL_LM";
    }
}

/* The modules of a task's head. */
static json_t *saved_modules(const struct model_config *config, const struct model_parameter *p,
                             int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const char *name = strstr(p[i].name, ".pooler.") != NULL ? "pooler" : p[i].name;
        size_t length = strcspn(name, "."), last = json_array_size(list);
        const char *known = last > 0 ? json_string_value(json_array_get(list, last - 1)) : "";
        bool again = strlen(known) == length && strncmp(known, name, length) == 0;
        if (model_is_task_head(config, &p[i]) && !again) {
            json_array_append_new(list, json_stringn(name, length));
        }
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return json_null();
    }
    return list;
}

/* The class, where peft has no type of task for it. */
static json_t *class_of(const struct recipe *r)
{
    char name[PRETRAINED_CLASS_BYTES], library[96];
    const char *type = r->model.architecture;
    if (task_type(r) != NULL) {
        return json_null();
    }
    pretrained_class_name(r, name);
    snprintf(library, sizeof library, "transformers.models.%.32s.modeling_%.32s", type, type);
    return json_pack("{s:s, s:s}", "base_model_class", name, "parent_library", library);
}

status pretrained_adapter_config(const struct recipe *r, const struct model_config *config,
                                 const struct model_parameter *parameters, int count, FILE *file)
{
    bool turned = strcmp(r->model.architecture, "gpt2") == 0; /* its matrices lie [in, out] */
    json_t *all =
        json_pack("{s:s, s:s?, s:o, s:s, s:I, s:o, s:b, s:f, s:o, s:o, s:s, s:b, s:b}", "peft_type",
                  "LORA", "task_type", task_type(r), "auto_mapping", class_of(r),
                  "base_model_name_or_path", r->adapter.base, "r", (json_int_t)r->adapter.rank,
                  "lora_alpha", number_of(r->adapter.alpha), "use_rslora", r->adapter.rslora,
                  "lora_dropout", r->adapter.dropout, "target_modules", targets_of(r),
                  "modules_to_save", saved_modules(config, parameters, count), "bias", "none",
                  "fan_in_fan_out", turned, "inference_mode", 1);
    int written = all != NULL ? json_dumpf(all, file, JSON_INDENT(2)) : -1;
    json_decref(all);
    REQUIRE(written == 0, STATUS_INTERNAL, "out of memory for adapter_config.json");
    return STATUS_OK;
}
