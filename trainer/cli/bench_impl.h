/* The kinds of `bireme bench` that have a file of their own. */
#pragma once

#include "trainer/setup/session.h"

/* bench_kernels_report - measure and print. Collective. */
status bench_kernels_report(struct session *s, int repeats, bool json);
