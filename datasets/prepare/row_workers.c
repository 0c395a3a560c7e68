/* The calling thread reads rows, and worker threads encode them. The calling thread writes the
 * examples and reports bad rows, both in the order of the rows. */
#include "datasets/prepare/row_workers.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/thread/ordered_pool.h"
#include "datasets/prepare/output.h"

enum { SLOT_ROWS = 32, SLOT_FULL_BYTES = 64 << 10 };

struct row_entry {
    struct jsonl_row row;    /* value is owned; NULL: the reader rejected the row */
    struct status_note note; /* reason of a bad row */
    struct rows_example example;
};

struct row_slot {
    int count;
    size_t bytes; /* in the file, of all rows */
    struct row_entry entries[SLOT_ROWS];
};

struct row_workers {
    struct rows_preparation *preparation;
    struct jsonl_bad_rows *bad_rows;
    struct ordered_pool *pool;
};

static void encode_row_entry(const struct row_workers *w, struct row_entry *e)
{
    struct rows_example *x = &e->example;
    x->text.ids.count = x->text.loss_mask.count = 0;
    x->longest_tokens = x->learned_tokens = 0;
    x->overlong = x->is_plain = false;
    if (w->preparation->encode_row(w->preparation->options, e->row.value, x) != STATUS_OK) {
        status_take(&e->note);
    }
    json_decref(e->row.value);
    e->row.value = NULL;
}

static void encode_slot(void *workers, void *slot)
{
    struct row_slot *s = slot;
    for (int i = 0; i < s->count; i++) {
        if (s->entries[i].row.value != NULL) {
            encode_row_entry(workers, &s->entries[i]);
        }
    }
}

static status write_row_entry(const struct row_workers *w, const struct row_entry *e)
{
    const struct rows_example *x = &e->example;
    struct prepare_report *report = w->preparation->report;
    if (e->note.code != STATUS_OK) {
        status_restore(&e->note);
        return e->note.code == STATUS_DATA
                   ? jsonl_report_bad_row(w->bad_rows, e->row.path, e->row.line)
                   : e->note.code;
    }
    report->longest_tokens = number_max(report->longest_tokens, x->longest_tokens);
    report->learned_tokens += x->learned_tokens;
    report->overlong_rows += x->overlong;
    report->plain_rows += x->is_plain;
    report->examples++;
    w->bad_rows->has_good_row = true;
    enum prepare_split split = row_split_choose(&w->preparation->split, 0);
    return prepare_output_write_example(w->preparation->output, split, x->text.ids.ids,
                                        x->text.ids.count, x->values);
}

static status write_slot(void *workers, void *slot)
{
    struct row_slot *s = slot;
    for (int i = 0; i < s->count; i++) {
        TRY(write_row_entry(workers, &s->entries[i]));
    }
    s->count = 0;
    s->bytes = 0;
    return STATUS_OK;
}

static void close_slot(void *slot)
{
    struct row_slot *s = slot;
    for (int i = 0; i < SLOT_ROWS; i++) {
        struct rows_example *x = &s->entries[i].example;
        json_decref(s->entries[i].row.value);
        chat_text_free(&x->text);
        chat_text_free(&x->prompt);
        chat_text_free(&x->chosen);
        chat_text_free(&x->rejected);
    }
}

status row_workers_open(struct rows_preparation *p, struct jsonl_bad_rows *bad_rows,
                        struct row_workers **out)
{
    static const struct ordered_pool_callbacks encoding = {sizeof(struct row_slot), NULL,
                                                           encode_slot, write_slot, close_slot};
    *out = NULL;
    struct row_workers *w = NULL;
    TRY(ALLOCATE(w, 1, "encoding threads"));
    *w = (struct row_workers){.preparation = p, .bad_rows = bad_rows};
    status result = ordered_pool_open(&encoding, w, p->options->workers, &w->pool);
    if (result != STATUS_OK) {
        row_workers_close(&w);
        return result;
    }
    *out = w;
    return STATUS_OK;
}

/* Returns the next free entry, without an error. */
static struct row_entry *next_entry(struct row_workers *w, size_t bytes)
{
    struct row_slot *s = ordered_pool_slot(w->pool);
    struct row_entry *e = &s->entries[s->count++];
    s->bytes += bytes;
    e->note.code = STATUS_OK;
    return e;
}

static status submit_if_full(struct row_workers *w)
{
    const struct row_slot *s = ordered_pool_slot(w->pool);
    bool full = s->count == SLOT_ROWS || s->bytes >= SLOT_FULL_BYTES;
    return full ? ordered_pool_submit(w->pool) : STATUS_OK;
}

status row_workers_add(void *workers, struct jsonl_row *row)
{
    struct row_entry *e = next_entry(workers, row->bytes);
    e->row = *row;
    row->value = NULL;
    row->fatal = true; /* errors from here on belong to earlier rows */
    return submit_if_full(workers);
}

status row_workers_defer(void *workers, const char *path, int64_t line)
{
    struct row_entry *e = next_entry(workers, 0);
    e->row = (struct jsonl_row){.path = path, .line = line};
    status_take(&e->note);
    return submit_if_full(workers);
}

status row_workers_drain(struct row_workers *w)
{
    const struct row_slot *s = ordered_pool_slot(w->pool);
    TRY(s->count > 0 ? ordered_pool_submit(w->pool) : STATUS_OK);
    return ordered_pool_drain(w->pool);
}

void row_workers_close(struct row_workers **workers)
{
    if (*workers != NULL) {
        ordered_pool_close(&(*workers)->pool);
        free(*workers);
        *workers = NULL;
    }
}
