/* Fuzz target: the lines of metrics.jsonl that a resumed run keeps. Reading them again drops no
 * further line. */
#include "trainer/logging/metrics.h"
#include "base/file.h"
#include "tests/fuzz/fuzz.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 200};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_write_file("metrics.jsonl", data, bytes);
    struct metrics *m = NULL;
    TRY(metrics_open(path, 3, 0, &m));
    TRY(metrics_close(&m));
    int64_t kept = file_size(path);
    TRY(metrics_open(path, 3, 0, &m));
    fuzz_require(kept == file_size(path), "lines that were kept are kept again");
    return metrics_close(&m);
}
