/* Prints the target of each source with an encoder-decoder, by beam search.
 *
 *     cc -o translate translate.c $(pkg-config --cflags --libs bireme)
 *     ./translate runs/pairs 4 'List files.' 'Print a file.' */
#include <bireme.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bm_status print_target(bm_model *model, const char *source,
                              const bm_translate_options *options)
{
    char *text = NULL;
    size_t bytes = 0;
    bm_status result = bm_translate(model, source, strlen(source), options, &text, &bytes);
    if (result == BM_OK) {
        printf("%s\n", text);
    }
    bm_free(text);
    return result;
}

int main(int argc, char **argv)
{
    bm_model *model = NULL;
    bm_translate_options options = bm_translate_defaults();
    if (argc < 4) {
        fprintf(stderr, "usage: translate CHECKPOINT BEAMS SOURCE...\n");
        return BM_USAGE;
    }
    options.num_beams = strtol(argv[2], NULL, 10);
    bm_status result = bm_model_open(argv[1], NULL, &model);
    for (int i = 3; i < argc && result == BM_OK; i++) {
        result = print_target(model, argv[i], &options);
    }
    if (result != BM_OK) {
        fprintf(stderr, "translate: %s\n", bm_error());
    }
    bm_model_close(&model);
    return (int)result;
}
