/* Chooses the CPU threads and the device of a rank, and connects the ranks' devices. */
#pragma once

#include "base/device/device.h"
#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "trainer/recipe/recipe.h"

/* hardware_count_threads - compute the number of CPU threads of this rank: parallel.threads, or
 * else its share of the cores that it may use.
 *
 * Ranks of one host with the same set of cores divide the set and the CPU quota of the control
 * group.
 *
 * Order     collective
 * Errors    STATUS_INTERNAL out of memory; errors of the collective */
status hardware_count_threads(const struct recipe *recipe, struct comm *world, int *out);

/* hardware_device_kind - return the kind of device that train.device selects on this machine. */
enum device_kind hardware_device_kind(const struct recipe *recipe);

/* hardware_check_settings - check that this kind of device supports the settings of the recipe.
 *
 * Errors    STATUS_UNAVAILABLE, with the recipe's line */
status hardware_check_settings(const struct recipe *recipe, enum device_kind kind);

/* hardware_open_device - open the recipe's device and create its kernels in the recipe's
 * precision. Rank r of a host with n GPUs opens GPU r modulo n.
 *
 * Errors    STATUS_UNAVAILABLE, with the recipe's line, if the build or machine lacks the device */
status hardware_open_device(const struct recipe *recipe, int local_rank, int threads,
                            const struct kernels_limits *limits, struct device **device,
                            struct kernels **kernels);

/* hardware_connect_devices - replace the tensor and data groups of a mesh by communicators of the
 * ranks' GPUs. On CPUs it only checks that every rank has the same kind of device.
 *
 * Order     collective
 * Numerics  deterministic: as in struct comm_device_options
 * Errors    STATUS_RECIPE if the kinds of devices differ; errors of comm_device_create */
status hardware_connect_devices(struct mesh *mesh, struct device *device, struct kernels *kernels,
                                bool deterministic);

/* hardware_compare_models - set *equal if the devices of all ranks are of the same model.
 *
 * name is the result of device_name. The model is the text in parentheses, so the number of a
 * GPU is not compared. GPUs of different models can run different machine code, and the results of
 * their kernels can differ in the last bit.
 *
 * Order     collective
 * Errors    errors of the collectives */
status hardware_compare_models(struct comm *world, const char *name, bool *equal);
