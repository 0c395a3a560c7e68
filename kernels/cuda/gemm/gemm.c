/* GEMMs by cuBLASLt, and their epilogues: fused by cuBLASLt or computed by separate kernels.
 *
 *   c (+)= act(op(a) op(b) + bias);  sums (+)= sums of op(a) over k, or of c over its rows
 *
 * Plans     a fusion and an algorithm for each shape (gemm.h), chosen at first use and cached
 * Memory    one workspace: GEMMs run on the stream of the context, one after the other */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "kernels/cuda/gemm/gemm.h"

/* ---- context ---- */

/* Composes the machine name from GPU, driver and library. Drops the index of the GPU: "GPU 0
 * (NVIDIA H200)" becomes "NVIDIA H200". */
static void name_machine(struct cuda_gemm_context *p)
{
    const char *name = device_name(p->device), *open = strchr(name, '('), *end = strrchr(name, ')');
    const char *from = open != NULL && end > open ? open + 1 : name;
    int length = (int)(open != NULL && end > open ? (size_t)(end - from) : strlen(name));
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    snprintf(p->machine, sizeof p->machine, "%.*s, driver %d.%d, %s", length < 64 ? length : 64,
             from, driver / 1000, driver % 1000 / 10, p->name);
}

static status open_library(struct kernels *k, struct cuda_gemm_context *p)
{
    TRY(cublaslt_open(&p->library));
    size_t version = p->library.cublasLtGetVersion();
    snprintf(p->name, sizeof p->name, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100,
             version % 100);
    GEMM_CHECK(p, "opening the library", p->library.cublasLtCreate(&p->handle));
    p->workspace_bytes = p->library.workspace_bytes + cuda_gemm_vector_bytes(&k->limits);
    TRY(device_allocate(p->device, p->workspace_bytes, "the GEMM workspace", &p->workspace));
    name_machine(p);
    gemm_file_read(p);
    return STATUS_OK;
}

status cuda_gemm_create(struct kernels *k, struct cuda_gemm_context **out)
{
    struct cuda_gemm_context *p = NULL;
    *out = NULL;
    TRY(ALLOCATE(p, 1, "the GEMM context"));
    p->device = k->device;
    status result = open_library(k, p);
    if (result != STATUS_OK) {
        cuda_gemm_destroy(&p);
    }
    *out = p;
    return result;
}

void cuda_gemm_destroy(struct cuda_gemm_context **gemm)
{
    struct cuda_gemm_context *p = *gemm;
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->count; i++) {
        gemm_plan_release(p, &p->plans[i]);
    }
    if (p->handle != NULL) {
        (void)p->library.cublasLtDestroy(p->handle);
    }
    device_release(p->device, p->workspace, p->workspace_bytes);
    cublaslt_close(&p->library);
    free(p);
    *gemm = NULL;
}

const char *cuda_gemm_library_name(const struct cuda_gemm_context *gemm)
{
    return gemm->name;
}

/* ---- plans ---- */

static status raise_no_algorithm(const struct cuda_gemm *p)
{
    char text[GEMM_TEXT_BYTES];
    gemm_plan_format(p, p->c, text);
    RAISE(STATUS_INTERNAL, "cuBLASLt has no algorithm for the GEMM of %s", text);
}

/* Returns the dimension that counts batch rows. Without padding it differs
 * between micro-batches. */
static int64_t *get_batch_rows(struct gemm_key *key)
{
    return key->transpose_a ? &key->rows[1] : &key->rows[0];
}

/* Returns whether two keys are equal except for the number of batch rows and the alignments.
 * *distance is the difference of the numbers of rows. */
static bool is_similar(const struct gemm_key *one, const struct gemm_key *other, int64_t *distance)
{
    struct gemm_key keys[2] = {*one, *other};
    int64_t rows = *get_batch_rows(&keys[0]) - *get_batch_rows(&keys[1]);
    *distance = rows < 0 ? -rows : rows;
    for (int i = 0; i < 2; i++) {
        struct gemm_key *key = &keys[i];
        int64_t *second = key->transpose_a ? &key->rows[2] : &key->rows[1];
        *second = *get_batch_rows(key) = 0;
        memset(key->alignment, 0, sizeof key->alignment);
    }
    return memcmp(&keys[0], &keys[1], sizeof keys[0]) == 0;
}

/* Returns the fusion that was fastest for the nearest number of rows, or `first` if no similar plan
 * was tuned. */
