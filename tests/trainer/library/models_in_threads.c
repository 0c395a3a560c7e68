/* Opens, uses and closes models of five kinds in separate threads, and compares the results with
 * the results of one thread. The thread sanitizer reports races between the threads.
 * usage: models_in_threads, in a folder of small_models.sh */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/library/bireme.h"

enum { RESULT_BYTES = 4096, ROUNDS = 4 };

#define REQUIRE_OK(call)                                                                           \
    do {                                                                                           \
        if ((call) != BM_OK) {                                                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, bm_error());             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A kind of model, and a function that returns its results as text. */
struct use {
    const char *folder;
    void (*compute)(bm_model *model, char out[RESULT_BYTES]);
};

static void generate_text(bm_model *model, char out[RESULT_BYTES])
{
    bm_generate_options options = bm_generate_defaults();
    int32_t *ids = NULL;
    int64_t count = 0;
    char *text = NULL;
    double sum = 0, log_probabilities[64];
    options.max_new_tokens = 9;
    options.seed = 3;
    REQUIRE_OK(bm_encode(model, "The license", 11, 0, &ids, &count));
    REQUIRE_OK(bm_generate(model, ids, count, &options, NULL, NULL, &text, NULL));
    REQUIRE_OK(bm_log_probabilities(model, ids, count, log_probabilities));
    for (int64_t i = 0; i < count - 1; i++) {
        sum += log_probabilities[i];
    }
    snprintf(out, RESULT_BYTES, "%s %.17g", text, sum);
    bm_free(text);
    bm_free(ids);
}

static void answer_chat(bm_model *model, char out[RESULT_BYTES])
{
    bm_message message = {"user", "list files", 10};
    bm_generate_options options = bm_generate_defaults();
    char *text = NULL;
    options.max_new_tokens = 9;
    options.temperature = 0;
    REQUIRE_OK(bm_chat(model, &message, 1, &options, NULL, NULL, &text, NULL));
    snprintf(out, RESULT_BYTES, "%s", text);
    bm_free(text);
}

static void fill_mask(bm_model *model, char out[RESULT_BYTES])
{
    bm_token *tokens = NULL;
    int64_t masks = 0;
    REQUIRE_OK(bm_fill_mask(model, "the [MASK] of", 13, 3, &tokens, &masks));
    snprintf(out, RESULT_BYTES, "%s %.17g", tokens[0].text, tokens[0].probability);
    bm_free(tokens);
}

static void classify_text(bm_model *model, char out[RESULT_BYTES])
{
    bm_label *labels = NULL;
    int64_t count = 0;
    REQUIRE_OK(bm_classify(model, "the work", 8, NULL, 0, 2, &labels, &count));
    snprintf(out, RESULT_BYTES, "%s %.17g", labels[0].name, labels[0].score);
    bm_free(labels);
}

static void answer_question(bm_model *model, char out[RESULT_BYTES])
{
    bm_answer_span span;
    REQUIRE_OK(bm_answer(model, "of it?", 6, "the work of it", 14, &span));
    snprintf(out, RESULT_BYTES, "%zu %zu %.17g", span.begin, span.end, span.probability);
}

static const struct use uses[] = {{"run", generate_text},          {"messages-run", answer_chat},
                                  {"mlm-run", fill_mask},          {"classify-run", classify_text},
                                  {"answer-run", answer_question}, {"run", generate_text}};
enum { USES = sizeof uses / sizeof *uses };

static char alone[USES][RESULT_BYTES];

static void use_once(const struct use *use, char out[RESULT_BYTES])
{
    static const char *const settings[] = {"parallel.threads=1", NULL};
    bm_model *model = NULL;
    REQUIRE_OK(bm_model_open(use->folder, settings, &model));
    use->compute(model, out);
    bm_model_close(&model);
}

static void *use_repeatedly(void *index)
{
    int64_t i = (const struct use *)index - uses;
    char result[RESULT_BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        bm_model *none = NULL;
        use_once(&uses[i], result);
        if (strcmp(result, alone[i]) != 0) {
            fprintf(stderr, "%s: '%s' instead of '%s'\n", uses[i].folder, result, alone[i]);
            exit(1);
        }
        if (bm_model_open("missing", NULL, &none) == BM_OK ||
            strstr(bm_error(), "missing") == NULL) {
            fprintf(stderr, "a missing model: %s\n", bm_error());
            exit(1);
        }
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[USES];
    for (int i = 0; i < USES; i++) {
        use_once(&uses[i], alone[i]);
    }
    for (int i = 0; i < USES; i++) {
        if (pthread_create(&threads[i], NULL, use_repeatedly, (void *)(uintptr_t)&uses[i]) != 0) {
            fprintf(stderr, "no thread\n");
            return 1;
        }
    }
    for (int i = 0; i < USES; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return 0;
}
