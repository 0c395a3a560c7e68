/* Functions of the library of fault_shim.c for a program that is linked with it. The faults of the
 * program then need no LD_PRELOAD. */
#pragma once

/* fault_shim_set - replace the fault of this process and count its calls from 1 again.
 *
 * what and at are the values of FAULT_DO and FAULT_AT; what "" or at 0: no call fails. `before` is
 * called before each counted call, by the thread of the call, with the name of the function; NULL:
 * none. */
void fault_shim_set(const char *what, long at, void (*before)(long number, const char *call));

/* fault_shim_calls - return the number of counted calls since fault_shim_set. */
long fault_shim_calls(void);
