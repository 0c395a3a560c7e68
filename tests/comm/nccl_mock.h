/* Functions that the mock of libnccl (nccl_mock.c) has in addition to NCCL's; found with dlsym. */
#pragma once

#include <dlfcn.h>

#include "comm/comm_nccl_impl.h"
#include "tests/check.h"

/* nccl_mock_config - return the configuration of the last created communicator. */
const struct nccl_config *nccl_mock_config(void);

/* nccl_mock_count_windowed - return how many collectives of this process had data in a window. */
int nccl_mock_count_windowed(void);

/* nccl_mock_find - load one of these functions from the library that BIREME_NCCL names. */
static inline void nccl_mock_find(const char *name, void *function)
{
    void *handle = dlopen(getenv("BIREME_NCCL"), RTLD_NOW | RTLD_NOLOAD);
    CHECK(handle != NULL);
    void *symbol = dlsym(handle, name);
    CHECK(symbol != NULL && dlclose(handle) == 0);
    memcpy(function, &symbol, sizeof symbol);
}
