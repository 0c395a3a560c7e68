#include "trainer/formats/checkpoint/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"

enum { HOLDER_BYTES = 128 };

struct run_lock {
    int file;
    char path[FILE_PATH_BYTES];
};

/* Writes host and process into the lock file, for error messages. The lock does not depend on this
 * text, so a full disk is only a warning. */
static void write_holder(int file)
{
    char host[65] = "unknown";
    char text[HOLDER_BYTES];
    if (gethostname(host, sizeof host - 1) != 0) {
        snprintf(host, sizeof host, "unknown");
    }
    int bytes = snprintf(text, sizeof text, "host %s process %ld\n", host, (long)getpid());
    if (ftruncate(file, 0) != 0 || pwrite(file, text, (size_t)bytes, 0) != bytes) {
        log_warning("LOCK", "cannot write host and process into the lock file: %s",
                    strerror(errno));
    }
}

static void read_holder(int file, char holder[HOLDER_BYTES])
{
    ssize_t bytes = pread(file, holder, HOLDER_BYTES - 1, 0);
    holder[number_max(bytes, 0)] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    if (holder[0] == '\0') {
        snprintf(holder, HOLDER_BYTES, "another process");
    }
}

static status wait_for_lock(int file, const char *path, double wait_seconds)
{
    double start = clock_seconds();
    while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        if (file_is_lock_unsupported(error)) {
            log_warning("LOCK",
                        "%s: this file system does not support locks (%s); make sure that no "
                        "other job uses the folder",
                        path, strerror(error));
            return STATUS_OK;
        }
        char holder[HOLDER_BYTES];
        read_holder(file, holder);
        REQUIRE(error == EWOULDBLOCK || error == EINTR, STATUS_CREATE, "cannot lock %s: %s", path,
                strerror(error));
        REQUIRE(clock_seconds() - start < wait_seconds, STATUS_CREATE,
                "%s is held by another job (%s) after %.0f s of waiting; end that job or choose "
                "another run_dir",
                path, holder, wait_seconds);
        clock_sleep(0.05);
    }
    write_holder(file);
    REQUIRE(file_is_at_path(file, path), STATUS_CREATE,
            "%s was removed after a failed start of another job; start again", path);
    return STATUS_OK;
}

status run_lock_acquire(const char *path, double wait_seconds, struct run_lock **out)
{
    *out = NULL;
    int file;
    TRY(file_open_output(path, O_RDWR, &file));
    struct run_lock *lock = NULL;
    status result = wait_for_lock(file, path, wait_seconds);
    if (result == STATUS_OK) {
        result = ALLOCATE(lock, 1, path);
    }
    if (result != STATUS_OK) {
        close(file);
        return result;
    }
    lock->file = file;
    snprintf(lock->path, sizeof lock->path, "%s", path);
    *out = lock;
    return STATUS_OK;
}

status run_lock_check(const struct run_lock *lock)
{
    return lock != NULL ? file_require_present(lock->file, lock->path) : STATUS_OK;
}

void run_lock_release(struct run_lock **lock)
{
    if (*lock != NULL) {
        close((*lock)->file);
        free(*lock);
        *lock = NULL;
    }
}
