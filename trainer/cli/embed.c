/* bireme embed: a vector for each text (text_vector.h; [CLS] and [SEP] count as tokens), and how alike texts are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/sentence_embedding.h"

struct request {
    struct asking_request asked;
    const char *query;
    int64_t top;
    bool similarity;
};

/* One text and its vector; only where texts are compared all are kept. */
struct entry {
    char *text;
    float *vector;
    double cosine; /* with the query */
};

struct embedding {
    const struct request *q;
    int64_t width;
    bool keeps;
    struct entry *entries;
    int64_t count, room;
};

static void embedding_destroy(struct embedding *e)
{
    for (int64_t i = 0; i < e->count; i++) {
        free(e->entries[i].text);
        free(e->entries[i].vector);
    }
    free(e->entries);
}

/* ---- each text ---- */

static status keep(struct embedding *e, const char *text, float *vector)
{
    if (e->count == e->room) {
        int64_t room = 2 * e->room + 64;
        struct entry *more = realloc(e->entries, (size_t)room * sizeof *more);
        REQUIRE(more != NULL, STATUS_INTERNAL, "out of memory for %lld vectors", (long long)room);
        e->entries = more;
        e->room = room;
    }
    char *copy = strdup(text);
    REQUIRE(copy != NULL, STATUS_INTERNAL, "out of memory");
    e->entries[e->count++] = (struct entry){copy, vector, 0};
    return STATUS_OK;
}

static status print_vector(const struct embedding *e, const char *text, const float *vector)
{
    if (e->q->asked.json) {
        json_t *list = json_array();
        for (int64_t c = 0; c < e->width; c++) {
            json_array_append_new(list, json_real(vector[c]));
        }
        return report_print(json_pack("{s:s, s:o}", "text", text, "embedding", list));
    }
    for (int64_t c = 0; c < e->width; c++) {
        printf("%s%.9g", c > 0 ? " " : "", (double)vector[c]);
    }
    putchar('\n');
    return STATUS_OK;
}

static status answer(struct asking *a)
{
    struct embedding *e = a->user;
    struct model_input input = asking_input(a);
    struct tensor hidden;
    TRY(model_forward(a->session.model, &input, &hidden));
    e->width = hidden.columns;
    for (int i = 0; i < a->count; i++) {
        float *vector = calloc((size_t)hidden.columns, sizeof *vector);
        REQUIRE(vector != NULL, STATUS_INTERNAL, "out of memory for a vector");
        status result = text_vector_pool(
            tensor_rows(hidden, a->cu_rows[i], a->cu_rows[i + 1] - a->cu_rows[i]), vector);
        if (result == STATUS_OK) {
            result = e->keeps ? keep(e, a->text[i], vector) : print_vector(e, a->text[i], vector);
        }
        if (result != STATUS_OK || !e->keeps) {
            free(vector);
        }
        TRY(result);
    }
    return STATUS_OK;
}

static status take(void *user, const char *text, size_t bytes)
{
    (void)bytes;
    return asking_add(user, text, NULL);
}

/* ---- texts against each other ---- */

static status print_matrix(const struct embedding *e)
{
    for (int64_t i = 0; i < e->count; i++) {
        json_t *list = e->q->asked.json ? json_array() : NULL;
        for (int64_t j = 0; j < e->count; j++) {
            double cosine =
                text_vector_cosine(e->entries[i].vector, e->entries[j].vector, e->width);
            if (e->q->asked.json) {
                json_array_append_new(list, json_real(cosine));
            } else {
                printf("%s%.4f", j > 0 ? "\t" : "", cosine);
            }
        }
        if (e->q->asked.json) {
            TRY(report_print(
                json_pack("{s:s, s:o}", "text", e->entries[i].text, "similarity", list)));
        } else {
            putchar('\n');
        }
    }
    return STATUS_OK;
}

static int by_cosine(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->cosine < y->cosine) - (x->cosine > y->cosine);
}

/* The first entry is the query. */
static status print_nearest(struct embedding *e)
{
    struct entry *found = e->entries + 1;
    int64_t count = e->count - 1;
    for (int64_t i = 0; i < count; i++) {
        found[i].cosine = text_vector_cosine(e->entries[0].vector, found[i].vector, e->width);
    }
    qsort(found, (size_t)count, sizeof *found, by_cosine);
    for (int64_t i = 0; i < count && (e->q->top == 0 || i < e->q->top); i++) {
        if (e->q->asked.json) {
            TRY(report_print(
                json_pack("{s:s, s:f}", "text", found[i].text, "similarity", found[i].cosine)));
        } else {
            printf("%.4f\t%s\n", found[i].cosine, found[i].text);
        }
    }
    return STATUS_OK;
}

/* ---- the command ---- */

static status ask(struct asking *a, const struct request *q)
{
    struct embedding *e = a->user;
    TRY(asking_open(a, &q->asked));
    if (q->query != NULL) {
        TRY(asking_check(q->query, strlen(q->query)));
        TRY(asking_add(a, q->query, NULL));
    }
    TRY(asking_read(a, q->asked.path, take));
    TRY(asking_finish(a));
    if (q->query != NULL) {
        return print_nearest(e);
    }
    return q->similarity ? print_matrix(e) : STATUS_OK;
}

static status run(const struct asking_request *asked)
{
    const struct request *q = (const struct request *)asked;
    REQUIRE(q->query == NULL || !q->similarity, STATUS_USAGE,
            "give --query or --similarity, not both");
    struct embedding e = {.q = q, .keeps = q->query != NULL || q->similarity};
    struct asking a = {.command = "embed", .answer = answer, .user = &e};
    status result = ask(&a, q);
    embedding_destroy(&e);
    KEEP_FIRST(result, asking_close(&a));
    return result;
}

status command_embed(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"similarity", OPTION_FLAG, &q.similarity, NULL, NULL,
         "print the cosine of each line with each line instead"},
        {"query", OPTION_TEXT, &q.query, "TEXT", NULL,
         "print the lines by their cosine with this text instead, the nearest first"},
        {"top-k", OPTION_INTEGER, &q.top, "K", "0", "lines told for the query; 0: all", .least = 0,
         .most = 1e9},
    };
    struct options options = {
        .usage = "bireme embed --checkpoint DIR [--similarity | --query TEXT] [FILE]",
        .about = "Prints a vector of unit length for each line of a file or of standard input: the "
                 "mean of its tokens' hidden\nstates. Any model will do; one that was trained on "
                 "pairs (objective embed) tells meanings best.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "FILE",
        .operands_most = 1,
    };
    return asking_command(&options, true, argc, argv, &q.asked, run);
}
