/* The subset of NVTX that the back-end uses, for the emulator (runtime.cc). */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

int nvtxRangePushA(const char *name);
int nvtxRangePop(void);

#ifdef __cplusplus
}
#endif
