/* Tests that the bits of a GEMM do not depend on the number of threads, and that up to 64 threads
 * share the work. At the sizes below, oneDNN selects other code for parts of a matrix than for the
 * whole matrix. */
#include <inttypes.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "kernels/cpu/classifier.h"
#include "kernels/cpu/gemm/divisions.h"
#include "kernels/cpu/gemm/panels.h"
#include "kernels/cpu/gemm/plans.h"
#include "kernels/cpu/matmul.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, inner, columns;
    bool transpose_a, transpose_b, accumulate;
    bool is_f32_only; /* the GEMM runs in fp32 only */
};

/* The sizes of a model: rows of a micro-batch, width, outputs of the first layers of attention and
 * of the feed-forward network, inner width, and vocabulary. */
struct model {
    const char *name;
    int64_t rows, width, attention, up, inner, vocabulary;
};

/* GPT-2 124M has B = 4, T = 256. BERT-base has the same layers. */
static const struct model models[] = {
    {"gpt2_124m", 1024, 768, 2304, 3072, 3072, 50304},
    {"bert_large", 1024, 1024, 3072, 4096, 4096, 30528},
    {"llama_1b", 1024, 2048, 2560, 11264, 5632, 32000},
};

/* The first PASSES ones are operations of the layers of a block. */
enum pass { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, PASSES, CLASSIFIER = PASSES };

static const char *const pass_names[] = {"forward", "gradient of the input",
                                         "gradient of the weight", "classifier"};

enum { LAYERS = 4, CLASSIFIER_CALLS = 3 };

/* Returns the shape of the GEMM of an operation of a linear layer. */
static struct shape get_shape(const struct model *m, int layer, enum pass pass)
{
    const int64_t inputs[LAYERS] = {m->width, m->width, m->width, m->inner};
    const int64_t outputs[LAYERS] = {m->attention, m->width, m->up, m->width};
    int64_t in = inputs[layer], out = outputs[layer];
    const struct shape shapes[PASSES] = {
        [FORWARD] = {m->rows, in, out, false, true, false},
        [INPUT_GRADIENT] = {m->rows, out, in, false, false, false},
        [WEIGHT_GRADIENT] = {out, m->rows, in, true, false, true},
    };
    return shapes[pass];
}

/* The shapes of the GEMMs that run. With AVX2, the first four are divided into strips that are
 * computed in blocks of the inner size. In the fourth one, oneDNN packs the first columns and not
 * the last ones. In the fifth one, units begin at groups of rows. With AVX-512, the fifth, sixth,
 * eighth and ninth have dense units. The eighth and ninth add to the output. In the last one, a
 * unit at a group of rows has parts of too many sizes with AVX2 and three threads. The others have
 * edges that are smaller than a unit. */
static const struct shape shapes[] = {
    {1024, 448, 2304, false, true, false}, {1024, 300, 3072, false, false, false},
    {2048, 200, 768, true, false, true},   {1024, 1032, 1296, false, false, false, true},
    {1024, 768, 768, false, true, false},  {1024, 768, 768, false, false, false},
    {768, 1024, 768, true, false, true},   {1024, 600, 768, false, true, true},
    {64, 900, 752, true, false, true},     {1000, 96, 800, false, true, false},
    {520, 131, 784, false, false, true},   {900, 64, 40, true, false, false},
    {1009, 512, 512, false, true, false},
};

/* With 11 threads, outputs are divided into strips. */
static const int thread_counts[] = {3, 8, 11, 64};

enum { MODELS = COUNT(models), SHAPES = COUNT(shapes), COUNTS = COUNT(thread_counts) };

static struct matmul_call make_call(enum dtype dtype, const struct shape *s)
{
    return (struct matmul_call){
        .c = {NULL, dtype, s->rows, s->columns, s->columns},
        .a = {NULL, dtype, s->transpose_a ? s->inner : s->rows, s->transpose_a ? s->rows : s->inner,
              s->transpose_a ? s->rows : s->inner},
        .b = {NULL, dtype, s->transpose_b ? s->columns : s->inner,
              s->transpose_b ? s->inner : s->columns, s->transpose_b ? s->inner : s->columns},
        .transpose_a = s->transpose_a,
        .transpose_b = s->transpose_b,
        .accumulate = s->accumulate,
    };
}

/* Runs a GEMM twice: the first call divides the units, the second one uses the stored division. */
static void run_twice(struct kernels *k, struct matmul_call call, struct tensor *c,
                      const struct tensor *first)
{
    for (int i = 0; i < 2; i++) {
        operation_fill(*c, 3, 1.0);
        call.c = *c;
        CHECK_OK(matmul_run(k, &call));
        if (first != NULL) {
            CHECK(memcmp(c->data, first->data, padded_bytes(*c)) == 0);
        }
    }
}

