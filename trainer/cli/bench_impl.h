/* The kinds of `bireme bench` that are implemented in a separate file. */
#pragma once

#include "trainer/setup/session.h"

/* bench_kernels_report - measure each operation and print the results.
 *
 * Order     collective; the first rank prints
 * Errors    as bench_kernels_run; errors of the output */
status bench_kernels_report(struct session *s, int repeats, bool json);
