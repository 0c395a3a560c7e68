#include "trainer/evaluation/tasks/task_config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/recipe/settings.h"

enum { FILE_BYTES_MAX = 1 << 20, MAX_NEW_TOKENS = 256, KEYS_MAX = 40 };

/* The metrics of each output type: the first ones are used if the file has no metric_list. */
static const struct output_type {
    const char *name;
    int default_count, count;
    enum task_metric_kind metrics[3];
} output_types[TASK_OUTPUTS] = {
    {"multiple_choice", 2, 3, {TASK_ACC, TASK_ACC_NORM, TASK_ACC_BYTES}},
    {"generate_until", 1, 2, {TASK_EXACT_MATCH, TASK_NUMERIC_MATCH}},
    {"loglikelihood", 2, 2, {TASK_PERPLEXITY, TASK_ACC}},
    {"loglikelihood_rolling",
     3,
     3,
     {TASK_WORD_PERPLEXITY, TASK_BYTE_PERPLEXITY, TASK_BITS_PER_BYTE}},
};

/* Names, and the aggregations that lm-evaluation-harness uses for them. */
static const struct metric_name {
    const char *name, *aggregation;
} metric_names[TASK_METRICS] = {
    [TASK_ACC] = {"acc", "mean"},
    [TASK_ACC_NORM] = {"acc_norm", "mean"},
    [TASK_ACC_BYTES] = {"acc_bytes", "mean"},
    [TASK_PERPLEXITY] = {"perplexity", "perplexity"},
    [TASK_EXACT_MATCH] = {"exact_match", "mean"},
    [TASK_NUMERIC_MATCH] = {"numeric_match", "mean"},
    [TASK_WORD_PERPLEXITY] = {"word_perplexity", "weighted_perplexity"},
    [TASK_BYTE_PERPLEXITY] = {"byte_perplexity", "weighted_perplexity"},
    [TASK_BITS_PER_BYTE] = {"bits_per_byte", "bits_per_byte"},
};

void task_config_result_name(const struct task_config *c, int filter, int metric, char *out)
{
    const char *name = c->filters[filter].name;
    bool is_named = strcmp(name, "none") != 0;
    snprintf(out, TASK_RESULT_NAME_BYTES, "%s%s%.40s", metric_names[c->metrics[metric].kind].name,
             is_named ? "," : "", is_named ? name : "");
}

/* ---- errors ---- */

static status raise_at(const struct task_config *c, const struct node *node, status code,
                       const char *key, const char *text)
{
    char name[FILE_PATH_BYTES];
    snprintf(name, sizeof name, "%.1000s", c->path);
    if (code == STATUS_UNAVAILABLE) {
        RAISE(code, "%s:%d:%d: %s: %s", name, node->line, node->column, key, text);
    }
    const struct recipe_reader reader = {.name = name};
    const struct source_location at = {LOCATION_FILE, node != NULL ? node->line : 1,
                                       node != NULL ? node->column : 1};
    return recipe_fail(&reader, at, key, "%s", text);
}

status task_config_fail(const struct task_config *c, const struct node *node, const char *key,
                        const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return raise_at(c, node, STATUS_RECIPE, key, text);
}

status task_config_annotate(const struct task_config *c, const struct node *node, const char *key,
                            status result)
{
    struct status_note note;
    if ((result != STATUS_RECIPE && result != STATUS_DATA) || status_pending()->code == STATUS_OK) {
        return result;
    }
    status_take(&note);
    return task_config_fail(c, node, key, "%.900s", note.text);
}

/* ---- values ---- */

/* An empty value is null, too. */
static bool is_null(const struct node *node)
{
    return recipe_node_is_null(node) || (node->kind == NODE_PLAIN && node->text[0] == '\0');
}

static status read_text(const struct task_config *c, const struct node *node, const char **out)
{
    if (!recipe_node_is_scalar(node)) {
        return task_config_fail(c, node, node->key, "must be a string");
    }
    *out = is_null(node) ? NULL : node->text;
    return STATUS_OK;
}

