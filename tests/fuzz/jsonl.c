/* Fuzz target: JSON Lines. The strict reader and the one that skips bad rows agree. */
#include "datasets/rows/jsonl.h"
#include "tests/fuzz/read_rows.h"

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return read_rows(jsonl_read, fuzz_write_file("rows.jsonl", data, bytes));
}
