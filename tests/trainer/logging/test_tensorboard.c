/* Event files of TensorBoard. The test reads them with separate code: CRC-32C, the record format,
 * and the wire format of protocol buffers. This code is tested with the vectors of RFC 3720 and the
 * first bytes of TensorFlow's files. */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "tests/check.h"
#include "trainer/logging/metrics.h"
#include "trainer/logging/tensorboard.h"

enum { EVENTS_MAX = 32, SCALARS_MAX = TENSORBOARD_SCALARS_MAX, FILES_MAX = 8 };

struct scalar {
    char tag[TENSORBOARD_TAG_BYTES];
    float value;
};

struct event {
    double seconds;
    int64_t step;
    char version[32];
    int64_t session; /* -1: none */
    int scalar_count;
    struct scalar scalars[SCALARS_MAX];
};

static char folder[64], metrics_path[128];
static struct event events[EVENTS_MAX];
static int event_count;
static char files[FILES_MAX][FILE_PATH_BYTES]; /* sorted by name */
static int file_count;

/* ---- reading event files ---- */

static uint32_t compute_crc32c(const void *data, size_t bytes)
{
    const uint8_t *c = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= c[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0);
        }
    }
    return ~crc;
}

static uint32_t mask_crc32c(const void *data, size_t bytes)
{
    uint32_t crc = compute_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

static uint64_t read_little_endian(const uint8_t *at, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++) {
        number |= (uint64_t)at[i] << 8 * i;
    }
    return number;
}

struct reader {
    const uint8_t *at, *end;
};

static uint64_t next_varint(struct reader *r)
{
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
        CHECK(r->at < r->end && shift < 64);
        number |= (uint64_t)(*r->at & 0x7f) << shift;
        if ((*r->at++ & 0x80) == 0) {
            return number;
        }
    }
}

static struct reader next_bytes(struct reader *r, size_t bytes)
{
    CHECK(bytes <= (size_t)(r->end - r->at));
    struct reader inner = {r->at, r->at + bytes};
    r->at += bytes;
    return inner;
}

static void next_text(struct reader *r, char *text, size_t room)
{
    size_t bytes = (size_t)next_varint(r);
    struct reader inner = next_bytes(r, bytes);
    CHECK(bytes < room);
    memcpy(text, inner.at, bytes);
    text[bytes] = '\0';
}

static void read_value(struct reader r, struct scalar *out)
{
    bool has_value = false;
    while (r.at < r.end) {
        uint64_t key = next_varint(&r);
        if (key == (1 << 3 | 2)) { /* tag */
            next_text(&r, out->tag, sizeof out->tag);
        } else {
            CHECK_EQUAL(key, 2 << 3 | 5); /* simple_value */
            uint32_t bits = (uint32_t)read_little_endian(next_bytes(&r, 4).at, 4);
            memcpy(&out->value, &bits, sizeof bits);
            has_value = true;
        }
    }
    CHECK(has_value && out->tag[0] != '\0');
}

static void read_summary(struct reader r, struct event *out)
{
    while (r.at < r.end) {
        CHECK_EQUAL(next_varint(&r), 1 << 3 | 2); /* value */
        CHECK(out->scalar_count < SCALARS_MAX);
        size_t bytes = (size_t)next_varint(&r);
        read_value(next_bytes(&r, bytes), &out->scalars[out->scalar_count++]);
    }
}

static void read_session(struct reader r, struct event *out)
{
    CHECK_EQUAL(next_varint(&r), 1 << 3 | 0); /* status */
    out->session = (int64_t)next_varint(&r);
    CHECK(r.at == r.end);
}

static void read_event(struct reader r, struct event *out)
{
    *out = (struct event){.session = -1};
    while (r.at < r.end) {
        uint64_t key = next_varint(&r), bits;
        switch (key) {
        case 1 << 3 | 1: /* wall_time */
            bits = read_little_endian(next_bytes(&r, 8).at, 8);
            memcpy(&out->seconds, &bits, sizeof bits);
            break;
        case 2 << 3 | 0:
            out->step = (int64_t)next_varint(&r);
            break;
        case 3 << 3 | 2:
            next_text(&r, out->version, sizeof out->version);
            break;
        case 5 << 3 | 2:
            bits = next_varint(&r);
            read_summary(next_bytes(&r, (size_t)bits), out);
            break;
        default:
            CHECK_EQUAL(key, 7 << 3 | 2); /* session_log */
            bits = next_varint(&r);
            read_session(next_bytes(&r, (size_t)bits), out);
        }
    }
}

static void read_events(const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(path, 1 << 20, &text, &bytes));
    struct reader r = {(const uint8_t *)text, (const uint8_t *)text + bytes};
    for (event_count = 0; r.at < r.end; event_count++) {
        const uint8_t *header = next_bytes(&r, 12).at;
        size_t length = (size_t)read_little_endian(header, 8);
        CHECK_EQUAL(read_little_endian(header + 8, 4), mask_crc32c(header, 8));
        struct reader data = next_bytes(&r, length);
        CHECK_EQUAL(read_little_endian(next_bytes(&r, 4).at, 4), mask_crc32c(data.at, length));
        CHECK(event_count < EVENTS_MAX);
        read_event(data, &events[event_count]);
    }
    free(text);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void list_files(void)
{
    DIR *entries = opendir(folder);
    CHECK(entries != NULL);
    file_count = 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] != '.') {
            CHECK(file_count < FILES_MAX);
            CHECK_OK(file_join(files[file_count++], folder, entry->d_name));
        }
    }
    closedir(entries);
    qsort(files, (size_t)file_count, sizeof files[0], compare_names);
}

