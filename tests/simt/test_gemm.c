/* Test of GEMM plans on the emulated cuBLASLt: the choice before and after tuning, the file of
 * plans, and equal results of all choices. */

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/cuda.h"
#include "kernels/fp8.h"
#include "tests/kernels/operation.h"
#include "tests/simt/cuda/cublasLt.h"
#include "tests/simt/gemm.h"

enum { N = 48, K = 40, M = 56 };

static struct device *cpu;
static char folder[] = "/tmp/gemm-XXXXXX", path[FILE_PATH_BYTES];

/* Selects a new file of plans, which does not exist yet. */
static void select_new_file(void)
{
    static int files;
    snprintf(path, sizeof path, "%s/cache/%d.plans", folder, files++);
    CHECK(setenv("BIREME_PLANS", path, 1) == 0);
}

static struct kernels *create_context(enum dtype dtype)
{
    struct kernels *k = NULL;
    const struct kernels_limits limits = operation_limits(128);
    CHECK_OK(simt_kernels_create(cpu, dtype, &limits, &k));
    return k;
}

/* Tensors of one linear layer. */
struct layer {
    struct tensor x, w, bias, y, aux, dx, dy, dw, dbias;
};

static struct tensor make_padded(enum dtype dtype, int64_t rows, int64_t columns, uint64_t seed)
{
    struct tensor t = operation_tensor(dtype, rows, columns, (columns + 15) / 8 * 8);
    operation_fill(t, seed, 0.5);
    return t;
}

static struct layer layer_make(enum dtype dtype, int64_t rows)
{
    return (struct layer){.x = make_padded(dtype, rows, K, 1),
                          .w = make_padded(dtype, M, K, 2),
                          .bias = operation_random(DTYPE_F32, 1, M, 3, 0.5),
                          .y = make_padded(dtype, rows, M, 4),
                          .aux = make_padded(dtype, rows, M, 5),
                          .dx = make_padded(dtype, rows, K, 6),
                          .dy = make_padded(dtype, rows, M, 7),
                          .dw = operation_random(DTYPE_F32, M, K, 8, 0.5),
                          .dbias = operation_random(DTYPE_F32, 1, M, 9, 0.5)};
}

static void layer_release(struct layer *l)
{
    struct tensor *all[] = {&l->x,  &l->w,  &l->bias, &l->y,    &l->aux,
                            &l->dx, &l->dy, &l->dw,   &l->dbias};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

/* Runs the forward pass and returns the epilogue of its GEMM. */
static unsigned run_forward(struct kernels *k, struct layer *l, enum activation act)
{
    struct tensor aux = act == ACTIVATION_NONE ? tensor_absent() : l->aux;
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_forward(k, l->y, aux, l->x, l->w, l->bias, act));
    struct simt_gemm_calls calls = simt_gemm_reset_calls();
    CHECK_EQUAL(calls.gemms, 1);
    CHECK_EQUAL(calls.in_place, 0);
    return calls.last_epilogue;
}

/* Computes dx through the activation that produced x and returns the epilogue of the GEMM. */
static unsigned backward_input(struct kernels *k, struct layer *l, struct tensor aux)
{
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_backward_input(k, l->dx, (struct bias_gradient){0}, l->dy, l->w,
                                   ACTIVATION_GELU_TANH, aux));
    return simt_gemm_reset_calls().last_epilogue;
}

static unsigned backward_weight(struct kernels *k, struct layer *l, bool overwrite)
{
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_backward_weight(k, l->dw, l->dbias, l->dy, l->x, overwrite));
    return simt_gemm_reset_calls().last_epilogue;
}

static double get_time_slow_fusion(int algorithm, unsigned epilogue)
{
    bool plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
    return (plain ? 100 : 900) + 10 * algorithm;
}

/* Makes the third algorithm the fastest, which is not the first heuristic. */
static double get_time_fast_third(int algorithm, unsigned epilogue)
{
    bool plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
    return (plain ? 900 : 500) - 100 * algorithm;
}

static char *read_plans(void)
{
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(path, 1 << 20, &text, &bytes));
    return text;
}

