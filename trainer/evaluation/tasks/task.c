#include "trainer/evaluation/tasks/task.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/text_buffer.h"
#include "trainer/evaluation/tasks/few_shot.h"
#include "trainer/evaluation/tasks/task_documents_impl.h"
#include "trainer/evaluation/tasks/task_template_functions_impl.h"
#include "trainer/evaluation/tasks/task_template_impl.h"
#include "trainer/recipe/settings.h"

/* The source of a text, a target or the choices: a field, a template or a constant. At most one
 * member is set. */
struct value {
    const char *field;
    struct task_template *computed;
    json_t *constant;
};

struct task {
    struct task_config config;
    struct task_documents documents, examples; /* examples: of the few-shot split */
    int64_t count;                             /* documents to evaluate */
    struct value text, target, choice, description;
    int64_t *shots; /* [count, config.shots] indices of examples */
};

const struct task_config *task_get_config(const struct task *t)
{
    return &t->config;
}

int64_t task_document_count(const struct task *t)
{
    return t->count;
}

static status raise_at(const struct task_document *d, const char *text)
{
    RAISE(STATUS_DATA, "%s:%" PRId64 ": %s", d->path, d->line, text);
}

/* Adds the document to the pending STATUS_DATA error. */
static status annotate_error(const struct task_document *d, status result)
{
    struct status_note note;
    if (result != STATUS_DATA || status_pending()->code == STATUS_OK) {
        return result;
    }
    status_take(&note);
    return raise_at(d, note.text);
}

status task_annotate_error(const struct task *t, int64_t index, status result)
{
    return annotate_error(&t->documents.rows[index], result);
}

/* ---- values ---- */

/* Converts a list or a mapping of strings; a mapping gives its values. */
static status read_list(const struct task_config *c, const struct node *node, json_t **out)
{
    *out = json_array();
    TRY(task_template_require_memory(*out));
    for (const struct node *n = node->first; n != NULL; n = n->next) {
        if (n->text == NULL) {
            return task_config_fail(c, n, node->key, "must be a list of strings");
        }
        TRY(task_template_append(*out, json_string(n->text)));
    }
    return STATUS_OK;
}

static status read_template(const struct task_config *c, const struct node *node, const char *key,
                            const char *text, struct task_template **out)
{
    return task_config_annotate(c, node, key, task_template_parse(text, out));
}

/* Reads doc_to_text, doc_to_target or doc_to_choice: the name of a field, a template, a number or a
 * list. */
static status read_value(const struct task *t, const struct node *node, struct value *out)
{
    char reason[TEXT_REASON_BYTES];
    int64_t number;
    if (node == NULL) {
        return STATUS_OK;
    }
    if (node->kind == NODE_SEQUENCE || node->kind == NODE_MAPPING) {
        return read_list(&t->config, node, &out->constant);
    }
    if (json_object_get(t->documents.features, node->text) != NULL) {
        out->field = node->text;
        return STATUS_OK;
    }
    if (node->kind == NODE_PLAIN && text_to_integer(node->text, &number, reason)) {
        out->constant = json_integer(number);
        return STATUS_OK;
    }
    return read_template(&t->config, node, node->key, node->text, &out->computed);
}

static void free_value(struct value *v)
{
    task_template_free(&v->computed);
    json_decref(v->constant);
}

/* Computes a value of a document. */
static status compute_value(const struct value *v, const struct task_document *d, json_t **out)
{
    if (v->computed == NULL) {
        *out = json_incref(v->constant != NULL ? v->constant : json_object_get(d->value, v->field));
        return *out != NULL ? STATUS_OK : raise_at(d, "a field of the task is missing");
    }
    return annotate_error(d, task_template_render(v->computed, d->value, out));
}

/* Replaces a value by its text. */
static status convert_to_text(json_t **value)
{
    json_t *text = NULL;
    TRY(task_template_make_text(*value, &text));
    json_decref(*value);
    *value = text;
    return STATUS_OK;
}

static bool is_index(const json_t *text)
{
    const char *s = json_string_value(text);
    return s != NULL && s[0] != '\0' && strspn(s, "0123456789") == strlen(s) && strlen(s) < 10;
}

