/* One job a run folder: an advisory lock (flock) that ends with its process, whatever ends it. */
#pragma once

#include "base/status.h"

struct run_lock;

/* run_lock_take - lock the file at path, made where missing; it then names this host and process.
 *
 * Waiting   up to wait_seconds: ranks of a killed job outlive it by up to 3 s
 * Errors    STATUS_CREATE naming the holder; STATUS_PERMISSION. Where the file system has no locks
 *           a warning W-LOCK is told and the work goes on */
status run_lock_take(const char *path, double wait_seconds, struct run_lock **out);

/* run_lock_release - NULL is fine. */
void run_lock_release(struct run_lock **lock);
