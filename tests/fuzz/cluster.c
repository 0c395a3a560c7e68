/* Fuzz target: cluster descriptions. */
#include "trainer/train/planner/cluster.h"
#include "tests/fuzz/fuzz.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 64};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct cluster cluster;
    return cluster_read(fuzz_write_file("cluster.yaml", data, bytes), &cluster);
}
