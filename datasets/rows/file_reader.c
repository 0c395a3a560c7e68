#include "datasets/rows/file_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

status file_reader_open(const char *path, struct file_reader *out)
{
    *out = (struct file_reader){.file = open(path, O_RDONLY | O_CLOEXEC), .path = path};
    REQUIRE(out->file >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(out->file, &info) != 0 || S_ISDIR(info.st_mode)) {
        file_reader_close(out);
        RAISE(STATUS_DATA, "%s is a folder; name the files in it", path);
    }
    return STATUS_OK;
}

status file_reader_read(struct file_reader *r, char *out, size_t max_bytes, size_t *got)
{
    ssize_t bytes;
    do {
        bytes = read(r->file, out, max_bytes);
    } while (bytes < 0 && errno == EINTR);
    REQUIRE(bytes >= 0, STATUS_DATA, "cannot read %s at byte %" PRId64 ": %s", r->path, r->bytes,
            strerror(errno));
    *got = (size_t)bytes;
    r->bytes += bytes;
    log_progress("%s: %" PRId64 " MB read", r->path, r->bytes / 1000000);
    return STATUS_OK;
}

void file_reader_close(struct file_reader *r)
{
    if (r->file >= 0) {
        close(r->file);
        r->file = -1;
    }
}
