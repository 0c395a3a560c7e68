#include "datasets/rows/file_reader.h"

#include "base/log.h"

status file_reader_open(const char *path, struct file_reader *out)
{
    *out = (struct file_reader){.path = path};
    TRY(input_open(path, &out->input));
    out->path = out->input.name;
    return STATUS_OK;
}

static const int64_t progress_bytes = 10000000; /* a smaller file is read at once */

status file_reader_read(struct file_reader *r, char *out, size_t max_bytes, size_t *got)
{
    TRY(input_read(&r->input, out, max_bytes, got));
    r->bytes += (int64_t)*got;
    if (r->bytes >= progress_bytes) {
        log_progress("%.1f MB read of %s", (double)r->bytes / 1e6, r->path);
    }
    return STATUS_OK;
}

void file_reader_close(struct file_reader *r)
{
    input_close(&r->input);
}