static status read_flag(const struct task_config *c, const struct node *node, bool *out)
{
    static const char *const words[] = {"false", "true", "False", "True"};
    for (int i = 0; i < COUNT(words) && node->kind == NODE_PLAIN; i++) {
        if (strcmp(node->text, words[i]) == 0) {
            *out = i % 2 == 1;
            return STATUS_OK;
        }
    }
    return task_config_fail(c, node, node->key, "must be true or false");
}

static status read_integer(const struct task_config *c, const struct node *node, int64_t min,
                           int64_t max, int64_t *out)
{
    char reason[TEXT_REASON_BYTES] = "must be an integer";
    if (node->kind != NODE_PLAIN || !text_to_integer(node->text, out, reason)) {
        return task_config_fail(c, node, node->key, "%s", reason);
    }
    if (*out < min || *out > max) {
        return task_config_fail(c, node, node->key, "must be in [%" PRId64 ", %" PRId64 "]", min,
                                max);
    }
    return STATUS_OK;
}

static const struct node *find_child(const struct node *mapping, const char *key)
{
    const struct node *at = mapping->kind == NODE_MAPPING ? mapping->first : NULL;
    while (at != NULL && strcmp(at->key, key) != 0) {
        at = at->next;
    }
    return at;
}

static status open_pattern(const struct task_config *c, const struct node *node,
                           struct pattern **out)
{
    const char *text = NULL;
    TRY(read_text(c, node, &text));
    const char *key = node->key != NULL ? node->key : "regexes_to_ignore";
    if (text == NULL) {
        return task_config_fail(c, node, key, "must be a regular expression");
    }
    return task_config_annotate(c, node, key, pattern_open(text, out));
}

/* ---- keys of a mapping ---- */

/* Reads the value of a key. `target` is the field of the table's row. */
struct key {
    const char *name;
    status (*read)(struct task_config *c, const struct node *node, void *target);
    size_t offset; /* of the target */
};

static status read_keys(struct task_config *c, const struct node *mapping, const char *what,
                        const struct key *keys, int count, void *base)
{
    REQUIRE(count <= KEYS_MAX, STATUS_INTERNAL, "%s has more than %d keys", what, KEYS_MAX);
    if (mapping->kind != NODE_MAPPING) {
        return task_config_fail(c, mapping, what, "must be a mapping");
    }
    for (const struct node *n = mapping->first; n != NULL; n = n->next) {
        const char *names[KEYS_MAX];
        int found = -1;
        for (int i = 0; i < count; i++) {
            names[i] = keys[i].name;
            found = strcmp(keys[i].name, n->key) == 0 ? i : found;
        }
        if (found < 0) {
            int nearest = text_nearest(n->key, names, count);
            return task_config_fail(c, n, n->key, "unknown key of %s%s%s%s", what,
                                    nearest >= 0 ? "; did you mean '" : "",
                                    nearest >= 0 ? names[nearest] : "", nearest >= 0 ? "'?" : "");
        }
        for (const struct node *other = mapping->first; other != n; other = other->next) {
            if (strcmp(other->key, n->key) == 0) {
                return task_config_fail(c, n, n->key, "is given twice");
            }
        }
        TRY(keys[found].read != NULL ? keys[found].read(c, n, (char *)base + keys[found].offset)
                                     : STATUS_OK);
    }
    return STATUS_OK;
}

static status set_text(struct task_config *c, const struct node *node, void *target)
{
    return read_text(c, node, target);
}

static status set_flag(struct task_config *c, const struct node *node, void *target)
{
    return read_flag(c, node, target);
}

static status set_node(struct task_config *c, const struct node *node, void *target)
{
    (void)c;
    const struct node **field = target;
    *field = recipe_node_is_scalar(node) && is_null(node) ? NULL : node;
    return STATUS_OK;
}

/* Refuses a key that needs Python or another part of lm-evaluation-harness. */
static status refuse_key(struct task_config *c, const struct node *node, void *target)
{
    (void)target;
    return is_null(node) ? STATUS_OK
                         : raise_at(c, node, STATUS_UNAVAILABLE, node->key, "is not supported");
}

/* ---- metric_list ---- */

