/* What the emulator's cuBLASLt (cublaslt.cc) tells tests and lets them choose. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* simt_set_product_times - how many seconds of the emulator's time a product takes; NULL: as at the start. */
void simt_set_product_times(double (*times)(int algorithm, unsigned epilogue));

struct simt_products {
    int products;       /* since this was asked last */
    int in_place;       /* by algorithms whose sums depend on who comes first */
    int last_algorithm; /* of the last one */
    unsigned last_epilogue;
    unsigned epilogues; /* of all of them, or'ed */
};
struct simt_products simt_products_seen(void);

#ifdef __cplusplus
}
#endif
