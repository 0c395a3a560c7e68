/* Prints the predictions of a fine-tuned or masked model for a text.
 *
 *     cc -o predict predict.c $(pkg-config --cflags --libs bireme)
 *     ./predict labels runs/classify 'a text' ['a second text']
 *     ./predict masks runs/mlm 'a [MASK] text'
 *     ./predict answer runs/answer 'what is it?' 'It is a text.' */
#include <bireme.h>
#include <stdio.h>
#include <string.h>

static bm_status print_labels(bm_model *model, const char *text, const char *pair)
{
    bm_label *labels = NULL;
    int64_t count = 0;
    bm_status result =
        bm_classify(model, text, strlen(text), pair, pair ? strlen(pair) : 0, 1, &labels, &count);
    for (int64_t i = 0; i < count; i++) {
        printf("%.*s\t%s\t%.4f\n", (int)(labels[i].end - labels[i].begin), text + labels[i].begin,
               labels[i].name, labels[i].score);
    }
    bm_free(labels);
    return result;
}

static bm_status print_masks(bm_model *model, const char *text)
{
    enum { TOP_K = 5 };
    bm_token *tokens = NULL;
    int64_t masks = 0;
    bm_status result = bm_fill_mask(model, text, strlen(text), TOP_K, &tokens, &masks);
    for (int64_t i = 0; i < masks * TOP_K; i++) {
        printf("%s %.4f%s", tokens[i].text, tokens[i].probability,
               i % TOP_K == TOP_K - 1 ? "\n" : "\t");
    }
    bm_free(tokens);
    return result;
}

static bm_status print_answer(bm_model *model, const char *question, const char *context)
{
    bm_answer_span span;
    bm_status result =
        bm_answer(model, question, strlen(question), context, strlen(context), &span);
    if (result == BM_OK) {
        printf("%.*s\t%.4f\n", (int)(span.end - span.begin), context + span.begin,
               span.probability);
    }
    return result;
}

int main(int argc, char **argv)
{
    bm_model *model = NULL;
    const char *task = argc > 3 ? argv[1] : "";
    const char *second = argc > 4 ? argv[4] : NULL;
    int is_labels = strcmp(task, "labels") == 0, is_masks = strcmp(task, "masks") == 0;
    if (!is_labels && !is_masks && (strcmp(task, "answer") != 0 || second == NULL)) {
        fprintf(stderr, "usage: predict labels|masks|answer CHECKPOINT TEXT [TEXT]\n");
        return BM_USAGE;
    }
    bm_status result = bm_model_open(argv[2], NULL, &model);
    if (result == BM_OK) {
        result = is_labels  ? print_labels(model, argv[3], second)
                 : is_masks ? print_masks(model, argv[3])
                            : print_answer(model, argv[3], second);
    }
    if (result != BM_OK) {
        fprintf(stderr, "predict: %s\n", bm_error());
    }
    bm_model_close(&model);
    return (int)result;
}
