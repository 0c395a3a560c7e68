/* Fuzz target: the curve of `bireme inspect --plot` for a run folder, in characters. */
#include "tests/fuzz/read_run.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 400};

static status write_curve(const struct history *run, size_t bytes, FILE *file)
{
    return report_write_text(run, "loss", 20 + (int)(bytes % 100), file);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return write_run(data, bytes, write_curve, require_no_controls);
}
