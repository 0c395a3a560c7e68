/* Reads the members of a large JSON object and the items of its lists, one at a time. The memory
 * does not depend on their number. A tree of a whole header of safetensors would take up to 17
 * times the size of the header.
 *
 * A text from a foreign file is not trusted. The caller limits the size of each value.
 *
 * Calls     First call json_members_begin. Then call json_members_next for each member, and one
 *           function for its value: json_members_read, json_members_read_text or
 *           json_members_check_text. For a nested object, call json_members_begin instead. For a
 *           list, call json_members_begin_list, and json_members_next_item for each item. At the
 *           end call json_members_finish */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct json_t;

struct json_members {
    const char *source; /* for messages */
    char *text;         /* [bytes], borrowed; texts are decoded in place */
    size_t bytes;
    size_t at;             /* position of the next byte */
    bool is_after_a_value; /* of the current object or list */
};

/* json_members_begin - read the start of an object, which is the whole text or a value.
 *
 * Errors    STATUS_DATA naming source and position, as of all functions here */
status json_members_begin(struct json_members *m);

/* json_members_next - read the name of the next member. *name is NULL at the end of the object.
 *
 * Memory    *name points into the text */
status json_members_next(struct json_members *m, char **name);

/* json_members_read - read any value of at most limit_bytes.
 *
 * Memory    the caller releases *out with json_decref */
status json_members_read(struct json_members *m, size_t limit_bytes, struct json_t **out);

/* json_members_read_text - read a value that is a text.
 *
 * Memory    *out points into the text */
status json_members_read_text(struct json_members *m, char **out);

/* json_members_read_integer - read any value. *is_integer is true if it is a 64-bit integer. */
status json_members_read_integer(struct json_members *m, int64_t *out, bool *is_integer);

/* json_members_begin_list - read the start of a list. */
status json_members_begin_list(struct json_members *m);

/* json_members_next_item - go to the next item of a list. *has_item is false at the end of the
 * list. */
status json_members_next_item(struct json_members *m, bool *has_item);

/* json_members_skip_list - skip a list, and return its position. To read the list later, set m->at
 * to this position. Only the texts and the number of brackets are checked, so the caller must read
 * the list before it accepts the file. */
status json_members_skip_list(struct json_members *m, size_t *begin);

/* json_members_check_text - check a value that is a text of any size, without decoding it. */
status json_members_check_text(struct json_members *m);

/* json_members_is_next - return whether the next value or name begins with this character. */
bool json_members_is_next(struct json_members *m, char first);

/* json_members_finish - check that nothing follows the object. */
status json_members_finish(struct json_members *m);
