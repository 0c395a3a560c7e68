/* The table of key figures: one row for each figure, one column for each run. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "trainer/logging/report/report_impl.h"

enum { DIGITS_BYTES = 320 }; /* the largest double has 309 digits */

/* ---- values ---- */

double report_get_number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

void report_write_count(double value, FILE *file)
{
    char digits[DIGITS_BYTES];
    int length = snprintf(digits, sizeof digits, "%.0f", value);
    for (int i = 0; i < length; i++) {
        bool separates = i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0;
        fprintf(file, "%s%c", separates ? "," : "", digits[i]);
    }
}

static void write_duration(double seconds, FILE *file)
{
    int64_t total = (int64_t)fmax(0, fmin(seconds, 1e15)); /* the file may contain any number */
    if (seconds < 120) {
        fprintf(file, "%.1f s", seconds);
    } else if (total < 2 * 86400) {
        fprintf(file, "%" PRId64 " h %02" PRId64 " min", total / 3600, total / 60 % 60);
    } else {
        fprintf(file, "%" PRId64 " d %" PRId64 " h", total / 86400, total / 3600 % 24);
    }
}

/* Returns the value of a setting, such as "model.architecture". */
static const char *get_setting(const struct history *h, const char *key)
{
    return json_string_value(json_object_get(h->settings, key));
}

static double compute_median(const struct history_series *s)
{
    double *sorted = s != NULL && s->count > 0 ? malloc((size_t)s->count * sizeof *sorted) : NULL;
    if (sorted == NULL) {
        return NAN;
    }
    memcpy(sorted, s->values, (size_t)s->count * sizeof *sorted);
    double median = number_median(sorted, s->count);
    free(sorted);
    return median;
}

/* ---- key figures ---- */

/* Writes a figure of a run and returns true, or returns false if the run lacks it. */
typedef bool (*figure_writer)(const struct history *h, FILE *file);

static bool write_state(const struct history *h, FILE *file)
{
    const char *reason = json_string_value(json_object_get(h->end, "reason"));
    if (!json_is_object(h->end)) {
        fputs("not ended: running or killed", file);
    } else if (reason != NULL && strcmp(reason, "stopped") == 0) {
        fputs("stopped, can be resumed", file);
    } else {
        fputs("completed (", file);
        chart_escape(reason != NULL ? reason : "", file);
        fputc(')', file);
    }
    return true;
}

static bool write_model(const struct history *h, FILE *file)
{
    const char *architecture = get_setting(h, "model.architecture");
    const char *objective = get_setting(h, "objective");
    double parameters = report_get_number(h->start, "parameters");
    if (architecture == NULL || objective == NULL) {
        return false;
    }
    chart_escape(architecture, file);
    fputs(", ", file);
    chart_escape(objective, file);
    if (isfinite(parameters)) {
        fputs(", ", file);
        report_write_count(parameters, file);
        fputs(" parameters", file);
    }
    return true;
}

static bool write_machine(const struct history *h, FILE *file)
{
    static const char *const keys[] = {"processor", "device", "host"};
    int used = 0;
    for (int i = 0; i < 3; i++) {
        const char *text = json_string_value(json_object_get(h->start, keys[i]));
        if (text != NULL) {
            fputs(used++ > 0 ? ", " : "", file);
            chart_escape(text, file);
        }
    }
    return used > 0;
}

static bool write_version(const struct history *h, FILE *file)
{
    const char *text = json_string_value(json_object_get(h->start, "version"));
    chart_escape(text != NULL ? text : "", file);
    return text != NULL;
}

static bool write_layout(const struct history *h, FILE *file)
{
    double ranks = report_get_number(h->start, "ranks");
    double threads = report_get_number(h->start, "threads");
    if (!isfinite(ranks) || !isfinite(threads)) {
        return false;
    }
    fprintf(file, "%.0f rank%s (tensor %.0f, data %.0f, ZeRO %.0f), %.0f thread%s each", ranks,
            text_plural(ranks == 1 ? 1 : 2), report_get_number(h->start, "tensor"),
            report_get_number(h->start, "data"), report_get_number(h->start, "zero_stage"), threads,
            text_plural(threads == 1 ? 1 : 2));
    return true;
}

static bool write_start_time(const struct history *h, FILE *file)
{
    time_t seconds = (time_t)fmax(0, fmin(h->start_time, 1e15));
    struct tm parts;
    char text[64];
    if (h->start_time <= 0 || gmtime_r(&seconds, &parts) == NULL ||
        strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts) == 0) {
        return false;
    }
    fprintf(file, "%s", text);
    if (h->sessions > 1) {
        fprintf(file, ", %d sessions", h->sessions);
    }
    return true;
}

static bool write_steps(const struct history *h, FILE *file)
{
    double total = report_get_number(h->start, "total_steps");
    report_write_count((double)h->last_step, file);
    if (isfinite(total)) {
        fputs(" of ", file);
        report_write_count(total, file);
    }
    return true;
}

