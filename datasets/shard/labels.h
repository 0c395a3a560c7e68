/* Names of labels, in the order of their numbers: in the attribute `labels` of shards, and in labels.json beside a
 * checkpoint's tokenizer, as a JSON array of texts. */
#pragma once

#include <stdbool.h>

#include <jansson.h>

#include "base/hash.h"
#include "base/status.h"

#define LABELS_FILE "labels.json"
enum { LABELS_MAX = 10000, LABELS_TEXT_BYTES = 60000 }; /* what an attribute holds */

struct labels {
    int count;
    const char **names; /* [count] of the index */
    json_t *index;      /* name -> its number */
};

void labels_free(struct labels *labels);

/* labels_add - a name behind the others, unless it is there.
 *
 * Errors    STATUS_DATA: empty, or too many */
status labels_add(struct labels *labels, const char *name);

/* labels_find - the number of a name; -1: there is none. */
int labels_find(const struct labels *labels, const char *name);

/* labels_sort - by value where all are integers, else by their bytes. */
status labels_sort(struct labels *labels);

/* labels_parse - "a,b,c", or a file with a name a line where the text is the path of one.
 *
 * Errors    STATUS_USAGE, STATUS_DATA */
status labels_parse(const char *text, struct labels *out);

/* labels_write - as a JSON array; *out is the caller's, for free().  Errors: STATUS_DATA: longer than shards can hold */
status labels_write(const struct labels *labels, char **out);

/* labels_read_text - from such an array.  where: for messages.  Errors: STATUS_DATA */
status labels_read_text(const char *text, const char *where, struct labels *out);

/* labels_hash - the SHA-256 by which equal lists are known, however the array is written.  Errors: STATUS_DATA */
status labels_hash(const char *text, char out[HASH_TEXT_BYTES]);

/* labels_read - from folder/labels.json; count is 0 where there is no such file.  Errors: STATUS_DATA */
status labels_read(const char *folder, struct labels *out);