static status set_patterns(struct task_config *c, const struct node *node, void *target)
{
    struct task_metric *m = target;
    for (const struct node *n = node->first; n != NULL; n = n->next) {
        if (m->ignored_count == TASK_PATTERNS_MAX || node->kind != NODE_SEQUENCE) {
            return task_config_fail(c, node, node->key, "must be a list of at most %d patterns",
                                    TASK_PATTERNS_MAX);
        }
        TRY(open_pattern(c, n, &m->ignored[m->ignored_count]));
        m->ignored_count++;
    }
    return STATUS_OK;
}

static status set_metric(struct task_config *c, const struct node *node, void *target)
{
    const struct output_type *type = &output_types[c->output];
    struct task_metric *m = target;
    const char *name = NULL;
    char names[128] = "";
    TRY(read_text(c, node, &name));
    for (int i = 0; i < type->count; i++) {
        const char *known = metric_names[type->metrics[i]].name;
        text_append_item(names, sizeof names, known, i, type->count, "and");
        if (name != NULL && strcmp(known, name) == 0) {
            m->kind = type->metrics[i];
            return STATUS_OK;
        }
    }
    return task_config_fail(c, node, "metric", "the metrics of output_type %s are %s", type->name,
                            names);
}

/* Checks that the aggregation belongs to the metric. */
static status check_aggregation(struct task_config *c, const struct node *entry,
                                const struct task_metric *m)
{
    const struct node *node = find_child(entry, "aggregation");
    const char *expected = metric_names[m->kind].aggregation, *name = expected;
    TRY(node != NULL ? read_text(c, node, &name) : STATUS_OK);
    if (name == NULL || strcmp(name, expected) != 0) {
        return task_config_fail(c, node, "aggregation", "the aggregation of %s is %s",
                                metric_names[m->kind].name, expected);
    }
    return STATUS_OK;
}

static status read_metric(struct task_config *c, const struct node *entry)
{
    static const struct key keys[] = {
        {"metric", set_metric, 0},
        {"aggregation", NULL, 0},
        {"higher_is_better", NULL, 0},
        {"hf_evaluate", refuse_key, 0},
        {"ignore_case", set_flag, offsetof(struct task_metric, ignore_case)},
        {"ignore_punctuation", set_flag, offsetof(struct task_metric, ignore_punctuation)},
        {"ignore_numbers", set_flag, offsetof(struct task_metric, ignore_numbers)},
        {"regexes_to_ignore", set_patterns, 0},
    };
    if (c->metric_count == TASK_METRICS_MAX) {
        return task_config_fail(c, entry, "metric_list", "has more than %d entries",
                                TASK_METRICS_MAX);
    }
    struct task_metric *m = &c->metrics[c->metric_count++];
    TRY(read_keys(c, entry, "metric_list", keys, COUNT(keys), m));
    if (find_child(entry, "metric") == NULL) {
        return task_config_fail(c, entry, "metric_list", "an entry has no key metric");
    }
    for (const struct task_metric *other = c->metrics; other != m; other++) {
        if (other->kind == m->kind) {
            return task_config_fail(c, entry, "metric", "is given twice");
        }
    }
    return check_aggregation(c, entry, m);
}

static status read_metrics(struct task_config *c, const struct node *list)
{
    if (list == NULL || is_null(list)) {
        const struct output_type *type = &output_types[c->output];
        for (; c->metric_count < type->default_count; c->metric_count++) {
            c->metrics[c->metric_count].kind = type->metrics[c->metric_count];
        }
        return STATUS_OK;
    }
    if (list->kind != NODE_SEQUENCE || list->first == NULL) {
        return task_config_fail(c, list, "metric_list", "must be a list");
    }
    for (const struct node *n = list->first; n != NULL; n = n->next) {
        TRY(read_metric(c, n));
    }
    return STATUS_OK;
}

/* ---- filter_list ---- */

static status set_step_kind(struct task_config *c, const struct node *node, void *target)
{
    static const char *const names[] = {"regex", "take_first", "remove_whitespace", "lowercase",
                                        "uppercase"};
    struct task_step *step = target;
    const char *name = NULL;
    TRY(read_text(c, node, &name));
    for (int i = 0; i < COUNT(names); i++) {
        if (name != NULL && strcmp(names[i], name) == 0) {
            step->kind = (enum task_step_kind)i;
            return STATUS_OK;
        }
    }
    return task_config_fail(c, node, "function",
                            "must be regex, take_first, remove_whitespace, lowercase or uppercase");
}

