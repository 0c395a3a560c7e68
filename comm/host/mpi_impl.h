/* Internals of the MPI communicator: errors of MPI, and memory that the ranks of a node share
 * (windows, shared.h).
 *
 * Calls     comm_mpi_window_set_host once; comm_mpi_window_check_space before each
 *           comm_mpi_window_create; comm_mpi_window_free */
#pragma once

#include <mpi.h>

#include "comm/comm_impl.h"
#include "comm/shared/shared.h"

/* comm_mpi_check - raise STATUS_LOST, with MPI's text, if code is not MPI_SUCCESS. */
status comm_mpi_check(int code, const char *operation);

/* comm_mpi_window_set_host - set the ranks and the name of this host, before the first window.
 *
 * Memory    name is borrowed until MPI_Finalize */
void comm_mpi_window_set_host(MPI_Comm ranks, const char *name);

/* comm_mpi_window_check_space - check that `bytes` bytes for each rank of the host fit into the
 * shared memory.
 *
 * Every rank of the host is counted, because other groups may allocate at the same time. If MPI
 * allocates without room, one rank gets an error and the others wait forever. Each host logs only
 * its first failure (W-SHARED-MEMORY).
 *
 * Order     collective over `local`, ranks of one host; *has_room is equal on all of them
 * Errors    STATUS_LOST */
status comm_mpi_window_check_space(MPI_Comm local, int64_t bytes, bool *has_room);

/* comm_mpi_window_create - create the shared window of this node.
 *
 * If it fails on any rank of `all`, *is_made is false on all of them.
 *
 * Memory    release *out with comm_mpi_window_free; if *is_made is false, free only out->base.
 *           If another rank of this node fails, MPI keeps the window until MPI_Finalize
 * Order     collective over `all`; local are the ranks of this node
 * Errors    STATUS_LOST */
status comm_mpi_window_create(MPI_Comm all, MPI_Comm local, int local_size, int local_rank,
                              size_t bytes, struct shared_window *out, bool *is_made);

/* comm_mpi_window_free - release a window. Collective over the ranks of the node. */
void comm_mpi_window_free(struct shared_window *window);
