/* Fuzz target: the curve of `bireme inspect --plot` for a run folder, in characters. */
#include "tests/fuzz/read_run.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 400};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct history *run = calloc(1, sizeof *run);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    fuzz_require(run != NULL && file != NULL, "the test has memory");
    status result = read_run(data, bytes, run);
    if (result == STATUS_OK) {
        result = report_write_text(run, "loss", 20 + (int)(bytes % 100), file);
    }
    fclose(file);
    require_no_controls(text, length);
    history_free(run);
    free(run);
    free(text);
    return result;
}
