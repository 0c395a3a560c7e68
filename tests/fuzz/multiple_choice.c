/* Fuzz target: the rows of `evaluate --task FILE.jsonl`. In place of a model, the score of a choice
 * is its number of tokens. */
#include "trainer/evaluation/multiple_choice.h"

#include "tests/fuzz/small_tokenizer.h"
#include "trainer/model/model.h"

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 200};

enum { POSITIONS = 64, ROWS_MAX = 128 };

const struct model_config *model_get_config(const struct model *m)
{
    static const struct model_config config = {.positions = POSITIONS};
    (void)m;
    return &config;
}

/* Checks what log_likelihood_run requires of its callers. */
status log_likelihood_run(struct kernels *k, struct model *m, int64_t rows,
                          const struct log_likelihood_item *items, int64_t count,
                          struct log_likelihood_result *out)
{
    (void)k;
    (void)m;
    (void)rows;
    for (int64_t i = 0; i < count; i++) {
        const struct log_likelihood_item *item = &items[i];
        fuzz_require(item->scored >= 1 && item->scored < item->count && item->scored <= POSITIONS,
                     "the continuation is a part of the item and fits the model");
        out[i] = (struct log_likelihood_result){.log_probability = -(double)item->scored,
                                                .tokens = item->scored};
    }
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    const struct tokenizer *t = small_tokenizer(TOKENIZER_BPE);
    struct multiple_choice_report report;
    const char *path = fuzz_write_file("rows.jsonl", data, bytes);
    TRY(multiple_choice_run(NULL, NULL, t, path, ROWS_MAX, 0, 0, 1, &report));
    fuzz_require(report.rows > 0 && report.choices >= 2 * report.rows && report.correct >= 0 &&
                     report.correct <= (double)report.rows,
                 "the numbers of the report agree");
    return STATUS_OK;
}
