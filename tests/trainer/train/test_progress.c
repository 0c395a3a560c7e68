/* Tests of the progress line, the estimate of the remaining time, the line of an evaluation and the
 * summary at the end of a training. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "tests/check.h"
#include "trainer/evaluation/report.h"
#include "trainer/train/progress.h"
#include "trainer/train/summary.h"

static const char *format_line(const struct job *job, const struct progress_interval *interval,
                               double left_seconds)
{
    static char line[TEXT_LINE_COLUMNS + 1];
    memset(line, '?', sizeof line);
    progress_format(job, interval, left_seconds, line);
    CHECK(memchr(line, '\0', sizeof line) != NULL);
    return line;
}

static void check_lines(void)
{
    double sums[OBJECTIVE_SUMS] = {0};
    struct job job = {.objective = &objective_clm, .total_steps = 1000, .state.step = 437};
    struct progress_interval last = {1, 4096, 2, 3.14159, sums};
    CHECK_TEXT(format_line(&job, &last, 754),
               "step 437/1000 (43%)  loss 3.1416  2048 tokens/s  left 13 min");
    last.tokens = 4096000000;
    job.state.step = 1000;
    CHECK_TEXT(format_line(&job, &last, 0),
               "step 1000/1000 (100%)  loss 3.1416  2048 M tokens/s  left 0 s");
    /* If the line is too long, the name of the metric is cut, then the metric is omitted. */
    const struct objective_metric *m = &objective_dpo.metrics[objective_dpo.main_metric];
    sums[m->sum] = 9;
    sums[m->count] = 12;
    job.objective = &objective_dpo;
    job.state.step = 437;
    last.tokens = 4096;
    CHECK_TEXT(format_line(&job, &last, 754),
               "step 437/1000 (43%)  loss 3.1416  accuracies 0.7500  2048 tokens/s  left 13 min");
    last.tokens = 40960;
    CHECK_TEXT(format_line(&job, &last, 754),
               "step 437/1000 (43%)  loss 3.1416  20480 tokens/s  left 13 min");
    job.total_steps = 1000000000;
    job.state.step = job.total_steps;
    CHECK_TEXT(format_line(&job, &last, 1e5), "step 1000000000/1000000000 (100%)  loss 3.1416  "
                                              "20480 tokens/s  left 27.8 h");
    last.loss = 1e60;
    CHECK(strstr(format_line(&job, &last, 1e5), "tokens/s") == NULL);
    last.loss = -1e300;
    CHECK_EQUAL(strlen(format_line(&job, &last, 1e300)), TEXT_LINE_COLUMNS);
}

/* Each objective prints its main metric in a step and in an evaluation. */
static void check_main_metrics(void)
{
    static const struct {
        const struct objective *objective;
        const char *train, *evaluate;
        const char *printed; /* in a line where the whole name does not fit; NULL: it fits */
    } expected[] = {
        {&objective_clm, NULL, "perplexity"},
        {&objective_mlm, "mlm_accuracy", "mlm_accuracy"},
        {&objective_sft, "mean_token_accuracy", "mean_token_accuracy", "accuracy"},
        {&objective_dpo, "rewards/accuracies", "rewards/accuracies"},
        {&objective_reward, "accuracy", "accuracy"},
        {&objective_classify, "accuracy", "accuracy"},
        {&objective_regress, "mean_absolute_error", "mean_absolute_error", "error"},
        {&objective_classify_tokens, "accuracy", "accuracy"},
        {&objective_extractive_qa, "span_accuracy", "f1"},
        {&objective_multiple_choice, "accuracy", "accuracy"},
        {&objective_embed, "accuracy", "accuracy"},
    };
    double sums[OBJECTIVE_SUMS];
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] = 1;
    }
    for (int i = 0; i < COUNT(expected); i++) {
        const struct objective *o = expected[i].objective;
        struct job job = {.objective = o, .total_steps = 10, .state.step = 1};
        struct progress_interval last = {1, 100, 1, 2, sums};
        char part[64] = "";
        if (expected[i].train != NULL) {
            CHECK_TEXT(evaluation_report_main(o, false), expected[i].train);
            snprintf(part, sizeof part, "  %s 1.0000",
                     expected[i].printed != NULL ? expected[i].printed : expected[i].train);
        } else {
            CHECK(evaluation_report_main(o, false) == NULL);
        }
        CHECK_TEXT(evaluation_report_main(o, true), expected[i].evaluate);
        char line[128];
        snprintf(line, sizeof line, "step 1/10 (10%%)  loss 2.0000%s  100 tokens/s  left 3 s",
                 part);
        CHECK_TEXT(format_line(&job, &last, 3), line);
    }
}

static void check_left(void)
{
    struct job job = {.total_steps = 100, .state.step = 10};
    struct progress p = {0};
    const struct progress_interval fast = {10, 0, 10, 0, NULL}, slow = {10, 0, 60, 0, NULL};
    progress_add(&p, &fast);
    CHECK_NEAR(progress_left_seconds(&p, &job, 7, 0), 90, 1e-9);
    /* The weight of past steps halves in 60 s: 5 steps in 5 s and 10 steps in 60 s. */
    progress_add(&p, &slow);
    CHECK_NEAR(progress_left_seconds(&p, &job, 7, 0), 90 * 65.0 / 15, 1e-9);
    /* The last step is evaluated, and with `every` the steps 30, 60 and 90 too. */
    job.evaluate_samples = 1;
    CHECK_NEAR(progress_left_seconds(&p, &job, 7, 0), 90 * 65.0 / 15 + 7, 1e-9);
    job.session.recipe.evaluate.every = 30;
    CHECK_NEAR(progress_left_seconds(&p, &job, 7, 0), 90 * 65.0 / 15 + 4 * 7, 1e-9);
    job.session.recipe.evaluate.every = 50; /* step 100 is one evaluation, not two */
    CHECK_NEAR(progress_left_seconds(&p, &job, 7, 0), 90 * 65.0 / 15 + 2 * 7, 1e-9);
    job.session.recipe.train.max_minutes = 2;
    CHECK_NEAR(progress_left_seconds(&p, &job, 7, 100), 20, 1e-9);
    CHECK_EQUAL(progress_left_seconds(&p, &job, 7, 130), 0);
    job.session.recipe.train.max_minutes = 0;
    job.state.step = 100;
    CHECK_EQUAL(progress_left_seconds(&p, &job, 7, 0), 0);
}

