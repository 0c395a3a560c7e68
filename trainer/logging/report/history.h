/* The history of a run, read from metrics.jsonl and recipe.yaml of its folder. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"

/* The values of one field over the steps of a run. Values that are null in the file are missing. */
struct history_series {
    char *name;
    int64_t count, capacity;
    double *steps, *values; /* [count] each; steps increase */
};

struct history_table {
    int count;
    int64_t capacity;
    struct history_series *series; /* [count], in the order of their first values */
};

struct history {
    char name[FILE_PATH_BYTES];           /* path of the folder without trailing slashes */
    struct history_table train, evaluate; /* numbers of the "train" and "evaluate" lines */
    json_t *start, *end;                  /* last line of each event; JSON null: none */
    json_t *first_evaluate, *last_evaluate;
    json_t *warnings;  /* array of all lines of this event */
    json_t *samples;   /* the same */
    json_t *settings;  /* object {key: value}; JSON null without recipe.yaml */
    double start_time; /* seconds since the epoch, of the first line; 0: no lines */
    int64_t last_step;
    int sessions;             /* number of starts and resumes */
    double predicted_seconds; /* time of a step, set by the caller of history_read; 0: unknown */
};

/* history_read - read a run folder.
 *
 * Lines that are incomplete or damaged are skipped, so that the folder of a running or killed job
 * can be read. An unreadable recipe.yaml leaves settings null.
 *
 * Memory    the caller calls history_free, also after an error
 * Errors    STATUS_NO_INPUT if the folder has no metrics.jsonl; STATUS_PERMISSION; STATUS_DATA;
 *           STATUS_INTERNAL out of memory */
status history_read(const char *folder, struct history *out);

/* history_free - free the members of h. */
void history_free(struct history *h);

/* history_find - return the series with this name; NULL if there is none. */
const struct history_series *history_find(const struct history_table *table, const char *name);
