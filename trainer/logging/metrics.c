#include "trainer/logging/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "trainer/logging/tensorboard.h"

static const size_t file_limit_bytes = (size_t)1 << 32;

struct metrics {
    int file;
    int64_t end_bytes;   /* end of the last complete line */
    int64_t first_step;  /* first step that this session may write */
    bool has_evaluation; /* an earlier session wrote an "evaluate" line for first_step - 1 */
    char path[FILE_PATH_BYTES];
    struct tensorboard *tensorboard; /* NULL: no event files */
};

/* ---- resume ---- */

/* Returns whether a run that resumes after `step` keeps a line. Counts damaged lines, and sets
 * *has_evaluation if the line is the evaluation of `step`. */
static bool is_kept(const char *line, size_t bytes, int64_t step, int *damaged,
                    bool *has_evaluation)
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    json_t *line_step = json_object_get(object, "step");
    const char *event = json_string_value(json_object_get(object, "event"));
    bool valid = json_is_integer(line_step) && event != NULL;
    bool keeps_line = valid && json_integer_value(line_step) <= step && strcmp(event, "end") != 0;
    *damaged += !valid;
    *has_evaluation = *has_evaluation || (keeps_line && json_integer_value(line_step) == step &&
                                          strcmp(event, "evaluate") == 0);
    json_decref(object);
    return keeps_line;
}

/* Moves the kept lines to the beginning of text and returns their bytes. */
static size_t drop_lines(char *text, size_t bytes, int64_t step, int *damaged, bool *has_evaluation)
{
    size_t used = 0;
    for (size_t offset = 0; offset < bytes;) {
        char *end = memchr(text + offset, '\n', bytes - offset);
        size_t length = end != NULL ? (size_t)(end - text) - offset : bytes - offset;
        if (end == NULL) {
            (*damaged)++;
        } else if (is_kept(text + offset, length, step, damaged, has_evaluation)) {
            memmove(text + used, text + offset, length + 1);
            used += length + 1;
        }
        offset += length + 1;
    }
    return used;
}

static status drop_later_lines(const char *path, int64_t step, bool *has_evaluation)
{
    char *text = NULL;
    size_t bytes = 0;
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(file_read(path, file_limit_bytes, &text, &bytes));
    int damaged = 0;
    size_t kept_bytes = drop_lines(text, bytes, step, &damaged, has_evaluation);
    status result = kept_bytes != bytes ? file_write(path, text, kept_bytes) : STATUS_OK;
    free(text);
    if (damaged > 0) {
        log_warning("METRICS", "%s: dropped %d damaged lines", path, damaged);
    }
    return result;
}

status metrics_open(const char *path, int64_t resume_step, struct metrics **out)
{
    *out = NULL;
    bool has_evaluation = false;
    if (resume_step >= 0) {
        TRY(drop_later_lines(path, resume_step, &has_evaluation));
    }
    int file;
    TRY(file_open_output(path, O_WRONLY | O_APPEND | (resume_step < 0 ? O_TRUNC : 0), &file));
    struct metrics *m = calloc(1, sizeof *m);
    if (m == NULL) {
        close(file);
        RAISE(STATUS_INTERNAL, "out of memory for the log %s", path);
    }
    m->file = file;
    m->end_bytes = lseek(file, 0, SEEK_END);
    m->first_step = resume_step + 1;
    m->has_evaluation = has_evaluation;
    snprintf(m->path, sizeof m->path, "%s", path);
    *out = m;
    return STATUS_OK;
}

status metrics_add_tensorboard(struct metrics *m, const char *folder)
{
    return tensorboard_create(folder, m->first_step, &m->tensorboard);
}

bool metrics_has_evaluation(const struct metrics *m)
{
    return m->has_evaluation;
}

/* ---- lines ---- */

