#include "datasets/shard/labels.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

void labels_free(struct labels *labels)
{
    free(labels->names);
    json_decref(labels->index);
    *labels = (struct labels){0};
}

int labels_find(const struct labels *labels, const char *name)
{
    const json_t *number = json_object_get(labels->index, name);
    return number != NULL ? (int)json_integer_value(number) : -1;
}

static status allocate_index(struct labels *labels)
{
    labels->index = labels->index != NULL ? labels->index : json_object();
    REQUIRE(labels->index != NULL, STATUS_INTERNAL, "out of memory for label names");
    return labels->names != NULL ? STATUS_OK : ALLOCATE(labels->names, LABELS_MAX, "label names");
}

status labels_add(struct labels *labels, const char *name)
{
    TRY(allocate_index(labels));
    if (labels_find(labels, name) >= 0) {
        return STATUS_OK;
    }
    REQUIRE(name[0] != '\0', STATUS_DATA, "a label is empty; give each row or line a label");
    REQUIRE(labels->count < LABELS_MAX, STATUS_DATA,
            "more than %d labels; for numeric targets use --objective regress", LABELS_MAX);
    int failed = json_object_set_new(labels->index, name, json_integer(labels->count));
    void *iterator = failed == 0 ? json_object_iter_at(labels->index, name) : NULL;
    REQUIRE(iterator != NULL, STATUS_DATA, "a label is not valid UTF-8; convert the file to UTF-8");
    labels->names[labels->count++] = json_object_iter_key(iterator);
    return STATUS_OK;
}

static bool is_integer(const char *name, int64_t *value)
{
    char reason[TEXT_REASON_BYTES];
    return text_to_integer(name, value, reason);
}

static int compare_values(const void *a, const void *b)
{
    int64_t first = 0, second = 0;
    (void)is_integer(*(const char *const *)a, &first);
    (void)is_integer(*(const char *const *)b, &second);
    return (first > second) - (first < second);
}

static int compare_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

status labels_sort(struct labels *labels)
{
    bool integers = true;
    for (int i = 0; i < labels->count; i++) {
        int64_t value;
        integers = integers && is_integer(labels->names[i], &value);
    }
    if (labels->count > 0) {
        qsort(labels->names, (size_t)labels->count, sizeof *labels->names,
              integers ? compare_values : compare_bytes);
    }
    for (int i = 0; i < labels->count; i++) {
        json_integer_set(json_object_get(labels->index, labels->names[i]), i);
    }
    return STATUS_OK;
}

/* ---- command line ---- */

static status add_words(struct labels *out, char *text, const char *separators)
{
    char *rest = text;
    for (char *word; (word = strsep(&rest, separators)) != NULL;) {
        TRY(word[0] != '\0' ? labels_add(out, word) : STATUS_OK);
    }
    REQUIRE(out->count > 0, STATUS_USAGE, "--labels contains no label");
    return STATUS_OK;
}

status labels_parse(const char *text, struct labels *out)
{
    *out = (struct labels){0};
    char *copy = NULL;
    size_t bytes = 0;
    bool file = file_exists(text), is_json = file && text_has_suffix(text, LABELS_FILE);
    if (file) {
        TRY(file_read(text, LABELS_TEXT_BYTES, &copy, &bytes));
    } else {
        TRY(memory_copy_text(&copy, text, "label names"));
    }
    status result =
        is_json ? labels_parse_json(copy, text, out) : add_words(out, copy, file ? "\r\n" : ",");
    free(copy);
    if (result != STATUS_OK) {
        labels_free(out);
    }
    return result;
}

/* ---- files ---- */

status labels_to_json(const struct labels *labels, char **out)
{
    json_t *array = json_array();
    int failed = array == NULL;
    for (int i = 0; i < labels->count && failed == 0; i++) {
        failed = json_array_append_new(array, json_string(labels->names[i]));
    }
    *out = failed == 0 ? json_dumps(array, JSON_ENSURE_ASCII) : NULL;
    json_decref(array);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for label names");
    if (strlen(*out) >= LABELS_TEXT_BYTES) {
        free(*out);
        *out = NULL;
        RAISE(STATUS_DATA, "the names of %d labels have more than %d bytes in total; shorten them",
              labels->count, LABELS_TEXT_BYTES);
    }
    return STATUS_OK;
}

static status add_names(const json_t *array, const char *where, struct labels *out)
{
    REQUIRE(json_is_array(array), STATUS_DATA, "%s: the labels are not a JSON array", where);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const char *name = json_string_value(json_array_get(array, i));
        REQUIRE(name != NULL, STATUS_DATA, "%s: label %zu is not a string", where, i);
        TRY(labels_add(out, name));
        REQUIRE((size_t)out->count == i + 1, STATUS_DATA, "%s: the label '%.200s' occurs twice",
                where, name);
    }
    return STATUS_OK;
}

status labels_parse_json(const char *text, const char *where, struct labels *out)
{
    json_error_t error;
    *out = (struct labels){0};
    json_t *array = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(array != NULL, STATUS_DATA, "%s: the labels are not valid JSON: %s", where, error.text);
    status result = add_names(array, where, out);
    json_decref(array);
    if (result != STATUS_OK) {
        labels_free(out);
    }
    return result;
}

status labels_read(const char *folder, struct labels *out)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    *out = (struct labels){0};
    TRY(file_join(path, folder, LABELS_FILE));
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(file_read(path, LABELS_TEXT_BYTES, &text, &bytes));
    status result = labels_parse_json(text, path, out);
    free(text);
    return result;
}

status labels_hash(const char *text, char out[HASH_TEXT_BYTES])
{
    struct labels labels;
    char *canonical = NULL;
    TRY(labels_parse_json(text, "label names", &labels));
    status result = labels_to_json(&labels, &canonical);
    if (result == STATUS_OK) {
        result = hash_memory(canonical, strlen(canonical), out);
    }
    free(canonical);
    labels_free(&labels);
    return result;
}
