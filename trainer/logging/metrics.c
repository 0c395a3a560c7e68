#include "trainer/logging/metric.h"

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

static const size_t file_limit = (size_t)1 << 32;

struct metrics {
    int file;
    int64_t end_bytes;  /* of the last whole line */
    int64_t first_step; /* that this session may write */
    bool evaluated;     /* the step before that, by an earlier session */
    char path[FILE_PATH_BYTES];
    struct tensorboard *tensorboard; /* NULL: no event files */
};

/* ---- going on ---- */

/* Which lines a resumed run keeps. */
static bool keeps(const char *line, size_t bytes, int64_t step, int *damaged, bool *evaluated)
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    json_t *its_step = json_object_get(object, "step");
    const char *event = json_string_value(json_object_get(object, "event"));
    bool whole = json_is_integer(its_step) && event != NULL;
    bool kept = whole && json_integer_value(its_step) <= step && strcmp(event, "end") != 0;
    *damaged += !whole;
    *evaluated = *evaluated ||
                 (kept && json_integer_value(its_step) == step && strcmp(event, "evaluate") == 0);
    json_decref(object);
    return kept;
}

/* Move the lines that stay to the front; returns their bytes. */
static size_t drop_lines(char *text, size_t bytes, int64_t step, int *damaged, bool *evaluated)
{
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        if (end == NULL) {
            (*damaged)++;
        } else if (keeps(text + at, length, step, damaged, evaluated)) {
            memmove(text + used, text + at, length + 1);
            used += length + 1;
        }
        at += length + 1;
    }
    return used;
}

static status go_on(const char *path, int64_t step, bool *evaluated)
{
    char *text = NULL;
    size_t bytes = 0;
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(file_read(path, file_limit, &text, &bytes));
    int damaged = 0;
    size_t kept = drop_lines(text, bytes, step, &damaged, evaluated);
    status result = kept != bytes ? file_write(path, text, kept) : STATUS_OK;
    free(text);
    if (damaged > 0) {
        log_warning("METRICS", "%s: dropped %d damaged lines", path, damaged);
    }
    return result;
}

status metrics_open(const char *path, int64_t resume_step, struct metrics **out)
{
    *out = NULL;
    bool evaluated = false;
    if (resume_step >= 0) {
        TRY(go_on(path, resume_step, &evaluated));
    }
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resume_step < 0 ? O_TRUNC : 0);
    int file = open(path, flags, 0666);
    REQUIRE(file >= 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE), "cannot open %s: %s",
            path, strerror(errno));
    struct metrics *m = calloc(1, sizeof *m);
    if (m == NULL) {
        close(file);
        RAISE(STATUS_INTERNAL, "out of memory");
    }
    m->file = file;
    m->end_bytes = lseek(file, 0, SEEK_END);
    m->first_step = resume_step + 1;
    m->evaluated = evaluated;
    snprintf(m->path, sizeof m->path, "%s", path);
    *out = m;
    return STATUS_OK;
}

status metrics_add_tensorboard(struct metrics *m, const char *folder)
{
    return tensorboard_create(folder, m->first_step, &m->tensorboard);
}

bool metrics_evaluated(const struct metrics *m)
{
    return m->evaluated;
}

/* ---- a line ---- */

/* A path that a warning names may hold any byte, JSON may not: then what is not ASCII becomes '?'. */
static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    char *plain = value == NULL ? strdup(text) : NULL;
    for (char *c = plain; c != NULL && *c != '\0'; c++) {
        *c = (unsigned char)*c < 128 ? *c : '?';
    }
    if (plain != NULL) {
        value = json_string(plain);
        free(plain);
    }
    return value;
}

static json_t *value_of(const struct metric *field)
{
    switch (field->kind) {
    case METRIC_NUMBER:
        return isfinite(field->number) ? json_real(field->number) : json_null();
    case METRIC_INTEGER:
        return json_integer(field->integer);
    case METRIC_TEXT:
        return text_value(field->text);
    case METRIC_FLAG:
        return json_boolean(field->integer != 0);
    case METRIC_NULL:
        return json_null();
    }
    return NULL;
}

/* "rank_bytes.weights" goes into the object rank_bytes, made when it is first named. */
static bool add_field(json_t *line, const struct metric *field)
{
    const char *dot = strchr(field->name, '.');
    if (dot == NULL) {
        return json_object_set_new(line, field->name, value_of(field)) == 0;
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
    return json_object_set_new(object, dot + 1, value_of(field)) == 0;
}

static char *line_text(const char *event, double seconds, int64_t step, const struct metric *fields,
                       int count)
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

/* The events whose numbers are curves over the steps. */
static bool is_curve(const char *event)
{
    return strcmp(event, "train") == 0 || strcmp(event, "evaluate") == 0;
}

status metrics_write(struct metrics *m, const char *event, int64_t step,
                     const struct metric *fields, int count)
{
    double seconds = clock_epoch_seconds();
    char *text = line_text(event, seconds, step, fields, count);
    REQUIRE(text != NULL, STATUS_INTERNAL,
            "the line '%s' for %s cannot be made: a name in it is not UTF-8, or memory ran out",
            event, m->path);
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in the place of the end */
    status result = file_append(m->file, m->path, &m->end_bytes, text, bytes + 1);
    free(text);
    if (result == STATUS_OK && m->tensorboard != NULL && is_curve(event)) {
        result = tensorboard_write(m->tensorboard, event, seconds, step, fields, count);
    }
    return result;
}

status metrics_sync(struct metrics *m)
{
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
        result = status_raise(STATUS_WRITE, __FILE__, __LINE__, "cannot close %s: %s", (*m)->path,
                              strerror(errno));
    }
    free(*m);
    *m = NULL;
    return result;
}
