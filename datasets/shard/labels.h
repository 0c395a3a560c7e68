/* Label names of classification tasks, ordered by label number. Shards store them in the attribute
 * `labels`. A checkpoint stores them in labels.json, next to its tokenizer. Both are a JSON array
 * of strings.
 *
 * Calls     A list of zeros is empty. labels_add, labels_parse, labels_parse_json or labels_read
 *           fill it; labels_free releases it. */
#pragma once

#include <stdbool.h>

#include "base/hash.h"
#include "base/status.h"

#define LABELS_FILE "labels.json"
enum { LABELS_MAX = 10000, LABELS_TEXT_BYTES = 60000 }; /* an HDF5 attribute can store this much */

struct labels {
    int count;
    const char **names;   /* [count] strings owned by index */
    struct json_t *index; /* maps each name to its number */
};

/* labels_free - release all memory and set *labels to zeros. */
void labels_free(struct labels *labels);

/* labels_add - append a name, unless the list contains it already.
 *
 * Errors    STATUS_DATA: an empty name, or too many names */
status labels_add(struct labels *labels, const char *name);

/* labels_find - return the number of a name; -1 if the list does not contain it. */
int labels_find(const struct labels *labels, const char *name);

/* labels_sort - sort the names: by value if all are integers, otherwise by their bytes. */
status labels_sort(struct labels *labels);

/* labels_parse - parse the option --labels. It is a list "a,b,c", or the path of a file. The file
 * is LABELS_FILE of a checkpoint, or has another name and one label per line.
 *
 * Errors    STATUS_USAGE, STATUS_DATA */
status labels_parse(const char *text, struct labels *out);

/* labels_to_json - write the names as a JSON array.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_DATA if the array is longer than a shard can store */
status labels_to_json(const struct labels *labels, char **out);

/* labels_parse_json - read the names from a JSON array. `where` is the file, for error messages.
 *
 * Errors    STATUS_DATA */
status labels_parse_json(const char *text, const char *where, struct labels *out);

/* labels_hash - compute the SHA-256 of the names in a JSON array. Equal lists give equal hashes,
 * independent of the formatting of the array.
 *
 * Errors    STATUS_DATA */
status labels_hash(const char *text, char out[HASH_TEXT_BYTES]);

/* labels_read - read the names from folder/labels.json; count is 0 if the file does not exist.
 *
 * Errors    STATUS_DATA */
status labels_read(const char *folder, struct labels *out);
