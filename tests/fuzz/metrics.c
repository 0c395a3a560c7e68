/* Fuzz target: the lines of metrics.jsonl that a resumed run keeps, and the best evaluation in
 * them. A second reading drops no further line. */
#include "trainer/logging/metrics.h"
#include "base/file.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/evaluation/early_stopping.h"

enum { STEP = 3 };

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 200};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_write_file("metrics.jsonl", data, bytes);
    const struct early_stopping_rule rule = {.metric = "loss", .patience = 2};
    struct early_stopping best;
    struct metrics *m = NULL;
    TRY(metrics_open(path, STEP, 0, &m));
    TRY(metrics_close(&m));
    int64_t kept = file_size(path);
    TRY(metrics_open(path, STEP, 0, &m));
    fuzz_require(kept == file_size(path), "lines that were kept are kept again");
    TRY(metrics_close(&m));
    TRY(early_stopping_restore(&rule, path, STEP, &best));
    fuzz_require(best.patience_counter >= 0 && (!best.has_value || best.step <= STEP),
                 "the best evaluation is not after the step of the checkpoint");
    return STATUS_OK;
}
