#include "trainer/logging/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "trainer/logging/json_text.h"
#include "trainer/logging/tensorboard.h"

static const size_t file_limit_bytes = (size_t)1 << 32;

struct metrics {
    int file;
    int64_t end_bytes;  /* end of the last complete line */
    int64_t first_step; /* first step that this session may write */
    int64_t spikes;     /* that occurred before this session */
    /* an earlier session wrote an "evaluate" or "sample" line for first_step - 1 */
    bool has_evaluation, has_sample;
    char path[FILE_PATH_BYTES];
    struct tensorboard *tensorboard; /* NULL: no event files */
};

/* ---- resume ---- */

/* The lines of a file that a run drops when it resumes after a step. */
struct dropped {
    int damaged; /* number of lines that are not valid */
    char *text;  /* the lines of later steps */
    size_t bytes;
};

/* Returns whether m keeps a line. Notes whether it is the evaluation or the sample of the step
 * after which m resumes. */
static bool is_kept(struct metrics *m, const char *line, size_t bytes, struct dropped *dropped)
{
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    json_t *line_step = json_object_get(object, "step");
    const char *event = json_string_value(json_object_get(object, "event"));
    bool valid = json_is_integer(line_step) && event != NULL;
    int64_t step = json_integer_value(line_step);
    bool is_later =
        step >= m->first_step || json_integer_value(json_object_get(object, "spikes")) > m->spikes;
    dropped->damaged += !valid;
    if (valid && is_later) {
        memcpy(dropped->text + dropped->bytes, line, bytes + 1);
        dropped->bytes += bytes + 1;
    }
    bool keeps_line = valid && !is_later && strcmp(event, "end") != 0;
    bool is_newest = keeps_line && step == m->first_step - 1;
    m->has_evaluation = m->has_evaluation || (is_newest && strcmp(event, "evaluate") == 0);
    m->has_sample = m->has_sample || (is_newest && strcmp(event, "sample") == 0);
    json_decref(object);
    return keeps_line;
}

/* Moves the kept lines to the beginning of text and returns their bytes. */
static size_t drop_lines(struct metrics *m, char *text, size_t bytes, struct dropped *dropped)
{
    size_t used = 0;
    for (size_t offset = 0; offset < bytes;) {
        char *end = memchr(text + offset, '\n', bytes - offset);
        size_t length = end != NULL ? (size_t)(end - text) - offset : bytes - offset;
        if (end == NULL) {
            dropped->damaged++;
        } else if (is_kept(m, text + offset, length, dropped)) {
            memmove(text + used, text + offset, length + 1);
            used += length + 1;
        }
        offset += length + 1;
    }
    return used;
}

/* Opens metrics.jsonl.old, so that a start from an earlier step deletes no measurement. A newline
 * ends its last line if a killed run did not. */
static status open_archive(const char *archive, int *file, int64_t *end)
{
    char last = '\n';
    TRY(file_open_output(archive, O_RDWR | O_APPEND, file));
    *end = lseek(*file, 0, SEEK_END);
    bool is_cut = *end > 0 && pread(*file, &last, 1, *end - 1) == 1 && last != '\n';
    status result = is_cut ? file_append(*file, archive, end, "\n", 1) : STATUS_OK;
    if (result != STATUS_OK) {
        close(*file);
        *file = -1;
    }
    return result;
}

static status drop_later_lines(struct metrics *m, const char *archive)
{
    char *text = NULL;
    size_t bytes = 0;
    int file = -1;
    int64_t end = 0;
    TRY(file_read(m->path, file_limit_bytes, &text, &bytes));
    struct dropped dropped = {0};
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(dropped.text, bytes + 1, m->path));
    size_t kept_bytes = drop_lines(m, text, bytes, &dropped);
    if (dropped.bytes > 0) {
        TRY_GOTO(result, done, open_archive(archive, &file, &end));
        TRY_GOTO(result, done, file_append(file, archive, &end, dropped.text, dropped.bytes));
    }
    if (kept_bytes != bytes) {
        TRY_GOTO(result, done, file_write(m->path, text, kept_bytes));
    }
    if (dropped.damaged > 0) {
        log_warning("METRICS", "%s: dropped %d damaged lines", m->path, dropped.damaged);
    }
done:
    if (file >= 0) {
        close(file);
    }
    free(dropped.text);
    free(text);
    return result;
}

/* Appends all bytes of an open file to the archive. */
static status append_file(int input, const char *path, int file, const char *archive, int64_t *end)
{
    char block[64 << 10];
    ssize_t count;
    while ((count = read(input, block, sizeof block)) > 0) {
        TRY(file_append(file, archive, end, block, (size_t)count));
    }
    REQUIRE(count == 0, STATUS_WRITE, "cannot read %s: %s; remove it", path, strerror(errno));
    return STATUS_OK;
}

/* Moves the whole file to the archive. It may be too large for the memory. */
static status archive_file(const char *path, const char *archive)
{
    struct stat unused;
    int file, input;
    int64_t begin, end;
    if (lstat(archive, &unused) != 0 && errno == ENOENT) {
        REQUIRE(rename(path, archive) == 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                "cannot rename %s to %s: %s", path, archive, strerror(errno));
        return file_write(path, "", 0); /* also syncs the folder */
    }
    TRY(open_archive(archive, &file, &end));
    begin = end;
    input = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    status result = input >= 0
                        ? append_file(input, path, file, archive, &end)
                        : RAISE_STATUS(status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                                       "cannot open %s: %s", path, strerror(errno));
    if (result == STATUS_OK) {
        result = file_write(path, "", 0);
    }
    if (result != STATUS_OK) {
        (void)!ftruncate(file, begin);
    }
    if (input >= 0) {
        close(input);
    }
    close(file);
    return result;
}

static status drop_lines_of_file(struct metrics *m)
{
    char archive[FILE_PATH_BYTES];
    int length = snprintf(archive, sizeof archive, "%s.old", m->path);
    REQUIRE(length < (int)sizeof archive, STATUS_CREATE, "%s: the path is too long", m->path);
    if (file_size(m->path) <= 0) {
        return STATUS_OK;
    }
    return m->first_step == 0 ? archive_file(m->path, archive) : drop_later_lines(m, archive);
}

status metrics_open(const char *path, int64_t resume_step, int64_t resume_spikes,
                    struct metrics **out)
{
    *out = NULL;
    int file;
    TRY(file_open_output(path, O_WRONLY | O_APPEND, &file)); /* refuses links and pipes */
    close(file);
    struct metrics *m = NULL;
    TRY(ALLOCATE(m, 1, path));
    m->first_step = resume_step + 1;
    m->spikes = resume_spikes;
    snprintf(m->path, sizeof m->path, "%s", path);
    status result = drop_lines_of_file(m);
    KEEP_FIRST(result, file_open_output(path, O_WRONLY | O_APPEND, &m->file));
    if (result != STATUS_OK) {
        free(m);
        return result;
    }
    m->end_bytes = lseek(m->file, 0, SEEK_END);
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

bool metrics_has_sample(const struct metrics *m)
{
    return m->has_sample;
}

/* ---- lines ---- */

static json_t *value_to_json(const struct metric *field)
{
    switch (field->kind) {
    case METRIC_NUMBER:
        return isfinite(field->number) ? json_real(field->number) : json_null();
    case METRIC_INTEGER:
        return json_integer(field->integer);
    case METRIC_TEXT:
        return json_text_create(field->text, strlen(field->text));
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
