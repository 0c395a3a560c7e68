/* bireme evaluate: the loss on token shards, the metrics of tasks, or metrics of texts against
 * references. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "trainer/cli/command.h"
#include "trainer/cli/evaluate_texts.h"
#include "trainer/cli/options.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/evaluation/multiple_choice.h"
#include "trainer/evaluation/report.h"
#include "trainer/evaluation/target_scores.h"
#include "trainer/evaluation/tasks/task_set.h"
#include "trainer/formats/weights/open.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/session.h"
#include "trainer/train/reference_logprobs.h"
#include "trainer/train/step/step.h"

struct request {
    const char *checkpoint, *data, *samples;
    struct option_list overrides, tasks;
    int64_t batches, limit, shots; /* shots -1: not given */
    bool json;
    struct evaluate_texts texts;
};

/* Prints the confusion matrix with the label names of the metrics "support.LABEL". */
static void print_matrix(const json_t *report, const json_t *matrix)
{
    static const char prefix[] = "support.";
    const char *key;
    json_t *value;
    size_t row = 0;
    printf("confusion_matrix       rows: true labels, columns: predictions\n");
    json_object_foreach((json_t *)report, key, value)
    {
        if (strncmp(key, prefix, strlen(prefix)) != 0) {
            continue;
        }
        const json_t *counts = json_array_get(matrix, row++);
        printf("  %-20s", key + strlen(prefix));
        for (size_t i = 0; i < json_array_size(counts); i++) {
            printf(" %7" PRId64, (int64_t)json_integer_value(json_array_get(counts, i)));
        }
        printf("\n");
    }
}

static status print_report(const struct request *q, json_t *report)
{
    const char *key;
    json_t *value;
    if (q->json) {
        return json_output_print(report);
    }
    json_object_foreach(report, key, value)
    {
        if (json_is_null(value)) { /* e.g. the correlation with a constant */
            printf("%-22s undefined\n", key);
        } else if (json_is_array(value)) {
            print_matrix(report, value);
        } else {
            printf("%-22s %.10g\n", key, json_number_value(value));
        }
    }
    json_decref(report);
    return STATUS_OK;
}

/* ---- shards ---- */

static json_t *make_json(const struct metric *field)
{
    return field->kind == METRIC_INTEGER ? json_integer(field->integer)
           : field->kind == METRIC_JSON  ? json_loads(field->text, 0, NULL)
           : isfinite(field->number)     ? json_real(field->number)
                                         : json_null();
}

/* Returns the number of examples in a batch. It is one micro-batch per rank. For objective embed,
 * which has a loss that depends on the batch, it is the global batch of training. */
static int64_t get_batch_samples(const struct session *s)
{
    const struct recipe *r = &s->recipe;
    return objective_spec_example(r) == EXAMPLE_EMBED
               ? r->batch.global_size
               : r->batch.micro_size * comm_size(s->mesh.data);
}

static status open_data(const struct request *q, const struct session *s,
                        const struct reference_logprobs *reference, int64_t limit,
                        struct loader **out)
{
    const struct recipe *r = &s->recipe;
    struct loader_source source = {q->data, 1};
    struct packing_rules rules;
    (void)objective_spec_packing(r, &rules);
    struct loader_options options = {
        .sources = &source,
        .source_count = 1,
        .sequence_tokens = r->data.sequence_length,
        .global_sequences = get_batch_samples(s),
        .micro_sequences = r->batch.micro_size,
        .rank = comm_rank(s->mesh.data),
        .ranks = comm_size(s->mesh.data),
        .document_mask = r->data.document_mask,
        .kind = objective_spec_example(r),
        .decoder_start = derive_first_input(r, s->tokenizer),
        .packing = &rules,
        .reference_logps = reference != NULL && reference->sources > 0
                               ? (const double *const *)reference->values
                               : NULL,
        .limit_samples = limit,
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL,
        .labels_sha256 = s->labels_sha256[0] != '\0' ? s->labels_sha256 : NULL,
        .head_reads_last_row = derive_reads_last_row(r),
        .max_texts = r->model.num_labels,
        .head_reads_responses = objective_spec_head(r) != MODEL_HEAD_LM,
        .masking = s->masking,
        .denoise = s->denoise,
        .seed = (uint64_t)r->seed,
    };
    data_set_vocabulary(r, model_source_vocabulary(model_get_config(s->model)), &options);
    return loader_open(&options, out);
}

