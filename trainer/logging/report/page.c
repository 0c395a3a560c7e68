/* The HTML page of a report. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "trainer/logging/report/report.h"
#include "trainer/logging/report/report_impl.h"

const char *const report_page_suffixes[REPORT_PAGE_SUFFIXES] = {".html", ".htm", ".xhtml"};

/* Limits of the tables, because another program can have written the file. `train` writes matrices
 * of at most 32 labels. */
enum { MATRIX_LABELS_MAX = 128, SAMPLES_MAX = 100 };

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n";

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--text:#1f2328;--soft:#59636e;--page:#fff;--card:#f6f8fa;"
    "--line:#d8dee4;--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#7d6608;"
    "--c6:#0b7285;--c7:#57606a}\n"
    "@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9198a1;--page:#0d1117;"
    "--card:#161b22;--line:#30363d;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;"
    "--c4:#f778ba;--c5:#d4a72c;--c6:#39c5cf;--c7:#b1bac4}}\n"
    "*{box-sizing:border-box}body{margin:0 "
    "auto;padding:16px;max-width:1320px;background:var(--page)"
    ";color:var(--text);font:15px/1.5 system-ui,sans-serif}h1{font-size:22px;margin:8px 0}"
    "h2{font-size:17px;margin:28px 0 8px}p{margin:4px 0}.soft,caption{color:var(--soft)}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;padding:4px 0}th,td{padding:3px 12px 3px 0;text-align:left;"
    "vertical-align:top;border-bottom:1px solid var(--line);overflow-wrap:anywhere}"
    "thead th{white-space:nowrap}th{font-weight:600}tbody th{font-weight:400;color:var(--soft);"
    "overflow-wrap:break-word}"
    ".text{white-space:pre-wrap}.number{text-align:right}.matrix td{text-align:right;padding:4px "
    "10px}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));"
    "gap:14px}figure{margin:0;padding:8px;background:var(--card);border:1px solid var(--line);"
    "border-radius:8px;position:relative}svg{display:block;width:100%;font:13px "
    "system-ui,sans-serif"
    ";fill:var(--text)}.grid{stroke:var(--line)}.axis{stroke:var(--soft)}\n"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}"
    ".c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}\n"
    "output{position:absolute;left:74px;top:44px;padding:2px 8px;background:var(--page);"
    "border:1px solid var(--line);border-radius:4px;font-size:13px;white-space:pre;"
    "pointer-events:none}output:empty{display:none}summary{cursor:pointer}\n"
    "</style>\n";

/* Shows the values next to the pointer, or moves with the arrow keys. */
static const char script[] =
    "<script>\n"
    "for (const svg of document.querySelectorAll('figure svg')) {\n"
    "  const [left, right] = svg.dataset.plot.split(',').map(Number);\n"
    "  const [low, high] = svg.dataset.range.split(',').map(Number);\n"
    "  const curves = [...svg.querySelectorAll('.curve')].map(c => ({name: c.dataset.name,\n"
    "    x: c.dataset.x.split(',').map(Number), y: c.dataset.y.split(',')}));\n"
    "  const out = svg.parentNode.querySelector('output');\n"
    "  let at = null;\n"
    "  const show = () => {\n"
    "    out.textContent = at === null ? '' : curves.filter(c => c.x.length).map(c => {\n"
    "      let i = 0;\n"
    "      c.x.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(c.x[i] - at)) i = k; });\n"
    "      return `${c.name}: ${c.y[i]} (step ${c.x[i]})`;\n"
    "    }).join('\\n');\n"
    "  };\n"
    "  svg.addEventListener('pointermove', e => {\n"
    "    const box = svg.getBoundingClientRect();\n"
    "    const x = (e.clientX - box.left) / box.width * svg.viewBox.baseVal.width;\n"
    "    at = low + (high - low) * (x - left) / (right - left);\n"
    "    show();\n"
    "  });\n"
    "  svg.addEventListener('pointerleave', () => { at = null; show(); });\n"
    "  svg.tabIndex = 0;\n"
    "  svg.addEventListener('keydown', e => {\n"
    "    const move = {ArrowLeft: -1, ArrowRight: 1}[e.key];\n"
    "    if (!move) { return; }\n"
    "    at = Math.min(high, Math.max(low, (at === null ? low : at) + move * (high - low) / 50));\n"
    "    show();\n"
    "    e.preventDefault();\n"
    "  });\n"
    "  svg.addEventListener('blur', () => { at = null; show(); });\n"
    "}\n"
    "</script>\n";

