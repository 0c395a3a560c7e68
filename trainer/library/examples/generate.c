/* Continues a text and prints it while it is generated. Then prints the perplexity of the prompt.
 *
 *     cc -o generate generate.c $(pkg-config --cflags --libs bireme) -lm
 *     ./generate runs/mine 'Once upon a time' */
#include <bireme.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_text(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    return 0; /* another value ends the text */
}

static bm_status print_perplexity(bm_model *model, const char *prompt)
{
    int32_t *ids = NULL;
    int64_t count = 0;
    double *log_probabilities = NULL, sum = 0;
    bm_status result = bm_encode(model, prompt, strlen(prompt), 0, &ids, &count);
    if (result == BM_OK && count > 1) {
        log_probabilities = (double *)malloc((size_t)count * sizeof *log_probabilities);
        result = bm_log_probabilities(model, ids, count, log_probabilities);
    }
    if (result == BM_OK && count > 1) {
        for (int64_t i = 0; i < count - 1; i++) {
            sum += log_probabilities[i];
        }
        printf("perplexity of the prompt: %.4f\n", exp(-sum / (double)(count - 1)));
    }
    free(log_probabilities);
    bm_free(ids);
    return result;
}

int main(int argc, char **argv)
{
    bm_model *model = NULL;
    bm_generate_options options = bm_generate_defaults();
    options.max_new_tokens = 40;
    options.temperature = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: generate CHECKPOINT PROMPT\n");
        return BM_USAGE;
    }
    bm_status result = bm_model_open(argv[1], NULL, &model);
    if (result == BM_OK) {
        result = bm_generate_text(model, argv[2], strlen(argv[2]), &options, print_text, NULL, NULL,
                                  NULL);
    }
    if (result == BM_OK) {
        putchar('\n');
        result = print_perplexity(model, argv[2]);
    }
    if (result != BM_OK) {
        fprintf(stderr, "generate: %s\n", bm_error());
    }
    bm_model_close(&model);
    return (int)result;
}