/* Converts a string to JSON. If it is not UTF-8 (a path may not be), non-ASCII bytes become '?'. */
static json_t *text_to_json(const char *text)
{
    json_t *value = json_string(text);
    char *ascii = value == NULL ? strdup(text) : NULL;
    for (char *c = ascii; c != NULL && *c != '\0'; c++) {
        *c = (unsigned char)*c < 128 ? *c : '?';
    }
    if (ascii != NULL) {
        value = json_string(ascii);
        free(ascii);
    }
    return value;
}

static json_t *value_to_json(const struct metric *field)
{
    switch (field->kind) {
    case METRIC_NUMBER:
        return isfinite(field->number) ? json_real(field->number) : json_null();
    case METRIC_INTEGER:
        return json_integer(field->integer);
    case METRIC_TEXT:
        return text_to_json(field->text);
    case METRIC_FLAG:
        return json_boolean(field->integer != 0);
    case METRIC_NULL:
        return json_null();
    case METRIC_JSON:
        return json_loads(field->text, 0, NULL);
    }
    return NULL;
}

/* Adds a field to a line. "rank_bytes.weights" becomes the member weights of the object rank_bytes,
 * which is created at its first use. */
static bool add_field(json_t *line, const struct metric *field)
{
    const char *dot = strchr(field->name, '.');
    if (dot == NULL) {
        return json_object_set_new(line, field->name, value_to_json(field)) == 0;
    }
    char name[128];
    int used = snprintf(name, sizeof name, "%.*s", (int)(dot - field->name), field->name);
    if (used < 0 || used >= (int)sizeof name) {
        return false;
    }
    json_t *object = json_object_get(line, name);
    if (object == NULL) {
        object = json_object();
        if (json_object_set_new(line, name, object) != 0) {
            return false;
        }
    }
    return json_object_set_new(object, dot + 1, value_to_json(field)) == 0;
}

static char *format_line(const char *event, double seconds, int64_t step,
                         const struct metric *fields, int count)
{
    json_t *line =
        json_pack("{s:s, s:I, s:f}", "event", event, "step", (json_int_t)step, "time", seconds);
    bool good = line != NULL;
    for (int i = 0; i < count && good; i++) {
        good = add_field(line, &fields[i]);
    }
    char *text = good ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(line);
    return text;
}

/* Returns whether the numbers of an event are written to TensorBoard. */
static bool has_scalars(const char *event)
{
    return strcmp(event, "train") == 0 || strcmp(event, "evaluate") == 0;
}

status metrics_write(struct metrics *m, const char *event, int64_t step,
                     const struct metric *fields, int count)
{
    double seconds = clock_epoch_seconds();
    char *text = format_line(event, seconds, step, fields, count);
    REQUIRE(text != NULL, STATUS_INTERNAL,
            "%s: cannot format the line '%s': a name in it is not UTF-8, or memory ran out",
            m->path, event);
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* replaces the terminating NUL */
    status result = file_append(m->file, m->path, &m->end_bytes, text, bytes + 1);
    free(text);
    if (result == STATUS_OK && m->tensorboard != NULL && has_scalars(event)) {
        result = tensorboard_write(m->tensorboard, event, seconds, step, fields, count);
    }
    return result;
}

status metrics_sync(struct metrics *m)
{
    TRY(file_require_present(m->file, m->path));
    REQUIRE(fsync(m->file) == 0 || errno == EINVAL, STATUS_WRITE, /* EINVAL: a pipe */
            "cannot sync %s: %s", m->path, strerror(errno));
    return m->tensorboard != NULL ? tensorboard_sync(m->tensorboard) : STATUS_OK;
}

status metrics_close(struct metrics **m)
{
    if (*m == NULL) {
        return STATUS_OK;
    }
    status result = metrics_sync(*m);
    KEEP_FIRST(result, tensorboard_destroy(&(*m)->tensorboard));
    if (close((*m)->file) != 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot close %s: %s", (*m)->path, strerror(errno));
    }
    free(*m);
    *m = NULL;
    return result;
}