static status set_step_pattern(struct task_config *c, const struct node *node, void *target)
{
    struct task_step *step = target;
    return open_pattern(c, node, &step->pattern);
}

static status set_group(struct task_config *c, const struct node *node, void *target)
{
    return read_integer(c, node, -1000, 1000, target);
}

static status read_step(struct task_config *c, const struct node *entry, struct task_step *step)
{
    static const struct key keys[] = {
        {"function", set_step_kind, 0},
        {"regex_pattern", set_step_pattern, 0},
        {"group_select", set_group, offsetof(struct task_step, group_select)},
        {"fallback", set_text, offsetof(struct task_step, fallback)},
    };
    step->fallback = "[invalid]";
    TRY(read_keys(c, entry, "filter", keys, COUNT(keys), step));
    if (find_child(entry, "function") == NULL) {
        return task_config_fail(c, entry, "filter", "an entry has no key function");
    }
    if (step->kind == TASK_REGEX && step->pattern == NULL) {
        return task_config_annotate(c, entry, "regex_pattern",
                                    pattern_open("#### (\\-?[0-9\\.\\,]+)", &step->pattern));
    }
    return STATUS_OK;
}

static status read_filter(struct task_config *c, const struct node *entry)
{
    const struct node *name = find_child(entry, "name"), *steps = find_child(entry, "filter");
    if (c->filter_count == TASK_FILTERS_MAX || name == NULL || steps == NULL ||
        steps->kind != NODE_SEQUENCE) {
        return task_config_fail(c, entry, "filter_list",
                                "must be a list of at most %d mappings {name, filter}",
                                TASK_FILTERS_MAX);
    }
    struct task_filter *f = &c->filters[c->filter_count++];
    TRY(read_text(c, name, &f->name));
    f->name = f->name != NULL ? f->name : "none";
    for (const struct node *n = steps->first; n != NULL; n = n->next) {
        if (f->step_count == TASK_STEPS_MAX) {
            return task_config_fail(c, n, "filter", "has more than %d steps", TASK_STEPS_MAX);
        }
        TRY(read_step(c, n, &f->steps[f->step_count++]));
    }
    return STATUS_OK;
}

static status read_filters(struct task_config *c, const struct node *list)
{
    if (list == NULL || is_null(list) || c->output != TASK_GENERATE_UNTIL) {
        c->filters[0].name = "none";
        c->filter_count = 1;
        return STATUS_OK;
    }
    if (list->kind != NODE_SEQUENCE || list->first == NULL) {
        return task_config_fail(c, list, "filter_list", "must be a list");
    }
    for (const struct node *n = list->first; n != NULL; n = n->next) {
        TRY(read_filter(c, n));
    }
    return STATUS_OK;
}

/* ---- generation_kwargs ---- */

static status add_until(struct task_config *c, const struct node *node, const char *text)
{
    if (c->until_count == TASK_STOPS_MAX || text == NULL) {
        return task_config_fail(c, node, "until", "must be a list of at most %d strings",
                                TASK_STOPS_MAX);
    }
    if (text[0] != '\0') {
        c->until[c->until_count++] = text;
    }
    return STATUS_OK;
}

static status set_until(struct task_config *c, const struct node *node, void *target)
{
    (void)target;
    const char *text = NULL;
    if (node->kind != NODE_SEQUENCE) {
        TRY(read_text(c, node, &text));
        return add_until(c, node, text);
    }
    for (const struct node *n = node->first; n != NULL; n = n->next) {
        if (!recipe_node_is_scalar(n)) {
            return task_config_fail(c, n, "until", "must be a string");
        }
        TRY(add_until(c, n, n->text));
    }
    return STATUS_OK;
}

static status set_tokens(struct task_config *c, const struct node *node, void *target)
{
    return read_integer(c, node, 1, 1000000, target);
}

static status set_temperature(struct task_config *c, const struct node *node, void *target)
{
    char reason[TEXT_REASON_BYTES] = "must be a number";
    double *out = target;
    if (node->kind != NODE_PLAIN || !text_to_number(node->text, out, reason) || *out < 0) {
        return task_config_fail(c, node, node->key, "%s",
                                *out < 0 ? "must not be negative" : reason);
    }
    return STATUS_OK;
}

