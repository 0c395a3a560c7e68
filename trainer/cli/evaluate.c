/* bireme evaluate: the loss on token shards, or accuracy on a multiple-choice task. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/cli/json_output.h"
#include "trainer/evaluation/report.h"
#include "trainer/setup/data.h"
#include "trainer/train/reference_logprobs.h"
#include "trainer/setup/session.h"
#include "trainer/train/step.h"
#include "trainer/evaluation/multiple_choice.h"

struct request {
    const char *checkpoint, *data, *task;
    struct option_list overrides;
    int64_t batches, limit;
    bool json;
};

static status print_report(const struct request *q, json_t *report)
{
    const char *key;
    json_t *value;
    if (q->json) {
        return report_print(report);
    }
    json_object_foreach(report, key, value)
    {
        if (json_is_null(value)) { /* a correlation with what is constant */
            printf("%-22s undefined\n", key);
        } else {
            printf("%-22s %.10g\n", key, json_number_value(value));
        }
    }
    json_decref(report);
    return STATUS_OK;
}

/* ---- shards ---- */

static status print_evaluation(const struct request *q, const struct objective *o,
                               const double sums[OBJECTIVE_SUMS], const struct grading *grading)
{
    struct metric fields[EVALUATION_FIELDS];
    int count = evaluation_fields(o, sums, grading, fields);
    json_t *report = json_object();
    for (int i = 0; i < count; i++) {
        bool whole = fields[i].kind == METRIC_INTEGER;
        json_object_set_new(report, fields[i].name,
                            whole                        ? json_integer(fields[i].integer)
                            : isfinite(fields[i].number) ? json_real(fields[i].number)
                                                         : json_null());
    }
    return print_report(q, report);
}

/* Examples that are looked at together: a rank's micro-batches of them, but for embed, whose loss depends on the batch, as
 * many as in training. */
static int64_t together(const struct session *s)
{
    const struct recipe *r = &s->recipe;
    return job_data_kind(r) == EXAMPLE_EMBED ? r->batch.global_size
                                             : r->batch.micro_size * comm_size(s->mesh.data);
}

static status open_data(const struct request *q, const struct session *s,
                        const struct reference *reference, int64_t limit, struct loader **out)
{
    const struct recipe *r = &s->recipe;
    struct loader_source source = {q->data, 1};
    struct packing_rules rules;
    (void)job_data_packing(r, &rules);
    struct loader_options options = {
        .sources = &source,
        .source_count = 1,
        .sequence_tokens = r->data.sequence_length,
        .global_sequences = together(s),
        .micro_sequences = r->batch.micro_size,
        .rank = comm_rank(s->mesh.data),
        .ranks = comm_size(s->mesh.data),
        .document_mask = r->data.document_mask,
        .kind = job_data_kind(r),
        .packing = &rules,
        .reference = reference != NULL && reference->sources > 0
                         ? (const double *const *)reference->values
                         : NULL,
        .limit_samples = limit,
        .vocab_size = model_config_of(s->model)->vocabulary,
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL,
        .labels_sha256 = s->labels_sha256[0] != '\0' ? s->labels_sha256 : NULL,
        .last_rows = job_data_last_rows(r),
        .texts = r->model.num_labels,
        .last_of_answers = job_data_task(r) != MODEL_WORDS,
        .masking = s->masking,
        .seed = (uint64_t)r->seed,
    };
    return loader_open(&options, out);
}

/* The whole set, or the asked number of batches of it. */
static status count_samples(const struct request *q, const struct session *s, int64_t *out)
{
    struct loader *loader = NULL;
    TRY(open_data(q, s, NULL, 0, &loader));
    int64_t asked = q->batches * together(s);
    *out = loader_samples(loader);
    *out = asked > 0 && asked < *out ? asked : *out;
    return loader_close(&loader);
}

/* Of preference pairs: what the model that the training began with says of them. */
static status find_reference(const struct request *q, const struct session *s, struct comm *world,
                             struct reference *out)
{
    char precision[] = "train.precision=fp32";
    char *overrides[] = {precision};
    struct session base = {0};
    struct recipe r = s->recipe;
    bool bf16_products = r.train.precision == PRECISION_BF16;
    memcpy(strchr(precision, '=') + 1, bf16_products ? "bf16" : "fp32", 4);
    r.data.train_count = 1;
    r.data.train[0] = (struct recipe_source){.weight = 1};
    r.data.validation[0] = '\0';
    REQUIRE(strlen(q->data) < sizeof r.data.train[0].path, STATUS_USAGE, "--data: path too long");
    snprintf(r.data.train[0].path, sizeof r.data.train[0].path, "%s", q->data);
    TRY(session_open_checkpoint(&base, world, r.model.init_from, overrides, 1, session_rows(&r)));
    struct job_data data = {
        .recipe = &r,
        .rank = comm_rank(base.mesh.data),
        .ranks = comm_size(base.mesh.data),
        .vocabulary = model_config_of(base.model)->vocabulary,
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL,
    };
    TRY(reference_make(&base, &data, base.recipe.adapter.type[0] != '\0', out));
    return session_stop(&base);
}