/* ---- tables ---- */

/* Begins a row with a name in its first cell. */
static void begin_row(const char *name, FILE *file)
{
    fputs("<tr><th>", file);
    chart_escape(name, file);
    fputs("</th>", file);
}

/* Begins the table of one run, which has the name of the run as caption. `class` is "" or an
 * attribute after a blank. */
static void begin_run_table(const struct history *h, const char *title, const char *class,
                            FILE *file)
{
    fprintf(file, "<h2>%s</h2><div class=\"scroll\"><table%s><caption>", title, class);
    chart_escape(h->name, file);
}

/* Writes an integer with separators, another number with four decimals, and nothing for other
 * values. */
static void write_number(const json_t *value, FILE *file)
{
    if (json_is_integer(value)) {
        report_write_count((double)json_integer_value(value), file);
    } else if (json_is_real(value)) {
        fprintf(file, "%.4f", json_real_value(value));
    }
}

/* ---- metrics ---- */

/* Returns whether a field of a line is a metric of the model. */
static bool is_metric(const char *name, const json_t *value)
{
    return json_is_number(value) && strcmp(name, "step") != 0 && strcmp(name, "time") != 0 &&
           strcmp(name, "seconds") != 0;
}

static bool has_metric_before(const struct history *runs, int run, const char *name)
{
    for (int r = 0; r < run; r++) {
        if (json_object_get(runs[r].last_evaluate, name) != NULL) {
            return true;
        }
    }
    return false;
}

static void write_metric_row(const struct history *runs, int count, const char *name, FILE *file)
{
    begin_row(name, file);
    for (int r = 0; r < count; r++) {
        fputs("<td>", file);
        write_number(json_object_get(runs[r].last_evaluate, name), file);
        fputs("</td>", file);
    }
    fputs("</tr>\n", file);
}

/* Writes the metrics of the last evaluation of each run. */
static void write_metrics(const struct history *runs, int count, FILE *file)
{
    bool any = false;
    for (int r = 0; r < count; r++) {
        const char *name;
        json_t *value;
        json_object_foreach(runs[r].last_evaluate, name, value)
        {
            if (!is_metric(name, value) || has_metric_before(runs, r, name)) {
                continue;
            }
            if (!any) {
                fputs("<h2>Last validation</h2>\n", file);
                report_begin_table(runs, count, "Metric", file);
                any = true;
            }
            write_metric_row(runs, count, name, file);
        }
    }
    if (any) {
        report_end_table(file);
    }
}

/* Writes precision, recall, F1 and support of each label. */
static void write_labels(const struct history *h, FILE *file)
{
    static const char *const columns[] = {"precision", "recall", "f1", "support"};
    json_t *support = json_object_get(h->last_evaluate, "support");
    const char *label;
    json_t *value;
    if (!json_is_object(support)) {
        return;
    }
    begin_run_table(h, "Labels", "", file);
    fputs("</caption><thead><tr><th>label</th>", file);
    for (int c = 0; c < 4; c++) {
        fprintf(file, "<th class=\"number\">%s</th>", columns[c]);
    }
    fputs("</tr></thead><tbody>\n", file);
    json_object_foreach(support, label, value)
    {
        begin_row(label, file);
        for (int c = 0; c < 4; c++) {
            fputs("<td class=\"number\">", file);
            write_number(json_object_get(json_object_get(h->last_evaluate, columns[c]), label),
                         file);
            fputs("</td>", file);
        }
        fputs("</tr>\n", file);
    }
    report_end_table(file);
}

static double sum_row(const json_t *row)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(row); i++) {
        sum += json_number_value(json_array_get(row, i));
    }
    return sum;
}

/* Rows are true labels, columns are predictions; the shade is the share of the row. */
static void write_confusion(const struct history *h, FILE *file)
{
    json_t *matrix = json_object_get(h->last_evaluate, "confusion_matrix");
    json_t *support = json_object_get(h->last_evaluate, "support");
    size_t labels = json_array_size(matrix), i = 0;
    const char *label;
    json_t *value;
    if (labels == 0 || labels > MATRIX_LABELS_MAX || json_object_size(support) != labels) {
        return;
    }
    begin_run_table(h, "Confusion matrix", " class=\"matrix\"", file);
    fputs("; rows: true labels, columns: predictions</caption><thead><tr><th></th>", file);
    json_object_foreach(support, label, value)
    {
        fputs("<th>", file);
        chart_escape(label, file);
        fputs("</th>", file);
    }
    fputs("</tr></thead><tbody>\n", file);
    json_object_foreach(support, label, value)
    {
        const json_t *row = json_array_get(matrix, i++);
        double sum = sum_row(row);
        begin_row(label, file);
        for (size_t c = 0; c < labels; c++) {
            double count = json_number_value(json_array_get(row, c));
            fprintf(file,
                    "<td style=\"background:color-mix(in srgb,var(--c0) %.0f%%,transparent)\">",
                    sum > 0 ? 60 * count / sum : 0);
            report_write_count(count, file);
            fputs("</td>", file);
        }
        fputs("</tr>\n", file);
    }
    report_end_table(file);
}

