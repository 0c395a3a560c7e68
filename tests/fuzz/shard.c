/* Fuzz target: the bytes of a shard. Checksums protect nearly all of them, so most inputs end
 * early; shard_values.c reaches the checks of the values. */
#include "tests/fuzz/read_shard.h"

const struct fuzz_limits fuzz_limits = {.bytes = 4 << 20, .factor = 100};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return read_shard(fuzz_write_file("shard.h5", data, bytes));
}