static int find_default_fusion(const struct cuda_gemm_context *gemm, const struct gemm_key *key,
                               int first)
{
    int64_t nearest = INT64_MAX, distance;
    int fusion = first;
    for (int i = 0; i < gemm->count; i++) {
        const struct gemm_plan *plan = &gemm->plans[i];
        if (plan->tuned && is_similar(&plan->key, key, &distance) && distance < nearest) {
            nearest = distance;
            fusion = plan->fused;
        }
    }
    return fusion;
}

static status try_fusion(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                         const struct cuda_gemm *p, int fusion, bool *found)
{
    int count = 0;
    plan->fused = fusion;
    TRY(gemm_plan_describe(gemm, plan, p));
    TRY(gemm_plan_algorithms(gemm, plan, 1, &plan->algorithm, &count));
    *found = count == 1;
    if (!*found) {
        gemm_plan_release(gemm, plan);
    }
    return STATUS_OK;
}

static status choose_default(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                             const struct cuda_gemm *p)
{
    int fusions[GEMM_FUSIONS_MAX + 1], count = gemm_plan_fusions(&plan->key, fusions + 1);
    bool found = false;
    fusions[0] = find_default_fusion(gemm, &plan->key, fusions[1]);
    for (int i = 0; i <= count && !found; i++) {
        TRY(try_fusion(gemm, plan, p, fusions[i], &found));
    }
    return found ? STATUS_OK : raise_no_algorithm(p);
}

/* Prepares a plan from the file at its first use. If its algorithm is not valid here, chooses
 * the default. */
static status prepare_loaded(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                             const struct cuda_gemm *p)
{
    TRY(gemm_plan_describe(gemm, plan, p));
    if (plan->tuned && gemm_plan_is_valid(gemm, plan)) {
        return STATUS_OK;
    }
    gemm_plan_release(gemm, plan);
    plan->tuned = false;
    return choose_default(gemm, plan, p);
}

static status find_plan(struct cuda_gemm_context *gemm, const struct cuda_gemm *p,
                        struct gemm_plan **out)
{
    struct gemm_key key = gemm_plan_key(p);
    struct gemm_plan *plan = NULL;
    for (int i = 0; i < gemm->count && plan == NULL; i++) {
        if (memcmp(&gemm->plans[i].key, &key, sizeof key) == 0) {
            plan = &gemm->plans[i];
        }
    }
    if (plan == NULL) {
        if (gemm->count ==
            GEMM_PLANS_MAX) { /* generation has many lengths: replace the last plan */
            gemm_plan_release(gemm, &gemm->plans[--gemm->count]);
        }
        plan = &gemm->plans[gemm->count];
        *plan = (struct gemm_plan){.key = key};
        TRY(choose_default(gemm, plan, p));
        gemm->count++;
    } else if (plan->descriptor == NULL) {
        TRY(prepare_loaded(gemm, plan, p));
    }
    plan->used = true;
    plan->operands = *p;
    *out = plan;
    return STATUS_OK;
}

/* ---- running ---- */

/* Zeroes the output of a GEMM with an inner dimension of 0. */
static status zero_output(struct kernels *k, struct tensor c)
{
    for (int64_t r = 0; r < c.rows; r++) {
        TRY(device_zero(k->device, k->stream, tensor_rows(c, r, 1).data,
                        (size_t)c.columns * dtype_bytes(c.dtype)));
    }
    return STATUS_OK;
}

/* Sets *vector to the bias in the type of the output, or to the destination of the sums. */
static status prepare_vector(struct kernels *k, const struct cuda_gemm *p, int fused,
                             struct tensor output, void **vector)
{
    struct cuda_gemm_context *gemm = cuda_get_state(k)->gemm;
    char *buffer = (char *)gemm->workspace + gemm->library.workspace_bytes;
    *vector = buffer;
    if ((fused & GEMM_BIAS) != 0) {
        struct tensor row = {buffer, output.dtype, 1, output.columns, output.columns};
        bool ready = p->bias.dtype == output.dtype;
        *vector = ready ? p->bias.data : buffer;
        return ready ? STATUS_OK : cuda_fill_rows(k, row, p->bias);
    }
    if ((fused & GEMM_SUMS) != 0 && p->sums.overwrite) {
        *vector = p->sums.sums.data;
    }
    return STATUS_OK;
}

/* Computes the parts of the epilogue that cuBLASLt did not fuse. */
static status run_epilogue(struct kernels *k, const struct cuda_gemm *p, int fused,
                           struct tensor output, const void *vector)
{
    struct tensor sums = p->sums.sums;
    if (p->act != ACTIVATION_NONE && (fused & GEMM_ACTIVATION) == 0) {
        if (p->derivative && sums.data != NULL) {
            return cuda_activation_backward_sums(k, p->c, p->sums, p->c, p->aux, p->act);
        }
        TRY(p->derivative ? cuda_activation_backward(k, p->c, p->c, p->aux, p->act)
                          : cuda_activation_apply(k, p->c, output, p->act));
    }
    if (sums.data == NULL) {
        return STATUS_OK;
    }
    if ((fused & GEMM_SUMS) == 0) {
        return cuda_bias_gradient(k, p->sums, p->transpose_a ? p->a : p->c);
    }
    return p->sums.overwrite ? STATUS_OK : cuda_op_add(k, sums.data, vector, sums.columns);
}

