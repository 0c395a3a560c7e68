/* Ranks wait for the slowest one in every step: say which one that is, when it stays so. */
#pragma once

#include "comm/comm.h"

/* straggler_check - compare what the ranks did since the last call; rank 0 warns (W-SLOW) of a rank that
 * needed twice the median three times in a row, naming it and its host, once as long as it stays slow. A rank that had
 * more rows than the mean may take longer by as much.
 *
 * Units     busy_seconds of this rank's own work: without waiting for others and communication
 * Order     collective; one small exchange */
status straggler_check(struct comm *comm, double busy_seconds, int64_t rows);
