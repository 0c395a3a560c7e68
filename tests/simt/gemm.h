/* Test interface of the emulated cuBLASLt (cublaslt.cc): counters of calls and simulated times. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* simt_set_gemm_times - set the simulated seconds of a GEMM for each algorithm and epilogue; NULL:
 * the default times. */
void simt_set_gemm_times(double (*times)(int algorithm, unsigned epilogue));

/* simt_set_wrong_gemm - let GEMMs with this algorithm and epilogue compute wrong results; -1:
 * none. */
void simt_set_wrong_gemm(int algorithm, unsigned epilogue);

/* simt_set_ignored_epilogue - let GEMMs with this algorithm and epilogue ignore its operand: a bias
 * and the input of a derivative count as zero, and sums are zero; -1: none. */
void simt_set_ignored_epilogue(int algorithm, unsigned epilogue);

struct simt_gemm_calls {
    int gemms;          /* since the last simt_gemm_reset_calls */
    int in_place;       /* GEMMs with algorithm IN_PLACE: the order of their sums is not fixed */
    int last_algorithm; /* of the last GEMM, as last_epilogue */
    unsigned last_epilogue;
    unsigned epilogues; /* bitwise or of all epilogues */
};

/* simt_gemm_reset_calls - return the counters and reset them. */
struct simt_gemm_calls simt_gemm_reset_calls(void);

#ifdef __cplusplus
}
#endif
