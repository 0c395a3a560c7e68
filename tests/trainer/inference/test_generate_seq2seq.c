/* Generation with an encoder-decoder against generate() of MarianMTModel
 * (make_reference.py seq2seq): the ids of greedy decoding and of all hypotheses of beam
 * search, with constraints. Each case is an array of the settings in GENERATE_SETTINGS. The keys
 * and values of cross-attention are computed once. */
#include "kernels/kernels_table.h"
#include "tests/trainer/reference_file.h"
#include "trainer/inference/generate.h"

enum { SOURCES_MAX = 8, BEAMS_MAX = 8, CASE_NUMBERS = 10 };

struct fixture {
    hid_t file;
    struct device *device;
    struct kernels *kernels;
    struct model *model;
    struct token_list sources[SOURCES_MAX];
    int64_t count;
    int32_t start, end;
};

static void make_model(struct fixture *f)
{
    int64_t width = (int64_t)reference_attribute(f->file, "width");
    const struct model_config config = {
        .architecture = "marian",
        .layers = (int64_t)reference_attribute(f->file, "layers"),
        .encoder_layers = (int64_t)reference_attribute(f->file, "encoder_layers"),
        .width = width,
        .heads = (int64_t)reference_attribute(f->file, "heads"),
        .inner = (int64_t)reference_attribute(f->file, "inner"),
        .positions = (int64_t)reference_attribute(f->file, "positions"),
        .vocabulary = (int64_t)reference_attribute(f->file, "vocabulary"),
        .embedding_multiplier = sqrt((double)width),
        .activation = ACTIVATION_RELU,
        .norm_epsilon = 1e-5f,
        .tied = true,
        .logits_bias = true,
    };
    const struct kernels_limits limits = {
        .rows = 64,
        .width = config.width,
        .inner = config.inner,
        .heads = (int)config.heads,
        .head_width = config.width / config.heads,
        .sequence = config.positions,
        .vocabulary = model_vocabulary_rows(&config, 1),
    };
    CHECK_OK(device_create(DEVICE_CPU, 0, &f->device));
    CHECK_OK(kernels_create(f->device, DTYPE_F32, 1, &limits, &f->kernels));
    CHECK_OK(model_create(f->kernels, &config, NULL, false, limits.rows, false, &f->model));
    int count = 0;
    const struct model_parameter *parameters = model_parameters(f->model, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        float *tensor = reference_tensor(f->file, "weights", p);
        memcpy(model_weights(f->model) + p->first, tensor,
               (size_t)(p->whole_rows * p->whole_columns) * sizeof *tensor);
        free(tensor);
    }
}

static void open_fixture(struct fixture *f)
{
    int64_t ids = 0, row = 0;
    f->file = reference_open("marian_generation.h5");
    f->start = (int32_t)reference_attribute(f->file, "start");
    f->end = (int32_t)reference_attribute(f->file, "end");
    int32_t *lengths = reference_dataset(f->file, "source_lengths", H5T_NATIVE_INT32, 4, &f->count);
    int32_t *sources = reference_dataset(f->file, "sources", H5T_NATIVE_INT32, 4, &ids);
    CHECK(f->count <= SOURCES_MAX);
    for (int64_t i = 0; i < f->count; row += lengths[i], i++) {
        CHECK_OK(token_list_append(&f->sources[i], sources + row, lengths[i]));
    }
    free(lengths);
    free(sources);
    make_model(f);
}

static void close_fixture(struct fixture *f)
{
    for (int64_t i = 0; i < f->count; i++) {
        token_list_free(&f->sources[i]);
    }
    CHECK_OK(model_destroy(&f->model));
    CHECK_OK(kernels_destroy(&f->kernels));
    CHECK_OK(device_destroy(&f->device));
    H5Fclose(f->file);
}

static struct generate_options read_case(const struct fixture *f, const double *c)
{
    struct generate_options o = {
        .sampler = {.top_p = 1, .repetition_penalty = c[5]},
        .constraints = {.min_new_tokens = (int64_t)c[3],
                        .no_repeat_ngram_size = (int64_t)c[4],
                        .has_first = c[6] >= 0,
                        .first_token = (int32_t)c[6],
                        .has_last = c[7] >= 0,
                        .last_token = (int32_t)c[7],
                        .bad_words = c[8] >= 0,
                        .bad_lengths = {1},
                        .bad_tokens = {(int32_t)c[8]}},
        .max_new_tokens = (int64_t)c[2],
        .num_beams = (int64_t)c[0],
        .num_samples = (int64_t)c[0],
        .length_penalty = c[1],
        .early_stopping = c[9] > 0,
        .decoder_start = f->start,
        .end_token = &f->end,
        .use_cache = true,
    };
    return o;
}

