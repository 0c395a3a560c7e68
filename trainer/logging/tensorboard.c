#include "trainer/logging/tensorboard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <isa-l/crc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "tensorboard.pb-c.h"

enum {
    SCALARS_MAX = TENSORBOARD_SCALARS_MAX,
    TAG_BYTES = TENSORBOARD_TAG_BYTES,
    HEADER_BYTES = 12,
    RECORD_BYTES = 48 << 10
};

/* A value of a summary: its tag, its float, and at most 10 bytes of protobuf keys and lengths. */
_Static_assert(SCALARS_MAX *(TAG_BYTES + 10) + 64 <= RECORD_BYTES, "all scalars fit a record");

static const char prefix[] = "events.out.tfevents.";

struct tensorboard {
    int file;
    int64_t end_bytes; /* end of the last complete record */
    char path[FILE_PATH_BYTES];
    Tensorboard__Summary__Value values[SCALARS_MAX], *value_pointers[SCALARS_MAX];
    char tags[SCALARS_MAX][TAG_BYTES];
    uint8_t record[HEADER_BYTES + RECORD_BYTES + 4];
};

/* ---- records ---- */

static uint32_t masked_crc(uint8_t *data, size_t bytes)
{
    uint32_t crc = ~crc32_iscsi(data, (int)bytes, UINT32_MAX);
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

/* Stores the lowest `bytes` bytes of a number in little-endian order. */
static void store_little_endian(uint8_t *out, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        out[i] = (uint8_t)(number >> 8 * i);
    }
}

static status write_event(struct tensorboard *t, const Tensorboard__Event *event)
{
    uint8_t *data = t->record + HEADER_BYTES;
    size_t bytes = tensorboard__event__get_packed_size(event);
    REQUIRE(bytes <= RECORD_BYTES, STATUS_INTERNAL,
            "%s: an event has %zu bytes, at most %d are allowed", t->path, bytes, RECORD_BYTES);
    tensorboard__event__pack(event, data);
    store_little_endian(t->record, bytes, 8);
    store_little_endian(t->record + 8, masked_crc(t->record, 8), 4);
    store_little_endian(data + bytes, masked_crc(data, bytes), 4);
    return file_append(t->file, t->path, &t->end_bytes, t->record, HEADER_BYTES + bytes + 4);
}

/* ---- new file ---- */

/* Returns the seconds in the name of an event file, or -1 for other files. */
static int64_t parse_seconds(const char *name)
{
    enum { DIGITS = 10 };
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return -1;
    }
    const char *digits = name + sizeof prefix - 1;
    if (strspn(digits, "0123456789") != DIGITS || digits[DIGITS] != '.') {
        return -1;
    }
    return strtoll(digits, NULL, 10);
}

/* Returns the current time, increased if necessary to sort after all existing files. */
static status choose_seconds(const char *folder, int64_t *out)
{
    DIR *entries = opendir(folder);
    REQUIRE(entries != NULL, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot read the folder %s: %s", folder, strerror(errno));
    int64_t seconds = (int64_t)clock_epoch_seconds();
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        int64_t existing = parse_seconds(entry->d_name);
        seconds = existing >= seconds ? existing + 1 : seconds;
    }
    closedir(entries);
    *out = seconds;
    return STATUS_OK;
}

static status format_path(struct tensorboard *t, const char *folder)
{
    char host[65] = "", name[160];
    int64_t seconds;
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0' || strchr(host, '/') != NULL) {
        snprintf(host, sizeof host, "localhost");
    }
    TRY(choose_seconds(folder, &seconds));
    snprintf(name, sizeof name, "%s%010" PRId64 ".%s.%ld", prefix, seconds, host, (long)getpid());
    return file_join(t->path, folder, name);
}

static status write_header(struct tensorboard *t, int64_t first_step)
{
    /* TensorBoard uses the start of a session from version 2 on. */
    char version[] = "brain.Event:2";
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    Tensorboard__SessionLog session = TENSORBOARD__SESSION_LOG__INIT;
    event.wall_time = clock_epoch_seconds();
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    TRY(write_event(t, &event));
    session.status = TENSORBOARD__SESSION_LOG__STATUS__START;
    event.step = first_step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SESSION_LOG;
    event.session_log = &session;
    return write_event(t, &event);
}

static status create_file(struct tensorboard *t, const char *folder, int64_t first_step)
{
    TRY(file_require_own_link(folder));
    TRY(file_make_folders(folder));
    TRY(format_path(t, folder));
    t->file = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    REQUIRE(t->file >= 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create %s: %s", t->path, strerror(errno));
    return write_header(t, first_step);
}

status tensorboard_create(const char *folder, int64_t first_step, struct tensorboard **out)
{
    *out = NULL;
    struct tensorboard *t = NULL;
    TRY(ALLOCATE(t, 1, folder));
    t->file = -1;
    for (int i = 0; i < SCALARS_MAX; i++) {
        t->values[i] = (Tensorboard__Summary__Value)TENSORBOARD__SUMMARY__VALUE__INIT;
        t->values[i].value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
        t->values[i].tag = t->tags[i];
        t->value_pointers[i] = &t->values[i];
    }
    status result = create_file(t, folder, first_step);
    if (result != STATUS_OK) {
        if (t->file >= 0) {
            close(t->file);
            unlink(t->path);
        }
        free(t);
        return result;
    }
    *out = t;
    return STATUS_OK;
}

/* ---- scalars ---- */

status tensorboard_write(struct tensorboard *t, const char *event, double seconds, int64_t step,
                         const struct metric *fields, int count)
{
    Tensorboard__Event line = TENSORBOARD__EVENT__INIT;
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    REQUIRE(count <= SCALARS_MAX, STATUS_INTERNAL,
            "%s: a line has %d fields, at most %d are allowed", t->path, count, SCALARS_MAX);
    for (int i = 0; i < count; i++) {
        const struct metric *field = &fields[i];
        if (field->kind != METRIC_NUMBER && field->kind != METRIC_INTEGER) {
            continue;
        }
        size_t k = summary.n_value++;
        int used = snprintf(t->tags[k], TAG_BYTES, "%s/%s", event, field->name);
        REQUIRE(used >= 0 && used < TAG_BYTES, STATUS_INTERNAL, "the name %s/%s is too long", event,
                field->name);
        double value = field->kind == METRIC_NUMBER ? field->number : (double)field->integer;
        t->values[k].simple_value = (float)value;
    }
    if (summary.n_value == 0) {
        return STATUS_OK;
    }
    summary.value = t->value_pointers;
    line.wall_time = seconds;
    line.step = step;
    line.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    line.summary = &summary;
    return write_event(t, &line);
}

status tensorboard_sync(struct tensorboard *t)
{
    REQUIRE(fsync(t->file) == 0, STATUS_WRITE, "cannot sync %s: %s", t->path, strerror(errno));
    return STATUS_OK;
}

status tensorboard_destroy(struct tensorboard **t)
{
    if (*t == NULL) {
        return STATUS_OK;
    }
    status result = tensorboard_sync(*t);
    if (close((*t)->file) != 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot close %s: %s", (*t)->path, strerror(errno));
    }
    free(*t);
    *t = NULL;
    return result;
}
