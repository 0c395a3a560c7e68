/* Fuzz target: `evaluate --predictions --references`, with all metrics. The first byte selects the
 * tokenizer of BLEU, and its bits 6 and 7 JSON Lines instead of text. The two files follow. */
#include <stdio.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/cli/evaluate_texts.h"
#include "trainer/evaluation/text_scores.h"

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 2000};

enum { PREDICTIONS_JSON = 0x80, REFERENCES_JSON = 0x40 };

/* Each metric of two texts is in its range. */
static void check_values(struct fuzz_part a, struct fuzz_part b, enum bleu_tokenizer tokenizer)
{
    struct text_scores *s = NULL;
    const char *text = (const char *)a.data, *reference = (const char *)b.data;
    status result = text_scores_create((1u << TEXT_METRICS) - 1, tokenizer, &s);
    if (result == STATUS_OK) {
        result = text_scores_add(s, text, a.bytes, reference, b.bytes);
    }
    for (int i = 0; i < TEXT_METRICS && result == STATUS_OK; i++) {
        double value = text_scores_value(s, i), limit = i <= TEXT_CHRF ? 100 : 1;
        fuzz_require(value >= 0 && value <= limit * (1 + 1e-9), "a metric is in its range");
    }
    text_scores_destroy(&s);
    fuzz_require(result == STATUS_OK || result == STATUS_DATA, status_pending()->text);
    status_clear();
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static bool is_quiet;
    if (!is_quiet) {
        is_quiet = freopen("/dev/null", "w", stdout) != NULL;
    }
    uint8_t choice = bytes > 0 ? *data : 0;
    data += bytes > 0;
    bytes -= bytes > 0;
    struct fuzz_part predictions = fuzz_next_part(&data, &bytes);
    struct fuzz_part references = fuzz_next_part(&data, &bytes);
    enum bleu_tokenizer tokenizer = choice % BLEU_TOKENIZERS;
    struct evaluate_texts q = {
        .metrics = "bleu,chrf,rouge1,rouge2,rougeL,rougeLsum,exact_match",
        .tokenizer = bleu_tokenizer_name(tokenizer),
        .predictions =
            fuzz_write_file((choice & PREDICTIONS_JSON) != 0 ? "predictions.jsonl" : "predictions",
                            predictions.data, predictions.bytes),
        .references =
            fuzz_write_file((choice & REFERENCES_JSON) != 0 ? "references.jsonl" : "references",
                            references.data, references.bytes),
        .json = (choice & 4) != 0,
    };
    status result = evaluate_texts_run(&q);
    if (result == STATUS_OK && (choice & (PREDICTIONS_JSON | REFERENCES_JSON)) == 0) {
        check_values(predictions, references, tokenizer); /* both are UTF-8 */
    }
    return result;
}