/* Counts the samples to evaluate: all, or the samples of the requested number of batches. */
static status count_samples(const struct request *q, const struct session *s, int64_t *out)
{
    struct loader *loader = NULL;
    TRY(open_data(q, s, NULL, 0, &loader));
    int64_t requested = q->batches * get_batch_samples(s);
    *out = loader_samples(loader);
    *out = requested > 0 && requested < *out ? requested : *out;
    return loader_close(&loader);
}

/* Computes the log-probabilities of preference pairs by the reference model, which is the model
 * that the training started from. */
static status compute_reference(const struct request *q, const struct session *s,
                                struct comm *world, struct reference_logprobs *out)
{
    char precision[] = "train.precision=fp32";
    char *overrides[] = {precision};
    struct session base = {0};
    struct recipe r = s->recipe;
    bool is_bf16 = r.train.precision != PRECISION_FP32;
    memcpy(strchr(precision, '=') + 1, is_bf16 ? "bf16" : "fp32", 4);
    r.data.train_count = 1;
    r.data.train[0] = (struct recipe_source){.weight = 1};
    r.data.validation[0] = '\0';
    REQUIRE(strlen(q->data) < sizeof r.data.train[0].path, STATUS_USAGE,
            "--data: the path is too long");
    snprintf(r.data.train[0].path, sizeof r.data.train[0].path, "%s", q->data);
    TRY(weights_open_checkpoint(&base, world, r.model.init_from, overrides, 1, derive_rows(&r)));
    struct data_setup data = {
        .recipe = &r,
        .rank = comm_rank(base.mesh.data),
        .ranks = comm_size(base.mesh.data),
        .vocabulary = model_source_vocabulary(model_get_config(base.model)),
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL,
    };
    TRY(reference_logprobs_compute(&base, &data, base.recipe.adapter.type != ADAPTER_NONE, out));
    return session_stop(&base);
}

/* Checks that --data can be shards, and names the command that makes them from text. */
static status require_shards(const struct request *q, const struct session *s)
{
    char options[3 * RECIPE_PATH_BYTES], command[4 * RECIPE_PATH_BYTES], labels[RECIPE_PATH_BYTES],
        length[64] = "";
    enum example_kind kind = objective_spec_example(&s->recipe);
    REQUIRE(!file_is_folder(q->data), STATUS_DATA,
            "--data %s is a folder; name its shards: --data '%s/validation-*.h5'", q->data,
            q->data);
    if (!data_is_text(q->data)) {
        return STATUS_OK;
    }
    snprintf(labels, sizeof labels, "%s%.*s", s->labels.count > 0 ? " --labels " : "",
             s->labels.count > 0 ? 900 : 0, q->checkpoint);
    if (kind != EXAMPLE_TEXT && kind != EXAMPLE_SFT) {
        snprintf(length, sizeof length, " --sequence-length %" PRId64,
                 s->recipe.data.sequence_length);
    }
    bool is_text = kind == EXAMPLE_TEXT || kind == EXAMPLE_SENTENCE_PAIRS;
    snprintf(options, sizeof options, "%s %s%s%s --output DIR",
             is_text ? "--input" : "--validation-input", q->data, labels, length);
    data_write_command(&s->recipe, s->tokenizer_dir, options, command, sizeof command);
    RAISE(STATUS_DATA, "--data %s is not a shard; %s and give --data 'DIR/%s-*.h5'", q->data,
          command, is_text ? "train" : "validation");
}

