/* How OpenMP threads wait for work.
 *
 * By default, a thread of libgomp spins for milliseconds before it sleeps. If other programs use
 * the cores, a spinning thread takes the core from a thread that computes. With GOMP_SPINCOUNT=2000
 * it spins for some microseconds. libgomp reads the variable before main, so the program has to
 * start itself a second time. */
#pragma once

/* openmp_limit_spinning - set GOMP_SPINCOUNT=2000 and execute this program again with the same
 * arguments, process id and open files. It returns, and changes nothing, if GOMP_SPINCOUNT or
 * OMP_WAIT_POLICY is set, under valgrind or an explicit dynamic loader, or if the program cannot be
 * executed again.
 *
 * Order     the first call of main */
void openmp_limit_spinning(char **argv);
