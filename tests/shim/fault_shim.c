/* A library for LD_PRELOAD that injects faults. It counts the calls of a process that change files
 * in one folder. The N-th of these calls fails, or the process is killed before it.
 *
 *   FAULT_DIR     part of the path of the counted files; unset: no fault
 *   FAULT_START   part of a path: counting starts when such a path is created (mkdir, open)
 *   FAULT_AT      N, from 1; unset: the calls are only counted
 *   FAULT_DO      kill | stop (SIGSTOP) | enospc | eio | short (half of the data is written);
 *                 slow: the call takes FAULT_SLOW_MS longer;
 *                 end_thread: a thread ends at its first fsync, unless it is the main thread;
 *                 unsynced: every fsync returns 0 and does nothing; unsynced_files and
 *                 unsynced_folders: only an fsync of a file or of a folder; the others take
 *                 FAULT_SLOW_MS longer, because they can also write what was not synced
 *   FAULT_SLOW_MS duration of slow in milliseconds
 *   FAULT_RANK    only this rank (OMPI_COMM_WORLD_RANK); unset: all processes
 *   FAULT_LOG     file with one line per counted call
 *   FAULT_STICKY  set: all calls from the N-th on fail, as on a full disk
 *   FAULT_FREE    free bytes that statvfs reports
 *   FAULT_CLOCK   seconds by which the real-time clock jumps, alternately forwards and backwards
 *   FAULT_SPEED   factor by which the monotonic clock is faster than time, and by which waits for
 *                 a condition variable with this clock are shorter
 *   FAULT_LOCKS   ENOLCK (as NFS without a lock service) or EOPNOTSUPP or ENOSYS (as Lustre without
 *                 the option flock): every flock fails with this error;
 *                 EBADF: only exclusive locks of files that are open for reading, as on a file
 *                 system that replaces flock by the locks of fcntl
 *   FAULT_THREADS largest number of threads besides the main thread
 *
 * Calls with a path count by this path, calls with a descriptor by the path of its open.
 *
 * A program that is linked with the library can change the fault while it runs (fault_shim.h). */
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
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/shim/fault_shim.h"

enum { DESCRIPTORS = 1024, PATH_BYTES = 512 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *folder, *start, *what, *log;
    long at, calls, slow_ms;
    long clock_jump, speed, threads; /* 0: no fault */
    bool sticky;
    void (*before)(long number, const char *call);
} fault;
static char opened[DESCRIPTORS][PATH_BYTES]; /* path of each counted descriptor; else "" */