/* An evaluation of shards. */
struct evaluation {
    const struct request *request;
    struct session *session;
    struct comm *world;
    const struct objective *objective;
    struct preference_settings preference;
    struct reference_logprobs reference;
    struct evaluator *evaluator;
    int64_t samples;
    double sums[OBJECTIVE_SUMS];
    struct metric scores[TEXT_METRICS]; /* of generated targets */
    int score_count;
};

/* Checks the data and creates everything that the evaluation needs. */
static status prepare_evaluation(struct evaluation *e)
{
    const struct request *q = e->request;
    struct session *s = e->session;
    const struct recipe *r = &s->recipe;
    TRY(comm_agree(e->world, require_shards(q, s)));
    e->objective = objective_spec_objective(r);
    TRY(comm_agree(e->world, derive_preference(r, &e->preference)));
    if (objective_spec_has_reference(r)) {
        TRY(compute_reference(q, s, e->world, &e->reference));
    }
    TRY(comm_agree(e->world, data_check_text_pairs(r, q->data)));
    TRY(comm_agree(e->world, count_samples(q, s, &e->samples)));
    return comm_agree(e->world, evaluator_create(r->objective, &s->labels, s->tokenizer,
                                                 r->answer.no_answer_threshold, &e->evaluator));
}

/* Returns the number of examples that the loss couples; 0: it is a sum over the examples. */
static int64_t get_coupled_samples(const struct evaluation *e)
{
    const struct recipe *r = &e->session->recipe;
    bool is_coupled =
        objective_spec_example(r) == EXAMPLE_EMBED ||
        (objective_spec_has_reference(r) && preference_needs_whole_batch(&e->preference));
    return is_coupled ? get_batch_samples(e->session) : 0;
}

/* Computes the loss and the metrics of all samples. */
static status sum_losses(struct evaluation *e)
{
    struct session *s = e->session;
    const struct step_parts parts = {
        .mesh = s->mesh,
        .kernels = s->kernels,
        .model = s->model,
        .objective = e->objective,
        .micro_rows = derive_rows(&s->recipe),
        .preference = &e->preference,
        .batch_size = get_coupled_samples(e),
        .sink = evaluator_sink(e->evaluator),
    };
    struct step *step = NULL;
    struct loader *loader = NULL;
    status result =
        comm_agree(e->world, open_data(e->request, s, &e->reference, e->samples, &loader));
    if (result == STATUS_OK) {
        result = step_create(&parts, &step);
    }
    if (result == STATUS_OK) {
        result = step_evaluate(step, loader, NULL, e->sums);
    }
    if (result == STATUS_OK) {
        result = evaluator_end(e->evaluator, s->mesh.data);
    }
    KEEP_FIRST(result, step_destroy(&step));
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}

/* Generates the targets of all samples and scores them, with evaluate.generate. */
static status score_targets(struct evaluation *e)
{
    struct session *s = e->session;
    const struct recipe *r = &s->recipe;
    struct target_scores scores = {
        .kernels = s->kernels,
        .model = s->model,
        .tokenizer = s->tokenizer,
        .mesh = &s->mesh,
        .batch_size = r->batch.micro_size,
    };
    struct loader *loader = NULL;
    if (!r->evaluate.generate) {
        return STATUS_OK;
    }
    TRY(comm_agree(e->world,
                   weights_require_tokenizer(s, e->request->checkpoint, "evaluate.generate")));
    TRY(comm_agree(e->world,
                   target_scores_read_options(
                       r, s->tokenizer_dir, model_get_config(s->model)->vocabulary, s->tokenizer,
                       derive_decoder_start(r, s->tokenizer), &scores.options)));
    status result = comm_agree(e->world, open_data(e->request, s, NULL, e->samples, &loader));
    if (result == STATUS_OK) {
        result = target_scores_run(&scores, loader, e->scores, &e->score_count);
    }
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}

