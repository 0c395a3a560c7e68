/* Reads and writes cluster descriptions with the value parser of recipes. */
#include "trainer/train/planner/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "trainer/recipe/settings.h"

#define FIELD(f) offsetof(struct cluster, f), sizeof(((struct cluster *)0)->f)
#define POSITIVE .range = {.min = 0, .max = 1e9, .exclusive_min = true}

static const struct setting table[] = {
    {"name", SETTING_TEXT, FIELD(name)},
    {"device.memory_gib", SETTING_NUMBER, FIELD(device.memory_gib), POSITIVE},
    {"device.peak_tflops", SETTING_NUMBER, FIELD(device.peak_tflops), POSITIVE},
    {"device.gemm_tflops_fp32", SETTING_NUMBER, FIELD(device.gemm_tflops_fp32), POSITIVE},
    {"device.gemm_tflops_bf16", SETTING_NUMBER, FIELD(device.gemm_tflops_bf16), POSITIVE},
    {"device.gemm_tflops_fp8", SETTING_NUMBER, FIELD(device.gemm_tflops_fp8), POSITIVE},
    {"device.attention_tflops_fp32", SETTING_NUMBER, FIELD(device.attention_tflops_fp32), POSITIVE},
    {"device.attention_tflops_bf16", SETTING_NUMBER, FIELD(device.attention_tflops_bf16), POSITIVE},
    {"device.memory_gb_per_second", SETTING_NUMBER, FIELD(device.memory_gb_per_second), POSITIVE},
    {"device.operation_microseconds", SETTING_NUMBER, FIELD(device.operation_microseconds),
     POSITIVE},
    {"node.devices", SETTING_INTEGER, FIELD(node.devices), .range = {.min = 1, .max = 1e6}},
    {"node.memory_gib", SETTING_NUMBER, FIELD(node.memory_gib), POSITIVE},
    {"node.gb_per_second", SETTING_NUMBER, FIELD(node.link.gb_per_second), POSITIVE},
    {"node.latency_microseconds", SETTING_NUMBER, FIELD(node.link.latency_microseconds), POSITIVE},
    {"network.gb_per_second", SETTING_NUMBER, FIELD(network.gb_per_second), POSITIVE},
    {"network.latency_microseconds", SETTING_NUMBER, FIELD(network.latency_microseconds), POSITIVE},
    {"overlap", SETTING_NUMBER, FIELD(overlap), .range = {.min = 0, .max = 1}},
};

enum { TABLE_COUNT = COUNT(table), KEY_BYTES = 256, FILE_BYTES_MAX = 1 << 20 };

static const char *const required[] = {"device.memory_gib", "device.memory_gb_per_second",
                                       "node.devices"};
enum { REQUIRED_COUNT = COUNT(required) };

/* Names of keys in older files. */
static const struct {
    const char *former, *key;
} synonyms[] = {
    {"device.product_tflops_fp32", "device.gemm_tflops_fp32"},
    {"device.product_tflops_bf16", "device.gemm_tflops_bf16"},
};
enum { SYNONYM_COUNT = COUNT(synonyms) };

static int find_key(const char *key)
{
    for (int i = 0; i < SYNONYM_COUNT; i++) {
        if (strcmp(synonyms[i].former, key) == 0) {
            key = synonyms[i].key;
        }
    }
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (strcmp(table[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

/* State of the parser. */
struct cluster_reading {
    struct recipe_reader reading;
    bool given[TABLE_COUNT];
};

static status read_value(struct cluster_reading *r, const char *section, const struct node *node)
{
    char key[KEY_BYTES];
    const char *keys[TABLE_COUNT];
    struct source_location location = {LOCATION_FILE, node->key_line, node->key_column};
    snprintf(key, sizeof key, "%.60s%s%.100s", section, section[0] != '\0' ? "." : "", node->key);
    int index = find_key(key);
    if (index < 0) {
        for (int i = 0; i < TABLE_COUNT; i++) {
            keys[i] = table[i].key;
        }
        int nearest = text_nearest(key, keys, TABLE_COUNT);
        return recipe_fail(&r->reading, location, key, "unknown key%s%s%s",
                           nearest >= 0 ? "; did you mean '" : "",
                           nearest >= 0 ? keys[nearest] : "", nearest >= 0 ? "'?" : "");
    }
    if (r->given[index]) {
        return recipe_fail(&r->reading, location, key, "given twice");
    }
    r->given[index] = true;
    location = (struct source_location){LOCATION_FILE, node->line, node->column};
    return recipe_value_set(&r->reading, location, &table[index], node);
}

static status read_tree(struct cluster_reading *r, const struct node *tree)
{
    for (const struct node *node = tree->first; node != NULL; node = node->next) {
        if (node->kind != NODE_MAPPING) {
            TRY(read_value(r, "", node));
            continue;
        }
        for (const struct node *inner = node->first; inner != NULL; inner = inner->next) {
            TRY(read_value(r, node->key, inner));
        }
    }
    for (int i = 0; i < REQUIRED_COUNT; i++) {
        if (!r->given[find_key(required[i])]) {
            return recipe_fail(&r->reading, (struct source_location){0}, required[i],
                               "missing; recipes/clusters/ contains complete descriptions");
        }
    }
    return STATUS_OK;
}

status cluster_read(const char *path, struct cluster *out)
{
    char *text = NULL;
    size_t bytes = 0;
    struct node *tree = NULL;
    struct cluster_reading r = {.reading = {.name = path, .recipe = out}};
    memset(out, 0, sizeof *out);
    snprintf(out->path, sizeof out->path, "%s", path);
    TRY(file_read(path, FILE_BYTES_MAX, &text, &bytes));
    status result = recipe_yaml_parse(path, text, bytes, RECIPE_YAML_MAPPING, &tree);
    free(text);
    TRY(result);
    result = read_tree(&r, tree);
    recipe_yaml_free(&tree);
    return result;
}

void cluster_write(const struct cluster *cluster, FILE *file)
{
    char text[RECIPE_VALUE_BYTES];
    const char *section = "";
    for (int i = 0; i < TABLE_COUNT; i++) {
        const char *key = table[i].key, *dot = strchr(key, '.');
        const void *field = (const char *)cluster + table[i].offset;
        bool integer = table[i].kind == SETTING_INTEGER;
        if (table[i].kind == SETTING_TEXT) {
            fprintf(file, "%s: %s\n", key, recipe_value_quote(field, false, text));
            continue;
        }
        double value = integer ? (double)*(const int64_t *)field : *(const double *)field;
        if (value == 0) {
            continue;
        }
        if (dot != NULL && strncmp(section, key, (size_t)(dot - key) + 1) != 0) {
            fprintf(file, "%.*s:\n", (int)(dot - key), key);
            section = key;
        }
        fprintf(file, "%s%s: %.4g\n", dot != NULL ? "  " : "", dot != NULL ? dot + 1 : key, value);
    }
}
