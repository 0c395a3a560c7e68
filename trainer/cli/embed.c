/* bireme embed: an embedding for each text (sentence_embedding.h), and cosine similarities. The
 * mean over tokens includes [CLS] and [SEP]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/inference/prediction/text_input.h"
#include "trainer/inference/sentence_embedding.h"

struct request {
    struct batch_query_request shared;
    const char *query;
    int64_t top_k;
    bool similarity;
};

/* A text and its embedding. */
struct entry {
    char *text;
    float *vector;
    double cosine; /* similarity to the query */
};

struct embed_state {
    const struct request *q;
    int64_t width;
    bool stores_entries; /* true if the texts are compared; false: print each embedding at once */
    struct entry *entries;
    int64_t count, capacity;
};

static void destroy_state(struct embed_state *state)
{
    for (int64_t i = 0; i < state->count; i++) {
        free(state->entries[i].text);
        free(state->entries[i].vector);
    }
    free(state->entries);
}

/* ---- embeddings ---- */

static status store_entry(struct embed_state *state, const char *text, float *vector)
{
    TRY(RESERVE(state->entries, state->capacity, state->count + 1, "embeddings"));
    char *copy = NULL;
    TRY(memory_copy_text(&copy, text, "a line"));
    state->entries[state->count++] = (struct entry){copy, vector, 0};
    return STATUS_OK;
}

static status print_vector(const struct embed_state *state, const char *text, const float *vector)
{
    if (state->q->shared.json) {
        json_t *list = json_array();
        for (int64_t c = 0; c < state->width; c++) {
            json_array_append_new(list, json_real(vector[c]));
        }
        return json_output_print(json_pack("{s:s, s:o}", "text", text, "embedding", list));
    }
    for (int64_t c = 0; c < state->width; c++) {
        printf("%s%.9g", c > 0 ? " " : "", (double)vector[c]);
    }
    putchar('\n');
    return STATUS_OK;
}

static status process_batch(struct batch_query *b)
{
    struct embed_state *state = b->user;
    struct model_input input = text_batch_input(&b->batch);
    struct tensor hidden;
    TRY(model_forward(b->session.model, &input, &hidden));
    state->width = hidden.columns;
    for (int i = 0; i < b->batch.count; i++) {
        float *vector = NULL;
        TRY(ALLOCATE(vector, hidden.columns, "an embedding"));
        status result = sentence_embedding_pool(
            tensor_rows(hidden, b->batch.cu_rows[i], b->batch.cu_rows[i + 1] - b->batch.cu_rows[i]),
            vector);
        if (result == STATUS_OK) {
            result = state->stores_entries ? store_entry(state, b->texts[i], vector)
                                           : print_vector(state, b->texts[i], vector);
        }
        if (result != STATUS_OK || !state->stores_entries) {
            free(vector);
        }
        TRY(result);
    }
    return STATUS_OK;
}

static status visit_text(void *user, const char *text, size_t bytes, const char *second)
{
    (void)bytes;
    (void)second;
    return batch_query_add(user, text, NULL);
}

/* ---- similarities ---- */

static status print_matrix(const struct embed_state *state)
{
    for (int64_t i = 0; i < state->count; i++) {
        json_t *list = state->q->shared.json ? json_array() : NULL;
        for (int64_t j = 0; j < state->count; j++) {
            double cosine = sentence_embedding_cosine(state->entries[i].vector,
                                                      state->entries[j].vector, state->width);
            if (state->q->shared.json) {
                json_array_append_new(list, json_real(cosine));
            } else {
                printf("%s%.4f", j > 0 ? "\t" : "", cosine);
            }
        }
        if (state->q->shared.json) {
            TRY(json_output_print(
                json_pack("{s:s, s:o}", "text", state->entries[i].text, "similarity", list)));
        } else {
            putchar('\n');
        }
    }
    return STATUS_OK;
}

static int compare_by_cosine(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->cosine < y->cosine) - (x->cosine > y->cosine);
}

/* Prints the entries by similarity to the first entry, which is the query. */
static status print_nearest(struct embed_state *state)
{
    struct entry *found = state->entries + 1;
    int64_t count = state->count - 1;
    for (int64_t i = 0; i < count; i++) {
        found[i].cosine =
            sentence_embedding_cosine(state->entries[0].vector, found[i].vector, state->width);
    }
    qsort(found, (size_t)count, sizeof *found, compare_by_cosine);
    for (int64_t i = 0; i < count && (state->q->top_k == 0 || i < state->q->top_k); i++) {
        if (state->q->shared.json) {
            TRY(json_output_print(
                json_pack("{s:s, s:f}", "text", found[i].text, "similarity", found[i].cosine)));
        } else {
            printf("%.4f\t%s\n", found[i].cosine, found[i].text);
        }
    }
    return STATUS_OK;
}

/* ---- the command ---- */

static status process_input(struct batch_query *b, const struct request *q)
{
    struct embed_state *state = b->user;
    TRY(batch_query_open(b, &q->shared));
    if (q->query != NULL) {
        TRY(text_input_check(&(struct text){q->query, strlen(q->query)}));
        TRY(batch_query_add(b, q->query, NULL));
    }
    const struct text_lines source = {
        .path = q->shared.path, .columns = q->shared.columns, .field = "text"};
    TRY(batch_query_read_texts(b, &source, visit_text));
    TRY(batch_query_finish(b));
    if (q->query != NULL) {
        return print_nearest(state);
    }
    return q->similarity ? print_matrix(state) : STATUS_OK;
}

static status run_embed(const struct batch_query_request *shared)
{
    const struct request *q = (const struct request *)shared;
    REQUIRE(q->query == NULL || !q->similarity, STATUS_USAGE,
            "--query and --similarity exclude each other; give one of them");
    struct embed_state state = {.q = q, .stores_entries = q->query != NULL || q->similarity};
    struct batch_query b = {.command = "embed", .process_batch = process_batch, .user = &state};
    status result = process_input(&b, q);
    destroy_state(&state);
    KEEP_FIRST(result, batch_query_close(&b));
    return result;
}

status command_embed(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"similarity", OPTION_FLAG, &q.similarity, NULL, NULL,
         "print the matrix of cosine similarities of all lines instead"},
        {"query", OPTION_TEXT, &q.query, "TEXT", NULL,
         "print the lines by their cosine similarity to this text instead, the most similar first"},
        {"top-k", OPTION_INTEGER, &q.top_k, "K", "0",
         "with --query: number of lines to print; 0: all", .min = 0, .max = 1e9},
        BATCH_QUERY_COLUMNS(&q.shared, "text"),
    };
    struct options options = {
        .usage = "bireme embed --checkpoint DIR [--similarity | --query TEXT] [FILE] [options]",
        .description =
            "Prints an embedding for each line of FILE or of standard input: the mean of the "
            "hidden states of its tokens, normalized to length 1. Any model but an "
            "encoder-decoder can be used; a model that was trained with objective embed gives the "
            "best similarities.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme embed --checkpoint runs/bert_manual \\\n"
                    "    lines.txt >vectors.txt\n"
                    "bireme embed --checkpoint runs/bert_manual \\\n"
                    "    --query 'how to list a folder' --top-k 2 lines.txt",
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, true, argc, argv, &q.shared, run_embed);
}
