/* Checks the space for memory that the ranks of a host share. Open MPI creates this memory as files
 * in /dev/shm, and hangs or ends with a bus error if they do not fit.
 *
 * Calls     shared_space_window_bytes computes the need of a window, shared_space_has_room checks
 *           it, and shared_space_count adds it to the sum of this process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARED_SPACE_FOLDER "/dev/shm"

/* shared_space_has_room - return whether files of needed_bytes fit into the folder.
 *
 * Returns true also if the folder cannot be written: Open MPI then uses files elsewhere.
 *
 * Units     *free_bytes: free bytes of the folder; -1 if they are unknown */
bool shared_space_has_room(int64_t needed_bytes, int64_t *free_bytes);

/* shared_space_window_bytes - return the bytes of shared memory that a host needs for a window of
 * host_ranks ranks with `bytes` each. The data of Open MPI is included.
 *
 * Used before a window is created, and by `bireme plan`. */
int64_t shared_space_window_bytes(int host_ranks, int64_t bytes);

/* shared_space_groups_bytes - return the bytes of shared memory that the world and the groups of a
 * mesh need on a host with all ranks. */
int64_t shared_space_groups_bytes(int ranks, int tensor);

/* shared_space_count - add a need of this host, as an argument of shared_space_has_room, to
 * the sum. */
void shared_space_count(int64_t needed_bytes);

/* shared_space_counted_bytes - return the sum of shared_space_count of this process. */
int64_t shared_space_counted_bytes(void);

/* shared_space_describe_unused - describe the files of MPI jobs that no process has mapped, such as
 * "; 3 files of ended MPI jobs use 12 MB of it: /dev/shm/vader_segment.host.0.1.0, ...". Writes ""
 * if there are none. */
void shared_space_describe_unused(char *text, size_t bytes);
