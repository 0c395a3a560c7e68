/* Fuzz target: compressed inputs (zlib and libarchive). Reads of one byte and of a block give the
 * same data. At most 1 MiB is read: a small file can expand without end. */
#include <string.h>

#include "base/input/input.h"
#include "tests/fuzz/fuzz.h"

/* libarchive and liblzma allocate windows that do not depend on the size of the file. */
const struct fuzz_limits fuzz_limits = {.bytes = (size_t)1200 << 20, .factor = 64};

enum { READ_MAX = 1 << 20 };

static status read_all(const char *path, size_t piece, unsigned char *out, size_t *used)
{
    struct input in;
    size_t got = 1;
    *used = 0;
    TRY(input_open(path, &in));
    status result = STATUS_OK;
    while (got > 0 && *used < READ_MAX && result == STATUS_OK) {
        size_t left = READ_MAX - *used;
        result = input_read(&in, out + *used, piece < left ? piece : left, &got);
        *used += result == STATUS_OK ? got : 0;
    }
    input_close(&in);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static unsigned char whole[READ_MAX], pieces[READ_MAX];
    size_t whole_bytes = 0, piece_bytes = 0;
    const char *path = fuzz_write_file("packed", data, bytes);
    status result = read_all(path, READ_MAX, whole, &whole_bytes);
    struct status_note first;
    status_take(&first);
    status other = read_all(path, 251, pieces, &piece_bytes);
    fuzz_require(result == other, "the size of the reads does not change the status");
    status_clear();
    fuzz_require(result != STATUS_OK || whole_bytes == piece_bytes,
                 "the size of the reads does not change the length");
    fuzz_require(result != STATUS_OK || memcmp(whole, pieces, whole_bytes) == 0,
                 "the size of the reads does not change the data");
    return status_restore(&first);
}
