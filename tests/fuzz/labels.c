/* Fuzz target: the labels of a checkpoint and of the option --labels. The first byte selects a file
 * with one label per line, or labels.json. Labels that are accepted read back equal. */
#include <stdlib.h>
#include <string.h>

#include "datasets/shard/labels.h"
#include "tests/fuzz/fuzz.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 400};

static void check_round_trip(const struct labels *labels)
{
    char *text = NULL;
    struct labels again = {0};
    status result = labels_to_json(labels, &text);
    if (result == STATUS_OK) { /* otherwise the names are too long for a shard */
        fuzz_require(labels_parse_json(text, LABELS_FILE, &again) == STATUS_OK &&
                         again.count == labels->count,
                     "labels that were written can be read");
    }
    for (int i = 0; i < again.count; i++) {
        fuzz_require(strcmp(again.names[i], labels->names[i]) == 0 &&
                         labels_find(&again, labels->names[i]) == i,
                     "labels read back equal");
    }
    status_clear();
    labels_free(&again);
    free(text);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    bool is_list = bytes > 0 && *data == 'L';
    struct labels labels = {0};
    const char *path =
        fuzz_write_file(is_list ? "labels.txt" : LABELS_FILE, data + is_list, bytes - is_list);
    status result = is_list ? labels_parse(path, &labels) : labels_read(fuzz_folder(), &labels);
    if (result == STATUS_OK) {
        check_round_trip(&labels);
        result = labels_sort(&labels);
    }
    labels_free(&labels);
    return result;
}
