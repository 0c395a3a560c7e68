/* Test interface of the emulated cuBLASLt (cublaslt.cc): counters of calls and simulated times. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* simt_set_gemm_times - set the simulated seconds of a GEMM for each algorithm and epilogue; NULL:
 * the default times. */
void simt_set_gemm_times(double (*times)(int algorithm, unsigned epilogue));

struct simt_gemm_calls {
    int gemms;          /* GEMMs since the last simt_gemm_take_calls */
    int in_place;       /* those by algorithms whose sums depend on the order of arrival */
    int last_algorithm; /* of the last GEMM */
    unsigned last_epilogue;
    unsigned epilogues; /* bitwise or of all epilogues */
};
/* simt_gemm_take_calls - return the counters and reset them. */
struct simt_gemm_calls simt_gemm_take_calls(void);

#ifdef __cplusplus
}
#endif
