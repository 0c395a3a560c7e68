/* Compares the memory that a rank needs with the memory of the device that a plan is for. */
#pragma once

#include "trainer/train/planner/plan.h"

/* memory_check_device - compare plan->device_bytes with the bytes that are available to a rank.
 * The message lists the settings that lower the need, with the need of each one alone. Settings
 * that are in force and settings that change little are not listed. Without `refuse`, too little
 * memory is the warning W-MEMORY. 0 bytes available: unknown.
 *
 * Errors    STATUS_RECIPE; errors of plan_make */
status memory_check_device(const struct recipe *recipe, const struct plan *plan, double available,
                           const char *device, bool refuse);

/* memory_check_run - check that a run on CPUs fits into the memory of this machine, before the
 * ranks allocate it. All ranks of the machine together are only compared with a warning.
 *
 * Errors    as plan_make and memory_check_device */
status memory_check_run(const struct recipe *recipe, struct comm *world);