static status evaluate_shards(const struct request *q, struct session *s, struct comm *world)
{
    const struct recipe *r = &s->recipe;
    struct preference_settings preference;
    struct reference reference = {0};
    struct step_parts parts = {
        .mesh = s->mesh,
        .kernels = s->kernels,
        .model = s->model,
        .micro_rows = session_rows(r),
        .preference = &preference,
    };
    struct step *step = NULL;
    struct loader *loader = NULL;
    struct grading *grading = NULL;
    double sums[OBJECTIVE_SUMS] = {0};
    int64_t samples = 0;
    TRY(comm_agree(world, objective_find(r->objective, &parts.objective)));
    TRY(comm_agree(world, session_preference(r, &preference)));
    if (job_data_has_reference(r)) {
        TRY(find_reference(q, s, world, &reference));
        bool whole = preference_whole(&preference);
        parts.batch_size = whole ? together(s) : 0;
    }
    if (job_data_kind(r) == EXAMPLE_EMBED) {
        parts.batch_size = together(s);
    }
    TRY(comm_agree(world, count_samples(q, s, &samples)));
    TRY(comm_agree(world, grading_create(r->objective, &s->labels, s->tokenizer,
                                         r->answer.no_answer_threshold, &grading)));
    parts.sink = grading_sink(grading);
    status result = comm_agree(world, open_data(q, s, &reference, samples, &loader));
    if (result == STATUS_OK) {
        result = step_create(&parts, &step);
    }
    if (result == STATUS_OK) {
        result = step_evaluate(step, loader, NULL, sums);
    }
    if (result == STATUS_OK) {
        result = grading_end(grading, s->mesh.data);
    }
    KEEP_FIRST(result, step_destroy(&step));
    KEEP_FIRST(result, loader_close(&loader));
    reference_destroy(&reference);
    if (result == STATUS_OK && comm_rank(world) == 0) {
        result = print_evaluation(q, parts.objective, sums, grading);
    }
    grading_destroy(&grading);
    return result;
}

/* ---- a task ---- */

static status require_tokenizer(const struct request *q, const struct session *s)
{
    REQUIRE(s->tokenizer != NULL, STATUS_DATA, "%s holds no tokenizer: a task needs one",
            q->checkpoint);
    return STATUS_OK;
}

static status evaluate_task(const struct request *q, struct session *s, struct comm *world)
{
    struct task_report own = {0};
    TRY(comm_agree(world, require_tokenizer(q, s)));
    TRY(task_run(s->kernels, s->model, s->tokenizer, q->task,
                 s->recipe.model.max_position_embeddings, q->limit, comm_rank(s->mesh.data),
                 comm_size(s->mesh.data), &own));
    double sums[] = {(double)own.rows, own.correct, own.correct_norm, own.correct_norm_tokens,
                     (double)own.cut};
    TRY(comm_sum_doubles(s->mesh.data, sums, sizeof sums / sizeof sums[0]));
    if (comm_rank(world) != 0) {
        return STATUS_OK;
    }
    double rows = fmax(1, sums[0]);
    return print_report(q, json_pack("{s:I, s:f, s:f, s:f, s:I}", "rows", (json_int_t)sums[0],
                                     "accuracy", sums[1] / rows, "accuracy_norm", sums[2] / rows,
                                     "accuracy_norm_tokens", sums[3] / rows, "cut",
                                     (json_int_t)sums[4]));
}

/* ---- the command ---- */

static status run(const struct request *q, struct comm *world)
{
    struct session s = {0};
    TRY(session_open_checkpoint(&s, world, q->checkpoint, q->overrides.items, q->overrides.count,
                                0));
    status result = q->task != NULL ? evaluate_task(q, &s, world) : evaluate_shards(q, &s, world);
    if (result == STATUS_OK) { /* else comm_abort ends all ranks, and this one waits for none */
        result = session_stop(&s);
    }
    return result;
}

status command_evaluate(int argc, char **argv)
{
    struct request q = {0};
    bool help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &q.checkpoint, "DIR", OPTION_REQUIRED,
         "a run folder, its checkpoints/, one of these, or final/"},
        {"data", OPTION_TEXT, &q.data, "GLOB", NULL, "token shards"},
        {"task", OPTION_TEXT, &q.task, "FILE.jsonl", NULL,
         "multiple choice: context, choices, label a line; or as HellaSwag has them: ctx, endings, "
         "label"},
        {"batches", OPTION_INTEGER, &q.batches, "N", "0", "micro-batches of each rank; 0: all",
         .least = 0, .most = 1e12},
        {"limit", OPTION_INTEGER, &q.limit, "N", "0", "rows of the task; 0: all", .least = 0,
         .most = 1e12},
        {"set", OPTION_LIST, &q.overrides, "KEY=VALUE...", NULL,
         "settings of the recipe that differ here, e.g. batch.micro_size=4"},
        {"json", OPTION_FLAG, &q.json, NULL, NULL, "one JSON object"},
    };
    struct options options = {
        .usage = "[mpirun -np N] bireme evaluate --checkpoint DIR (--data GLOB | --task FILE)",
        .about = "Prints loss and perplexity on shards, or accuracy on a multiple-choice task.",
        .table = table,
        .count = sizeof table / sizeof table[0],
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    struct comm *world = NULL;
    status result = STATUS_OK;
    if ((q.data == NULL) == (q.task == NULL)) {
        result = status_raise(STATUS_USAGE, __FILE__, __LINE__,
                              "give either --data GLOB or --task FILE.jsonl");
    }
    if (result == STATUS_OK) {
        result = comm_world_create(&argc, &argv, &world);
    }
    if (result == STATUS_OK) {
        result = run(&q, world);
        if (result != STATUS_OK) {
            comm_abort(world, result);
        }
    }
    free(q.overrides.items);
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}