static long read_number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static void read_environment(void)
{
    const char *rank = getenv("FAULT_RANK");
    const char *own_rank = getenv("OMPI_COMM_WORLD_RANK");
    fault.folder = getenv("FAULT_DIR");
    fault.start = getenv("FAULT_START");
    fault.at = read_number("FAULT_AT", -1);
    fault.slow_ms = read_number("FAULT_SLOW_MS", 300);
    fault.clock_jump = read_number("FAULT_CLOCK", 0);
    fault.speed = read_number("FAULT_SPEED", 0);
    fault.threads = read_number("FAULT_THREADS", 0);
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

void fault_shim_set(const char *what, long at, void (*before)(long number, const char *call))
{
    pthread_once(&once, read_environment);
    pthread_mutex_lock(&lock);
    fault.what = what;
    fault.at = at;
    fault.before = before;
    fault.calls = 0;
    pthread_mutex_unlock(&lock);
}

long fault_shim_calls(void)
{
    pthread_mutex_lock(&lock);
    long calls = fault.calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

static void sleep_slow(void)
{
    nanosleep(&(struct timespec){.tv_sec = fault.slow_ms / 1000,
                                 .tv_nsec = fault.slow_ms % 1000 * 1000000},
              NULL);
}

/* Counts the call and returns whether it fails, with errno set. Does not return for a kill. */
static bool call_fails(const char *call, const char *path)
{
    pthread_mutex_lock(&lock);
    bool creates = strcmp(call, "mkdir") == 0 || strcmp(call, "open") == 0;
    if (fault.start != NULL && creates && strstr(path, fault.start) != NULL) {
        fault.start = NULL;
    }
    long number = fault.start == NULL ? ++fault.calls : 0;
    if (number > 0) {
        log_call(number, call, path);
    }
    void (*before)(long number, const char *call) = fault.before;
    pthread_mutex_unlock(&lock);
    if (number == 0) {
        return false;
    }
    if (before != NULL) {
        before(number, call);
    }
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
        sleep_slow();
        return false;
    }
    errno = strcmp(fault.what, "eio") == 0 ? EIO : ENOSPC;
    return fault.what[0] != '\0' && strcmp(fault.what, "end_thread") != 0;
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

/* Returns whether the fsync of this file is omitted; otherwise delays it in an unsynced mode. */
static bool is_unsynced(int file)
{
    struct stat about;
    if (file < 0 || file >= DESCRIPTORS || opened[file][0] == '\0' ||
        strncmp(fault.what, "unsynced", 8) != 0 || fstat(file, &about) != 0) {
        return false;
    }
    const char *kind = S_ISDIR(about.st_mode) ? "unsynced_folders" : "unsynced_files";
    if (strcmp(fault.what, "unsynced") == 0 || strcmp(fault.what, kind) == 0) {
        return true;
    }
    sleep_slow();
    return false;
}

int fsync(int file)
{
    NEXT(int, "fsync", int)
    if (fault.what != NULL && strcmp(fault.what, "end_thread") == 0 && gettid() != getpid() &&
        file >= 0 && file < DESCRIPTORS && opened[file][0] != '\0') {
        pthread_exit(NULL);
    }
    return is_unsynced(file) ? 0 : fails_on_descriptor("fsync", file) ? -1 : next(file);
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

/* Returns the error of flock on a file system with missing or restricted locks; 0: none. */
static int get_lock_error(int file, int operation)
{
    const char *error = getenv("FAULT_LOCKS");
    int wanted = operation & ~LOCK_NB;
    if (error == NULL || wanted == LOCK_UN) {
        return 0;
    }
    if (strcmp(error, "EBADF") == 0) {
        bool is_read_only = (fcntl(file, F_GETFL) & O_ACCMODE) == O_RDONLY;
        return wanted == LOCK_EX && is_read_only ? EBADF : 0;
    }
    return strcmp(error, "EOPNOTSUPP") == 0 ? EOPNOTSUPP
           : strcmp(error, "ENOSYS") == 0   ? ENOSYS
                                            : ENOLCK;
}

int flock(int file, int operation)
{
    NEXT(int, "flock", int, int)
    int error = get_lock_error(file, operation);
    if (error == 0) {
        return next(file, operation);
    }
    errno = error;
    return -1;
}

/* ---- the clock ---- */

/* Returns the number of seconds by which the real-time clock is wrong at this reading. */
static long get_clock_error(void)
{
    static _Atomic long readings;
    pthread_once(&once, read_environment);
    return fault.clock_jump == 0 ? 0 : readings++ / 40 % 2 == 0 ? 0 : fault.clock_jump;
}

static double get_speed(void)
{
    pthread_once(&once, read_environment);
    return (double)fault.speed;
}

static struct timespec to_timespec(double seconds)
{
    return (struct timespec){.tv_sec = (time_t)seconds,
                             .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
}

static double to_seconds(const struct timespec *t)
{
    return (double)t->tv_sec + 1e-9 * (double)t->tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    NEXT(int, "clock_gettime", clockid_t, struct timespec *)
    int result = next(clock, out);
    if (result == 0 && clock == CLOCK_REALTIME) {
        out->tv_sec += get_clock_error();
    } else if (result == 0 && clock == CLOCK_MONOTONIC && get_speed() > 0) {
        *out = to_timespec(get_speed() * to_seconds(out));
    }
    return result;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    NEXT(int, "pthread_cond_timedwait", pthread_cond_t *, pthread_mutex_t *,
         const struct timespec *)
    struct timespec sooner =
        get_speed() > 0 ? to_timespec(to_seconds(until) / get_speed()) : *until;
    return next(condition, mutex, &sooner);
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    NEXT(int, "gettimeofday", struct timeval *, void *)
    int result = next(out, zone);
    if (result == 0) {
        out->tv_sec += get_clock_error();
    }
    return result;
}

time_t time(time_t *out)
{
    NEXT(time_t, "time", time_t *)
    time_t now = next(NULL) + get_clock_error();
    if (out != NULL) {
        *out = now;
    }
    return now;
}

/* ---- threads ---- */

static _Atomic long live_threads;

struct thread_work {
    void *(*run)(void *);
    void *user;
};

static void count_end(void *unused)
{
    (void)unused;
    live_threads--;
}

static void *run_thread(void *user)
{
    struct thread_work work = *(struct thread_work *)user;
    void *result = NULL;
    free(user);
    pthread_cleanup_push(count_end, NULL);
    result = work.run(work.user);
    pthread_cleanup_pop(1);
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *user)
{
    NEXT(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)
    pthread_once(&once, read_environment);
    if (fault.threads == 0) {
        return next(thread, attributes, run, user);
    }
    struct thread_work *work = malloc(sizeof *work);
    if (work == NULL || live_threads >= fault.threads) {
        free(work);
        return EAGAIN;
    }
    *work = (struct thread_work){run, user};
    live_threads++;
    return next(thread, attributes, run_thread, work);
}
