/* Fuzz target: texts for the commands that use a model, such as `classify --columns`. The first
 * byte selects the name of the file and the fields of a row; the rest is the file. */
#include "datasets/rows/text_lines.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

const struct fuzz_limits fuzz_limits = {.bytes = 4 << 20, .factor = 200};

enum { NAMES = 4, COLUMNS = 4, PAIR = 8, LIST = 16 };

static status check_text(void *user, const char *text, size_t bytes, const char *second)
{
    int64_t *total = user;
    fuzz_require(text[bytes] == '\0', "a text ends with NUL");
    *total += (int64_t)(bytes + (second != NULL ? strlen(second) : 0));
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static const char *const names[NAMES] = {"x.txt", "x.jsonl", "x.csv", "x.tsv"};
    uint8_t choice = bytes > 0 ? *data : 0;
    int64_t total = 0;
    const struct text_lines source = {
        .path = fuzz_write_file(names[choice % NAMES], data + (bytes > 0), bytes - (bytes > 0)),
        .columns = (choice & COLUMNS) != 0 ? "text=a,text_pair=b" : NULL,
        .field = "text",
        .second = (choice & PAIR) != 0 ? "text_pair" : NULL,
        .list = (choice & LIST) != 0 ? "choices" : NULL};
    return text_lines_read(&source, check_text, &total);
}