static double get_last_value(const struct history_table *table, const char *name)
{
    const struct history_series *s = history_find(table, name);
    return s != NULL && s->count > 0 ? s->values[s->count - 1] : NAN;
}

static bool write_tokens(const struct history *h, FILE *file)
{
    double tokens = get_last_value(&h->train, "tokens");
    if (isfinite(tokens)) {
        report_write_count(tokens, file);
    }
    return isfinite(tokens);
}

static bool write_train_time(const struct history *h, FILE *file)
{
    double seconds = report_get_number(h->end, "train_seconds");
    if (isfinite(seconds)) {
        write_duration(seconds, file);
    }
    return isfinite(seconds);
}

static bool write_speed(const struct history *h, FILE *file)
{
    double rate = compute_median(history_find(&h->train, "tokens_per_second"));
    double step = compute_median(history_find(&h->train, "step_seconds"));
    if (!isfinite(rate) || !isfinite(step)) {
        return false;
    }
    report_write_count(rate, file);
    fprintf(file, " tokens/s, %.4g s a step (medians)", step);
    return true;
}

static bool write_prediction(const struct history *h, FILE *file)
{
    char predicted[TEXT_NUMBER_BYTES], measured[TEXT_NUMBER_BYTES];
    double step = compute_median(history_find(&h->train, "step_seconds"));
    if (h->predicted_seconds <= 0 || !isfinite(step)) {
        return false;
    }
    fprintf(file, "%s predicted, %s measured (%+.0f %%)",
            text_scale_seconds(h->predicted_seconds, predicted), text_scale_seconds(step, measured),
            100 * (step / h->predicted_seconds - 1));
    return true;
}

bool report_write_peak_memory(const struct history *h, FILE *file)
{
    char text[48];
    double bytes = get_last_value(&h->train, "memory_bytes");
    if (isfinite(bytes)) {
        fputs(chart_format(bytes, CHART_BYTES, text, sizeof text), file);
    }
    return isfinite(bytes);
}

static bool write_loss(const struct history_series *s, FILE *file)
{
    if (s == NULL || s->count == 0) {
        return false;
    }
    int64_t best = 0;
    for (int64_t i = 1; i < s->count; i++) {
        best = s->values[i] < s->values[best] ? i : best;
    }
    fprintf(file, "%.4f at the end, first %.4f, lowest %.4f (step %.0f)", s->values[s->count - 1],
            s->values[0], s->values[best], s->steps[best]);
    return true;
}

static bool write_train_loss(const struct history *h, FILE *file)
{
    return write_loss(history_find(&h->train, "loss"), file);
}

static bool write_validation_loss(const struct history *h, FILE *file)
{
    return write_loss(history_find(&h->evaluate, "loss"), file);
}

static bool write_warning_count(const struct history *h, FILE *file)
{
    report_write_count((double)json_array_size(h->warnings), file);
    return true;
}

static const struct {
    const char *name;
    figure_writer write;
} figures[] = {
    {"State", write_state},
    {"Model", write_model},
    {"Training loss", write_train_loss},
    {"Validation loss", write_validation_loss},
    {"Steps", write_steps},
    {"Tokens", write_tokens},
    {"Training time", write_train_time},
    {"Speed", write_speed},
    {"Time of a step", write_prediction},
    {"Peak memory of rank 0", report_write_peak_memory},
    {"Layout", write_layout},
    {"Started", write_start_time},
    {"Machine", write_machine},
    {"Bireme", write_version},
    {"Warnings", write_warning_count},
};

/* ---- the table ---- */

void report_begin_table(const struct history *runs, int count, const char *first, FILE *file)
{
    fprintf(file, "<div class=\"scroll\"><table><thead><tr><th>%s</th>", first);
    for (int r = 0; r < count; r++) {
        fputs("<th>", file);
        chart_escape(runs[r].name, file);
        fputs("</th>", file);
    }
    fputs("</tr></thead><tbody>\n", file);
}

void report_end_table(FILE *file)
{
    fputs("</tbody></table></div>\n", file);
}

/* Writes a row of the key figures unless all runs lack it. */
static void write_figure(const struct history *runs, int count, int figure, FILE *file)
{
    char *text = NULL;
    size_t bytes = 0;
    bool any = false;
    FILE *row = open_memstream(&text, &bytes);
    if (row == NULL) {
        return;
    }
    fprintf(row, "<tr><th>%s</th>", figures[figure].name);
    for (int r = 0; r < count; r++) {
        fputs("<td>", row);
        any = figures[figure].write(&runs[r], row) || any;
        fputs("</td>", row);
    }
    fputs("</tr>\n", row);
    fclose(row);
    if (any && text != NULL) {
        fputs(text, file);
    }
    free(text);
}

void report_write_figures(const struct history *runs, int count, FILE *file)
{
    report_begin_table(runs, count, "Run", file);
    for (int i = 0; i < COUNT(figures); i++) {
        write_figure(runs, count, (int)i, file);
    }
    report_end_table(file);
}
