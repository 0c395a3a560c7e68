/* A lock file that allows one job per run folder.
 *
 * It is an advisory lock (flock). The kernel releases it when the process ends for any reason. */
#pragma once

#include "base/status.h"

struct run_lock;

/* run_lock_acquire - create and lock the file at path.
 *
 * Writes host and process into the file, for the error message of another job. Waits up to
 * wait_seconds, because ranks of a killed job may exist for 3 s after the job has ended.
 *
 * Errors    STATUS_CREATE naming the holder; STATUS_PERMISSION. If the file system does not support
 *           locks, the warning W-LOCK is logged and the function returns STATUS_OK */
status run_lock_acquire(const char *path, double wait_seconds, struct run_lock **out);

/* run_lock_check - check that the lock file still has its path; otherwise another job could lock
 * the folder. A lock of NULL is valid.
 *
 * Errors    STATUS_WRITE */
status run_lock_check(const struct run_lock *lock);

/* run_lock_release - release the lock; *lock may be NULL. */
void run_lock_release(struct run_lock **lock);