/* ---- the texts of a document ---- */

static status get_text(const struct task *t, const struct task_document *d, json_t **out)
{
    TRY(compute_value(&t->text, d, out));
    bool has_several =
        t->choice.field != NULL || t->choice.computed != NULL || t->choice.constant != NULL;
    if (json_is_array(*out) || json_is_object(*out) ||
        (has_several && (json_is_integer(*out) || is_index(*out)))) {
        return raise_at(d, "doc_to_text is a number or a list, not a string; tasks with several "
                           "contexts are not supported");
    }
    return convert_to_text(out);
}

static status get_choices(const struct task *t, const struct task_document *d, json_t **out)
{
    if (t->config.choice == NULL) {
        return STATUS_OK;
    }
    TRY(compute_value(&t->choice, d, out));
    for (size_t i = 0; i < json_array_size(*out); i++) {
        if (json_string_length(json_array_get(*out, i)) == 0) {
            return raise_at(d, "doc_to_choice: a choice is empty or is not a string");
        }
    }
    return json_array_size(*out) > 0 ? STATUS_OK
                                     : raise_at(d, "doc_to_choice does not give a list of strings");
}

/* Converts a target to a string, with multiple_choice to the index of its choice. */
static status convert_target(const struct task *t, const struct task_document *d,
                             const json_t *choices, json_t *target, json_t **out)
{
    json_int_t index = json_is_boolean(target) ? json_is_true(target) : json_integer_value(target);
    if (choices == NULL) {
        return task_template_make_text(target, out);
    }
    if (json_is_string(target)) {
        for (index = 0; index < (json_int_t)json_array_size(choices) &&
                        !json_equal(json_array_get(choices, (size_t)index), target);) {
            index++;
        }
    }
    bool has_index = json_is_string(target) || json_is_integer(target) || json_is_boolean(target);
    if (!has_index || index < 0 || index >= (json_int_t)json_array_size(choices)) {
        return raise_at(d, "doc_to_target is none of the choices");
    }
    *out = t->config.output == TASK_MULTIPLE_CHOICE
               ? json_integer(index)
               : json_incref(json_array_get(choices, (size_t)index));
    return task_template_require_memory(*out);
}

static status get_target(const struct task *t, const struct task_document *d, const json_t *choices,
                         json_t **out)
{
    TRY(compute_value(&t->target, d, out));
    if (t->target.computed != NULL && !json_is_array(*out)) {
        TRY(convert_to_text(out));
    }
    if (t->target.computed != NULL && choices != NULL && is_index(*out)) {
        json_t *index = json_integer(strtoll(json_string_value(*out), NULL, 10));
        json_decref(*out);
        *out = index;
    }
    return task_template_require_memory(*out);
}

static status convert_targets(const struct task *t, const struct task_document *d,
                              const json_t *choices, json_t *target, json_t **out)
{
    size_t count = json_is_array(target) ? json_array_size(target) : 1;
    *out = json_array();
    TRY(task_template_require_memory(*out));
    for (size_t i = 0; i < count; i++) {
        json_t *element = json_is_array(target) ? json_array_get(target, i) : target;
        json_t *converted = NULL;
        TRY(convert_target(t, d, choices, element, &converted));
        TRY(task_template_append(*out, converted));
    }
    return count > 0 ? STATUS_OK : raise_at(d, "doc_to_target gives an empty list");
}

static status append_text(struct text_buffer *b, const json_t *text)
{
    return text_buffer_append(b, json_string_value(text), json_string_length(text));
}

static status append_delimiter(struct text_buffer *b, const char *delimiter)
{
    return text_buffer_append(b, delimiter, strlen(delimiter));
}

