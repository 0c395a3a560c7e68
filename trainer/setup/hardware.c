#define _GNU_SOURCE /* sched_getaffinity */
#include "trainer/setup/hardware.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread/cores.h"
#include "comm/device/device.h"

/* The cores that a rank may use, and the CPU quota of its control group in cores (0: no quota). */
struct cores {
    char host[64];
    cpu_set_t set;
    int64_t quota;
};

status hardware_count_threads(const struct recipe *recipe, struct comm *world, int *out)
{
    int ranks = comm_size(world), sharing = 0, local_ranks = 0;
    struct cores own = {.quota = cores_quota("")}, *all = NULL;
    TRY(comm_abort_on_error(world, ALLOCATE(all, ranks, "the cores of the ranks")));
    CPU_ZERO(&own.set);
    (void)gethostname(own.host, sizeof own.host - 1);
    if (sched_getaffinity(0, sizeof own.set, &own.set) !=
        0) { /* the machine has more cores than cpu_set_t */
        CPU_SET(0, &own.set);
    }
    status result = comm_all_gather_bytes(world, all, &own, sizeof own);
    for (int i = 0; i < ranks; i++) {
        sharing += memcmp(&all[i], &own, sizeof own) == 0;
        local_ranks += strcmp(all[i].host, own.host) == 0;
    }
    free(all);
    int cores = CPU_COUNT(&own.set) / (sharing > 0 ? sharing : 1);
    int quota = (int)own.quota / (local_ranks > 0 ? local_ranks : 1);
    cores = own.quota > 0 && quota < cores ? quota : cores;
    *out = recipe->parallel.threads > 0 ? (int)recipe->parallel.threads : cores > 0 ? cores : 1;
    return result;
}

/* Selects a GPU if one is available and the recipe allows it. Rank r of a host with n GPUs uses GPU
 * r modulo n. */
static void choose_device(const struct recipe *recipe, int local_rank, enum device_kind *kind,
                          int *index)
{
    int gpus = recipe->train.device == RECIPE_DEVICE_CPU ? 0 : device_count(DEVICE_CUDA);
    bool cuda = recipe->train.device == RECIPE_DEVICE_CUDA || gpus > 0;
    *kind = cuda ? DEVICE_CUDA : DEVICE_CPU;
    *index = gpus > 0 ? local_rank % gpus : 0;
}

enum device_kind hardware_device_kind(const struct recipe *recipe)
{
    enum device_kind kind;
    int index;
    choose_device(recipe, 0, &kind, &index);
    return kind;
}

status hardware_check_settings(const struct recipe *recipe, enum device_kind kind)
{
    if (!device_kind_is_host(kind) && recipe->parallel.reproducible) {
        return recipe_raise(
            recipe, STATUS_UNAVAILABLE, "parallel.reproducible",
            "order-independent sums are supported on CPUs only; set train.device to "
            "cpu");
    }
    return STATUS_OK;
}

status hardware_open_device(const struct recipe *recipe, int local_rank, int threads,
                            const struct kernels_limits *limits, struct device **device,
                            struct kernels **kernels)
{
    enum device_kind kind;
    int index;
    enum dtype dtype = recipe->train.precision != PRECISION_FP32 ? DTYPE_BF16 : DTYPE_F32;
    choose_device(recipe, local_rank, &kind, &index);
    TRY(hardware_check_settings(recipe, kind));
    TRY(recipe_annotate_error(recipe, "train.device", device_create(kind, index, device), ""));
    status result = kernels_create(*device, dtype, threads, limits, kernels);
    if (result == STATUS_OK) {
        kernels_graphs_enable(*kernels, recipe->train.cuda_graphs);
    }
    const char *key = device_kind_is_host(kind) ? "train.precision" : "train.device";
    return result == STATUS_UNAVAILABLE ? recipe_annotate_error(recipe, key, result, "") : result;
}

/* Splits both groups from one communicator of all devices, so that NCCL shares its resources. */
static status split_groups(struct mesh *mesh, const struct comm_device_options *options)
{
    struct comm *control = NULL, *all = NULL;
    TRY(comm_split(mesh->world, 0, comm_rank(mesh->world), &control));
    TRY(comm_device_create(control, options, &all));
    status result = mesh_regroup(mesh, all);
    KEEP_FIRST(result, comm_destroy(&all));
    return result;
}

status hardware_connect_devices(struct mesh *mesh, struct device *device, struct kernels *kernels,
                                bool deterministic)
{
    struct comm **groups[] = {&mesh->tensor, &mesh->data};
    struct comm_device_options options = {
        .device = device, .stream = kernels_stream(kernels), .deterministic = deterministic};
    TRY(comm_check_equal(mesh->world, "the kind of device",
                         device_is_host(device) ? "a CPU" : "a GPU"));
    if (device_is_host(device)) {
        return STATUS_OK;
    }
    if (comm_size(mesh->tensor) > 1 && comm_size(mesh->data) > 1) {
        return comm_abort_on_error(mesh->world, split_groups(mesh, &options));
    }
    for (int i = 0; i < 2; i++) {
        struct comm *group = NULL;
        TRY(comm_abort_on_error(mesh->world, comm_device_create(*groups[i], &options, &group)));
        *groups[i] = group;
    }
    return STATUS_OK;
}

status hardware_compare_models(struct comm *world, const char *name, bool *equal)
{
    char own[128] = "", first[sizeof own];
    const char *model = strchr(name, '(');
    bool differs = false;
    (void)snprintf(own, sizeof own, "%s", model != NULL ? model : name);
    memcpy(first, own, sizeof first);
    TRY(comm_broadcast(world, first, sizeof first, 0));
    TRY(comm_agree_flag(world, memcmp(own, first, sizeof own) != 0, &differs));
    *equal = !differs;
    return STATUS_OK;
}
