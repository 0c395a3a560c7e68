/* Who owns which part of a count: contiguous shares that differ by at most one unit. */
#pragma once

#include "comm/comm.h"

/* partition_share - part `index` of `parts` of [0, count), cut at multiples of `unit`.
 * Any count and any number of parts: no divisibility is asked for, some parts may be empty. */
struct range partition_share(int64_t count, int64_t unit, int parts, int index);