static status print_evaluation(const struct evaluation *e)
{
    struct metric fields[EVALUATION_REPORT_FIELDS];
    int count = evaluation_report_fields(e->objective, e->sums, e->evaluator, fields);
    json_t *report = json_object();
    for (int i = 0; i < count; i++) {
        json_object_set_new(report, fields[i].name, make_json(&fields[i]));
    }
    for (int i = 0; i < e->score_count; i++) {
        json_object_set_new(report, e->scores[i].name, make_json(&e->scores[i]));
    }
    return print_report(e->request, report);
}

static status evaluate_shards(const struct request *q, struct session *s, struct comm *world)
{
    struct evaluation e = {.request = q, .session = s, .world = world};
    status result = prepare_evaluation(&e);
    if (result == STATUS_OK) {
        result = sum_losses(&e);
    }
    if (result == STATUS_OK) {
        result = score_targets(&e);
    }
    reference_logprobs_destroy(&e.reference);
    if (result == STATUS_OK && comm_rank(world) == 0) {
        result = print_evaluation(&e);
    }
    evaluator_destroy(&e.evaluator);
    return result;
}

/* ---- tasks ---- */

/* Evaluates the rows of a multiple-choice file. */
static status evaluate_rows(const struct request *q, struct session *s, struct comm *world)
{
    struct multiple_choice_report local = {0};
    TRY(comm_agree(world, weights_require_single_stack(s, q->checkpoint)));
    TRY(comm_agree(world, weights_require_tokenizer(s, q->checkpoint, "a task")));
    TRY(multiple_choice_run(s->kernels, s->model, s->tokenizer, q->tasks.items[0],
                            s->recipe.model.max_position_embeddings, q->limit,
                            comm_rank(s->mesh.data), comm_size(s->mesh.data), &local));
    double sums[] = {(double)local.rows, local.correct, local.correct_norm,
                     local.correct_norm_tokens, (double)local.truncated};
    TRY(comm_sum_doubles(s->mesh.data, sums, COUNT(sums)));
    if (comm_rank(world) != 0) {
        return STATUS_OK;
    }
    double rows = fmax(1, sums[0]);
    return print_report(q, json_pack("{s:I, s:f, s:f, s:f, s:I}", "rows", (json_int_t)sums[0],
                                     "accuracy", sums[1] / rows, "accuracy_norm", sums[2] / rows,
                                     "accuracy_norm_tokens", sums[3] / rows, "cut",
                                     (json_int_t)sums[4]));
}

static status print_tasks(const struct request *q, const struct task_field *fields, int count)
{
    json_t *report = json_object();
    for (int i = 0; i < count; i++) {
        json_t *value = isnan(fields[i].value) ? json_null()
                        : fields[i].is_count   ? json_integer((json_int_t)fields[i].value)
                                               : json_real(fields[i].value);
        json_object_set_new(report, fields[i].name, value);
    }
    return print_report(q, report);
}

static status run_tasks(const struct request *q, struct session *s, struct comm *world,
                        const struct task_set *set, FILE *samples)
{
    struct task_field fields[TASK_SET_FIELDS];
    int count = 0;
    int64_t positions = model_get_config(s->model)->positions;
    const struct task_model model = {
        .kernels = s->kernels,
        .model = s->model,
        .tokenizer = s->tokenizer,
        .mesh = &s->mesh,
        .rows = positions,
        .max_tokens = positions,
        .seed = (uint64_t)s->recipe.seed,
    };
    TRY(task_set_run(set, &model, samples, fields, &count));
    return comm_rank(world) == 0 ? print_tasks(q, fields, count) : STATUS_OK;
}

