/* Compares the declarations of nccl_impl.h with nccl.h at compile time. At run time it checks
 * that the installed NCCL library, if there is one, is recent enough and complete. It needs no
 * GPU. */
#include <nccl.h>

#include "comm/device/nccl_impl.h"
#include "tests/check.h"

#define SAME(own_value, nccl_value)                                                                \
    _Static_assert((long long)(own_value) == (long long)(nccl_value), #nccl_value)
#define SAME_MEMBER(own_member, nccl_member)                                                       \
    SAME(offsetof(struct nccl_config, own_member), offsetof(ncclConfig_t, nccl_member));           \
    SAME(sizeof((struct nccl_config *)0)->own_member, sizeof((ncclConfig_t *)0)->nccl_member)

SAME(NCCL_UNDEFINED_INT, NCCL_CONFIG_UNDEF_INT);
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_WINDOW_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
SAME(sizeof(enum nccl_result), sizeof(ncclResult_t));
SAME(sizeof(enum nccl_type), sizeof(ncclDataType_t));
SAME(sizeof(enum nccl_operator), sizeof(ncclRedOp_t));
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME_MEMBER(size, size);
SAME_MEMBER(magic, magic);
SAME_MEMBER(version, version);
SAME_MEMBER(blocking, blocking);
SAME_MEMBER(cga_cluster_size, cgaClusterSize);
SAME_MEMBER(min_ctas, minCTAs);
SAME_MEMBER(max_ctas, maxCTAs);
SAME_MEMBER(net_name, netName);
SAME_MEMBER(split_share, splitShare);
SAME_MEMBER(traffic_class, trafficClass);
SAME_MEMBER(comm_name, commName);
SAME_MEMBER(collnet_enable, collnetEnable);
#if NCCL_VERSION_CODE >= 22800
SAME_MEMBER(cta_policy, CTAPolicy);
SAME_MEMBER(shrink_share, shrinkShare);
SAME_MEMBER(nvls_ctas, nvlsCTAs);
SAME_MEMBER(channels_per_net_peer, nChannelsPerNetPeer);
SAME_MEMBER(nvlink_centric_sched, nvlinkCentricSched);
#endif

int main(void)
{
    const struct nccl_library *library = NULL;
    const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool missing = false;
    CHECK(config.magic == NCCL_CONFIG_MAGIC);
    status result = nccl_open(&library, &missing);
    if (result != STATUS_OK && missing) {
        printf("compared with nccl.h %d; skipped: no NCCL library: %s\n", NCCL_VERSION_CODE,
               status_pending()->text);
        return CHECK_SKIPPED;
    }
    CHECK_OK(result);
    CHECK(library->version >= NCCL_OLDEST_VERSION &&
          library->result_text(NCCL_IN_PROGRESS) != NULL && library->comm_init_scalable != NULL);
    printf("compared with nccl.h %d; %s has version %d\n", NCCL_VERSION_CODE, library->path,
           library->version);
    return 0;
}
