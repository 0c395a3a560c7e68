/* Functions of the NCCL mock (nccl_mock.c) that NCCL does not have. Tests find them with dlsym. */
#pragma once

#include <dlfcn.h>

#include "comm/device/nccl_impl.h"
#include "tests/check.h"

/* Counts of this process. */
struct nccl_mock_counts {
    _Atomic int windowed; /* collectives with data in a window */
    /* collectives of one root, ncclReduce and ncclBroadcast, and the bytes of their data */
    _Atomic int rooted;
    _Atomic int64_t rooted_bytes;
    int ids_created; /* calls of ncclGetUniqueId */
    int ids_used;    /* unique ids of the last communicator */
};

/* nccl_mock_config - return the configuration of the communicator that was created last. */
const struct nccl_config *nccl_mock_config(void);

/* nccl_mock_count - return the counts. */
const struct nccl_mock_counts *nccl_mock_count(void);

/* nccl_mock_find - find one of these functions in the loaded library BIREME_NCCL.
 *
 * Shapes    function is a pointer to a function pointer, which receives the address */
static inline void nccl_mock_find(const char *name, void *function)
{
    void *handle = dlopen(getenv("BIREME_NCCL"), RTLD_NOW | RTLD_NOLOAD);
    CHECK(handle != NULL);
    void *symbol = dlsym(handle, name);
    CHECK(symbol != NULL && dlclose(handle) == 0);
    memcpy(function, &symbol, sizeof symbol);
}

/* nccl_mock_get_counts - return the counts of the loaded library. */
static inline const struct nccl_mock_counts *nccl_mock_get_counts(void)
{
    const struct nccl_mock_counts *(*count)(void) = NULL;
    nccl_mock_find("nccl_mock_count", &count);
    return count();
}
