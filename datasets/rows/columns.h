/* Names of columns: --columns text=review,label=sentiment maps the columns of a file to fields. */
#pragma once

#include <jansson.h>

#include "base/status.h"

enum { COLUMNS_MAX = 16, COLUMNS_NAME_BYTES = 128 };

/* The mapping of all zeros changes nothing. */
struct columns {
    int count;
    struct {
        char field[COLUMNS_NAME_BYTES];  /* name that an objective reads */
        char column[COLUMNS_NAME_BYTES]; /* name in the file */
    } items[COLUMNS_MAX];
};

/* columns_parse - parse "FIELD=COLUMN,FIELD=COLUMN". The field "choices" can be given several
 * times: its columns are the elements of a list.
 *
 * Errors    STATUS_USAGE: no "=", an unknown field (with the most similar one), a field given
 *           twice, or too many */
status columns_parse(const char *text, struct columns *out);

/* columns_rename - add to a row the fields of the mapping, with the values of their columns. A
 * column keeps its own name too, unless another column gets this name.
 *
 * Errors    STATUS_DATA: a column is missing, with the names that the row has */
status columns_rename(const struct columns *columns, json_t *row);

/* columns_raise_missing - raise STATUS_DATA for a missing field, with the names that the row has.
 * `field` is a name, or several with text between them. */
status columns_raise_missing(const json_t *row, const char *field);

/* columns_raise_unknown - raise the same error for a field that --columns cannot map. */
status columns_raise_unknown(const json_t *row, const char *field);
