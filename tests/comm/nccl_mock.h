/* What the libnccl of nccl_double.c has beside NCCL's names: dlsym finds it. */
#pragma once

#include <dlfcn.h>

#include "comm/comm_nccl_impl.h"
#include "tests/check.h"

/* nccl_double_config - of the communicator that was made last. */
const struct nccl_config *nccl_double_config(void);

/* nccl_double_windowed - collectives of this process whose data lay in a registered window. */
int nccl_double_windowed(void);

/* nccl_double_find - one of the above, as a pointer, in the library that BIREME_NCCL names. */
static inline void nccl_double_find(const char *name, void *function)
{
    void *handle = dlopen(getenv("BIREME_NCCL"), RTLD_NOW | RTLD_NOLOAD);
    CHECK(handle != NULL);
    void *symbol = dlsym(handle, name);
    CHECK(symbol != NULL && dlclose(handle) == 0);
    memcpy(function, &symbol, sizeof symbol);
}
