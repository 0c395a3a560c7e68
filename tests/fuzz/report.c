/* Fuzz target: the page and the picture of `bireme report` for a run folder. */
#include <string.h>

#include "tests/fuzz/read_run.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 400};

/* The texts of a run must not become elements of the page. */
static void check_page(const char *text, size_t bytes)
{
    require_no_controls(text, bytes);
    fuzz_require(strlen(text) == bytes, "the page contains no NUL");
    fuzz_require(strstr(text, "<fuzz") == NULL, "texts of the run are escaped");
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct history *run = calloc(1, sizeof *run);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    fuzz_require(run != NULL && file != NULL, "the test has memory");
    status result = read_run(data, bytes, run);
    if (result == STATUS_OK) {
        report_write_page(run, 1, file);
        result = report_write_plot(run, 1, "loss", file);
    }
    fclose(file);
    check_page(text, length);
    history_free(run);
    free(run);
    free(text);
    return result;
}
