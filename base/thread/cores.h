/* The number of cores that this process may keep busy, and the memory that it may use. Two limits
 * apply to the cores: the affinity mask (taskset, mpirun's binding, a cpuset) and the CPU quota of
 * the control group (docker --cpus, limits of Kubernetes, CPUQuota of systemd). The mask does not
 * show the quota. If a process with a quota runs one thread for each core of a large host, the
 * kernel halts all of its threads together. */
#pragma once

#include <stdint.h>

/* cores_allowed - return the number of cores that this process may use, at least 1.
 *
 * Source    sched(7) */
int cores_allowed(void);

/* cores_quota - return the CPU quota in cores, rounded up; 0 if there is none. The result is the
 * smallest quota of the process's control group and all groups above it.
 *
 * Units     root: folder that contains proc and sys; "" except in tests
 * Source    Linux, admin-guide/cgroup-v2 (cpu.max), scheduler/sched-bwc (cpu.cfs_quota_us) */
int cores_quota(const char *root);

/* cores_memory_bytes - return the memory that the process may use: the smallest of the machine's
 * memory and the limits of the process's control group and all groups above it.
 *
 * Units     root: as in cores_quota
 * Source    Linux, admin-guide/cgroup-v2 (memory.max), cgroup-v1/memory (memory.limit_in_bytes) */
int64_t cores_memory_bytes(const char *root);