static void check_shape(struct device *dev, enum dtype dtype, const struct shape *s)
{
    if (operation_is_too_long(s->rows * s->inner * s->columns)) {
        return;
    }
    struct kernels_limits limits = operation_limits(s->rows);
    struct matmul_call call = make_call(dtype, s);
    call.a = operation_random(dtype, call.a.rows, call.a.columns, 1, 1.0);
    call.b = operation_random(dtype, call.b.rows, call.b.columns, 2, 1.0);
    struct tensor one = operation_tensor(dtype, s->rows, s->columns, s->columns);
    struct tensor many = operation_tensor(dtype, s->rows, s->columns, s->columns);
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &k));
    run_twice(k, call, &one, NULL);
    CHECK_OK(kernels_destroy(&k));
    for (int i = 0; i < COUNTS; i++) {
        CHECK_OK(kernels_create(dev, dtype, thread_counts[i], &limits, &k));
        run_twice(k, call, &many, &one);
        CHECK_OK(kernels_destroy(&k));
    }
    operation_release(&one);
    operation_release(&many);
    operation_release(&call.a);
    operation_release(&call.b);
}

/* Checks that the operands of the first calls do not select the units. The products of these calls
 * are small compared with the output, so that every order of additions gives the same bits. */
static void check_small_products(struct device *dev)
{
    const struct shape s = {32, 257, 16, true, false, true};
    struct kernels_limits limits = operation_limits(s.rows);
    struct matmul_call call = make_call(DTYPE_F32, &s);
    call.b = operation_random(DTYPE_F32, call.b.rows, call.b.columns, 2, 1.0);
    struct tensor small = operation_random(DTYPE_F32, call.a.rows, call.a.columns, 1, 1e-9);
    struct tensor large = operation_random(DTYPE_F32, call.a.rows, call.a.columns, 1, 1.0);
    struct tensor c[2];
    for (int i = 0; i < 2; i++) {
        struct kernels *k = NULL;
        c[i] = operation_tensor(DTYPE_F32, s.rows, s.columns, s.columns);
        CHECK_OK(kernels_create(dev, DTYPE_F32, i + 1, &limits, &k));
        call.a = small;
        run_twice(k, call, &c[i], NULL);
        call.a = large;
        run_twice(k, call, &c[i], NULL);
        CHECK_OK(kernels_destroy(&k));
    }
    CHECK(memcmp(c[0].data, c[1].data, padded_bytes(c[0])) == 0);
    operation_release(&c[0]);
    operation_release(&c[1]);
    operation_release(&small);
    operation_release(&large);
    operation_release(&call.b);
}

static const struct grid_strip_rule strip_rule = {GRID_PIECE_MULTIPLE, GRID_UNIT_ROWS, 0, 0};

/* Returns the fastest division of a GEMM, if all divisions have the same bits. */
static struct grid find_division(const struct matmul_call *call, int threads)
{
    struct grid g = grid_make(call), pieces[GRID_REFINEMENTS], strips;
    if (grid_is_balanced(&g, threads)) {
        return g;
    }
    g = grid_refine(&g, call, threads, false, pieces) > 0 ? pieces[0] : g;
    bool faster = grid_make_strips(call, threads, &strip_rule, &strips) &&
                  grid_estimate_time(&strips, threads) < grid_estimate_time(&g, threads);
    return faster ? strips : g;
}

/* Returns the idle share of the fastest division. */
static double compute_idle_share(const struct shape *s, int threads)
{
    struct matmul_call call = make_call(DTYPE_F32, s);
    struct grid g = find_division(&call, threads);
    int64_t busiest = grid_busiest_elems(&g, &call.c, threads);
    return 1.0 - (double)(s->rows * s->columns) / (double)(busiest * threads);
}

/* Strips contain each element once. Their units are at most as large as the units of grid_make. */
static void check_strips(const struct shape *s, int threads)
{
    struct matmul_call call = make_call(DTYPE_F32, s);
    struct grid g;
    if (!grid_make_strips(&call, threads, &strip_rule, &g)) {
        CHECK(threads == 1);
        return;
    }
    uint8_t *counts = calloc((size_t)(s->rows * s->columns), 1);
    CHECK(counts != NULL);
    for (int64_t i = 0; i < grid_units(&g); i++) {
        struct matmul_block b = grid_block(&g, &call.c, i);
        struct matmul_block same = grid_block(&g, &call.c, grid_find_unit(&g, grid_kind(&g, i)));
        CHECK(b.rows == same.rows && b.columns == same.columns);
        CHECK(b.rows > 0 && b.rows <= GRID_UNIT_ROWS);
        CHECK(b.columns > 0 && b.columns <= grid_max_unit_columns(&call));
        for (int64_t j = 0; j < b.rows * b.columns; j++) {
            counts[(b.row + j / b.columns) * s->columns + b.column + j % b.columns]++;
        }
    }
    for (int64_t i = 0; i < s->rows * s->columns; i++) {
        CHECK(counts[i] == 1);
    }
    free(counts);
}

