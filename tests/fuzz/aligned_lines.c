/* Fuzz target: two aligned files of texts (`prepare --source FILE --target FILE`), the two parts of
 * the input. */
#include "datasets/rows/aligned_lines.h"
#include "tests/fuzz/read_rows.h"

static const char *target;

static status read_lines(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                         status (*use)(void *user, struct jsonl_row *row), void *user)
{
    return aligned_lines_read(path, target, bad, bytes, use, user);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct fuzz_part first = fuzz_next_part(&data, &bytes);
    target = fuzz_write_file("target.txt", data, bytes);
    return read_rows(read_lines, fuzz_write_file("source.txt", first.data, first.bytes));
}