/* Compares an output with ids that are padded with -1 to `room` ids. */
static void check_output(const struct fixture *f, const struct generate_output *output,
                         const int32_t *expected, int64_t room)
{
    int64_t count = 0;
    while (count < room && expected[count] >= 0) {
        count++;
    }
    bool ended = count > 0 && expected[count - 1] == f->end;
    CHECK_EQUAL(output->ended, ended);
    CHECK_EQUAL(output->tokens.count, count - ended);
    for (int64_t i = 0; i < count - ended; i++) {
        CHECK_EQUAL(output->tokens.ids[i], expected[i]);
    }
}

/* expected: [sources, width, room] */
static void check_case(const struct fixture *f, const struct generate_options *o, int64_t batch,
                       const int32_t *expected, int64_t width, int64_t room)
{
    struct generate_output outputs[SOURCES_MAX * BEAMS_MAX] = {0};
    CHECK_OK(
        generate_run_sorted(f->kernels, f->model, NULL, f->sources, f->count, batch, o, outputs));
    for (int64_t i = 0; i < f->count; i++) {
        for (int64_t k = 0; k < o->num_samples; k++) {
            struct generate_output *output = &outputs[i * o->num_samples + k];
            check_output(f, output, expected + (i * width + k) * room, room);
            token_list_free(&output->tokens);
        }
    }
}

/* Samples depend on the source alone, not on the batch, and the cache changes nothing. */
static void test_sampling(const struct fixture *f, const struct generate_options *greedy)
{
    struct generate_output outputs[2][SOURCES_MAX * BEAMS_MAX] = {0};
    struct generate_options o = *greedy;
    o.sampler.temperature = 1.5;
    o.num_samples = 3;
    CHECK_OK(generate_run_sorted(f->kernels, f->model, NULL, f->sources, f->count, f->count, &o,
                                 outputs[0]));
    o.use_cache = false;
    CHECK_OK(
        generate_run_sorted(f->kernels, f->model, NULL, f->sources, f->count, 1, &o, outputs[1]));
    bool differ = false;
    for (int64_t i = 0; i < f->count * o.num_samples; i++) {
        struct token_list *a = &outputs[0][i].tokens, *b = &outputs[1][i].tokens;
        CHECK_EQUAL(a->count, b->count);
        CHECK(a->count == 0 || memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) == 0);
        differ = differ || a->count != outputs[0][0].tokens.count;
    }
    CHECK(differ);
    for (int64_t i = 0; i < f->count * o.num_samples; i++) {
        token_list_free(&outputs[0][i].tokens);
        token_list_free(&outputs[1][i].tokens);
    }
}

static struct model *damaged_model;
static int calls;

/* Damages the weights of the model at the second prompt. */
static bool damage_weights(void)
{
    if (++calls == 3) {
        model_weights(damaged_model)[0] = NAN;
    }
    return false;
}

/* After an error, the caller owns the outputs that exist already. */
static void test_failure(struct fixture *f, const struct generate_options *greedy)
{
    struct generate_output outputs[SOURCES_MAX * 2] = {0};
    struct generate_options o = *greedy;
    o.num_beams = o.num_samples = 2;
    o.max_new_tokens = 2;
    o.should_stop = damage_weights;
    damaged_model = f->model;
    float first = model_weights(f->model)[0];
    CHECK_EQUAL(generate_run_sorted(f->kernels, f->model, NULL, f->sources, f->count, f->count, &o,
                                    outputs),
                STATUS_NOT_FINITE);
    status_clear();
    model_weights(f->model)[0] = first;
    int64_t tokens = 0;
    for (int64_t i = 0; i < f->count * o.num_samples; i++) {
        tokens += outputs[i].tokens.count;
        token_list_free(&outputs[i].tokens);
    }
    CHECK(calls >= 3 && tokens > 0);
}

static int64_t projections, projected_rows; /* of sources to keys and values */
static struct kernels_table plain_table;    /* of the back-end */

/* Counts the matrix products with the weights of keys and values of cross-attention, which have
 * twice as many rows as columns. No other matrix of the model has this shape. */
