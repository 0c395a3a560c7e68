/* Fuzz target: the manifest of a checkpoint. The digest at its end is corrected, so that the input
 * reaches the parser. A manifest that is accepted reads back from its text. */
#include <stdlib.h>

#include "tests/fuzz/sign_manifest.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 200};

static status check_round_trip(const struct manifest *m)
{
    char *text = NULL, reason[MANIFEST_REASON_BYTES];
    size_t bytes = 0;
    struct manifest again = {0};
    TRY(manifest_to_text(m, &text, &bytes));
    bool good = manifest_parse(text, bytes, &again, reason);
    free(text);
    fuzz_require(good && again.tensor_count == m->tensor_count, "a manifest reads back");
    manifest_destroy(&again);
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    char reason[MANIFEST_REASON_BYTES] = "";
    struct manifest m = {0};
    size_t signed_bytes = 0;
    char *text = sign_manifest(data, bytes, &signed_bytes);
    bool good = manifest_parse(text, signed_bytes, &m, reason);
    fuzz_require(good || status_pending()->code == STATUS_OK, "a fault is no pending status");
    status result = good ? check_round_trip(&m) : RAISE_STATUS(STATUS_CHECKPOINT, "%s", reason);
    manifest_destroy(&m);
    free(text);
    return result;
}
