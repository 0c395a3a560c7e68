#include "trainer/cli/evaluate_texts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/text_store.h"
#include "base/utf8.h"
#include "build_info.h"
#include "datasets/rows/jsonl.h"
#include "datasets/rows/text_lines.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/evaluation/text_scores.h"

/* ---- texts of a file ---- */

struct text_item {
    const char *text;
    size_t bytes;
};

struct text_file {
    struct text_store store;
    struct text_item *items;
    int64_t count, capacity;
};

static status add_text(void *user, const char *text, size_t bytes, const char *second)
{
    struct text_file *f = user;
    (void)second;
    bytes -= bytes > 0 && text[bytes - 1] == '\r';
    REQUIRE(utf8_is_valid(text, bytes), STATUS_DATA, "not valid UTF-8; " UTF8_REMEDY);
    if (f->count == f->capacity) {
        int64_t capacity = 2 * f->capacity + 64;
        TRY(GROW(f->items, capacity, "texts"));
        f->capacity = capacity;
    }
    struct text_item *item = &f->items[f->count];
    TRY(text_store_copy(&f->store, text, bytes, &item->text));
    item->bytes = bytes;
    f->count++;
    return STATUS_OK;
}

/* Reads the lines of a text file, or the fields "text" of JSON Lines. */
static status read_file(const char *path, struct text_file *out)
{
    struct text_lines lines = {
        .path = path, .columns = jsonl_has_extension(path) ? "text=text" : NULL, .field = "text"};
    return text_lines_read(&lines, add_text, out);
}

static void free_file(struct text_file *f)
{
    text_store_free(&f->store);
    free(f->items);
}

/* ---- metrics ---- */

static status add_texts(const struct evaluate_texts *q, const struct text_file *predictions,
                        const struct text_file *references, struct text_scores *s)
{
    REQUIRE(predictions->count == references->count, STATUS_DATA,
            "%s has %" PRId64 " text%s and %s has %" PRId64
            "; line i of both files must belong together",
            q->predictions, predictions->count, text_plural(predictions->count), q->references,
            references->count);
    REQUIRE(predictions->count > 0, STATUS_DATA, "%s has no text; give one text per line",
            q->predictions);
    for (int64_t i = 0; i < predictions->count; i++) {
        const struct text_item *a = &predictions->items[i], *b = &references->items[i];
        TRY(text_scores_add(s, a->text, a->bytes, b->text, b->bytes));
    }
    return STATUS_OK;
}

static status print_json(const struct text_scores *s, unsigned metrics, int64_t texts)
{
    char signature[TEXT_SIGNATURE_BYTES], key[64];
    json_t *report = json_pack("{s:I}", "rows", (json_int_t)texts);
    for (int i = 0; i < TEXT_METRICS && report != NULL; i++) {
        if ((metrics >> i & 1) != 0) {
            json_object_set_new(report, text_scores_name(i), json_real(text_scores_value(s, i)));
        }
    }
    for (int i = TEXT_BLEU; i <= TEXT_CHRF && report != NULL; i++) {
        if ((metrics >> i & 1) != 0) {
            text_scores_signature(s, i, BUILD_VERSION, signature);
            snprintf(key, sizeof key, "%s_signature", text_scores_name(i));
            json_object_set_new(report, key, json_string(signature));
        }
    }
    return json_output_print(report);
}

static void print_lines(const struct text_scores *s, unsigned metrics, int64_t texts)
{
    char signature[TEXT_SIGNATURE_BYTES];
    printf("%-22s %" PRId64 "\n", "rows", texts);
    for (int i = 0; i < TEXT_METRICS; i++) {
        if ((metrics >> i & 1) == 0) {
            continue;
        }
        printf("%-22s %.10g", text_scores_name(i), text_scores_value(s, i));
        if (i == TEXT_BLEU || i == TEXT_CHRF) {
            text_scores_signature(s, i, BUILD_VERSION, signature);
            printf("   %s", signature);
        }
        putchar('\n');
    }
}

static status score_files(const struct evaluate_texts *q, unsigned metrics,
                          const struct text_file *predictions, const struct text_file *references)
{
    struct text_scores *s = NULL;
    TRY(text_scores_create(metrics, bleu_tokenizer_find(q->tokenizer), &s));
    status result = add_texts(q, predictions, references, s);
    if (result == STATUS_OK && q->json) {
        result = print_json(s, metrics, predictions->count);
    } else if (result == STATUS_OK) {
        print_lines(s, metrics, predictions->count);
    }
    text_scores_destroy(&s);
    return result;
}

status evaluate_texts_run(const struct evaluate_texts *q)
{
    struct text_file predictions = {0}, references = {0};
    unsigned metrics = 0;
    TRY(text_scores_parse(q->metrics, &metrics));
    status result = read_file(q->predictions, &predictions);
    if (result == STATUS_OK) {
        result = read_file(q->references, &references);
    }
    if (result == STATUS_OK) {
        result = score_files(q, metrics, &predictions, &references);
    }
    free_file(&predictions);
    free_file(&references);
    return result;
}