static int count_plans(void)
{
    char *text = read_plans();
    int lines = 0;
    for (const char *p = text; *p != '\0'; p++) {
        lines += *p == '\n';
    }
    free(text);
    return lines - 1; /* without the header line */
}

static bool has_warned(const char *what)
{
    bool found = false;
    for (struct log_entry *entry; (entry = log_take_warning()) != NULL;) {
        found = found || (strcmp(entry->name, "GEMM-PLANS") == 0 && strstr(entry->text, what));
        free(entry);
    }
    return found;
}

/* ---- fused epilogues ---- */

static void test_fusions(enum dtype dtype)
{
    select_new_file();
    struct kernels *k = create_context(dtype);
    struct layer l = layer_make(dtype, N);
    CHECK_EQUAL(run_forward(k, &l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_BIAS);
    CHECK_EQUAL(backward_input(k, &l, l.x), CUBLASLT_EPILOGUE_DEFAULT);
    CHECK_EQUAL(backward_weight(k, &l, true), CUBLASLT_EPILOGUE_DEFAULT);
    CHECK_EQUAL(run_forward(k, &l, ACTIVATION_GELU_ERF), CUBLASLT_EPILOGUE_BIAS);

    simt_set_gemm_times(get_time_fast_third);
    CHECK_OK(kernels_tune(k, true, NULL));
    simt_set_gemm_times(NULL);
    CHECK_EQUAL(run_forward(k, &l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_EQUAL(backward_input(k, &l, l.x), CUBLASLT_EPILOGUE_DGELU);
    CHECK_EQUAL(backward_weight(k, &l, false), CUBLASLT_EPILOGUE_BGRADB);
    CHECK_EQUAL(run_forward(k, &l, ACTIVATION_GELU_ERF), CUBLASLT_EPILOGUE_BIAS);
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_backward_weight(k, l.dw, l.dbias, l.dy, l.x, true));
    CHECK_EQUAL(simt_gemm_reset_calls().last_algorithm, 2);

    /* Another number of rows uses the fusion of the nearest one. An aux tensor with a misaligned
     * stride is not fused. */
    struct layer other = layer_make(dtype, N + 3);
    CHECK_EQUAL(run_forward(k, &other, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    struct tensor odd = operation_tensor(dtype, N, K, K + 1);
    operation_fill(odd, 5, 1);
    CHECK_EQUAL(backward_input(k, &l, odd), CUBLASLT_EPILOGUE_DEFAULT);
    operation_release(&odd);
    layer_release(&other);
    layer_release(&l);
    CHECK_OK(kernels_destroy(&k));
}

static void run_all(struct kernels *k, struct layer *l)
{
    run_forward(k, l, ACTIVATION_GELU_TANH);
    backward_input(k, l, l->x);
    backward_weight(k, l, false);
}

/* Fused epilogues and separate kernels give the same results. */
static void test_equal_results(enum dtype dtype)
{
    select_new_file();
    struct kernels *k = create_context(dtype);
    struct layer first = layer_make(dtype, N), separate = layer_make(dtype, N),
                 fused = layer_make(dtype, N);
    double tolerance = dtype == DTYPE_BF16 ? 1.0 / 128 : 3e-6;
    run_all(k, &separate);
    CHECK_OK(kernels_tune(k, false, NULL)); /* the next GEMMs are timed; their outputs are lost */
    run_all(k, &first);
    CHECK_OK(kernels_tune(k, true, NULL));
    run_all(k, &fused);
    operation_check_error("y", k, operation_difference(fused.y, separate.y), tolerance);
    operation_check_error("aux", k, operation_difference(fused.aux, separate.aux), tolerance);
    operation_check_error("dx", k, operation_difference(fused.dx, separate.dx), tolerance);
    operation_check_error("dw", k, operation_difference(fused.dw, separate.dw), 3e-6);
    operation_check_error("dbias", k, operation_difference(fused.dbias, separate.dbias), 3e-6);
    layer_release(&first);
    layer_release(&separate);
    layer_release(&fused);
    CHECK_OK(kernels_destroy(&k));
}

/* A candidate with wrong results is not chosen, although it is the fastest: the default too. */
static void test_wrong(enum dtype dtype)
{
    select_new_file();
    struct kernels *k = create_context(dtype);
    struct layer l = layer_make(dtype, N);
    run_forward(k, &l, ACTIVATION_GELU_TANH);
    simt_set_gemm_times(get_time_fast_third);
    simt_set_wrong_gemm(2, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK(has_warned("gives another result"));
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_forward(k, l.y, l.aux, l.x, l.w, l.bias, ACTIVATION_GELU_TANH));
    struct simt_gemm_calls calls = simt_gemm_reset_calls();
    CHECK_EQUAL(calls.last_epilogue, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_EQUAL(calls.last_algorithm, 1);

    run_forward(k, &l, ACTIVATION_NONE);
    simt_set_gemm_times(get_time_slow_fusion);
    simt_set_wrong_gemm(0, CUBLASLT_EPILOGUE_BIAS);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK(has_warned("gives another result"));
    CHECK_EQUAL(run_forward(k, &l, ACTIVATION_NONE), CUBLASLT_EPILOGUE_DEFAULT);
    simt_set_wrong_gemm(-1, 0);
    simt_set_gemm_times(NULL);
    layer_release(&l);
    CHECK_OK(kernels_destroy(&k));
}

/* Tunes while the fastest algorithm with this epilogue ignores its operand. */
static void tune_with_ignored(struct kernels *k, unsigned epilogue)
{
    simt_set_gemm_times(get_time_fast_third);
    simt_set_ignored_epilogue(2, epilogue);
    CHECK_OK(kernels_tune(k, true, NULL));
    simt_set_ignored_epilogue(-1, 0);
    simt_set_gemm_times(NULL);
    CHECK(has_warned("gives another result"));
}

static bool is_zero(struct tensor t)
{
    double largest = 0;
    for (int64_t r = 0; r < t.rows; r++) {
        for (int64_t c = 0; c < t.columns; c++) {
            largest = check_max(largest, fabs(oracle_get(t, r, c)));
        }
    }
    return largest == 0;
}

/* An epilogue that ignores its operand is not chosen, although the operand is zero at that time.
 * The operands are zero afterwards too. */
static void test_zero_operands(enum dtype dtype)
{
    select_new_file();
    struct kernels *k = create_context(dtype);
    struct layer l = layer_make(dtype, N);
    operation_set(l.bias, 0);
    run_forward(k, &l, ACTIVATION_GELU_TANH);
    tune_with_ignored(k, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK(is_zero(l.bias));
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_forward(k, l.y, l.aux, l.x, l.w, l.bias, ACTIVATION_GELU_TANH));
    CHECK_EQUAL(simt_gemm_reset_calls().last_algorithm, 1);

    operation_set(l.x, 0);
    backward_input(k, &l, l.x);
    tune_with_ignored(k, CUBLASLT_EPILOGUE_DGELU);
    CHECK(is_zero(l.x));
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_backward_input(k, l.dx, (struct bias_gradient){0}, l.dy, l.w,
                                   ACTIVATION_GELU_TANH, l.x));
    CHECK_EQUAL(simt_gemm_reset_calls().last_algorithm, 1);

    operation_fill(l.x, 1, 0.5);
    operation_set(l.dy, 0);
    backward_weight(k, &l, true);
    tune_with_ignored(k, CUBLASLT_EPILOGUE_BGRADB);
    CHECK(is_zero(l.dy));
    (void)simt_gemm_reset_calls();
    CHECK_OK(linear_backward_weight(k, l.dw, l.dbias, l.dy, l.x, true));
    CHECK_EQUAL(simt_gemm_reset_calls().last_algorithm, 1);
    layer_release(&l);
    CHECK_OK(kernels_destroy(&k));
}

/* cuBLASLt refuses an FP8 GEMM with a factor that is not aligned. The message describes the
 * GEMM. */
static void test_refused(void)
{
    enum { ROWS = 3, COLUMNS = 16, INNER = 32 };
    static _Alignas(64) unsigned char a[ROWS * INNER], b[COLUMNS * INNER];
    static _Alignas(64) float factors[8];
    struct kernels *k = create_context(DTYPE_F32);
    struct cuda_gemm p = {.a = tensor_view(a, DTYPE_E5M2, ROWS, INNER),
                          .b = tensor_view(b, DTYPE_E4M3, COLUMNS, INNER),
                          .c = operation_tensor(DTYPE_F32, ROWS, COLUMNS, COLUMNS),
                          .transpose_b = true,
                          .scale_a = factors + 4,
                          .scale_b = factors + 1};
    CHECK_FAILS(cuda_gemm_run(k, &p), STATUS_INTERNAL,
                "not supported: [3, 32] e5m2 by [16, 32]^T e4m3 to fp32, strides 32, 32 and 16, ");
    CHECK_FAILS(cuda_gemm_run(k, &p), STATUS_INTERNAL,
                "factors to 16 and 4, fused parts 0, beta 0");
    p.scale_b = factors;
    CHECK_OK(cuda_gemm_run(k, &p));
    /* Row-wise factors need E4M3 operands, and Hopper. */
    static _Alignas(64) float rows[ROWS + 1], columns[COLUMNS];
    p.scales_rows = true;
    p.scale_a = rows;
    p.scale_b = columns;
    CHECK_FAILS(cuda_gemm_run(k, &p), STATUS_INTERNAL, "cuBLASLt has no algorithm for the GEMM of");
    p.a.dtype = DTYPE_E4M3;
    CHECK_OK(cuda_gemm_run(k, &p));
    setenv("SIMT_CAPABILITY", "10", 1);
    CHECK_FAILS(cuda_gemm_run(k, &p), STATUS_INTERNAL, "not supported: [3, 32] e4m3 by");
    unsetenv("SIMT_CAPABILITY");
    p.scale_a = rows + 1;
    CHECK_FAILS(cuda_gemm_run(k, &p), STATUS_INTERNAL, "factors to 4 and");
    operation_release(&p.c);
    CHECK_OK(kernels_destroy(&k));
}

/* ---- FP8 ---- */

enum { FP8_ROWS = 40, FP8_INNER = 32, FP8_OUTPUTS = 48 };

/* Tensors of one FP8 layer. */
struct fp8_layer {
    struct tensor x, w, bias, y, dx, dy, dw, scales;
};

static struct fp8_layer make_fp8_layer(enum dtype dtype)
{
    struct fp8_layer l = {
        .x = operation_random(dtype, FP8_ROWS, FP8_INNER, 1, 0.5),
        .w = operation_random(dtype, FP8_OUTPUTS, FP8_INNER, 2, 0.5),
        .bias = operation_random(DTYPE_F32, 1, FP8_OUTPUTS, 3, 0.5),
        .y = operation_tensor(dtype, FP8_ROWS, FP8_OUTPUTS, FP8_OUTPUTS),
        .dx = operation_tensor(dtype, FP8_ROWS, FP8_INNER, FP8_INNER),
        .dy = operation_random(dtype, FP8_ROWS, FP8_OUTPUTS, 4, 0.5),
        .dw = operation_tensor(DTYPE_F32, FP8_OUTPUTS, FP8_INNER, FP8_INNER),
        .scales = operation_tensor(DTYPE_F32, FP8_OPERANDS, 2, FP8_SCALES_STRIDE),
    };
    operation_set(l.scales, 1);
    return l;
}

static void release_fp8_layer(struct fp8_layer *l)
{
    struct tensor *all[] = {&l->x, &l->w, &l->bias, &l->y, &l->dx, &l->dy, &l->dw, &l->scales};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

/* Runs both passes. Returns the algorithm of the last GEMM, which computes dw. */
static int run_fp8(struct kernels *k, struct fp8_layer *l)
{
    struct tensor none = tensor_absent();
    (void)simt_gemm_reset_calls();
    CHECK_OK(
        fp8_linear_forward(k, l->y, none, none, l->x, l->w, l->bias, l->scales, ACTIVATION_NONE));
    CHECK_OK(fp8_linear_backward_input(k, l->dx, (struct bias_gradient){0}, none, l->dy, l->w,
                                       l->scales, ACTIVATION_NONE, none));
    CHECK_OK(fp8_linear_backward_weight(k, l->dw, none, none, l->dy, l->x, l->scales, true));
    struct simt_gemm_calls calls = simt_gemm_reset_calls();
    CHECK_EQUAL(calls.gemms, 3);
    return calls.last_algorithm;
}

/* FP8 GEMMs are tuned although other operations have overwritten their operands, even with NaN. The
 * results stay the same within rounding, and a wrong algorithm is not chosen. */
static void test_fp8(enum dtype dtype, bool rowwise)
{
    struct kernels_limits limits = operation_limits(128);
    limits.fp8_rowwise = rowwise;
    limits.fp8_columns = FP8_OUTPUTS;
    limits.fp8_weights = FP8_OUTPUTS * FP8_INNER;
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        struct kernels *k = NULL;
        select_new_file();
        CHECK_OK(simt_kernels_create(cpu, dtype, &limits, &k));
        struct fp8_layer first = make_fp8_layer(dtype), tuned = make_fp8_layer(dtype);
        if (rowwise) {
            operation_release(&first.scales);
            operation_release(&tuned.scales);
        }
        CHECK_EQUAL(run_fp8(k, &first), 0);
        CHECK_OK(
            kernels_tune(k, false, NULL)); /* the next GEMMs are timed; their outputs are lost */
        run_fp8(k, &tuned);
        struct arena *scratch = &cuda_get_state(k)->scratch;
        memset(scratch->memory, 0xff, scratch->bytes);
        simt_set_gemm_times(get_time_fast_third);
        simt_set_wrong_gemm(is_wrong ? 2 : -1, CUBLASLT_EPILOGUE_DEFAULT);
        CHECK_OK(kernels_tune(k, true, NULL));
        simt_set_wrong_gemm(-1, 0);
        simt_set_gemm_times(NULL);
        CHECK(has_warned("gives another result") == is_wrong);
        CHECK_EQUAL(run_fp8(k, &tuned), is_wrong ? 1 : 2);
        double tolerance = dtype == DTYPE_BF16 ? 1.0 / 128 : 3e-6;
        operation_check_error("y", k, operation_difference(tuned.y, first.y), tolerance);
        operation_check_error("dx", k, operation_difference(tuned.dx, first.dx), tolerance);
        operation_check_error("dw", k, operation_difference(tuned.dw, first.dw), 3e-6);
        release_fp8_layer(&first);
        release_fp8_layer(&tuned);
        CHECK_OK(kernels_destroy(&k));
    }
}

/* ---- the file ---- */

static void test_file(struct layer *l)
{
    select_new_file();
    struct kernels *k = create_context(DTYPE_BF16);
    run_forward(k, l, ACTIVATION_GELU_TANH);
    backward_weight(k, l, true);
    CHECK(!file_exists(path));
    simt_set_gemm_times(get_time_fast_third);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK_EQUAL(count_plans(), 2);
    CHECK_EQUAL(run_forward(k, l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_OK(kernels_destroy(&k));

    /* The next context uses the plan at once, with the same bits, and does not tune again. */
    struct tensor y = operation_copy(l->y, DTYPE_BF16);
    simt_set_gemm_times(get_time_slow_fusion);
    k = create_context(DTYPE_BF16);
    operation_set(l->y, NAN);
    CHECK_EQUAL(run_forward(k, l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK(operation_difference(l->y, y) == 0);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK_EQUAL(run_forward(k, l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_EQUAL(backward_weight(k, l, true), CUBLASLT_EPILOGUE_BGRADB);

    /* A new GEMM is added to the file. */
    backward_input(k, l, l->x);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK_EQUAL(backward_input(k, l, l->x), CUBLASLT_EPILOGUE_DEFAULT);
    CHECK_EQUAL(count_plans(), 3);
    CHECK(!has_warned(""));
    CHECK_OK(kernels_destroy(&k));
    operation_release(&y);
}

/* Damaged lines are skipped with a warning. A file of another format is not changed. */
static void test_damage(struct layer *l)
{
    char *text = read_plans(), damaged[4096];
    const char *other = strchr(text, '\n') + 1;
    snprintf(damaged, sizeof damaged, "%s0123456789abcdef\tof another\tmachine\nshort\n", text);
    damaged[other - text + 40] ^= 1; /* in the first line */
    CHECK_OK(file_write(path, damaged, strlen(damaged)));
    struct kernels *k = create_context(DTYPE_BF16);
    CHECK(has_warned("3 damaged lines"));
    CHECK_EQUAL(run_forward(k, l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_BIAS);
    CHECK_EQUAL(backward_weight(k, l, true), CUBLASLT_EPILOGUE_BGRADB);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK_EQUAL(count_plans(), 3);
    CHECK_OK(kernels_destroy(&k));

    static const char foreign[] = "a file of mine\n";
    CHECK_OK(file_write(path, foreign, sizeof foreign - 1));
    k = create_context(DTYPE_BF16);
    CHECK(has_warned("not a file of GEMM plans"));
    run_forward(k, l, ACTIVATION_GELU_TANH);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK_OK(kernels_destroy(&k));
    char *left = read_plans();
    CHECK_TEXT(left, foreign);
    free(left);
    free(text);
}

/* The plans of another rank, exchanged as text, replace the plans of this one. */
static void test_text(void)
{
    select_new_file();
    struct kernels *first = create_context(DTYPE_F32), *other = create_context(DTYPE_F32);
    struct layer l = layer_make(DTYPE_F32, N);
    char *text = NULL;
    run_forward(first, &l, ACTIVATION_GELU_TANH);
    simt_set_gemm_times(get_time_fast_third);
    CHECK_OK(kernels_tune(first, true, &text));
    CHECK_EQUAL(run_forward(other, &l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_BIAS);
    CHECK_OK(kernels_tune_import(other, text));
    CHECK_EQUAL(run_forward(other, &l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_OK(kernels_tune_import(other, ""));
    CHECK_EQUAL(run_forward(other, &l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_BIAS);
    CHECK(setenv("BIREME_PLANS", "off", 1) == 0);
    CHECK_OK(kernels_tune(other, true, NULL));
    CHECK_EQUAL(run_forward(other, &l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_BIAS);
    free(text);
    layer_release(&l);
    CHECK_OK(kernels_destroy(&first));
    CHECK_OK(kernels_destroy(&other));
}

/* Without BIREME_PLANS, the file of version 0.1 is used while no file has the present name. */
static void test_default_file(struct layer *l)
{
    char old[FILE_PATH_BYTES];
    CHECK(unsetenv("BIREME_PLANS") == 0 && setenv("XDG_CACHE_HOME", folder, 1) == 0);
    snprintf(old, sizeof old, "%s/bireme/products.plans", folder);
    snprintf(path, sizeof path, "%s/bireme/gemm.plans", folder);
    struct kernels *k = create_context(DTYPE_BF16);
    run_forward(k, l, ACTIVATION_GELU_TANH);
    simt_set_gemm_times(get_time_fast_third);
    CHECK_OK(kernels_tune(k, true, NULL));
    CHECK_OK(kernels_destroy(&k));
    CHECK_EQUAL(count_plans(), 1);

    CHECK(rename(path, old) == 0);
    k = create_context(DTYPE_BF16);
    CHECK_EQUAL(run_forward(k, l, ACTIVATION_GELU_TANH), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    CHECK_OK(kernels_destroy(&k));
    CHECK(!file_exists(path) && file_exists(old));
    CHECK(setenv("BIREME_PLANS", "off", 1) == 0);
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    log_keep_warnings();
    CHECK_OK(device_create(DEVICE_CPU, 0, &cpu));
    test_fusions(DTYPE_BF16);
    test_fusions(DTYPE_F32);
    test_equal_results(DTYPE_BF16);
    test_equal_results(DTYPE_F32);
    test_wrong(DTYPE_BF16);
    test_wrong(DTYPE_F32);
    test_zero_operands(DTYPE_BF16);
    test_zero_operands(DTYPE_F32);
    test_refused();
    for (int rowwise = 0; rowwise < 2; rowwise++) {
        test_fp8(DTYPE_BF16, rowwise);
        test_fp8(DTYPE_F32, rowwise);
    }
    CHECK(!has_warned(""));
    /* Both tests use the same tensors, because alignments are part of the key of a plan. */
    struct layer l = layer_make(DTYPE_BF16, N);
    test_file(&l);
    test_damage(&l);
    test_default_file(&l);
    layer_release(&l);
    test_text();
    CHECK_OK(device_destroy(&cpu));
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
