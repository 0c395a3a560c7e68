/* Fuzz target: SQuAD's own JSON. The strict reader and the one that skips bad questions agree. */
#include "datasets/rows/squad.h"
#include "tests/fuzz/read_rows.h"

static status read_squad(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                         status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct file_reader r;
    bool is_squad;
    TRY(file_reader_open(path, &r));
    status result = squad_detect(&r.input, &is_squad);
    if (result == STATUS_OK) {
        result = squad_read_open(&r, bad, bytes, use, user);
    }
    file_reader_close(&r);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return read_rows(read_squad, fuzz_write_file("squad.json", data, bytes));
}
