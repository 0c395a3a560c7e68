/* A program outside of the source tree that uses libbireme. It calls the functions of bireme.h on a
 * checkpoint and prints results that test_install.sh compares with the results of the commands.
 *
 * usage: uses_bireme VERSION CHECKPOINT TEXT; in the run folder "damaged", final/ is damaged. */
#include <bireme.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #condition,            \
                    bm_error());                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_FAILS(call, code, text)                                                              \
    do {                                                                                           \
        CHECK((call) == (code));                                                                   \
        CHECK(strstr(bm_error(), (text)) != NULL);                                                 \
    } while (0)

static const char *const settings[] = {"parallel.threads=1", NULL};

static void check_open_errors(void)
{
    static const char *const misspelled[] = {"train.precison=fp32", NULL};
    bm_model *model = (bm_model *)settings;
    CHECK_FAILS(bm_model_open("nowhere", NULL, &model), BM_NO_INPUT, "nowhere");
    CHECK_FAILS(bm_model_open("", NULL, &model), BM_NO_INPUT, "path of the checkpoint is empty");
    CHECK(model == NULL);
    CHECK_FAILS(bm_model_open("run", misspelled, &model), BM_RECIPE, "train.precision");
    CHECK_FAILS(bm_model_open(NULL, NULL, &model), BM_USAGE, "path");
    CHECK_FAILS(bm_model_open("nowhere", NULL, NULL), BM_USAGE, "NULL");
    bm_model_close(&model);
    bm_model_close(NULL);
}

static void check_damaged(void)
{
    bm_model *model = NULL;
    CHECK(bm_model_open("damaged", settings, &model) == BM_OK);
    CHECK(strstr(bm_warning(), "damaged/final: ") != NULL);
    CHECK(strstr(bm_warning(), "W-CKPT-SKIP") != NULL);
    CHECK(strcmp(bm_model_checkpoint(model), "damaged/checkpoints/step-00000020") == 0);
    bm_model_close(&model);
    CHECK(bm_warning()[0] == '\0');
}

