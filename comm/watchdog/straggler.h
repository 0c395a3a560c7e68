/* Straggler detection. All ranks wait for the slowest rank in every step; this module reports a
 * rank that stays slow. */
#pragma once

#include "comm/comm.h"

/* straggler_check - compare the computing time of the ranks since the last call.
 *
 * Rank 0 warns (W-SLOW) of a rank that took more than twice the median in three checks in a row.
 * The warning names the rank and its host and appears once while the rank stays slow. For a rank
 * with more rows than the mean, the limit grows in proportion.
 *
 * Units     busy_seconds: time of this rank without communication and without waiting for
 *           other ranks
 * Order     collective; one small exchange */
status straggler_check(struct comm *comm, double busy_seconds, int64_t rows);
