/* bireme report: writes a page or a picture of one run or several runs. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
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
        bool written = fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
        result = written ? STATUS_OK
                         : RAISE_STATUS(STATUS_WRITE, "cannot write to standard output: %s",
                                        strerror(errno));
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
    REQUIRE(ranks > 0, STATUS_DATA, "%s/metrics.jsonl has no line \"start\" with the ranks",
            folder);
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

/* Refuses names like page.png: a reader would expect another format. */
static status check_suffix(const char *output, const char *field)
{
    static const char *const page[] = {".html", ".htm", ".xhtml"}, *const plot[] = {".svg"};
    const char *const *valid = field != NULL ? plot : page;
    int count = field != NULL ? COUNT(plot) : COUNT(page);
    const char *slash = strrchr(output, '/'), *name = slash != NULL ? slash + 1 : output;
    const char *suffix = strrchr(name, '.');
    if (suffix == NULL || suffix == name || !isalpha((unsigned char)suffix[1])) {
        return STATUS_OK;
    }
    for (int i = 0; i < count; i++) {
        if (strcasecmp(suffix, valid[i]) == 0) {
            return STATUS_OK;
        }
    }
    RAISE(STATUS_USAGE, "--output %s: %s; give the file a name that ends with %s%s", output,
          field != NULL ? "--plot writes an SVG picture" : "a report is an HTML page", valid[0],
          field == NULL && strcasecmp(suffix, ".svg") == 0
              ? ", or choose a field with --plot, for example --plot loss"
              : "");
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
    struct history *runs = calloc((size_t)count, sizeof *runs);
    REQUIRE(runs != NULL, STATUS_INTERNAL, "out of memory for %d runs", count);
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
    bool help = false;
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
            "nothing "
            "from the network. With --plot, writes a picture of one field, such as loss.",
        .table = table,
        .count = COUNT(table),
        .operand_name = "RUN_DIR",
        .operands_min = 1,
        .operands_max = CHART_CURVES_MAX / 2,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    TRY(write_report(options.operands, options.operand_count, field, cluster, output));
    if (strcmp(output, "-") != 0) {
        log_info("%s", output);
    }
    return STATUS_OK;
}