/* Writes the planned bytes of one kind of memory, or the sum of all kinds (NULL), in each run. */
static void write_planned_row(const struct history *runs, int count, const char *kind, FILE *file)
{
    char text[48];
    begin_row(kind != NULL ? kind : "planned total", file);
    for (int r = 0; r < count; r++) {
        json_t *planned = json_object_get(runs[r].start, "rank_bytes");
        double bytes = kind != NULL ? json_number_value(json_object_get(planned, kind)) : 0;
        const char *key;
        json_t *value;
        json_object_foreach(planned, key, value)
        {
            bytes += kind == NULL ? json_number_value(value) : 0;
        }
        fprintf(file, "<td>%s</td>",
                bytes > 0 ? chart_format(bytes, CHART_BYTES, text, sizeof text) : "");
    }
    fputs("</tr>\n", file);
}

static void write_measured_row(const struct history *runs, int count, FILE *file)
{
    begin_row("measured peak", file);
    for (int r = 0; r < count; r++) {
        fputs("<td>", file);
        report_write_peak_memory(&runs[r], file);
        fputs("</td>", file);
    }
    fputs("</tr>\n", file);
}

/* Writes the planned memory of each kind, and the measured peak. All runs have the kinds of the
 * first. */
static void write_memory_plan(const struct history *runs, int count, FILE *file)
{
    json_t *planned = json_object_get(runs[0].start, "rank_bytes");
    const char *kind;
    json_t *value;
    if (!json_is_object(planned)) {
        return;
    }
    fputs("<h2>Planned and measured memory of rank 0</h2>\n", file);
    report_begin_table(runs, count, "Memory", file);
    json_object_foreach(planned, kind, value)
    {
        write_planned_row(runs, count, kind, file);
    }
    write_planned_row(runs, count, NULL, file);
    write_measured_row(runs, count, file);
    report_end_table(file);
}

static void write_warnings(const struct history *h, FILE *file)
{
    size_t i;
    json_t *line;
    if (json_array_size(h->warnings) == 0) {
        return;
    }
    begin_run_table(h, "Warnings", "", file);
    fputs("</caption><tbody>\n", file);
    json_array_foreach(h->warnings, i, line)
    {
        const char *name = json_string_value(json_object_get(line, "name"));
        const char *text = json_string_value(json_object_get(line, "text"));
        fprintf(file, "<tr><th>step %.0f</th><td>", report_get_number(line, "step"));
        chart_escape(name != NULL ? name : "", file);
        fputs("</td><td>", file);
        chart_escape(text != NULL ? text : "", file);
        fputs("</td></tr>\n", file);
    }
    report_end_table(file);
}

/* Writes the newest samples of a run (generate.prompt). */
static void write_samples(const struct history *h, FILE *file)
{
    size_t count = json_array_size(h->samples);
    if (count == 0) {
        return;
    }
    begin_run_table(h, "Samples", "", file);
    fputs("</caption><tbody>\n", file);
    for (size_t i = count > SAMPLES_MAX ? count - SAMPLES_MAX : 0; i < count; i++) {
        const json_t *line = json_array_get(h->samples, i);
        const char *prompt = json_string_value(json_object_get(line, "prompt"));
        const char *text = json_string_value(json_object_get(line, "text"));
        fprintf(file, "<tr><th>step %.0f</th><td class=\"text\"><b>",
                report_get_number(line, "step"));
        chart_escape(prompt != NULL ? prompt : "", file);
        fputs("</b>", file);
        chart_escape(text != NULL ? text : "", file);
        fputs("</td></tr>\n", file);
    }
    report_end_table(file);
}

/* ---- settings ---- */

static bool has_same_setting(const struct history *runs, int count, const char *key)
{
    for (int r = 1; r < count; r++) {
        if (!json_equal(json_object_get(runs[0].settings, key),
                        json_object_get(runs[r].settings, key))) {
            return false;
        }
    }
    return true;
}