/* Sets *g to the units that are selected for a GEMM on this processor with this library. Returns
 * their idle share. */
static double select_units(struct kernels *k, struct divisions *d, const struct matmul_call *call,
                           int threads, struct grid *g)
{
    struct matmul *m = cpu_get_state(k)->matmul;
    const struct panels *panels = call->a.dtype == DTYPE_BF16 ? plans_panels(m) : NULL;
    if (panels != NULL) {
        *g = panels->divide(call, threads);
    } else {
        CHECK_OK(divisions_choose(d, m, call, threads, g));
    }
    double busiest = (double)(grid_busiest_elems(g, &call->c, threads) * threads);
    return 1 - (double)(call->c.rows * call->c.columns) / busiest;
}

/* Makes the GEMMs of a chunk of the classifier. */
static void make_classifier_calls(const struct model *m, enum dtype dtype, int threads,
                                  struct matmul_call out[CLASSIFIER_CALLS])
{
    const int64_t rows = CLASSIFIER_CHUNK;
    struct tensor e = tensor_view(NULL, dtype, rows, m->vocabulary);
    struct tensor z = {NULL, DTYPE_F32, rows, m->vocabulary, CLASSIFIER_TILE};
    struct tensor x = tensor_view(NULL, dtype, rows, m->width);
    struct tensor w = tensor_view(NULL, dtype, m->vocabulary, m->width);
    struct tensor dw = tensor_view(NULL, DTYPE_F32, m->vocabulary, m->width);
    bool is_private = dtype != DTYPE_F32;
    out[0] = classifier_logits_call(is_private ? z : e, x, w, tensor_absent(), is_private);
    out[1] = classifier_weight_call(dw, e, x, true, threads);
    out[2] = (struct matmul_call){.c = x, .a = e, .b = w};
}

/* Makes the GEMMs of an operation. Returns their number. */
static int make_calls(const struct model *m, enum dtype dtype, enum pass pass, int threads,
                      struct matmul_call out[LAYERS])
{
    if (pass == CLASSIFIER) {
        make_classifier_calls(m, dtype, threads, out);
        return CLASSIFIER_CALLS;
    }
    for (int i = 0; i < LAYERS; i++) {
        struct shape s = get_shape(m, i, pass);
        out[i] = make_call(dtype, &s);
        out[i].c.dtype = s.transpose_a ? DTYPE_F32 : dtype; /* gradients of weights are f32 */
    }
    return LAYERS;
}

/* Computes the idle share of all GEMMs of an operation. The divisions are those that are selected
 * on this processor with this library. */
static double compute_selected_share(struct kernels *k, const struct model *m, enum dtype dtype,
                                     enum pass pass, int threads, double *largest)
{
    static struct divisions d;
    double done = 0, possible = 0;
    struct matmul_call calls[LAYERS];
    int count = make_calls(m, dtype, pass, threads, calls);
    memset(&d, 0, sizeof d);
    for (int i = 0; i < count; i++) {
        const struct matmul_call *call = &calls[i];
        struct grid g;
        double idle = select_units(k, &d, call, threads, &g);
        double products = (double)(call->c.rows * call->c.columns * matmul_inner_size(call));
        *largest = fmax(*largest, idle);
        done += products;
        possible += products / (1 - idle);
    }
    return 1 - done / possible;
}

/* Prints the idle shares of the operations [first, last) and returns the largest one. */
static double print_selected_shares(struct device *dev, const struct model *m, enum dtype dtype,
                                    int threads, enum pass first, enum pass last)
{
    struct kernels_limits limits = operation_limits(m->rows);
    struct kernels *k = NULL;
    double largest_gemm = 0, largest_share = 0;
    CHECK_OK(kernels_create(dev, dtype, threads, &limits, &k));
    printf("%s, %s, %d threads, idle:", m->name, dtype_name(dtype), threads);
    for (enum pass i = first; i < last; i++) {
        double share = compute_selected_share(k, m, dtype, i, threads, &largest_gemm);
        printf(" %s %.1f %%,", pass_names[i], 100 * share);
        largest_share = fmax(largest_share, share);
    }
    printf(" largest GEMM %.1f %%\n", 100 * largest_gemm);
    (void)fflush(stdout);
    CHECK_OK(kernels_destroy(&k));
    return largest_share;
}

