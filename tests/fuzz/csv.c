/* Fuzz target: CSV. The strict reader and the one that skips bad rows agree. */
#include "datasets/rows/csv.h"
#include "tests/fuzz/read_rows.h"

status fuzz_read(const uint8_t *data, size_t bytes)
{
    return read_rows(csv_read, fuzz_write_file("rows.csv", data, bytes));
}