static status count_linear(struct kernels *k, struct tensor y, struct tensor saved, struct tensor x,
                           struct tensor w, struct tensor bias, enum activation act)
{
    if (w.rows == 2 * w.columns) {
        projections++;
        projected_rows += x.rows;
    }
    return plain_table.linear_forward(k, y, saved, x, w, bias, act);
}

/* Generates targets for all sources, and checks how often a source is projected in each layer of
 * the decoder. */
static void check_projections(const struct fixture *f, const struct generate_options *o,
                              int64_t expected)
{
    const struct model_config *c = model_get_config(f->model);
    struct generate_output outputs[SOURCES_MAX * BEAMS_MAX] = {0};
    int64_t rows = 0, tokens = 0, layers = c->layers - c->encoder_layers;
    projections = projected_rows = 0;
    CHECK_OK(generate_run_sorted(f->kernels, f->model, NULL, f->sources, f->count, 3, o, outputs));
    for (int64_t i = 0; i < f->count; i++) {
        rows += f->sources[i].count;
    }
    for (int64_t i = 0; i < f->count * o->num_samples; i++) {
        tokens += outputs[i].tokens.count;
        token_list_free(&outputs[i].tokens);
    }
    CHECK(tokens > 2 * f->count * o->num_samples); /* several tokens for each source */
    CHECK_EQUAL(projections, expected * layers * f->count);
    CHECK_EQUAL(projected_rows, expected * layers * rows);
}

/* The keys and values of cross-attention are computed once for each source in greedy decoding and
 * in beam search, and once for each sample. */
static void test_projections(const struct fixture *f, const struct generate_options *greedy)
{
    struct generate_options o = *greedy;
    plain_table = f->kernels->table;
    f->kernels->table.linear_forward = count_linear;
    check_projections(f, &o, 1);
    o.num_beams = 4;
    check_projections(f, &o, 1);
    o.num_samples = 4; /* all hypotheses */
    check_projections(f, &o, 1);
    o.num_beams = 1;
    o.num_samples = 3;
    o.sampler.temperature = 1;
    check_projections(f, &o, 3);
    f->kernels->table = plain_table;
}

static bool stop_always(void)
{
    return true;
}

/* A stop ends all sequences at their present length, with and without beams. */
static void test_stop(const struct fixture *f, const struct generate_options *greedy)
{
    for (int beams = 1; beams <= 2; beams++) {
        struct generate_output outputs[SOURCES_MAX] = {0};
        struct generate_options o = *greedy;
        o.num_beams = beams;
        o.should_stop = stop_always;
        CHECK_OK(generate_run(f->kernels, f->model, NULL, f->sources, f->count, &o, NULL, NULL,
                              outputs));
        for (int64_t i = 0; i < f->count; i++) {
            CHECK(outputs[i].tokens.count <= 1);
            token_list_free(&outputs[i].tokens);
        }
    }
}

int main(void)
{
    struct fixture f = {0};
    int64_t numbers = 0, all_ids = 0;
    open_fixture(&f);
    double *cases = reference_dataset(f.file, "cases", H5T_NATIVE_DOUBLE, 8, &numbers);
    int32_t *ids = reference_dataset(f.file, "ids", H5T_NATIVE_INT32, 4, &all_ids);
    int64_t count = numbers / CASE_NUMBERS, width = 0, room = 0;
    for (int64_t c = 0; c < count; c++) {
        width = fmax((double)width, cases[c * CASE_NUMBERS]);
        room = fmax((double)room, cases[c * CASE_NUMBERS + 2]);
    }
    CHECK_EQUAL(all_ids, count * f.count * width * room);
    for (int64_t c = 0; c < count; c++) {
        struct generate_options o = read_case(&f, cases + c * CASE_NUMBERS);
        const int32_t *expected = ids + c * f.count * width * room;
        check_case(&f, &o, 1, expected, width, room);
        check_case(&f, &o, 3, expected, width, room);
        o.use_cache = false;
        check_case(&f, &o, f.count, expected, width, room);
    }
    const struct generate_options greedy = read_case(&f, cases);
    test_sampling(&f, &greedy);
    test_projections(&f, &greedy);
    test_stop(&f, &greedy);
    test_failure(&f, &greedy);
    free(cases);
    free(ids);
    close_fixture(&f);
    return 0;
}