#ifdef __x86_64__
/* Checks that the threads have work with the selected divisions of some GEMMs. In small units of
 * the first one, oneDNN adds in another order; with AVX2 also in the others. The inner size of the
 * last one is a vocabulary. */
static void check_selected_units(struct device *dev)
{
    static const struct {
        struct shape shape;
        int threads;
    } cases[] = {
        {{1024, 768, 768, false, true, false}, 63},
        {{768, 1024, 3072, true, false, true}, 16},
        {{1024, 1032, 1296, false, false, false}, 16},
        {{128, 50257, 384, false, false, false}, 8},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct kernels_limits limits = operation_limits(cases[i].shape.rows);
        struct kernels *k = NULL;
        static struct divisions d;
        struct grid g;
        struct matmul_call call = make_call(DTYPE_F32, &cases[i].shape);
        CHECK_OK(kernels_create(dev, DTYPE_F32, cases[i].threads, &limits, &k));
        CHECK(select_units(k, &d, &call, cases[i].threads, &g) <= 0.10);
        CHECK_OK(kernels_destroy(&k));
    }
}

/* Checks the idle shares of GPT-2 124M with the selected divisions. */
static void check_selected_shares(struct device *dev)
{
    enum { CLASSIFIER_THREADS = 63 }; /* with fewer pieces of units, 11 % would be idle */
    static const int counts[] = {8, 15, 24, 47, 63};
    const double amx_limit = 0.17; /* units consist of blocks of 32 x 32 elements */
    CHECK(print_selected_shares(dev, &models[0], DTYPE_F32, CLASSIFIER_THREADS, CLASSIFIER,
                                CLASSIFIER + 1) <= 0.10);
    for (int i = 0; i < COUNT(counts); i++) {
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            CHECK(!matmul_supports(dtype) ||
                  print_selected_shares(dev, &models[0], dtype, counts[i], FORWARD, PASSES) <=
                      (dtype == DTYPE_BF16 && matmul_permits_amx() ? amx_limit : 0.10));
        }
    }
}
#endif

/* Prints the largest idle share of the GEMMs of GPT-2 124M and checks it. The sizes of units are
 * multiples of 16, so some numbers of threads get unequal shares. */
static void check_idle_shares(void)
{
    for (int threads = 1; threads <= 64; threads++) {
        double worst = 0;
        for (int i = 0; i < LAYERS * PASSES; i++) {
            struct shape s = get_shape(&models[0], i / PASSES, i % PASSES);
            worst = fmax(worst, compute_idle_share(&s, threads));
        }
        printf("%d threads: at most %.1f %% idle\n", threads, 100 * worst);
        CHECK(worst <= 0.10);
        CHECK((threads & (threads - 1)) != 0 || worst == 0);
    }
}

/* Returns the largest resident memory since the last call, in KiB; 0: unknown. */
static long reset_peak_memory(void)
{
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "VmHWM: %ld", &kib);
    }
    if (file != NULL) {
        fclose(file);
    }
    file = fopen("/proc/self/clear_refs", "w");
    bool is_reset = file != NULL && fputs("5", file) >= 0;
    is_reset = file != NULL && fclose(file) == 0 && is_reset;
    return is_reset ? kib : 0;
}

/* Checks that the choice of units allocates at most 384 MiB of operands, also for a few columns of
 * a wide matrix. Each row of `a` has 8,000 bytes here but uses up to three pages. */