/* Each function refuses NULL for an argument that it requires. */
static void check_null(bm_model *model)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    char *text = NULL;
    size_t bytes = 0;
    double sums[2];
    float vector[32];
    const int32_t id = 1;
    CHECK(bm_model_facts_of(NULL).vocabulary == 0 && bm_model_checkpoint(NULL)[0] == '\0');
    CHECK(bm_generate_end(NULL) == BM_END_NONE);
    CHECK_FAILS(bm_encode(NULL, "A", 1, 0, &ids, &count), BM_USAGE, "NULL");
    CHECK_FAILS(bm_encode(model, NULL, 1, 0, &ids, &count), BM_USAGE, "NULL");
    CHECK_FAILS(bm_encode(model, "A", 1, 0, NULL, &count), BM_USAGE, "NULL");
    CHECK_FAILS(bm_encode(model, "A", 1, 0, &ids, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_decode(NULL, &id, 1, &text, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_decode(model, NULL, 1, &text, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_decode(model, &id, 1, NULL, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_decode(model, &id, 1, &text, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_generate(NULL, &id, 1, NULL, NULL, NULL, &text, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_generate(model, NULL, 1, NULL, NULL, NULL, &text, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_generate_text(NULL, "A", 1, NULL, NULL, NULL, &text, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_generate_text(model, NULL, 1, NULL, NULL, NULL, &text, &bytes), BM_USAGE,
                "NULL");
    CHECK_FAILS(bm_log_probabilities(NULL, &id, 1, sums), BM_USAGE, "NULL");
    CHECK_FAILS(bm_log_probabilities(model, NULL, 2, sums), BM_USAGE, "NULL");
    CHECK_FAILS(bm_log_probabilities(model, &id, 1, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_embed(NULL, "A", 1, vector), BM_USAGE, "NULL");
    CHECK_FAILS(bm_embed(model, NULL, 1, vector), BM_USAGE, "NULL");
    CHECK_FAILS(bm_embed(model, "A", 1, NULL), BM_USAGE, "NULL");
    CHECK(bm_generate_text(model, "A", 1, NULL, NULL, NULL, NULL, NULL) == BM_OK);
}

/* The same for the functions of conversations and predictions. A causal model without a chat
 * template supports none of them. */
static void check_unsupported(bm_model *model)
{
    bm_message message = {"user", "A", 1};
    bm_label *labels = NULL;
    bm_token *tokens = NULL;
    bm_answer_span span;
    char *text = NULL;
    size_t bytes = 0;
    int64_t count = 1;
    CHECK_FAILS(bm_chat(NULL, &message, 1, NULL, NULL, NULL, &text, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_chat(model, &message, 1, NULL, NULL, NULL, &text, NULL), BM_NO_INPUT,
                "chat_template.json");
    CHECK_FAILS(bm_classify(NULL, "A", 1, NULL, 0, 1, &labels, &count), BM_USAGE, "NULL");
    CHECK_FAILS(bm_classify(model, "A", 1, NULL, 0, 1, NULL, &count), BM_USAGE, "NULL");
    CHECK_FAILS(bm_classify(model, "A", 1, NULL, 0, 1, &labels, &count), BM_DATA, "objective clm");
    CHECK(labels == NULL && count == 0);
    CHECK_FAILS(bm_fill_mask(NULL, "A", 1, 1, &tokens, &count), BM_USAGE, "NULL");
    CHECK_FAILS(bm_fill_mask(model, "A", 1, 1, &tokens, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_fill_mask(model, "A", 1, 1, &tokens, &count), BM_DATA, "objective clm");
    CHECK_FAILS(bm_translate(NULL, "A", 1, NULL, &text, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_translate(model, "A", 1, NULL, NULL, &bytes), BM_USAGE, "NULL");
    CHECK_FAILS(bm_translate(model, "A", 1, NULL, &text, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_translate(model, "A", 1, NULL, &text, &bytes), BM_DATA,
                "not an encoder-decoder");
    CHECK_FAILS(bm_answer(NULL, "A", 1, "A", 1, &span), BM_USAGE, "NULL");
    CHECK_FAILS(bm_answer(model, "A", 1, "A", 1, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_answer(model, "A", 1, "A", 1, &span), BM_DATA, "objective clm");
}

static void check_tokens(const bm_model *model, const char *text)
{
    int32_t *ids = NULL, invalid;
    int64_t count = 0;
    char *decoded = NULL;
    size_t bytes = 0;
    bm_model_facts facts = bm_model_facts_of(model);
    printf("parameters: %lld\n", (long long)facts.parameters);
    CHECK(facts.parameters > 0 && facts.positions == 32 && facts.width == 32);
    CHECK(facts.end_token == -1); /* a character tokenizer has no end token */
    CHECK(bm_encode(model, text, strlen(text), 0, &ids, &count) == BM_OK);
    CHECK(count == (int64_t)strlen(text) && bm_error()[0] == '\0');
    CHECK(bm_decode(model, ids, count, &decoded, &bytes) == BM_OK);
    CHECK(bytes == strlen(text) && strcmp(decoded, text) == 0);
    bm_free(decoded);
    bm_free(ids);
    invalid = (int32_t)facts.vocabulary;
    CHECK_FAILS(bm_decode(model, &invalid, 1, &decoded, &bytes), BM_DATA, "vocabulary");
    CHECK_FAILS(bm_encode(model, "\x01", 1, 0, &ids, &count), BM_DATA, "character");
    CHECK(decoded == NULL && ids == NULL && count == 0);
}

/* The output of bm_generate. */
struct stream {
    char text[256];
    int pieces;
    int stop_after; /* pieces after which the callback stops the generation; 0: never */
};

static int append_text(void *user, const char *text, size_t bytes)
{
    struct stream *stream = user;
    CHECK(strlen(stream->text) + bytes < sizeof stream->text);
    strncat(stream->text, text, bytes);
    return ++stream->pieces == stream->stop_after;
}

static void check_generation(bm_model *model, const char *text)
{
    struct stream stream = {"", 0, 0}, stopped = {"", 0, 2};
    bm_generate_options options = bm_generate_defaults();
    char *generated = NULL, *second = NULL;
    size_t bytes = 0, length = strlen(text);
    options.max_new_tokens = 9;
    options.temperature = 0;
    CHECK(bm_generate_text(model, text, length, &options, append_text, &stream, &generated,
                           &bytes) == BM_OK);
    CHECK(bytes == strlen(generated) && bytes == 9);
    CHECK(stream.pieces == 9 && strcmp(stream.text, generated) == 0);
    CHECK(bm_generate_end(model) == BM_END_LENGTH);
    CHECK(bm_generate_text(model, text, length, &options, append_text, &stopped, NULL, NULL) ==
          BM_OK);
    CHECK(bm_generate_end(model) == BM_END_STREAM);
    CHECK(stopped.pieces == 2 && strlen(stopped.text) == 2 &&
          strncmp(stopped.text, generated, 2) == 0);
    printf("text: %s\n", generated);
    bm_free(generated);
    options.temperature = 1.5; /* sampled: the result depends on the seed */
    options.seed = 3;
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &generated, &bytes) == BM_OK);
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &second, &bytes) == BM_OK);
    CHECK(strcmp(generated, second) == 0);
    bm_free(second);
    char stop[] = {generated[4], '\0'};
    const char *stops[] = {stop, NULL};
    options.stops = stops;
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &second, &bytes) == BM_OK);
    CHECK(bytes == strcspn(generated, stop) && strncmp(generated, second, bytes) == 0);
    CHECK(bm_generate_end(model) == BM_END_STOP);
    bm_free(generated);
    bm_free(second);
    options = bm_generate_defaults();
    options.num_beams = 3;
    options.max_new_tokens = 9;
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &generated, &bytes) == BM_OK);
    printf("beams: %s\n", generated);
    bm_free(generated);
}

/* The model has 32 positions. Its tokenizer has no end token. */
static void check_long_text(bm_model *model, const char *text)
{
    bm_generate_options options = bm_generate_defaults();
    char *generated = NULL, *whole = NULL;
    size_t bytes = 0;
    options.max_new_tokens = 50;
    options.temperature = 0;
    CHECK(options.slide != 0);
    CHECK(bm_generate_text(model, text, strlen(text), &options, NULL, NULL, &whole, &bytes) ==
          BM_OK);
    CHECK(bytes == 50 && bm_generate_end(model) == BM_END_LENGTH && bm_warning()[0] == '\0');
    printf("long: %s\n", whole);
    options.slide = 0;
    CHECK(bm_generate_text(model, text, strlen(text), &options, NULL, NULL, &generated, &bytes) ==
          BM_OK);
    CHECK(bytes == 32 - strlen(text) && strncmp(generated, whole, bytes) == 0);
    CHECK(bm_generate_end(model) == BM_END_POSITIONS);
    CHECK(strstr(bm_warning(), "W-LENGTH") != NULL && strstr(bm_warning(), "11 new") != NULL);
    CHECK(bm_embed(model, "A", 1, (float[32]){0}) == BM_OK && bm_warning()[0] == '\0');
    bm_free(generated);
    bm_free(whole);
}

static void check_generation_errors(bm_model *model)
{
    const int32_t invalid = -1;
    char *generated = NULL;
    size_t bytes = 0;
    bm_generate_options options = bm_generate_defaults();
    options.temperature = NAN;
    CHECK_FAILS(bm_generate_text(model, "A", 1, &options, NULL, NULL, &generated, &bytes), BM_USAGE,
                "temperature");
    CHECK_FAILS(bm_generate(model, &invalid, 1, NULL, NULL, NULL, &generated, &bytes), BM_DATA,
                "id -1");
    CHECK_FAILS(bm_generate(model, NULL, 0, NULL, NULL, NULL, &generated, &bytes), BM_USAGE,
                "end-of-text");
    CHECK_FAILS(bm_generate_text(model, "A license of many more words than fit", 36, NULL, NULL,
                                 NULL, &generated, &bytes),
                BM_USAGE, "32 positions");
    CHECK(generated == NULL && bytes == 0);
    CHECK(bm_generate_end(model) == BM_END_NONE);
}

static void check_log_probabilities(bm_model *model, const char *text)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    double all_tokens[64], shorter[64], sum = 0;
    CHECK(bm_encode(model, text, strlen(text), 0, &ids, &count) == BM_OK && count < 64);
    CHECK(bm_log_probabilities(model, ids, count, all_tokens) == BM_OK);
    CHECK(bm_log_probabilities(model, ids, count - 3, shorter) == BM_OK);
    for (int64_t i = 0; i < count - 1; i++) {
        CHECK(all_tokens[i] < 0);
        /* A log-probability does not depend on later tokens. */
        CHECK(i >= count - 4 || fabs(all_tokens[i] - shorter[i]) < 1e-5);
        sum += all_tokens[i];
    }
    printf("log-probability: %.6f\n", sum);
    CHECK_FAILS(bm_log_probabilities(model, ids, 1, all_tokens), BM_USAGE, "at least 2");
    ids[1] = 1 << 20;
    CHECK_FAILS(bm_log_probabilities(model, ids, count, all_tokens), BM_DATA, "index 1");
    bm_free(ids);
}

/* The logarithm of the softmax of the logits is the log-probability. */
static void check_logits(bm_model *model, const char *text)
{
    int32_t *ids = NULL;
    int64_t count = 0, vocabulary = bm_model_facts_of(model).vocabulary;
    double log_probabilities[64];
    CHECK(bm_encode(model, text, strlen(text), 0, &ids, &count) == BM_OK && count < 32);
    float *logits = malloc((size_t)(count * vocabulary) * sizeof *logits);
    CHECK(logits != NULL && bm_logits(model, ids, count, logits) == BM_OK);
    CHECK(bm_log_probabilities(model, ids, count, log_probabilities) == BM_OK);
    for (int64_t i = 0; i < count - 1; i++) {
        const float *row = logits + i * vocabulary;
        double sum = 0;
        for (int64_t v = 0; v < vocabulary; v++) {
            sum += exp((double)row[v]);
        }
        CHECK(fabs((double)row[ids[i + 1]] - log(sum) - log_probabilities[i]) < 1e-5);
    }
    CHECK_FAILS(bm_logits(NULL, ids, count, logits), BM_USAGE, "NULL");
    CHECK_FAILS(bm_logits(model, ids, count, NULL), BM_USAGE, "NULL");
    CHECK_FAILS(bm_logits(model, NULL, 0, logits), BM_DATA, "no tokens");
    ids[0] = -1;
    CHECK_FAILS(bm_logits(model, ids, count, logits), BM_DATA, "id -1");
    free(logits);
    bm_free(ids);
}

static void check_embeddings(bm_model *model, const char *text)
{
    float vector[32], other[32];
    double length = 0;
    CHECK(bm_embed(model, text, strlen(text), vector) == BM_OK);
    CHECK(bm_embed(model, "of work", 7, other) == BM_OK);
    CHECK(memcmp(vector, other, sizeof vector) != 0);
    for (int i = 0; i < 32; i++) {
        length += (double)vector[i] * (double)vector[i];
    }
    CHECK(fabs(length - 1) < 1e-5);
    printf("vector: %.9g %.9g %.9g\n", (double)vector[0], (double)vector[1], (double)vector[2]);
    CHECK_FAILS(bm_embed(model, "", 0, vector), BM_DATA, "token");
}

/* ---- the wrong thread, the wrong process ---- */

static void *use_model(void *model)
{
    float vector[32];
    CHECK_FAILS(bm_embed(model, "of", 2, vector), BM_USAGE, "another thread uses this model");
    return NULL;
}

/* While the model generates a text: another thread cannot use it, this one can, nobody can close
 * it. */
static int use_in_stream(void *user, const char *text, size_t bytes)
{
    bm_model *model = user, *same = model;
    pthread_t thread;
    float vector[32];
    bm_generate_options options = bm_generate_defaults();
    char *nested = NULL;
    (void)text;
    (void)bytes;
    options.max_new_tokens = 2;
    CHECK(bm_generate_text(model, "and", 3, &options, NULL, NULL, &nested, NULL) == BM_OK);
    bm_free(nested);
    CHECK(pthread_create(&thread, NULL, use_model, model) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(bm_embed(model, "of", 2, vector) == BM_OK);
    CHECK_FAILS(bm_embed(model, "", 0, vector), BM_DATA, "token");
    bm_model_close(&same);
    CHECK(same == model && strstr(bm_error(), "in use") != NULL);
    return 0;
}

static void check_threads(bm_model *model)
{
    bm_generate_options options = bm_generate_defaults();
    options.max_new_tokens = 3;
    char *text = NULL, *expected = NULL;
    CHECK(bm_generate_text(model, "of", 2, &options, NULL, NULL, &expected, NULL) == BM_OK);
    CHECK(bm_generate_text(model, "of", 2, &options, use_in_stream, model, &text, NULL) == BM_OK);
    CHECK(strcmp(text, expected) == 0);
    bm_free(text);
    bm_free(expected);
}

/* The results of a model, computed by one thread. */
struct results {
    bm_model *model;
    const char *text;
    char *generated;
    double log_probabilities[64];
    float vector[32];
    float logits[64];
};

static void *compute_results(void *user)
{
    enum { REPEATS = 5 };
    struct results *r = user;
    bm_generate_options options = bm_generate_defaults();
    float *logits = malloc(64 * (size_t)bm_model_facts_of(r->model).vocabulary * sizeof *logits);
    options.max_new_tokens = 9;
    CHECK(logits != NULL);
    for (int i = 0; i < REPEATS; i++) {
        int32_t *ids = NULL;
        int64_t count = 0;
        bm_free(r->generated);
        CHECK(bm_encode(r->model, r->text, strlen(r->text), 0, &ids, &count) == BM_OK);
        CHECK(bm_generate(r->model, ids, count, &options, NULL, NULL, &r->generated, NULL) ==
              BM_OK);
        CHECK(bm_log_probabilities(r->model, ids, count, r->log_probabilities) == BM_OK);
        CHECK(bm_embed(r->model, r->text, strlen(r->text), r->vector) == BM_OK);
        CHECK(bm_logits(r->model, ids, count, logits) == BM_OK);
        memcpy(r->logits, logits, sizeof r->logits);
        CHECK_FAILS(bm_embed(r->model, "", 0, r->logits), BM_DATA, "token");
        bm_free(ids);
    }
    free(logits);
    return NULL;
}

/* Four models in four threads at the same time give the bits that they give one after another. */
static void check_models_in_threads(void)
{
    enum { MODELS = 4 };
    static const char *const texts[MODELS] = {"The license", "of work", "a copy", "source"};
    static struct results together[MODELS], alone[MODELS];
    pthread_t threads[MODELS];
    for (int i = 0; i < MODELS; i++) {
        together[i].text = alone[i].text = texts[i];
        CHECK(bm_model_open("run", settings, &together[i].model) == BM_OK);
        alone[i].model = together[i].model;
        compute_results(&alone[i]);
    }
    for (int i = 0; i < MODELS; i++) {
        CHECK(pthread_create(&threads[i], NULL, compute_results, &together[i]) == 0);
    }
    for (int i = 0; i < MODELS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(strcmp(together[i].generated, alone[i].generated) == 0);
        CHECK(memcmp(together[i].log_probabilities, alone[i].log_probabilities,
                     sizeof alone[i].log_probabilities) == 0);
        CHECK(memcmp(together[i].vector, alone[i].vector, sizeof alone[i].vector) == 0);
        CHECK(memcmp(together[i].logits, alone[i].logits, sizeof alone[i].logits) == 0);
        bm_free(together[i].generated);
        bm_free(alone[i].generated);
        bm_model_close(&together[i].model);
    }
}

/* A child process can use a model with one thread. With two threads the call would never return. */
static void check_fork(bm_model *model)
{
    static const char *const two_threads[] = {"parallel.threads=2", NULL};
    bm_model *other = NULL;
    float vector[32];
    int code = -1;
    CHECK(bm_model_open("run", two_threads, &other) == BM_OK);
    CHECK(bm_embed(other, "of", 2, vector) == BM_OK);
    fflush(stdout); /* the child must not print it again */
    pid_t child = fork();
    if (child == 0) {
        CHECK(bm_embed(model, "of", 2, vector) == BM_OK);
        CHECK_FAILS(bm_embed(other, "of", 2, vector), BM_USAGE, "fork()");
        _exit(0);
    }
    CHECK(waitpid(child, &code, 0) == child && code == 0);
    bm_model_close(&other);
}

int main(int argc, char **argv)
{
    bm_model *model = NULL;
    CHECK(argc == 4 && strcmp(bm_version(), argv[1]) == 0);
    check_open_errors();
    check_damaged();
    CHECK(bm_model_open(argv[2], settings, &model) == BM_OK);
    CHECK(strcmp(bm_model_checkpoint(model), "run/final") == 0 && bm_warning()[0] == '\0');
    check_null(model);
    check_unsupported(model);
    check_tokens(model, argv[3]);
    check_generation(model, argv[3]);
    check_long_text(model, argv[3]);
    check_generation_errors(model);
    check_log_probabilities(model, argv[3]);
    check_logits(model, argv[3]);
    check_embeddings(model, argv[3]);
    check_threads(model);
    check_models_in_threads();
    check_fork(model);
    CHECK_FAILS(bm_embed(model, "of", (size_t)-1, (float[32]){0}), BM_USAGE, "use strlen");
    bm_model_close(&model);
    CHECK(model == NULL);
    return 0;
}
