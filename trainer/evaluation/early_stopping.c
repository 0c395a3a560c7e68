#include "trainer/evaluation/early_stopping.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const size_t file_limit = (size_t)1 << 32;

bool best_note(const struct best_rule *rule, struct best *b, int64_t step, double value)
{
    double better = rule->greater ? value - b->value : b->value - value;
    bool first = !b->known && !isnan(value);
    if (step == 0) {
        return false;
    }
    b->waited = first || (b->known && better > rule->improvement) ? 0 : b->waited + 1;
    if (!first && !(b->known && better > 0)) {
        return false;
    }
    b->known = true;
    b->value = value;
    b->step = step;
    return true;
}

bool best_is_over(const struct best_rule *rule, const struct best *b)
{
    return rule->patience > 0 && b->waited >= rule->patience;
}

/* A damaged line is left out; the lines are in the order of their steps. */
static void take_line(const struct best_rule *rule, const char *line, size_t bytes, int64_t step,
                      struct best *out)
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *event = json_string_value(json_object_get(object, "event"));
    json_t *value = json_object_get(object, rule->metric);
    int64_t at = json_integer_value(json_object_get(object, "step"));
    if (event != NULL && strcmp(event, "evaluate") == 0 && at <= step) {
        (void)best_note(rule, out, at, json_is_number(value) ? json_number_value(value) : NAN);
    }
    json_decref(object);
}

status best_recall(const struct best_rule *rule, const char *path, int64_t step, struct best *out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = (struct best){0};
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(file_read(path, file_limit, &text, &bytes));
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        take_line(rule, text + at, length, step, out);
        at += length + 1;
    }
    free(text);
    return STATUS_OK;
}
