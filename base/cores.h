/* How many cores this process may keep busy: those of its affinity mask (taskset, mpirun's binding, a cpuset), and no
 * more than the quota of its control group pays for (docker --cpus, Kubernetes' limits, systemd's CPUQuota). The
 * mask does not show a quota: with a thread for each core of a large host all of them are halted together. */
#pragma once

/* cores_allowed - at least 1.  Source: sched(7) */
int cores_allowed(void);

/* cores_quota - the quota in cores, rounded up; 0: none. The smallest of the group's and all that it lies in counts.
 *
 * Units     root: where proc and sys lie, "" but in tests
 * Source    Linux, admin-guide/cgroup-v2 (cpu.max), scheduler/sched-bwc (cpu.cfs_quota_us) */
int cores_quota(const char *root);