static status raise_refused(const struct cuda_gemm_context *gemm, const struct cuda_gemm *p,
                            int fused, float beta, cublasStatus_t error)
{
    char text[GEMM_TEXT_BYTES];
    gemm_plan_format(p, gemm_plan_output(p, fused), text);
    RAISE(STATUS_INTERNAL, "cuBLASLt: cublasLtMatmul: %s: %s, fused parts %d, beta %g",
          gemm->library.cublasLtGetStatusString(error), text, fused, (double)beta);
}

status gemm_perform(struct kernels *k, struct gemm_plan *plan, const struct cuda_gemm *p)
{
    struct cuda_gemm_context *gemm = cuda_get_state(k)->gemm;
    struct tensor output = gemm_plan_output(p, plan->fused);
    bool prefilled = p->bias.data != NULL && (plan->fused & GEMM_BIAS) == 0;
    const float one = 1, beta = p->accumulate || prefilled ? 1 : 0;
    void *vector = NULL;
    TRY(prefilled ? cuda_fill_rows(k, output, p->bias) : STATUS_OK);
    TRY(prepare_vector(k, p, plan->fused, output, &vector));
    TRY(gemm_plan_set_pointers(gemm, plan, p, vector));
    cublasStatus_t result = gemm->library.cublasLtMatmul(
        gemm->handle, plan->descriptor, &one, p->b.data, plan->layouts[2], p->a.data,
        plan->layouts[1], &beta, output.data, plan->layouts[0], output.data, plan->layouts[0],
        &plan->algorithm, gemm->workspace, gemm->library.workspace_bytes,
        (cudaStream_t)device_stream_handle(k->device, k->stream));
    if (result != CUBLAS_STATUS_SUCCESS) {
        return raise_refused(gemm, p, plan->fused, beta, result);
    }
    return run_epilogue(k, p, plan->fused, output, vector);
}

static status run_empty_gemm(struct kernels *k, const struct cuda_gemm *p)
{
    struct tensor output = gemm_plan_output(p, 0);
    if (p->bias.data != NULL) {
        TRY(cuda_fill_rows(k, output, p->bias));
    } else if (!p->accumulate) {
        TRY(zero_output(k, output));
    }
    return run_epilogue(k, p, 0, output, NULL);
}

status cuda_gemm_launch(struct kernels *k, const struct cuda_gemm *p)
{
    struct gemm_plan *plan = NULL;
    if (p->c.rows == 0 || p->c.columns == 0) {
        return STATUS_OK;
    }
    REQUIRE(!p->accumulate || (p->bias.data == NULL && p->act == ACTIVATION_NONE), STATUS_INTERNAL,
            "a GEMM with a bias or an activation cannot accumulate into its output");
    if ((p->transpose_a ? p->a.rows : p->a.columns) == 0) {
        return run_empty_gemm(k, p);
    }
    TRY(find_plan(cuda_get_state(k)->gemm, p, &plan));
    return gemm_perform(k, plan, p);
}

/* ---- tuning, between two training steps ---- */

status cuda_tune(struct kernels *k, bool measure, char **text)
{
    struct cuda_gemm_context *gemm = cuda_get_state(k)->gemm;
    bool tuned = false, enabled = measure && gemm_file_is_enabled();
    for (int i = 0; i < gemm->count; i++) {
        struct gemm_plan *plan = &gemm->plans[i];
        if (enabled && plan->used && !plan->tuned) {
            TRY(gemm_tune_plan(k, plan));
            tuned = true;
        }
        plan->used = false;
    }
    if (tuned) {
        gemm_file_write(gemm);
    }
    return text != NULL ? gemm_file_format(gemm, text) : STATUS_OK;
}

status cuda_tune_import(struct kernels *k, const char *text)
{
    struct cuda_gemm_context *gemm = cuda_get_state(k)->gemm;
    TRY(device_wait(k->device, k->stream, DEADLINE_DEVICE_SECONDS));
    for (int i = 0; i < gemm->count; i++) {
        gemm_plan_release(gemm, &gemm->plans[i]);
    }
    gemm->count = 0;
    gemm_file_parse(gemm, text);
    return STATUS_OK;
}