static bool has_scalar(const struct event *event, const char *tag, float value)
{
    for (int i = 0; i < event->scalar_count; i++) {
        if (strcmp(event->scalars[i].tag, tag) == 0) {
            float found = event->scalars[i].value;
            return found == value || (isnan(found) && isnan(value));
        }
    }
    return false;
}

static void check_start(const struct event *first, int64_t step)
{
    CHECK(strcmp(first[0].version, "brain.Event:2") == 0 && first[0].step == 0);
    CHECK_EQUAL(first[1].session, 1); /* START */
    CHECK_EQUAL(first[1].step, step);
}

static void open_metrics(int64_t resume_step, struct metrics **m)
{
    CHECK_OK(metrics_open(metrics_path, resume_step, 0, m));
    CHECK_OK(metrics_add_tensorboard(*m, folder));
}

/* ---- tests ---- */

/* Test vectors of RFC 3720, B.4. */
static void test_crc(void)
{
    uint8_t data[32] = {0};
    CHECK_EQUAL(compute_crc32c("123456789", 9), 0xe3069283);
    CHECK_EQUAL(compute_crc32c(data, 32), 0x8a9136aa);
    memset(data, 0xff, 32);
    CHECK_EQUAL(compute_crc32c(data, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) {
        data[i] = (uint8_t)i;
    }
    CHECK_EQUAL(compute_crc32c(data, 32), 0x46dd794e);
}

/* Event files of TensorFlow and TensorBoard begin with these bytes. */
static void test_first_bytes(void)
{
    static const uint8_t header[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 0x09};
    struct tensorboard *t = NULL;
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(tensorboard_create(folder, 0, &t));
    CHECK_OK(tensorboard_destroy(&t));
    CHECK_OK(tensorboard_destroy(&t));
    list_files();
    CHECK_EQUAL(file_count, 1);
    CHECK_OK(file_read(files[0], 1 << 20, &text, &bytes));
    CHECK(bytes > sizeof header + 8 && memcmp(text, header, sizeof header) == 0);
    CHECK(memcmp(text + sizeof header + 8,
                 "\x1a\x0d"
                 "brain.Event:2",
                 15) == 0);
    free(text);
    CHECK_OK(file_remove_tree(folder));
}

static void test_values(void)
{
    struct metrics *m = NULL;
    double before = clock_epoch_seconds();
    const struct metric train[] = {metric_number("loss", 1.0 / 3.0),
                                   metric_number("learning_rate", 0),
                                   metric_number("grad_norm", NAN),
                                   metric_integer("tokens", 1000000007),
                                   metric_null("mfu"),
                                   metric_text("text", "no number"),
                                   metric_number("perplexity", 1e300),
                                   metric_integer("deep.bytes", -7)};
    const struct metric evaluate = metric_number("loss", 2.5);
    const struct metric ranks = metric_integer("ranks", 1);
    open_metrics(-1, &m);
    CHECK_OK(metrics_write(m, "start", 0, &ranks, 1));
    CHECK_OK(metrics_write(m, "evaluate", 0, &evaluate, 1));
    CHECK_OK(metrics_write(m, "train", (int64_t)1 << 40, train, 8));
    CHECK_OK(metrics_write(m, "train", 7, train + 4, 2)); /* no numeric field */
    CHECK_OK(metrics_write(m, "checkpoint", 9, &ranks, 1));
    CHECK_OK(metrics_sync(m));
    CHECK_OK(metrics_close(&m));
    list_files();
    CHECK_EQUAL(file_count, 1);
    read_events(files[0]);
    CHECK_EQUAL(event_count, 4);
    check_start(events, 0);
    CHECK(events[2].step == 0 && events[2].scalar_count == 1);
    CHECK(has_scalar(&events[2], "evaluate/loss", 2.5F));
    CHECK_EQUAL(events[3].step, (int64_t)1 << 40);
    CHECK_EQUAL(events[3].scalar_count, 6);
    CHECK(has_scalar(&events[3], "train/loss", 1.0F / 3.0F));
    CHECK(has_scalar(&events[3], "train/learning_rate", 0));
    CHECK(has_scalar(&events[3], "train/grad_norm", NAN));
    CHECK(has_scalar(&events[3], "train/tokens", 1000000000)); /* rounded to f32 */
    CHECK(has_scalar(&events[3], "train/perplexity", INFINITY));
    CHECK(has_scalar(&events[3], "train/deep.bytes", -7));
    for (int i = 0; i < event_count; i++) {
        CHECK(events[i].seconds >= before && events[i].seconds <= clock_epoch_seconds());
    }
}

/* Resumes after test_values, within the same second. The new file still sorts last, and it stores
 * the step from which it replaces the older file. */
static void test_resume(void)
{
    struct metrics *m = NULL;
    struct metric loss = metric_number("loss", 1);
    char old[FILE_PATH_BYTES], later[FILE_PATH_BYTES];
    snprintf(old, sizeof old, "%s", files[0]);
    int64_t old_bytes = file_size(old);
    open_metrics(6, &m);
    CHECK_OK(metrics_write(m, "train", 7, &loss, 1));
    CHECK_OK(metrics_close(&m));
    list_files();
    CHECK_EQUAL(file_count, 2);
    CHECK(strcmp(files[0], old) == 0 && file_size(old) == old_bytes);
    read_events(files[1]);
    CHECK_EQUAL(event_count, 3);
    check_start(events, 7);
    CHECK(events[2].step == 7 && has_scalar(&events[2], "train/loss", 1));
    /* The clock was set back: files with later times, and a file of another kind. */
    CHECK_OK(file_join(later, folder, "events.out.tfevents.8000000000.host.1"));
    CHECK_OK(file_write(later, "", 0));
    CHECK_OK(file_join(later, folder, "events.out.tfevents.99999999999999999999"));
    CHECK_OK(file_write(later, "", 0));
    CHECK_OK(file_join(later, folder, "zebra"));
    CHECK_OK(file_write(later, "", 0));
    open_metrics(8, &m);
    CHECK_OK(metrics_close(&m));
    list_files();
    CHECK_EQUAL(file_count, 6);
    CHECK(strstr(files[3], "/events.out.tfevents.8000000001.") != NULL);
    CHECK_OK(file_remove_tree(folder));
}

static void test_limits(void)
{
    struct tensorboard *t = NULL;
    struct metric fields[SCALARS_MAX + 1];
    char name[TENSORBOARD_TAG_BYTES];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1 - strlen("train/")] = '\0';
    for (int i = 0; i <= SCALARS_MAX; i++) {
        fields[i] = metric_number(name, i);
    }
    CHECK_OK(tensorboard_create(folder, INT64_MAX, &t));
    CHECK_OK(tensorboard_write(t, "train", 1, INT64_MAX, fields, SCALARS_MAX));
    CHECK_FAILS(tensorboard_write(t, "train", 1, 2, fields, SCALARS_MAX + 1), STATUS_INTERNAL,
                "257 fields");
    CHECK_FAILS(tensorboard_write(t, "train0", 1, 2, fields, 1), STATUS_INTERNAL, "too long");
    CHECK_OK(tensorboard_write(t, "train", 1, 2, fields, 0));
    CHECK_OK(tensorboard_destroy(&t));
    list_files();
    read_events(files[0]);
    CHECK_EQUAL(event_count, 3);
    check_start(events, INT64_MAX);
    CHECK_EQUAL(events[2].scalar_count, SCALARS_MAX);
    for (int i = 0; i < SCALARS_MAX; i++) {
        CHECK(strlen(events[2].scalars[i].tag) == 111 && events[2].scalars[i].value == (float)i);
    }
    CHECK_OK(file_remove_tree(folder));
}

