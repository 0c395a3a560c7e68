#include "trainer/formats/huggingface/added_tokens.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"
#include "datasets/tokenizer/tokenizer.h"

enum { READ_ELEMENTS = 1 << 20 };
#define TOKENIZER_FILE_BYTES ((size_t)64 << 20)
#define COVARIANCE_SCALE 1e-9

/* ---- the tokenizer ---- */

static status copy_file(const char *from_folder, const char *to_folder, const char *name)
{
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    TRY(file_join(from, from_folder, name));
    TRY(file_join(to, to_folder, name));
    if (!file_exists(from) || file_exists(to)) { /* tokenizer_save has written it */
        return STATUS_OK;
    }
    TRY(file_read(from, TOKENIZER_FILE_BYTES, &text, &bytes));
    status result = file_write(to, text, bytes);
    free(text);
    return result;
}

status added_tokens_make_tokenizer(const struct huggingface_import_job *job, const char *output,
                                   int64_t *vocab_size)
{
    struct tokenizer *t = NULL, *extended = NULL;
    REQUIRE(tokenizer_exists(job->folder), STATUS_NO_INPUT,
            "%s contains no tokenizer that can get tokens; remove --add-tokens", job->folder);
    TRY(tokenizer_open(job->folder, &t));
    status result = tokenizer_add_special(t, job->tokens, job->token_count, &extended);
    TRY_GOTO(result, done, result);
    TRY_GOTO(result, done, tokenizer_save(extended, output));
    *vocab_size = tokenizer_vocab_size(extended);
    for (int i = 0; huggingface_tokenizer_files[i] != NULL; i++) {
        TRY_GOTO(result, done, copy_file(job->folder, output, huggingface_tokenizer_files[i]));
    }
done:
    KEEP_FIRST(result, tokenizer_destroy(&t));
    KEEP_FIRST(result, tokenizer_destroy(&extended));
    return result;
}

/* ---- rows ---- */

/* Sums over the rows of a tensor. */
struct row_sums {
    int64_t rows, columns, added;
    uint64_t key;
    double *mean;  /* [columns] */
    double *noise; /* [added, columns]; NULL in the first pass */
};

/* Adds a row to the sums: to the mean, or times a normal number per new row to the noise. */
static void add_row(struct row_sums *s, int64_t row, const float *values)
{
    if (s->noise == NULL) {
        for (int64_t c = 0; c < s->columns; c++) {
            s->mean[c] += (double)values[c] / (double)s->rows;
        }
        return;
    }
    for (int64_t a = 0; a < s->added; a++) {
        double factor = (double)random_normal(s->key, (uint64_t)(a * s->rows + row));
        for (int64_t c = 0; c < s->columns; c++) {
            s->noise[a * s->columns + c] += factor * ((double)values[c] - s->mean[c]);
        }
    }
}

static status add_all_rows(const struct huggingface_tensor_source *source, struct row_sums *s)
{
    int64_t block = READ_ELEMENTS / s->columns > 0 ? READ_ELEMENTS / s->columns : 1;
    float *values;
    status result = STATUS_OK;
    TRY(ALLOCATE(values, block * s->columns, "rows of an embedding"));
    for (int64_t first = 0, rows; first < s->rows && result == STATUS_OK; first += rows) {
        rows = number_min(s->rows - first, block);
        result = safetensors_read(source->file, source->tensor, first * s->columns,
                                  rows * s->columns, values);
        for (int64_t r = 0; r < rows && result == STATUS_OK; r++) {
            add_row(s, first + r, values + r * s->columns);
        }
    }
    free(values);
    return result;
}

status added_tokens_compute_rows(const struct huggingface_import_job *job, int index, float **out)
{
    const struct huggingface_tensor_source *source = &job->sources[index];
    const struct model_parameter *p = &job->parameters[index];
    bool is_matrix = source->tensor->dimensions > 1;
    int64_t shape[2];
    huggingface_tensor_shape(p, shape);
    struct row_sums s = {
        .rows = source->tensor->shape[0],
        .columns = is_matrix ? source->tensor->shape[1] : 1,
        .added = shape[0] - source->tensor->shape[0],
        .key = random_key((uint64_t)job->recipe->seed, RANDOM_INITIAL_WEIGHTS, (uint64_t)index, 1)};
    double *noise = NULL;
    status result = STATUS_OK;
    *out = NULL;
    TRY(ALLOCATE(s.mean, s.columns, "the mean of an embedding"));
    TRY_GOTO(result, done, add_all_rows(source, &s));
    TRY_GOTO(result, done, ALLOCATE(noise, s.added * s.columns, "new rows of an embedding"));
    TRY_GOTO(result, done, ALLOCATE(*out, s.added * s.columns, "new rows of an embedding"));
    s.noise = noise;
    TRY_GOTO(result, done, is_matrix ? add_all_rows(source, &s) : STATUS_OK);
    double scale = sqrt(COVARIANCE_SCALE / (double)s.rows);
    for (int64_t i = 0; i < s.added * s.columns; i++) {
        (*out)[i] = (float)(s.mean[i % s.columns] + scale * noise[i]);
    }
done:
    free(s.mean);
    free(noise);
    return result;
}