/* ---- lines on standard error ---- */

static int kept_descriptor;
static FILE *captured;

static void begin_capture(void)
{
    kept_descriptor = dup(STDERR_FILENO);
    captured = tmpfile();
    CHECK(kept_descriptor >= 0 && captured != NULL);
    CHECK(dup2(fileno(captured), STDERR_FILENO) == STDERR_FILENO);
}

/* Returns the text since begin_capture. */
static const char *end_capture(void)
{
    static char text[4096];
    CHECK(dup2(kept_descriptor, STDERR_FILENO) == STDERR_FILENO && close(kept_descriptor) == 0);
    rewind(captured);
    text[fread(text, 1, sizeof text - 1, captured)] = '\0';
    CHECK(fclose(captured) == 0);
    return text;
}

static void check_evaluations(void)
{
    struct metric fields[] = {metric_number("loss", 0.5),          metric_integer("examples", 60),
                              metric_number("accuracy", 0.75),     metric_number("f1_macro", 0.7),
                              metric_number("recall.positive", 1), metric_number("exact", 1)};
    const char *text;
    begin_capture();
    evaluation_report_log(&objective_classify, "loss", 7, fields, 6);
    evaluation_report_log(&objective_classify, "recall.positive", 7, fields, 6);
    text = end_capture();
    CHECK_TEXT(text, "step 7: validation loss 0.5000, accuracy 0.7500 (60 examples)\n"
                     "step 7: validation loss 0.5000, recall.positive 1.0000, accuracy 0.7500\n");
    fields[0].number = 1e60;
    begin_capture();
    evaluation_report_log(&objective_classify, "f1_macro", 7, fields, 6);
    text = end_capture();
    CHECK_EQUAL(strlen(text), TEXT_LINE_COLUMNS + 1);
}

static void write_history(const char *folder)
{
    static const char lines[] =
        "{\"event\":\"evaluate\",\"step\":0,\"time\":1,\"loss\":8.5,\"tokens\":9,\"seconds\":1}\n"
        "{\"event\":\"evaluate\",\"step\":10,\"time\":1,\"loss\":3.25,\"tokens\":9,\"seconds\":1}\n"
        "{\"event\":\"evaluate\",\"step\":20,\"time\":1,\"loss\":3.5,\"tokens\":9,\"seconds\":1}\n"
        "{\"event\":\"end\",\"step\":20,\"time\":1,\"train_seconds\":720}\n";
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(lines, file) >= 0 && fclose(file) == 0);
}

static void check_summary(const char *folder, const struct job *job, const char *commands)
{
    static const struct job_options options = {.recipe_path = "recipe.yaml"};
    char expected[4096];
    begin_capture();
    summary_log(job, &options, false);
    snprintf(expected, sizeof expected,
             "20 of 20 steps, 4096 tokens, 12 min\n"
             "  validation                        first         best         last\n"
             "  step                                  0           10           20\n"
             "  loss                             8.5000       3.2500       3.5000\n"
             "  weights                    %s/final\n"
             "next:\n%s",
             folder, commands);
    const char *text = end_capture();
    CHECK_TEXT(text, expected);
}

static void check_summaries(void)
{
    char folder[] = "/tmp/bireme-test-XXXXXX", path[FILE_PATH_BYTES], commands[1024];
    struct job job = {.objective = &objective_clm,
                      .early_stopping_rule.metric = "loss",
                      .total_steps = 20,
                      .state = {.step = 20, .tokens = 4096}};
    CHECK(mkdtemp(folder) != NULL);
    snprintf(job.session.recipe.run_dir, sizeof job.session.recipe.run_dir, "%s", folder);
    write_history(folder);
    begin_capture();
    summary_log(&job, &(struct job_options){.recipe_path = "recipe.yaml"}, false);
    const char *text = end_capture();
    CHECK_TEXT(text, ""); /* a rank that does not write metrics.jsonl */
    snprintf(path, sizeof path, "%s/open.jsonl", folder);
    CHECK_OK(metrics_open(path, -1, 0, &job.metrics));
    snprintf(commands, sizeof commands, "  bireme report %s --output report.html\n", folder);
    check_summary(folder, &job, commands);
    snprintf(job.session.recipe.data.tokenizer, 8, "words");
    snprintf(commands, sizeof commands,
             "  bireme generate --checkpoint %s/final --prompt 'TEXT'\n"
             "  bireme report %s --output report.html\n",
             folder, folder);
    check_summary(folder, &job, commands);
    CHECK_OK(metrics_close(&job.metrics));
    CHECK(unlink(path) == 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

int main(void)
{
    check_lines();
    check_main_metrics();
    check_left();
    check_evaluations();
    check_summaries();
    return 0;
}
