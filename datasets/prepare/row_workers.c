/* Rows to examples by several threads, in order: slots of rows go round a ring (prepare_ring.c).
 *
 * The calling thread reads rows, which a worker takes as JSON and encodes; whether a row is used or refused, and what is
 * told of it, is settled by the calling thread in the rows' order. */
#include <stdlib.h>

#include "datasets/prepare/input.h"

enum { SLOT_ROWS = 32, SLOT_FULL_BYTES = 64 << 10 };

struct crew_entry {
    struct jsonl_row row;    /* its value is ours; NULL: refused by the reader already */
    struct status_note note; /* why it cannot be used */
    struct row_example example;
};

struct crew_slot {
    int count;
    size_t bytes;
    struct crew_entry entry[SLOT_ROWS];
};

struct crew {
    const struct row_preparation *p;
    struct jsonl_bad *bad;
    struct ring *ring;
};

static void encode_entry(const struct crew *c, struct crew_entry *e)
{
    struct row_example *x = &e->example;
    x->text.ids.count = x->text.marks.count = 0;
    x->longest = x->learned_tokens = 0;
    x->over_long = false;
    if (c->p->encode(c->p->options, e->row.value, x) != STATUS_OK) {
        status_take(&e->note);
    }
    json_decref(e->row.value);
    e->row.value = NULL;
}

static void encode_slot(void *crew, void *slot)
{
    struct crew_slot *s = slot;
    for (int i = 0; i < s->count; i++) {
        if (s->entry[i].row.value != NULL) {
            encode_entry(crew, &s->entry[i]);
        }
    }
}

static status write_entry(const struct crew *c, const struct crew_entry *e)
{
    const struct row_example *x = &e->example;
    struct prepare_report *report = c->p->report;
    if (e->note.code != STATUS_OK) {
        status_restore(&e->note);
        return e->note.code == STATUS_DATA ? jsonl_refuse(c->bad, e->row.path, e->row.line)
                                           : e->note.code;
    }
    report->longest = x->longest > report->longest ? x->longest : report->longest;
    report->learned_tokens += x->learned_tokens;
    report->over_long += x->over_long;
    report->examples++;
    return output_example(*c->p->output, *c->p->side, x->text.ids.ids, x->text.ids.count,
                          x->values);
}

static status write_slot(void *crew, void *slot)
{
    struct crew_slot *s = slot;
    for (int i = 0; i < s->count; i++) {
        TRY(write_entry(crew, &s->entry[i]));
    }
    s->count = 0;
    s->bytes = 0;
    return STATUS_OK;
}

static void close_slot(void *slot)
{
    struct crew_slot *s = slot;
    for (int i = 0; i < SLOT_ROWS; i++) {
        struct row_example *x = &s->entry[i].example;
        json_decref(s->entry[i].row.value);
        chat_text_free(&x->text);
        chat_text_free(&x->prompt);
        chat_text_free(&x->chosen);
        chat_text_free(&x->rejected);
    }
}

status crew_open(const struct row_preparation *p, struct jsonl_bad *bad, struct crew **out)
{
    static const struct ring_work encoding = {sizeof(struct crew_slot), NULL, encode_slot,
                                              write_slot, close_slot};
    *out = NULL;
    struct crew *c = calloc(1, sizeof *c);
    REQUIRE(c != NULL, STATUS_INTERNAL, "out of memory: encoding threads");
    *c = (struct crew){.p = p, .bad = bad};
    status result = ring_open(&encoding, c, p->options->workers, &c->ring);
    if (result != STATUS_OK) {
        crew_close(&c);
        return result;
    }
    *out = c;
    return STATUS_OK;
}

/* The next free entry, with nothing known of it. */
static struct crew_entry *next_entry(struct crew *c, size_t bytes)
{
    struct crew_slot *s = ring_slot(c->ring);
    struct crew_entry *e = &s->entry[s->count++];
    s->bytes += bytes;
    e->note.code = STATUS_OK;
    return e;
}

static status submit_full(struct crew *c)
{
    const struct crew_slot *s = ring_slot(c->ring);
    bool full = s->count == SLOT_ROWS || s->bytes >= SLOT_FULL_BYTES;
    return full ? ring_submit(c->ring) : STATUS_OK;
}

status crew_row(void *crew, struct jsonl_row *row)
{
    struct crew_entry *e = next_entry(crew, row->bytes);
    e->row = *row;
    row->value = NULL;
    row->blameless = true; /* what comes back from here on is of an earlier row */
    return submit_full(crew);
}

status crew_keep(void *crew, const char *path, int64_t line)
{
    struct crew_entry *e = next_entry(crew, 0);
    e->row = (struct jsonl_row){.path = path, .line = line};
    status_take(&e->note);
    return submit_full(crew);
}

status crew_drain(struct crew *c)
{
    const struct crew_slot *s = ring_slot(c->ring);
    TRY(s->count > 0 ? ring_submit(c->ring) : STATUS_OK);
    return ring_drain(c->ring);
}

void crew_close(struct crew **crew)
{
    if (*crew != NULL) {
        ring_close(&(*crew)->ring);
        free(*crew);
        *crew = NULL;
    }
}