static status open_samples(const struct request *q, const struct comm *world, FILE **out)
{
    *out = NULL;
    if (q->samples == NULL) {
        return STATUS_OK;
    }
    REQUIRE(comm_size(world) == 1, STATUS_USAGE,
            "--log-samples writes the documents of one rank; run without mpirun");
    *out = fopen(q->samples, "w");
    REQUIRE(*out != NULL, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot write %s: %s", q->samples, strerror(errno));
    return STATUS_OK;
}

static status close_samples(const struct request *q, FILE *samples)
{
    if (samples == NULL) {
        return STATUS_OK;
    }
    errno = 0;
    bool failed = fflush(samples) != 0 || ferror(samples) != 0;
    failed = fclose(samples) != 0 || failed;
    int error = errno != 0 ? errno : EIO;
    REQUIRE(!failed, STATUS_WRITE,
            "cannot write %s: %s; free space or choose another --log-samples", q->samples,
            strerror(error));
    return STATUS_OK;
}

static status evaluate_tasks(const struct request *q, struct session *s, struct comm *world)
{
    struct task_set set = {0};
    FILE *samples = NULL;
    TRY(comm_agree(world, weights_require_causal(s, q->checkpoint)));
    TRY(comm_agree(world, weights_require_tokenizer(s, q->checkpoint, "a task")));
    status result =
        comm_agree(world, task_set_open(q->tasks.items, q->tasks.count, q->shots, q->limit, &set));
    if (result == STATUS_OK) {
        result = comm_agree(world, open_samples(q, world, &samples));
    }
    if (result == STATUS_OK) {
        result = run_tasks(q, s, world, &set, samples);
    }
    KEEP_FIRST(result, close_samples(q, samples));
    task_set_close(&set);
    return result;
}

/* ---- the command ---- */

/* Task files are YAML. A single file of another kind has the rows of a multiple-choice task. */
static status check_tasks(const struct request *q)
{
    for (int i = 0; i < q->tasks.count; i++) {
        bool is_file = task_set_is_file(q->tasks.items[i]);
        REQUIRE(is_file || q->tasks.count == 1, STATUS_USAGE,
                "--task %s: several tasks must be task files, *.yaml", q->tasks.items[i]);
        REQUIRE(is_file || (q->shots < 0 && q->samples == NULL), STATUS_USAGE,
                "--task %s: --shots and --log-samples need a task file, *.yaml", q->tasks.items[i]);
    }
    REQUIRE(q->tasks.count > 0 || (q->shots < 0 && q->samples == NULL), STATUS_USAGE,
            "--shots and --log-samples can only be used with --task");
    return STATUS_OK;
}

/* Checks which of the three evaluations the options select. */
static status check_request(const struct request *q)
{
    const struct evaluate_texts *t = &q->texts;
    int kinds = (q->data != NULL) + (q->tasks.count > 0) + (t->predictions != NULL);
    REQUIRE(kinds == 1, STATUS_USAGE,
            "give exactly one of --data GLOB, --task FILE and --predictions FILE");
    REQUIRE((t->predictions != NULL) == (t->references != NULL), STATUS_USAGE,
            "give both --predictions FILE and --references FILE");
    REQUIRE((t->predictions != NULL) == (q->checkpoint == NULL), STATUS_USAGE,
            t->predictions != NULL ? "--checkpoint: --predictions uses no model; leave it out"
                                   : "--checkpoint DIR is missing");
    return check_tasks(q);
}

static status run_evaluate(const struct request *q, struct comm *world)
{
    struct session s = {0};
    if (q->texts.predictions != NULL) {
        return comm_agree(world, comm_rank(world) == 0 ? evaluate_texts_run(&q->texts) : STATUS_OK);
    }
    TRY(weights_open_checkpoint(&s, world, q->checkpoint, q->overrides.items, q->overrides.count,
                                0));
    status result = q->tasks.count == 0                   ? evaluate_shards(q, &s, world)
                    : task_set_is_file(q->tasks.items[0]) ? evaluate_tasks(q, &s, world)
                                                          : evaluate_rows(q, &s, world);
    /* After an error, comm_abort ends all ranks without releasing the session. */
    if (result == STATUS_OK) {
        result = session_stop(&s);
    }
    return result;
}

static status parse_request(int argc, char **argv, struct request *q, bool *help)
{
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &q->checkpoint, "DIR", NULL,
         "with --data or --task: run folder, checkpoints/ folder, one checkpoint or final/"},
        {"data", OPTION_TEXT, &q->data, "GLOB", NULL, "token shards to evaluate"},
        {"task", OPTION_LIST, &q->tasks, "FILE...", NULL,
         "task files *.yaml in the format of lm-evaluation-harness; or one multiple-choice file: "
         "JSON Lines with context, choices and label, or as in HellaSwag with ctx, endings and "
         "label"},
        {"shots", OPTION_INTEGER, &q->shots, "N", NULL,
         "with --task FILE.yaml: number of few-shot examples, instead of num_fewshot of the files",
         .min = 0, .max = 1000},
        {"log-samples", OPTION_TEXT, &q->samples, "FILE.jsonl", NULL,
         "with --task FILE.yaml: write a line for each document, with its targets, outputs and "
         "scores"},
        {"predictions", OPTION_TEXT, &q->texts.predictions, "FILE", NULL,
         "texts to compare with --references, one per line; *.jsonl: the field text of each row"},
        {"references", OPTION_TEXT, &q->texts.references, "FILE", NULL,
         "with --predictions: the correct texts, in the same order"},
        {"metrics", OPTION_TEXT, &q->texts.metrics, "A,B,...", "bleu,chrf",
         "with --predictions: bleu, chrf (as in sacreBLEU), rouge1, rouge2, rougeL, rougeLsum (as "
         "in rouge-score) and exact_match"},
        {"bleu-tokenizer", OPTION_CHOICE, &q->texts.tokenizer, "NAME", "13a",
         "with --predictions: tokenizer of BLEU", .choices = "13a|intl|char|none"},
        {"batches", OPTION_INTEGER, &q->batches, "N", "0",
         "with --data: number of micro-batches of each rank; 0: all", .min = 0, .max = 1e12},
        {"limit", OPTION_INTEGER, &q->limit, "N", "0",
         "with --task: number of documents of each task; 0: all", .min = 0, .max = 1e12},
        {"set", OPTION_LIST, &q->overrides, "KEY=VALUE...", NULL,
         "override settings of the recipe, e.g. batch.micro_size=4"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "print one JSON object"},
    };
    struct options options = {
        .usage = "[mpirun -np N] bireme evaluate --checkpoint DIR (--data GLOB | --task FILE) "
                 "[options]\n"
                 "       bireme evaluate --predictions FILE --references FILE [options]",
        .description = "Prints loss and perplexity on shards, or the metrics of tasks with their "
                       "standard errors. The metrics depend on the objective of the model. With "
                       "--predictions, prints metrics of texts against references; no model is "
                       "used.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme evaluate --checkpoint runs/mine \\\n"
                    "    --data 'data/mine/validation-*.h5'\n"
                    "bireme evaluate --checkpoint runs/mine \\\n"
                    "    --task capitals.yaml --shots 5\n"
                    "bireme evaluate --predictions translations.txt \\\n"
                    "    --references pairs.es --metrics bleu,chrf",
    };
    TRY(options_parse(&options, argc, argv, help));
    q->texts.json = q->json;
    return *help ? STATUS_OK : check_request(q);
}

/* Starts the ranks and evaluates. */
static status start_evaluate(int argc, char **argv, const struct request *q)
{
    struct comm *world = NULL;
    status result = comm_world_create(&argc, &argv, &world);
    if (result == STATUS_OK) {
        result = run_evaluate(q, world);
        if (result != STATUS_OK) {
            comm_abort(world, result);
        }
    }
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_evaluate(int argc, char **argv)
{
    struct request q = {.shots = -1};
    bool help = false;
    status result = parse_request(argc, argv, &q, &help);
    if (result == STATUS_OK && !help) {
        result = start_evaluate(argc, argv, &q);
    }
    free(q.overrides.items);
    free(q.tasks.items);
    return result;
}
