/* A library for LD_PRELOAD that injects faults. It counts the calls of a process that change files
 * in one folder. The N-th of these calls fails, or the process is killed before it.
 *
 *   FAULT_DIR     part of the path of the counted files; unset: no fault
 *   FAULT_AT      N, from 1; unset: the calls are only counted
 *   FAULT_DO      kill | stop (SIGSTOP) | enospc | eio | short (half of the data is written) |
 *                 slow (0.3 s);
 *                 unsynced: every fsync returns 0 and does nothing
 *   FAULT_RANK    only this rank (OMPI_COMM_WORLD_RANK); unset: all processes
 *   FAULT_LOG     file with one line per counted call
 *   FAULT_STICKY  set: all calls from the N-th on fail, as on a full disk
 *   FAULT_FREE    free bytes that statvfs reports
 *
 * Calls with a path count by this path, calls with a descriptor by the path of its open. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { DESCRIPTORS = 1024, PATH_BYTES = 512 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *folder, *what, *log;
    long at, calls;
    bool sticky;
} fault;
static char opened[DESCRIPTORS][PATH_BYTES]; /* path of each counted descriptor; else "" */

static void read_environment(void)
{
    const char *at = getenv("FAULT_AT"), *rank = getenv("FAULT_RANK");
    const char *own_rank = getenv("OMPI_COMM_WORLD_RANK");
    fault.folder = getenv("FAULT_DIR");
    fault.at = at != NULL ? strtol(at, NULL, 10) : -1;
    fault.what = getenv("FAULT_DO") != NULL ? getenv("FAULT_DO") : "";
    fault.log = getenv("FAULT_LOG");
    fault.sticky = getenv("FAULT_STICKY") != NULL;
    if (rank != NULL && (own_rank == NULL || strcmp(rank, own_rank) != 0)) {
        fault.folder = NULL;
    }
}

static bool is_counted(const char *path)
{
    pthread_once(&once, read_environment);
    return fault.folder != NULL && path != NULL && strstr(path, fault.folder) != NULL;
}

static void log_call(long number, const char *call, const char *path)
{
    FILE *log = fault.log != NULL ? fopen(fault.log, "a") : NULL;
    if (log != NULL) {
        fprintf(log, "%ld %s %s\n", number, call, path);
        fclose(log);
    }
}

/* Counts the call and returns whether it fails, with errno set. Does not return for a kill. */
static bool call_fails(const char *call, const char *path)
{
    pthread_mutex_lock(&lock);
    long number = ++fault.calls;
    log_call(number, call, path);
    pthread_mutex_unlock(&lock);
    if (number != fault.at && !(fault.sticky && fault.at > 0 && number > fault.at)) {
        return false;
    }
    if (strcmp(fault.what, "kill") == 0) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (strcmp(fault.what, "stop") == 0) {
        kill(getpid(), SIGSTOP);
        return false;
    }
    if (strcmp(fault.what, "slow") == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        return false;
    }
    errno = strcmp(fault.what, "eio") == 0 ? EIO : ENOSPC;
    return fault.what[0] != '\0';
}

static bool fails_on_descriptor(const char *call, int file)
{
    return file >= 0 && file < DESCRIPTORS && opened[file][0] != '\0' &&
           call_fails(call, opened[file]);
}

#define NEXT(type, name, ...)                                                                      \
    static type (*next)(__VA_ARGS__);                                                              \
    if (next == NULL) {                                                                            \
        *(void **)&next = dlsym(RTLD_NEXT, name);                                                  \
    }

static int store_path(int file, const char *path)
{
    if (file >= 0 && file < DESCRIPTORS) {
        snprintf(opened[file], PATH_BYTES, "%s", path);
    }
    return file;
}

#define DEFINE_OPEN(name)                                                                          \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        NEXT(int, #name, const char *, int, ...)                                                   \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;    \
        va_end(arguments);                                                                         \
        bool counted = is_counted(path);                                                           \
        if (counted && (flags & (O_WRONLY | O_RDWR)) != 0 && call_fails("open", path)) {           \
            return -1;                                                                             \
        }                                                                                          \
        return store_path(next(path, flags, mode), counted ? path : "");                           \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

int close(int file)
{
    NEXT(int, "close", int)
    store_path(file, "");
    return next(file);
}

static bool is_short(size_t bytes)
{
    return bytes > 1 && fault.what != NULL && strcmp(fault.what, "short") == 0;
}

ssize_t write(int file, const void *data, size_t bytes)
{
    NEXT(ssize_t, "write", int, const void *, size_t)
    if (fails_on_descriptor("write", file)) {
        return is_short(bytes) ? next(file, data, bytes / 2) : -1;
    }
    return next(file, data, bytes);
}

#define DEFINE_PWRITE(name, offset_type)                                                           \
    ssize_t name(int file, const void *data, size_t bytes, offset_type offset)                     \
    {                                                                                              \
        NEXT(ssize_t, #name, int, const void *, size_t, offset_type)                               \
        if (fails_on_descriptor("pwrite", file)) {                                                 \
            return is_short(bytes) ? next(file, data, bytes / 2, offset) : -1;                     \
        }                                                                                          \
        return next(file, data, bytes, offset);                                                    \
    }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

#define DEFINE_TRUNCATE(name, offset_type)                                                         \
    int name(int file, offset_type bytes)                                                          \
    {                                                                                              \
        NEXT(int, #name, int, offset_type)                                                         \
        return fails_on_descriptor("ftruncate", file) ? -1 : next(file, bytes);                    \
    }
DEFINE_TRUNCATE(ftruncate, off_t)
DEFINE_TRUNCATE(ftruncate64, off64_t)

int fsync(int file)
{
    NEXT(int, "fsync", int)
    if (file >= 0 && file < DESCRIPTORS && opened[file][0] != '\0' &&
        strcmp(fault.what, "unsynced") == 0) {
        return 0;
    }
    return fails_on_descriptor("fsync", file) ? -1 : next(file);
}

int rename(const char *from, const char *to)
{
    NEXT(int, "rename", const char *, const char *)
    return is_counted(from) && call_fails("rename", to) ? -1 : next(from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    NEXT(int, "renameat2", int, const char *, int, const char *, unsigned)
    return is_counted(from) && call_fails("renameat2", to)
               ? -1
               : next(from_dir, from, to_dir, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(int, "mkdir", const char *, mode_t)
    return is_counted(path) && call_fails("mkdir", path) ? -1 : next(path, mode);
}

#define DEFINE_PATH_CALL(name)                                                                     \
    int name(const char *path)                                                                     \
    {                                                                                              \
        NEXT(int, #name, const char *)                                                             \
        return is_counted(path) && call_fails(#name, path) ? -1 : next(path);                      \
    }
DEFINE_PATH_CALL(unlink)
DEFINE_PATH_CALL(rmdir)
DEFINE_PATH_CALL(remove)

#define DEFINE_STATVFS(name, record)                                                               \
    int name(const char *path, struct record *out)                                                 \
    {                                                                                              \
        NEXT(int, #name, const char *, struct record *)                                            \
        int result = next(path, out);                                                              \
        const char *bytes = getenv("FAULT_FREE");                                                  \
        if (result == 0 && bytes != NULL && is_counted(path)) {                                    \
            out->f_bavail = strtoul(bytes, NULL, 10) / out->f_frsize;                              \
        }                                                                                          \
        return result;                                                                             \
    }
DEFINE_STATVFS(statvfs, statvfs)
DEFINE_STATVFS(statvfs64, statvfs64)
