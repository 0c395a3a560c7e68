/* Functions of the NCCL mock (nccl_mock.c) that NCCL does not have. Tests find them with dlsym. */
#pragma once

#include <dlfcn.h>

#include "comm/comm_nccl_impl.h"
#include "tests/check.h"

/* nccl_mock_config - return the configuration of the communicator that was created last. */
const struct nccl_config *nccl_mock_config(void);

/* nccl_mock_count_windowed - count the collectives of this process with data in a window. */
int nccl_mock_count_windowed(void);

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
