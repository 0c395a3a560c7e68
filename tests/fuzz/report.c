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

static status write_page_and_plot(const struct history *run, size_t bytes, FILE *file)
{
    (void)bytes;
    report_write_page(run, 1, file);
    return report_write_plot(run, 1, "loss", file);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return write_run(data, bytes, write_page_and_plot, check_page);
}