static status read_generation(struct task_config *c, const struct node *node)
{
    static const struct key keys[] = {
        {"until", set_until, 0},
        {"max_gen_toks", set_tokens, offsetof(struct task_config, max_new_tokens)},
        {"max_new_tokens", set_tokens, offsetof(struct task_config, max_new_tokens)},
        {"temperature", set_temperature, offsetof(struct task_config, temperature)},
        {"do_sample", NULL, 0},
    };
    const struct node *samples = node != NULL ? find_child(node, "do_sample") : NULL;
    bool does_sample = true;
    c->max_new_tokens = MAX_NEW_TOKENS;
    if (node != NULL) {
        TRY(read_keys(c, node, "generation_kwargs", keys, COUNT(keys), c));
        TRY(samples != NULL ? read_flag(c, samples, &does_sample) : STATUS_OK);
        c->temperature = does_sample ? c->temperature : 0;
    }
    if (node == NULL || find_child(node, "until") == NULL) {
        return add_until(c, node, c->fewshot_delimiter);
    }
    return STATUS_OK;
}

/* ---- fewshot_config ---- */

static status set_sampler(struct task_config *c, const struct node *node, void *target)
{
    bool *takes_first = target;
    const char *name = NULL;
    TRY(read_text(c, node, &name));
    *takes_first = name != NULL && strcmp(name, "first_n") == 0;
    return *takes_first || name == NULL || strcmp(name, "default") == 0
               ? STATUS_OK
               : task_config_fail(c, node, "sampler", "must be default or first_n");
}

static status set_fewshot(struct task_config *c, const struct node *node, void *target)
{
    (void)target;
    static const struct key keys[] = {
        {"sampler", set_sampler, offsetof(struct task_config, takes_first_shots)},
        {"split", set_text, offsetof(struct task_config, fewshot_split)},
    };
    return recipe_node_is_scalar(node) && is_null(node)
               ? STATUS_OK
               : read_keys(c, node, "fewshot_config", keys, COUNT(keys), c);
}

/* ---- the file ---- */

static status set_output(struct task_config *c, const struct node *node, void *target)
{
    (void)target;
    const char *name = NULL;
    char names[128] = "";
    TRY(read_text(c, node, &name));
    for (int i = 0; i < TASK_OUTPUTS; i++) {
        text_append_item(names, sizeof names, output_types[i].name, i, TASK_OUTPUTS, "or");
        if (name != NULL && strcmp(output_types[i].name, name) == 0) {
            c->output = (enum task_output)i;
            return STATUS_OK;
        }
    }
    return task_config_fail(c, node, "output_type", "must be %s", names);
}

static status set_shots(struct task_config *c, const struct node *node, void *target)
{
    return is_null(node) ? STATUS_OK : read_integer(c, node, 0, 1000, target);
}

static status set_repeats(struct task_config *c, const struct node *node, void *target)
{
    (void)target;
    int64_t repeats = 0;
    return read_integer(c, node, 1, 1, &repeats);
}

static status set_dataset(struct task_config *c, const struct node *node, void *target)
{
    (void)target;
    const char *name = NULL;
    TRY(read_text(c, node, &name));
    return name != NULL && strcmp(name, "json") == 0
               ? STATUS_OK
               : task_config_fail(c, node, "dataset_path",
                                  "must be json: bireme downloads no data sets; name JSON Lines "
                                  "files in dataset_kwargs.data_files");
}

static status set_data_files(struct task_config *c, const struct node *node, void *target)
{
    static const struct key keys[] = {
        {"data_files", set_node, offsetof(struct task_config, data_files)},
    };
    (void)target;
    return read_keys(c, node, "dataset_kwargs", keys, COUNT(keys), c);
}

#define FIELD(name) offsetof(struct task_config, name)

