/* Reader of two aligned text files: line i of the second file belongs to line i of the first one,
 * as a translation or a summary. Each pair of lines becomes a row {"source": ..., "target": ...}.
 * The row callback is the same as for JSON Lines.
 *
 * Lines end with LF or CRLF. The text is UTF-8; a byte order mark at the beginning of a file
 * is skipped. */
#pragma once

#include "datasets/rows/jsonl.h"

/* aligned_lines_read - call `use` for every pair of lines, in order.
 *
 * A pair is bad if one of its lines is empty or not UTF-8, or if only one of the files has a line
 * with its number. It is also bad if `use` rejects it (see jsonl_read). Without bad->skip, the
 * first bad pair ends the read.
 *
 * Units     adds the sizes of both files in bytes to *bytes; row->path is source, row->line the
 *           number of the line in both files. An error names the file with the fault
 * Memory    two lines (at most 64 MiB each)
 * Errors    as jsonl_read, for either file */
status aligned_lines_read(const char *source, const char *target, struct jsonl_bad_rows *bad,
                          int64_t *bytes, status (*use)(void *user, struct jsonl_row *row),
                          void *user);