static void check_comparison_memory(struct device *dev)
{
    enum { THREADS = 13, ROWS = 40000, INNER = 2000, COLUMNS = 16, STRIDE = 4099 };
    static struct divisions d;
    struct kernels_limits limits = operation_limits(ROWS);
    struct kernels *k = NULL;
    struct matmul *m = NULL;
    struct grid g;
    size_t bytes = (size_t)ROWS * STRIDE * sizeof(float);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_OK(kernels_create(dev, DTYPE_F32, THREADS, &limits, &k));
    CHECK_OK(matmul_create(k, &m));
    const struct matmul_call call = {
        .c = {memory, DTYPE_F32, ROWS, COLUMNS, COLUMNS},
        .a = {memory, DTYPE_F32, ROWS, INNER, STRIDE},
        .b = {memory, DTYPE_F32, INNER, COLUMNS, COLUMNS},
    };
    g = grid_make(&call);
    CHECK(!grid_is_balanced(&g, THREADS));
    long before = reset_peak_memory();
    before = before > 0 ? reset_peak_memory() : 0;
    CHECK_OK(divisions_choose(&d, m, &call, THREADS, &g));
    long after = reset_peak_memory();
    printf("peak of a comparison with narrow columns: %ld KiB\n", after - before);
    CHECK(before == 0 || after - before < (384 + 16) << 10);
    matmul_destroy(&m);
    CHECK_OK(kernels_destroy(&k));
    CHECK(munmap(memory, bytes) == 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HAS_SANITIZER = 1 };
#else
enum { HAS_SANITIZER = 0 };
#endif

/* After a failed allocation of larger buffers, all threads still have the smaller ones. */
static void check_failed_growth(struct device *dev)
{
    enum { THREADS = 3, BYTES = 4096 };
    struct kernels_limits limits = operation_limits(1);
    struct kernels *k = NULL;
    struct matmul *m = NULL;
    void *before[THREADS];
    CHECK_OK(kernels_create(dev, DTYPE_F32, THREADS, &limits, &k));
    CHECK_OK(matmul_create(k, &m));
    CHECK_OK(plans_reserve_copies(m, BYTES));
    for (int i = 0; i < THREADS; i++) {
        before[i] = plans_copy_memory(m, i);
    }
    CHECK_FAILS(plans_reserve_copies(m, (size_t)1 << 60), STATUS_INTERNAL, "copies of operands");
    CHECK_OK(plans_reserve_copies(m, BYTES));
    for (int i = 0; i < THREADS; i++) {
        CHECK(before[i] != NULL && plans_copy_memory(m, i) == before[i]);
        memset(before[i], 1, BYTES);
    }
    CHECK_OK(plans_reserve_copies(m, 2 * BYTES));
    matmul_destroy(&m);
    CHECK_OK(kernels_destroy(&k));
}

/* Prints the idle shares of the operations [begin, end) of a model for a dtype and numbers of
 * threads. */
static void print_model_shares(struct device *dev, char **arguments, enum pass begin, enum pass end)
{
    enum dtype dtype = strcmp(arguments[1], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    int first = (int)strtol(arguments[2], NULL, 10), last = (int)strtol(arguments[3], NULL, 10);
    for (int i = 0; i < MODELS; i++) {
        for (int threads = first; threads <= last && strcmp(models[i].name, arguments[0]) == 0;
             threads++) {
            print_selected_shares(dev, &models[i], dtype, threads, begin, end);
        }
    }
}

/* Checks the idle shares of the divisions that are selected on this processor. Returns the exit
 * code. */
static int check_selected_divisions(struct device *dev)
{
#ifdef __x86_64__
    /* On other processors or with other versions of oneDNN, the order of additions may differ. */
    if (strncmp(matmul_description(), "oneDNN 2", 8) == 0) {
        check_selected_units(dev);
        check_selected_shares(dev);
        return 0;
    }
#endif
    (void)dev;
    printf("skipped: the idle shares are known for x86-64 and oneDNN 2 only\n");
    return 77;
}

/* Without arguments, tests all but the idle shares of the selected divisions. With the argument
 * `selected`, checks these. With the arguments MODEL DTYPE FIRST LAST, only prints the idle shares
 * of a block for all numbers of threads from FIRST to LAST; with the argument `classifier` after
 * them, those of the classifier. */
int main(int argc, char **argv)
{
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    if (argc >= 5) {
        bool is_classifier = argc > 5 && strcmp(argv[5], "classifier") == 0;
        print_model_shares(dev, argv + 1, is_classifier ? CLASSIFIER : FORWARD,
                           is_classifier ? CLASSIFIER + 1 : PASSES);
        CHECK_OK(device_destroy(&dev));
        return 0;
    }
    if (argc == 2) {
        int code = check_selected_divisions(dev);
        CHECK_OK(device_destroy(&dev));
        return code;
    }
    check_idle_shares();
    for (int i = 0; i < SHAPES; i++) {
        for (int threads = 1; threads <= 64; threads += 7) {
            check_strips(&shapes[i], threads);
        }
    }
    enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        if (!matmul_supports(dtypes[i])) {
            continue;
        }
        for (int j = 0; j < SHAPES; j++) {
            if (dtypes[i] == DTYPE_F32 || !shapes[j].is_f32_only) {
                check_shape(dev, dtypes[i], &shapes[j]);
            }
        }
    }
    check_small_products(dev);
    if (!HAS_SANITIZER) { /* a sanitizer ends the process instead */
        check_failed_growth(dev);
    }
    if (!operation_is_emulated()) {
        check_comparison_memory(dev);
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
