/* bireme report: writes a page or a picture of one run or several runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/logging/report/chart.h"
#include "trainer/logging/report/report.h"
#include "trainer/train/planner/predict.h"

/* Writes the page, or the picture of a field, to memory. */
static status write_document(const struct history *runs, int count, const char *field, FILE *memory)
{
    if (field != NULL) {
        return report_write_plot(runs, count, field, memory);
    }
    report_write_page(runs, count, memory);
    return STATUS_OK;
}

static status write_output(const struct history *runs, int count, const char *field,
                           const char *output)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    REQUIRE(memory != NULL, STATUS_INTERNAL, "out of memory for %s", output);
    status result = write_document(runs, count, field, memory);
    if (fclose(memory) != 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_INTERNAL, "out of memory for %s", output);
    }
    if (result == STATUS_OK && strcmp(output, "-") == 0) {
        result = terminal_flush(fwrite(text, 1, bytes, stdout) == bytes);
    } else if (result == STATUS_OK) {
        result = file_write(output, text, bytes);
    }
    free(text);
    return result;
}

/* Predicts the time of a step of a run from the description of its cluster. */
static status predict_run(const struct cluster *cluster, const char *folder, struct history *run)
{
    char path[FILE_PATH_BYTES];
    struct recipe recipe;
    struct plan plan;
    struct prediction prediction;
    int ranks = (int)json_integer_value(json_object_get(run->start, "ranks"));
    REQUIRE(ranks > 0, STATUS_DATA, "%s/metrics.jsonl has no line 'start' with the ranks", folder);
    TRY(file_join(path, folder, "recipe.yaml"));
    TRY(recipe_read(path, NULL, 0, &recipe));
    predict_choose_device(cluster, &recipe);
    TRY(plan_make(&recipe, ranks, &plan));
    TRY(predict_step(&recipe, &plan, cluster, &prediction));
    run->predicted_seconds = prediction.step_seconds;
    return STATUS_OK;
}

static status read_run(const char *folder, const struct cluster *cluster, struct history *run)
{
    TRY(history_read(folder, run));
    return cluster != NULL ? predict_run(cluster, folder, run) : STATUS_OK;
}

static status check_suffix(const char *output, const char *field)
{
    static const char *const pictures[] = {".svg"};
    return field != NULL ? report_check_suffix(output, pictures, COUNT(pictures),
                                               "--plot writes an SVG picture")
                         : report_check_suffix(output, report_page_suffixes, REPORT_PAGE_SUFFIXES,
                                               "a report without --plot FIELD is an HTML page");
}

static status write_report(char **folders, int count, const char *field, const char *cluster_path,
                           const char *output)
{
    int read = 0;
    struct cluster cluster;
    status result = strcmp(output, "-") == 0 ? STATUS_OK : report_check_output(output);
    if (result == STATUS_OK) {
        result = check_suffix(output, field);
    }
    if (result == STATUS_OK && cluster_path != NULL) {
        result = cluster_read(cluster_path, &cluster);
    }
    TRY(result);
    struct history *runs = NULL;
    TRY(ALLOCATE(runs, count, "runs"));
    for (; read < count && result == STATUS_OK; read++) {
        result = read_run(folders[read], cluster_path != NULL ? &cluster : NULL, &runs[read]);
    }
    if (result == STATUS_OK) {
        result = write_output(runs, count, field, output);
    }
    for (int r = 0; r < read; r++) {
        history_free(&runs[r]);
    }
    free(runs);
    return result;
}

status command_report(int argc, char **argv)
{
    const char *output = NULL, *field = NULL, *cluster = NULL;
    const struct option table[] = {
        {"output", OPTION_TEXT, &output, "FILE", OPTION_REQUIRED,
         "file to write; - is standard output"},
        {"plot", OPTION_TEXT, &field, "FIELD", NULL,
         "write one field of metrics.jsonl as an SVG picture instead of a page"},
        {"cluster", OPTION_TEXT, &cluster, "FILE", NULL,
         "compare the time of a step with the prediction of `bireme plan --cluster FILE`"},
    };
    struct options options = {
        .usage = "bireme report RUN_DIR... [--cluster FILE] --output FILE.html\n"
                 "       bireme report RUN_DIR... --plot FIELD --output FILE.svg",
        .description =
            "Writes a page about a run, or a comparison of several runs: curves of the loss and of "
            "all metrics, speed, memory, the last validation with a table of labels and a "
            "confusion matrix, samples, warnings and settings. The page is one file that loads "
            "nothing from the network. With --plot, writes a picture of one field, such as loss.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme report runs/mine --output mine.html\n"
                    "bireme report runs/mine runs/slower \\\n"
                    "    --plot loss --output loss.svg",
        .operand_name = "RUN_DIR",
        .operands_min = 1,
        .operands_max = CHART_CURVES_MAX / 2,
    };
    OPTIONS_PARSE(&options, argc, argv);
    TRY(write_report(options.operands, options.operand_count, field, cluster, output));
    if (strcmp(output, "-") != 0) {
        log_info("%s", output);
    }
    return STATUS_OK;
}
