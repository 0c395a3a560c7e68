#include "trainer/evaluation/early_stopping.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const size_t file_limit_bytes = (size_t)1 << 32;

bool early_stopping_update(const struct early_stopping_rule *rule, struct early_stopping *s,
                           int64_t step, double value)
{
    double improvement = rule->greater_is_better ? value - s->value : s->value - value;
    bool first = !s->has_value && !isnan(value);
    if (step == 0) {
        return false;
    }
    s->patience_counter = first || (s->has_value && improvement > rule->min_improvement)
                              ? 0
                              : s->patience_counter + 1;
    if (!first && !(s->has_value && improvement > 0)) {
        return false;
    }
    s->has_value = true;
    s->value = value;
    s->step = step;
    return true;
}

bool early_stopping_should_stop(const struct early_stopping_rule *rule,
                                const struct early_stopping *s)
{
    return rule->patience > 0 && s->patience_counter >= rule->patience;
}

/* Skips damaged lines. The lines are in the order of their steps. */
static void restore_line(const struct early_stopping_rule *rule, const char *line, size_t bytes,
                         int64_t step, struct early_stopping *out)
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *event = json_string_value(json_object_get(object, "event"));
    json_t *value = json_object_get(object, rule->metric);
    int64_t at = json_integer_value(json_object_get(object, "step"));
    if (event != NULL && strcmp(event, "evaluate") == 0 && at <= step) {
        (void)early_stopping_update(rule, out, at,
                                    json_is_number(value) ? json_number_value(value) : NAN);
    }
    json_decref(object);
}

status early_stopping_restore(const struct early_stopping_rule *rule, const char *path,
                              int64_t step, struct early_stopping *out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = (struct early_stopping){0};
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(file_read(path, file_limit_bytes, &text, &bytes));
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        restore_line(rule, text + at, length, step, out);
        at += length + 1;
    }
    free(text);
    return STATUS_OK;
}