static const struct key file_keys[] = {
    {"task", set_text, FIELD(name)},
    {"dataset_path", set_dataset, 0},
    {"dataset_kwargs", set_data_files, 0},
    {"training_split", set_text, FIELD(training_split)},
    {"validation_split", set_text, FIELD(validation_split)},
    {"test_split", set_text, FIELD(test_split)},
    {"fewshot_split", set_text, FIELD(fewshot_split)},
    {"fewshot_config", set_fewshot, 0},
    {"num_fewshot", set_shots, FIELD(shots)},
    {"output_type", set_output, 0},
    {"doc_to_text", set_node, FIELD(text)},
    {"doc_to_target", set_node, FIELD(target)},
    {"doc_to_choice", set_node, FIELD(choice)},
    {"description", set_text, FIELD(description)},
    {"target_delimiter", set_text, FIELD(target_delimiter)},
    {"fewshot_delimiter", set_text, FIELD(fewshot_delimiter)},
    {"repeats", set_repeats, 0},
    /* read after the others */
    {"generation_kwargs", NULL, 0},
    {"metric_list", NULL, 0},
    {"filter_list", NULL, 0},
    /* without an influence on the result */
    {"task_alias", NULL, 0},
    {"tag", NULL, 0},
    {"group", NULL, 0},
    {"metadata", NULL, 0},
    {"should_decontaminate", NULL, 0},
    {"doc_to_decontamination_query", NULL, 0},
    {"process_docs", refuse_key, 0},
    {"process_results", refuse_key, 0},
    {"include", refuse_key, 0},
    {"use_prompt", refuse_key, 0},
    {"gen_prefix", refuse_key, 0},
};

static status require_keys(const struct task_config *c)
{
    const struct {
        bool is_missing;
        const char *key, *reason;
    } rules[] = {
        {c->name == NULL, "task", "is missing; it names the task in the results"},
        {c->data_files == NULL, "dataset_kwargs",
         "data_files is missing; write dataset_path: json and data_files: {test: FILE.jsonl}"},
        {c->test_split == NULL && c->validation_split == NULL, "test_split",
         "is missing; set test_split or validation_split"},
        {c->text == NULL && c->output != TASK_LOGLIKELIHOOD_ROLLING, "doc_to_text", "is missing"},
        {c->target == NULL, "doc_to_target", "is missing"},
        {c->choice == NULL && c->output == TASK_MULTIPLE_CHOICE, "doc_to_choice",
         "is missing; output_type multiple_choice needs it"},
    };
    for (int i = 0; i < COUNT(rules); i++) {
        if (rules[i].is_missing) {
            return task_config_fail(c, c->tree, rules[i].key, "%s", rules[i].reason);
        }
    }
    return STATUS_OK;
}

/* Reads a task file from memory. Messages contain `path`. */
static status parse_config(const char *path, const char *text, size_t bytes, struct task_config *c)
{
    *c = (struct task_config){.output = TASK_GENERATE_UNTIL,
                              .description = "",
                              .target_delimiter = " ",
                              .fewshot_delimiter = "\n\n"};
    snprintf(c->path, sizeof c->path, "%s", path);
    TRY(recipe_yaml_parse(c->path, text, bytes, RECIPE_YAML_LINES, &c->tree));
    TRY(read_keys(c, c->tree, "a task", file_keys, COUNT(file_keys), c));
    c->description = c->description != NULL ? c->description : "";
    c->target_delimiter = c->target_delimiter != NULL ? c->target_delimiter : "";
    c->fewshot_delimiter = c->fewshot_delimiter != NULL ? c->fewshot_delimiter : "";
    TRY(require_keys(c));
    TRY(read_metrics(c, find_child(c->tree, "metric_list")));
    TRY(read_filters(c, find_child(c->tree, "filter_list")));
    return read_generation(c, find_child(c->tree, "generation_kwargs"));
}

status task_config_read(const char *path, struct task_config *out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = (struct task_config){0};
    TRY(file_read(path, FILE_BYTES_MAX, &text, &bytes));
    status result = parse_config(path, text, bytes, out);
    free(text);
    return result;
}

void task_config_free(struct task_config *c)
{
    for (int i = 0; i < c->metric_count; i++) {
        for (int p = 0; p < c->metrics[i].ignored_count; p++) {
            pattern_close(&c->metrics[i].ignored[p]);
        }
    }
    for (int i = 0; i < c->filter_count; i++) {
        for (int s = 0; s < c->filters[i].step_count; s++) {
            pattern_close(&c->filters[i].steps[s].pattern);
        }
    }
    recipe_yaml_free(&c->tree);
}
