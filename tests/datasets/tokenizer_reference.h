/* Files of tests/reference/tokenizer, and comparisons with the ids that they contain. */
#pragma once

#include <jansson.h>

#include "datasets/tokenizer/tokenizer.h"
#include "tests/datasets/folder.h"

/* reference_path - return the path of a file of tests/reference/tokenizer; it stays valid until the
 * program exits. */
static inline char *reference_path(const char *name)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    CHECK(source != NULL);
    return folder_join(folder_join(source, "tests/reference/tokenizer"), name);
}

/* reference_check_ids - compare the ids of a text with the ids of the Python package. */
static inline void reference_check_ids(const char *tokenizer, const char *text,
                                       const struct token_list *ids, const json_t *expected)
{
    bool equal = (size_t)ids->count == json_array_size(expected);
    for (int64_t i = 0; i < ids->count && equal; i++) {
        equal = ids->ids[i] == json_integer_value(json_array_get(expected, (size_t)i));
    }
    if (!equal) {
        fprintf(stderr, "%s: the ids of the text '%.80s' are wrong:", tokenizer, text);
        for (int64_t i = 0; i < ids->count; i++) {
            fprintf(stderr, " %d", ids->ids[i]);
        }
        fprintf(stderr, "\n");
        exit(1);
    }
}