/* Appends a few-shot example: its question and its answer. */
static status append_answered(const struct task *t, const struct task_document *d,
                              struct text_buffer *b)
{
    json_t *text = NULL, *choices = NULL, *target = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, get_text(t, d, &text));
    TRY_GOTO(result, done, get_choices(t, d, &choices));
    TRY_GOTO(result, done, get_target(t, d, choices, &target));
    const json_t *answer = json_is_array(target) ? json_array_get(target, 0) : target;
    if (choices != NULL && json_is_integer(answer)) {
        answer = json_array_get(choices, (size_t)json_integer_value(answer));
    }
    REQUIRE_GOTO(result, done, json_is_string(answer), STATUS_DATA,
                 "%s:%" PRId64 ": the answer of a few-shot example is not a string", d->path,
                 d->line);
    TRY_GOTO(result, done, append_text(b, text));
    if (json_string_length(answer) > 0) {
        TRY_GOTO(result, done, append_delimiter(b, t->config.target_delimiter));
        TRY_GOTO(result, done, append_text(b, answer));
        TRY_GOTO(result, done, append_delimiter(b, t->config.fewshot_delimiter));
    }
done:
    json_decref(text);
    json_decref(choices);
    json_decref(target);
    return result;
}

static status append_context(const struct task *t, int64_t index, struct text_buffer *b)
{
    const struct task_document *d = &t->documents.rows[index];
    const int64_t *shots = t->shots != NULL ? t->shots + index * t->config.shots : NULL;
    json_t *text = NULL;
    status result = compute_value(&t->description, d, &text);
    if (result == STATUS_OK) {
        result = convert_to_text(&text);
    }
    if (result == STATUS_OK) {
        result = append_text(b, text);
    }
    json_decref(text);
    text = NULL;
    for (int64_t s = 0; s < t->config.shots && result == STATUS_OK; s++) {
        result = append_answered(t, &t->examples.rows[shots[s]], b);
    }
    if (result == STATUS_OK) {
        result = get_text(t, d, &text);
    }
    if (result == STATUS_OK) {
        result = append_text(b, text);
    }
    json_decref(text);
    return result;
}

static status make_context(const struct task *t, int64_t index, json_t **out)
{
    struct text_buffer b = {0};
    status result = append_context(t, index, &b);
    if (result == STATUS_OK) {
        *out = json_stringn(b.count > 0 ? b.bytes : "", b.count);
        result = *out != NULL ? STATUS_OK
                              : raise_at(&t->documents.rows[index], "the context is not UTF-8");
    }
    text_buffer_free(&b);
    return result;
}

status task_get_request(const struct task *t, int64_t index, struct task_request *out)
{
    const struct task_document *d = &t->documents.rows[index];
    json_t *target = NULL;
    *out = (struct task_request){0};
    if (t->config.output != TASK_LOGLIKELIHOOD_ROLLING) {
        TRY(make_context(t, index, &out->context));
    }
    TRY(get_choices(t, d, &out->choices));
    status result = get_target(t, d, out->choices, &target);
    if (result == STATUS_OK) {
        result = convert_targets(t, d, out->choices, target, &out->targets);
    }
    json_decref(target);
    return result;
}

void task_request_free(struct task_request *q)
{
    json_decref(q->context);
    json_decref(q->choices);
    json_decref(q->targets);
    *q = (struct task_request){0};
}

/* ---- opening ---- */

