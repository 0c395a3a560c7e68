/* What the libnccl of nccl_double.c has beside NCCL's names: dlsym finds it. */
#pragma once

#include "comm/comm_nccl_impl.h"

/* nccl_double_config - of the communicator that was made last. */
const struct nccl_config *nccl_double_config(void);
