#include "datasets/rows/columns.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum { NAMES_PRINTED = 12, LIST_BYTES = 1024 };

/* The fields that the objectives read. */
static const char *const fields[] = {
    "text",        "text_pair",  "label",   "labels",   "tokens",       "tags",
    "question",    "answer",     "context", "answers",  "answer_start", "choices",
    "prompt",      "completion", "chosen",  "rejected", "messages",     "conversations",
    "instruction", "input",      "output",  "source",   "target",       "translation"};

/* The field that several columns can form: each of them is an element of a list. */
static const char list_field[] = "choices";

static status check_field(const struct columns *c, const char *name)
{
    bool known = false;
    for (int i = 0; i < COUNT(fields); i++) {
        known = known || strcmp(fields[i], name) == 0;
    }
    int nearest = known ? -1 : text_nearest(name, fields, COUNT(fields));
    REQUIRE(known, STATUS_USAGE,
            "--columns: no objective reads a field '%s'%s%s%s; write FIELD=COLUMN, for example "
            "text=review,label=sentiment",
            name, nearest >= 0 ? " (did you mean '" : "", nearest >= 0 ? fields[nearest] : "",
            nearest >= 0 ? "'?)" : "");
    for (int i = 0; i < c->count; i++) {
        REQUIRE(strcmp(c->items[i].field, name) != 0 || strcmp(name, list_field) == 0, STATUS_USAGE,
                "--columns: the field '%s' is given twice", name);
    }
    return STATUS_OK;
}

/* Parses FIELD=COLUMN, which ends at a comma or at the end of the text. */
static status parse_item(struct columns *c, const char *item, size_t bytes)
{
    const char *equals = memchr(item, '=', bytes);
    size_t field = equals != NULL ? (size_t)(equals - item) : 0, column = bytes - field - 1;
    REQUIRE(equals != NULL && field > 0 && column > 0, STATUS_USAGE,
            "--columns: '%.*s' is not FIELD=COLUMN, for example text=review,label=sentiment",
            (int)bytes, item);
    REQUIRE(c->count < COLUMNS_MAX, STATUS_USAGE, "--columns: more than %d fields", COLUMNS_MAX);
    REQUIRE(field < COLUMNS_NAME_BYTES && column < COLUMNS_NAME_BYTES, STATUS_USAGE,
            "--columns: a name of more than %d bytes", COLUMNS_NAME_BYTES - 1);
    memcpy(c->items[c->count].field, item, field);
    memcpy(c->items[c->count].column, equals + 1, column);
    TRY(check_field(c, c->items[c->count].field));
    c->count++;
    return STATUS_OK;
}

status columns_parse(const char *text, struct columns *out)
{
    *out = (struct columns){0};
    for (bool more = true; more;) {
        size_t bytes = strcspn(text, ",");
        TRY(parse_item(out, text, bytes));
        more = text[bytes] == ',';
        text += bytes + more;
    }
    return STATUS_OK;
}

/* Raises the error of a missing field, with the names that the row has. */
static status raise_missing(const json_t *row, const char *field, const char *remedy)
{
    char list[LIST_BYTES] = "";
    size_t used = 0;
    int count = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, name, value)
    {
        if (count++ < NAMES_PRINTED && used < sizeof list) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s'%.40s'",
                                     used > 0 ? ", " : "", name);
        }
    }
    RAISE(STATUS_DATA, "no field '%s' (the row has %s%s%s)", field, count > 0 ? list : "no field",
          count > NAMES_PRINTED ? ", ..." : "", remedy);
}

status columns_raise_missing(const json_t *row, const char *field)
{
    return raise_missing(row, field, "; --columns FIELD=NAME selects another");
}

status columns_raise_unknown(const json_t *row, const char *field)
{
    return raise_missing(row, field, "");
}

/* Returns how many columns form the list of the mapping; 0 or 1: none. */
static int count_list_columns(const struct columns *c)
{
    int count = 0;
    for (int i = 0; i < c->count; i++) {
        count += strcmp(c->items[i].field, list_field) == 0;
    }
    return count;
}

/* Sets a field of the row to a value, or appends the value to the list. */
static int put_value(json_t *row, const char *field, json_t *value, json_t *list)
{
    return list != NULL && strcmp(field, list_field) == 0 ? json_array_append_new(list, value)
                                                          : json_object_set_new(row, field, value);
}

status columns_rename(const struct columns *c, json_t *row)
{
    json_t *values[COLUMNS_MAX];
    /* All reads before the first change: names can be swapped. */
    for (int i = 0; i < c->count; i++) {
        values[i] = json_object_get(row, c->items[i].column);
        TRY(values[i] != NULL ? STATUS_OK : columns_raise_missing(row, c->items[i].column));
    }
    for (int i = 0; i < c->count; i++) {
        json_incref(values[i]);
    }
    json_t *list = count_list_columns(c) > 1 ? json_array() : NULL;
    int failed = 0;
    for (int i = 0; i < c->count; i++) {
        failed |= put_value(row, c->items[i].field, values[i], list);
    }
    failed |= list != NULL ? json_object_set_new(row, list_field, list) : 0;
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for the fields of a row");
    return STATUS_OK;
}
