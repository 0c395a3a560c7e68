/* A stranger's program: what bireme.h says, tried on a checkpoint; it prints what the commands print too.
 *
 * usage: uses_bireme VERSION CHECKPOINT TEXT */
#include <bireme.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    static const char *const wrong[] = {"train.precison=fp32", NULL};
    bm_model *model = (bm_model *)settings;
    CHECK_FAILS(bm_model_open("nowhere", NULL, &model), BM_NO_INPUT, "nowhere");
    CHECK(model == NULL);
    CHECK_FAILS(bm_model_open("run", wrong, &model), BM_RECIPE, "train.precision");
    CHECK_FAILS(bm_model_open(NULL, NULL, &model), BM_USAGE, "path");
    bm_model_close(&model);
}

static void check_tokens(const bm_model *model, const char *text)
{
    int32_t *ids = NULL, wrong;
    int64_t count = 0;
    char *back = NULL;
    size_t bytes = 0;
    bm_model_facts facts = bm_model_facts_of(model);
    CHECK(facts.parameters > 0 && facts.positions == 32 && facts.width == 32);
    CHECK(facts.end_token == -1); /* a tokenizer of characters has none */
    CHECK(bm_encode(model, text, strlen(text), 0, &ids, &count) == BM_OK);
    CHECK(count == (int64_t)strlen(text) && bm_error()[0] == '\0');
    CHECK(bm_decode(model, ids, count, &back, &bytes) == BM_OK);
    CHECK(bytes == strlen(text) && strcmp(back, text) == 0);
    bm_free(back);
    bm_free(ids);
    wrong = (int32_t)facts.vocabulary;
    CHECK_FAILS(bm_decode(model, &wrong, 1, &back, &bytes), BM_DATA, "vocabulary");
    CHECK_FAILS(bm_encode(model, "\x01", 1, 0, &ids, &count), BM_DATA, "character");
    CHECK(back == NULL && ids == NULL && count == 0);
}

/* What the stream said. */
struct heard {
    char text[256];
    int pieces, enough;
};

static int hear(void *user, const char *text, size_t bytes)
{
    struct heard *heard = user;
    CHECK(strlen(heard->text) + bytes < sizeof heard->text);
    strncat(heard->text, text, bytes);
    return ++heard->pieces == heard->enough;
}

static void check_generation(bm_model *model, const char *text)
{
    struct heard heard = {"", 0, 0}, less = {"", 0, 2};
    bm_generate_options options = bm_generate_defaults();
    char *made = NULL, *again = NULL;
    size_t bytes = 0, length = strlen(text);
    options.max_new_tokens = 9;
    options.temperature = 0;
    CHECK(bm_generate_text(model, text, length, &options, hear, &heard, &made, &bytes) == BM_OK);
    CHECK(bytes == strlen(made) && bytes == 9);
    CHECK(heard.pieces == 9 && strcmp(heard.text, made) == 0);
    CHECK(bm_generate_text(model, text, length, &options, hear, &less, NULL, NULL) == BM_OK);
    CHECK(less.pieces == 2 && strlen(less.text) == 2 && strncmp(less.text, made, 2) == 0);
    printf("text: %s\n", made);
    bm_free(made);
    options.temperature = 1.5; /* drawn: the seed decides */
    options.seed = 3;
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &made, &bytes) == BM_OK);
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &again, &bytes) == BM_OK);
    CHECK(strcmp(made, again) == 0);
    bm_free(again);
    char stop[] = {made[4], '\0'};
    const char *stops[] = {stop, NULL};
    options.stops = stops;
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &again, &bytes) == BM_OK);
    CHECK(bytes == strcspn(made, stop) && strncmp(made, again, bytes) == 0);
    bm_free(made);
    bm_free(again);
    options = bm_generate_defaults();
    options.num_beams = 3;
    options.max_new_tokens = 9;
    CHECK(bm_generate_text(model, text, length, &options, NULL, NULL, &made, &bytes) == BM_OK);
    printf("beams: %s\n", made);
    bm_free(made);
}

static void check_generation_errors(bm_model *model)
{
    const int32_t wrong = -1;
    char *made = NULL;
    size_t bytes = 0;
    bm_generate_options options = bm_generate_defaults();
    options.temperature = NAN;
    CHECK_FAILS(bm_generate_text(model, "A", 1, &options, NULL, NULL, &made, &bytes), BM_USAGE,
                "temperature");
    CHECK_FAILS(bm_generate(model, &wrong, 1, NULL, NULL, NULL, &made, &bytes), BM_DATA, "id -1");
    CHECK_FAILS(bm_generate(model, NULL, 0, NULL, NULL, NULL, &made, &bytes), BM_USAGE,
                "end-of-text");
    CHECK_FAILS(bm_generate_text(model, "A licence of many more words than fit", 36, NULL, NULL,
                                 NULL, &made, &bytes),
                BM_USAGE, "32 positions");
    CHECK(made == NULL && bytes == 0);
}

static void check_log_probabilities(bm_model *model, const char *text)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    double each[64], shorter[64], sum = 0;
    CHECK(bm_encode(model, text, strlen(text), 0, &ids, &count) == BM_OK && count < 64);
    CHECK(bm_log_probabilities(model, ids, count, each) == BM_OK);
    CHECK(bm_log_probabilities(model, ids, count - 3, shorter) == BM_OK);
    for (int64_t i = 0; i < count - 1; i++) {
        CHECK(each[i] < 0);
        CHECK(i >= count - 4 ||
              fabs(each[i] - shorter[i]) < 1e-5); /* what comes later is not seen */
        sum += each[i];
    }
    printf("log-probability: %.6f\n", sum);
    CHECK_FAILS(bm_log_probabilities(model, ids, 1, each), BM_USAGE, "at least 2");
    ids[1] = 1 << 20;
    CHECK_FAILS(bm_log_probabilities(model, ids, count, each), BM_DATA, "index 1");
    bm_free(ids);
}

static void check_vectors(bm_model *model, const char *text)
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

int main(int argc, char **argv)
{
    bm_model *model = NULL;
    CHECK(argc == 4 && strcmp(bm_version(), argv[1]) == 0);
    check_open_errors();
    CHECK(bm_model_open(argv[2], settings, &model) == BM_OK);
    check_tokens(model, argv[3]);
    check_generation(model, argv[3]);
    check_generation_errors(model);
    check_log_probabilities(model, argv[3]);
    check_vectors(model, argv[3]);
    bm_model_close(&model);
    CHECK(model == NULL);
    return 0;
}