static bool is_same_split(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Copies the first `shots` sampled examples that differ from the document; false: there are
 * fewer. */
static bool select_shots(const struct task *t, const json_t *document, const int64_t *sampled,
                         int64_t count, int64_t *out)
{
    int64_t used = 0;
    for (int64_t i = 0; i < count && used < t->config.shots; i++) {
        const json_t *example = t->examples.rows[sampled[i]].value;
        if (document == NULL || !json_equal(document, example)) {
            out[used++] = sampled[i];
        }
    }
    return used == t->config.shots;
}

/* Samples from the examples that differ from the document. */
static status sample_others(struct task *t, struct few_shot_random *random, const json_t *document,
                            int64_t *scratch, int64_t *out)
{
    int64_t count = 0;
    for (int64_t i = 0; i < t->examples.count; i++) {
        if (!json_equal(document, t->examples.rows[i].value)) {
            scratch[count++] = i;
        }
    }
    if (count < t->config.shots) {
        return task_config_fail(
            &t->config, t->config.tree, "num_fewshot",
            "only %" PRId64 " examples differ from a document; lower num_fewshot", count);
    }
    TRY(few_shot_sample(random, count, t->config.shots, out));
    for (int64_t i = 0; i < t->config.shots; i++) {
        out[i] = scratch[out[i]];
    }
    return STATUS_OK;
}

/* Chooses the examples of every document, in order, so that they do not depend on the ranks. */
static status choose_shots(struct task *t, int64_t *scratch)
{
    const struct task_config *c = &t->config;
    struct few_shot_random random;
    /* As in lm-evaluation-harness: if the splits are equal, or both are unset, a document is not
     * its own example. */
    bool excludes = is_same_split(c->fewshot_split, c->test_split);
    int64_t sampled = c->shots + excludes;
    few_shot_seed(&random, FEW_SHOT_SEED);
    for (int64_t d = 0; d < t->count; d++) {
        const json_t *document = excludes ? t->documents.rows[d].value : NULL;
        int64_t *out = t->shots + d * c->shots;
        if (c->takes_first_shots) {
            for (sampled = 0; sampled < t->examples.count; sampled++) {
                scratch[sampled] = sampled;
            }
        } else {
            TRY(few_shot_sample(&random, t->examples.count, sampled, scratch));
        }
        if (!select_shots(t, document, scratch, sampled, out)) {
            TRY(sample_others(t, &random, document, scratch, out));
        }
    }
    return STATUS_OK;
}

static status open_shots(struct task *t)
{
    const struct task_config *c = &t->config;
    int64_t *scratch = NULL;
    if (c->shots == 0 || c->output == TASK_LOGLIKELIHOOD_ROLLING) {
        t->config.shots = 0;
        return STATUS_OK;
    }
    const char *split = c->fewshot_split != NULL      ? c->fewshot_split
                        : c->training_split != NULL   ? c->training_split
                        : c->validation_split != NULL ? c->validation_split
                                                      : c->test_split;
    TRY(task_documents_read(c, split, &t->examples));
    int64_t needed = c->shots + is_same_split(c->fewshot_split, c->test_split);
    if (needed > t->examples.count) {
        return task_config_fail(c, c->tree, "num_fewshot",
                                "%" PRId64 " examples need at least %" PRId64
                                " documents, but the split %s has %" PRId64,
                                c->shots, needed, split, t->examples.count);
    }
    TRY(ALLOCATE(t->shots, t->count * c->shots, "few-shot examples"));
    TRY(ALLOCATE(scratch, t->examples.count + 1, "few-shot examples"));
    status result = choose_shots(t, scratch);
    free(scratch);
    return result;
}

static status open_documents(struct task *t, int64_t limit)
{
    const struct task_config *c = &t->config;
    TRY(task_documents_read(c, c->test_split != NULL ? c->test_split : c->validation_split,
                            &t->documents));
    t->count = limit > 0 && limit < t->documents.count ? limit : t->documents.count;
    TRY(read_value(t, c->text, &t->text));
    TRY(read_value(t, c->target, &t->target));
    TRY(read_value(t, c->choice, &t->choice));
    if (json_object_get(t->documents.features, c->description) != NULL) {
        t->description.field = c->description;
        return STATUS_OK;
    }
    return read_template(c, c->tree, "description", c->description, &t->description.computed);
}

status task_open(const char *path, int64_t shots, int64_t limit, struct task **out)
{
    TRY(ALLOCATE(*out, 1, "a task"));
    status result = task_config_read(path, &(*out)->config);
    if (result == STATUS_OK && shots >= 0) {
        (*out)->config.shots = shots;
    }
    if (result == STATUS_OK) {
        result = open_documents(*out, limit);
    }
    if (result == STATUS_OK) {
        result = open_shots(*out);
    }
    if (result != STATUS_OK) {
        task_close(out);
    }
    return result;
}

void task_close(struct task **t)
{
    if (*t != NULL) {
        free_value(&(*t)->text);
        free_value(&(*t)->target);
        free_value(&(*t)->choice);
        free_value(&(*t)->description);
        task_documents_free(&(*t)->documents);
        task_documents_free(&(*t)->examples);
        task_config_free(&(*t)->config);
        free((*t)->shots);
        free(*t);
        *t = NULL;
    }
}