static void write_json_value(const json_t *value, FILE *file)
{
    if (json_is_string(value)) {
        chart_escape(json_string_value(value), file);
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    chart_escape(text != NULL ? text : "", file);
    free(text);
}

static void write_setting(const struct history *runs, int count, const char *key, FILE *file)
{
    begin_row(key, file);
    for (int r = 0; r < count; r++) {
        const json_t *value = json_object_get(runs[r].settings, key);
        fputs("<td>", file);
        if (value != NULL) {
            write_json_value(value, file);
        }
        fputs("</td>", file);
    }
    fputs("</tr>\n", file);
}

static void write_settings(const struct history *runs, int count, bool different, FILE *file)
{
    const char *key;
    json_t *value;
    report_begin_table(runs, count, "Setting", file);
    for (int r = 0; r < count; r++) {
        json_object_foreach(runs[r].settings, key, value)
        {
            bool listed = false;
            for (int before = 0; before < r; before++) {
                listed = listed || json_object_get(runs[before].settings, key) != NULL;
            }
            if (!listed && (!different || !has_same_setting(runs, count, key))) {
                write_setting(runs, count, key, file);
            }
        }
    }
    report_end_table(file);
}

static bool has_settings(const struct history *runs, int count)
{
    for (int r = 0; r < count; r++) {
        if (json_is_object(runs[r].settings)) {
            return true;
        }
    }
    return false;
}

static void write_all_settings(const struct history *runs, int count, FILE *file)
{
    if (!has_settings(runs, count)) {
        return;
    }
    if (count > 1) {
        fputs("<h2>Settings that differ</h2>\n", file);
        write_settings(runs, count, true, file);
    }
    fputs("<h2>Settings</h2><details><summary>all settings</summary>\n", file);
    write_settings(runs, count, false, file);
    fputs("</details>\n", file);
}

/* ---- charts ---- */

static const struct {
    const char *field, *title;
} charts[] = {
    {"loss", "Loss"},
    {"learning_rate", "Learning rate"},
    {"grad_norm", "Gradient norm"},
    {"tokens_per_second", "Tokens per second"},
    {"mfu", "Model FLOPs utilization"},
    {"step_seconds", "Seconds per step"},
    {"memory_bytes", "Peak memory of rank 0"},
    {"comm_hidden_share", "Share of the data-parallel communication that is hidden"},
    {"tensor_comm_hidden_share", "Share of the tensor-parallel communication that is hidden"},
};

/* Fields that increase with the steps, or that another chart contains. */
static const char *const without_chart[] = {
    "tokens",       "num_tokens",
    "seconds",      "data_stall_seconds",
    "examples",     "pairs",
    "comm_seconds", "tensor_comm_seconds",
    "words",        "comm_bytes",
    "labels",       "tensor_comm_bytes",
    "rows",         "comm_exposed_seconds",
    "questions",    "tensor_comm_exposed_seconds",
};

static void write_chart(const struct history *runs, int count, const char *field, const char *title,
                        FILE *file)
{
    struct report_names *names = calloc(1, sizeof *names);
    struct chart *chart = calloc(1, sizeof *chart);
    if (names != NULL && chart != NULL) {
        chart->title = title;
        chart->x_label = "step";
        chart->unit = report_field_unit(field);
        report_add_curves(chart, runs, count, field, names);
        if (chart_has_points(chart)) {
            fputs("<figure>", file);
            chart_write(chart, false, file);
            fputs("<output></output></figure>\n", file);
        }
    }
    free(names);
    free(chart);
}

/* The table of the last validation contains these averages; curves of them repeat each other. */
static const char *const averages[] = {"f1_micro",     "f1_weighted",  "precision_macro",
                                       "recall_macro", "recall_micro", "precision_micro"};

static bool is_in(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Returns whether write_metric_charts skips a field: `charts` contains it, or it has no chart. */
static bool has_no_metric_chart(const char *name)
{
    for (int i = 0; i < COUNT(charts); i++) {
        if (strcmp(charts[i].field, name) == 0) {
            return true;
        }
    }
    return is_in(without_chart, COUNT(without_chart), name) ||
           is_in(averages, COUNT(averages), name);
}

static bool has_series_before(const struct history *runs, int run, bool evaluate, const char *name)
{
    for (int r = 0; r <= run; r++) {
        if ((r < run || evaluate) && history_find(&runs[r].train, name) != NULL) {
            return true;
        }
        if (r < run && history_find(&runs[r].evaluate, name) != NULL) {
            return true;
        }
    }
    return false;
}

/* Writes a chart of each metric of the objectives. */
static void write_metric_charts(const struct history *runs, int count, FILE *file)
{
    for (int r = 0; r < count; r++) {
        for (int evaluate = 0; evaluate < 2; evaluate++) {
            const struct history_table *table = evaluate ? &runs[r].evaluate : &runs[r].train;
            for (int i = 0; i < table->count; i++) {
                const char *name = table->series[i].name;
                if (!has_no_metric_chart(name) && !has_series_before(runs, r, evaluate, name)) {
                    write_chart(runs, count, name, name, file);
                }
            }
        }
    }
}

static void write_charts(const struct history *runs, int count, FILE *file)
{
    fputs("<h2>Curves</h2><div class=\"charts\">\n", file);
    write_chart(runs, count, charts[0].field, charts[0].title, file);
    write_metric_charts(runs, count, file);
    for (int i = 1; i < COUNT(charts); i++) {
        write_chart(runs, count, charts[i].field, charts[i].title, file);
    }
    fputs("</div>\n", file);
}

/* ---- the page ---- */

void report_begin_page(const char *title, const char *title_end, const char *more_style, FILE *file)
{
    fputs(head, file);
    fputs("<title>", file);
    chart_escape(title, file);
    fprintf(file, "%s</title>\n%s%s", title_end, style, more_style);
    fputs("</head><body>\n<h1>", file);
}

void report_write_page(const struct history *runs, int count, FILE *file)
{
    report_begin_page(runs[0].name, count > 1 ? " and other runs" : "", "", file);
    if (count > 1) {
        fprintf(file, "%d runs", count);
    } else {
        chart_escape(runs[0].name, file);
    }
    fputs("</h1>\n", file);
    report_write_figures(runs, count, file);
    write_metrics(runs, count, file);
    write_charts(runs, count, file);
    for (int r = 0; r < count; r++) {
        write_labels(&runs[r], file);
        write_confusion(&runs[r], file);
    }
    for (int r = 0; r < count; r++) {
        write_samples(&runs[r], file);
    }
    write_memory_plan(runs, count, file);
    for (int r = 0; r < count; r++) {
        write_warnings(&runs[r], file);
    }
    write_all_settings(runs, count, file);
    fputs(script, file);
    fputs("</body></html>\n", file);
}

/* ---- files ---- */

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

status report_check_output(const char *path)
{
    static const char picture[] = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ";
    char start[1024] = "";
    if (!file_exists(path) || file_size(path) == 0) {
        return STATUS_OK;
    }
    FILE *file = file_size(path) > 0 ? fopen(path, "re") : NULL;
    if (file != NULL) {
        size_t count = fread(start, 1, sizeof start - 1, file);
        start[count] = '\0';
        fclose(file);
    }
    bool is_report = begins_with(start, head) ||
                     (begins_with(start, picture) && strstr(start, "data-plot=") != NULL);
    REQUIRE(is_report, STATUS_CREATE,
            "%s exists and is not a report; choose another file for --output, or remove it", path);
    return STATUS_OK;
}

status report_check_suffix(const char *path, const char *const *suffixes, int count,
                           const char *what)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const char *suffix = strrchr(name, '.');
    if (suffix == NULL || suffix == name || !isalpha((unsigned char)suffix[1])) {
        return STATUS_OK;
    }
    for (int i = 0; i < count; i++) {
        if (strcasecmp(suffix, suffixes[i]) == 0) {
            return STATUS_OK;
        }
    }
    RAISE(STATUS_USAGE, "--output %s: %s; give the file a name that ends with %s", path, what,
          suffixes[0]);
}

status report_write_run(const char *folder)
{
    struct history *history = NULL;
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    FILE *memory = NULL;
    status result = STATUS_OK;
    TRY(ALLOCATE(history, 1, folder));
    TRY_GOTO(result, done, history_read(folder, history));
    TRY_GOTO(result, done, file_join(path, folder, "report.html"));
    memory = open_memstream(&text, &bytes);
    REQUIRE_GOTO(result, done, memory != NULL, STATUS_INTERNAL, "out of memory for %s", path);
    report_write_page(history, 1, memory);
    int failed = fclose(memory);
    REQUIRE_GOTO(result, done, failed == 0, STATUS_INTERNAL, "out of memory for %s", path);
    result = file_write(path, text, bytes);
done:
    history_free(history);
    free(history);
    free(text);
    return result;
}
