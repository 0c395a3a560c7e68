/* Fuzz target: the bytes of an NVIDIA shard. Files in the oldest format of HDF5 are left out:
 * damage to their metadata, which has no checksums, can crash HDF5 1.10 itself. */
#include "tests/fuzz/read_nvidia_shard.h"

enum { VERSION_BYTE = 8 }; /* of the superblock */

/* Deflate may expand a byte to 1032, which are stored as int32, and the six datasets may be links
 * to one. */
const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 6 * 1032 * 4};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    if (bytes > VERSION_BYTE && data[VERSION_BYTE] < 2) {
        return STATUS_OK;
    }
    return read_nvidia_shard(fuzz_write_file("shard.hdf5", data, bytes));
}