/* If the disk has no space for a record, the write fails, and no part of the record remains. */
static void test_full_disk(void)
{
    struct metrics *m = NULL;
    struct tensorboard *t = NULL;
    struct rlimit old, small;
    struct metric loss = metric_number("loss", 1);
    CHECK_OK(metrics_open("/dev/null", -1, 0, &m)); /* only the event file fills the disk */
    CHECK_OK(metrics_add_tensorboard(m, folder));
    CHECK_OK(metrics_write(m, "train", 1, &loss, 1));
    list_files();
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    small = old;
    small.rlim_cur = (rlim_t)file_size(files[0]) + 20;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK_FAILS(metrics_write(m, "train", 2, &loss, 1), STATUS_WRITE, files[0]);
    small.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK_FAILS(tensorboard_create(folder, 0, &t), STATUS_WRITE, folder);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0 && t == NULL);
    CHECK_OK(metrics_write(m, "train", 3, &loss, 1));
    CHECK_OK(metrics_close(&m));
    list_files();
    CHECK_EQUAL(file_count, 1); /* a file that could not be created is removed */
    read_events(files[0]);
    CHECK_EQUAL(event_count, 4);
    CHECK(events[2].step == 1 && events[3].step == 3);
    CHECK_OK(file_remove_tree(folder));
    CHECK_OK(file_write(folder, "", 0));
    CHECK_FAILS(tensorboard_create(folder, 0, &t), STATUS_CREATE, folder);
    CHECK_OK(file_remove_tree(folder));
}

int main(void)
{
    snprintf(folder, sizeof folder, "test-tensorboard-%ld", (long)getpid());
    snprintf(metrics_path, sizeof metrics_path, "%s.jsonl", folder);
    test_crc();
    test_first_bytes();
    test_values();
    test_resume();
    test_limits();
    test_full_disk();
    CHECK_OK(file_remove_tree(metrics_path));
    return 0;
}
