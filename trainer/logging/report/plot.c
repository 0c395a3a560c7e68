/* Plots of one field: as an SVG picture and as text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/logging/report/report.h"
#include "trainer/logging/report/report_impl.h"

/* ---- curves ---- */

static bool is_internal_field(const char *name)
{
    return strcmp(name, "num_tokens") == 0; /* equal to tokens */
}

/* Returns whether a list "a, b, c" contains a name. */
static bool is_listed(const char *names, const char *name)
{
    size_t length = strlen(name), item_bytes;
    for (const char *item = names; item[0] != '\0'; item += strspn(item, ", ")) {
        item_bytes = strcspn(item, ",");
        if (item_bytes == length && memcmp(item, name, length) == 0) {
            return true;
        }
        item += item_bytes;
    }
    return false;
}

/* Adds the names of the curves to a list "a, b, c". A foreign file can contain an empty name. */
static void list_fields(const struct history_table *table, char *names, size_t bytes)
{
    for (int i = 0; i < table->count; i++) {
        const struct history_series *s = &table->series[i];
        size_t length = strlen(s->name), used = strlen(names);
        if (length > 0 && s->count > 1 && !is_internal_field(s->name) &&
            used + length + 3 < bytes && !is_listed(names, s->name)) {
            snprintf(names + used, bytes - used, "%s%s", used > 0 ? ", " : "", s->name);
        }
    }
}

static status raise_missing_field(const struct history *runs, int count, const char *field)
{
    char names[STATUS_TEXT_BYTES / 2] = "";
    for (int r = 0; r < count; r++) {
        list_fields(&runs[r].train, names, sizeof names);
        list_fields(&runs[r].evaluate, names, sizeof names);
    }
    RAISE(STATUS_USAGE, "no run has two values of '%s'; %s%s", field,
          names[0] != '\0' ? "choose one of: " : "the runs have no curves yet", names);
}

static void add_curve(struct chart *chart, const struct history_series *s, const char *name,
                      int color, bool validation, bool distinct)
{
    if (s == NULL || s->count == 0 || chart->count == CHART_CURVES_MAX) {
        return;
    }
    chart->curves[chart->count++] = (struct chart_curve){
        .name = name,
        .x = s->steps,
        .y = s->values,
        .count = s->count,
        .color = color % CHART_COLORS,
        .markers = validation,
        .dashed = validation && !distinct,
    };
}

enum { NAME_BYTES = 200 };

void report_add_curves(struct chart *chart, const struct history *runs, int count,
                       const char *field, struct report_names *names)
{
    for (int r = 0; r < count; r++) {
        size_t length = strlen(runs[r].name); /* the end of a long path distinguishes runs */
        const char *name = runs[r].name + (length > NAME_BYTES ? length - NAME_BYTES : 0);
        const struct history_series *train = history_find(&runs[r].train, field);
        const struct history_series *evaluate = history_find(&runs[r].evaluate, field);
        bool both = train != NULL && evaluate != NULL;
        snprintf(names->train[r % CHART_CURVES_MAX], sizeof names->train[0], "%.*s%s", NAME_BYTES,
                 count > 1 ? name : "training", count > 1 && both ? ", training" : "");
        snprintf(names->evaluate[r % CHART_CURVES_MAX], sizeof names->evaluate[0], "%.*s%s",
                 NAME_BYTES, count > 1 ? name : "validation", count > 1 ? ", validation" : "");
        add_curve(chart, train, names->train[r % CHART_CURVES_MAX], r, false, true);
        /* One run: two colors. Several runs: a color for each run, validation is dashed. */
        add_curve(chart, evaluate, names->evaluate[r % CHART_CURVES_MAX], count > 1 ? r : 1, true,
                  count == 1);
    }
}

enum chart_unit report_field_unit(const char *field)
{
    return text_has_suffix(field, "_bytes") ? CHART_BYTES
           : strcmp(field, "mfu") == 0      ? CHART_SHARE
                                            : CHART_NUMBER;
}

status report_write_plot(const struct history *runs, int count, const char *field, FILE *file)
{
    char title[FILE_PATH_BYTES + 128];
    struct report_names *names = NULL;
    struct chart *chart = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(names, 1, "a chart"));
    TRY_GOTO(result, done, ALLOCATE(chart, 1, "a chart"));
    snprintf(title, sizeof title, "%s%s%s", count == 1 ? runs[0].name : "", count == 1 ? ": " : "",
             field);
    chart->title = title;
    chart->x_label = "step";
    chart->unit = report_field_unit(field);
    report_add_curves(chart, runs, count, field, names);
    if (chart_has_points(chart)) {
        chart_write(chart, true, file);
    } else {
        result = raise_missing_field(runs, count, field);
    }
done:
    free(names);
    free(chart);
    return result;
}

/* ---- text ---- */

enum { TEXT_ROWS = 12, TEXT_LABEL = 10 };

/* Averages a series over the columns; NaN where a column has no step. */
static void fill_columns(const struct history_series *s, double *means, int columns)
{
    double first = s->steps[0], span = s->steps[s->count - 1] - first;
    double *sums = means;
    int64_t i = 0;
    for (int c = 0; c < columns; c++) {
        int64_t members = 0;
        sums[c] = 0;
        for (; i < s->count && (s->steps[i] - first) * columns < (c + 1) * span * 1.0000001; i++) {
            sums[c] += s->values[i];
            members++;
        }
        sums[c] = members > 0 ? sums[c] / (double)members : NAN;
    }
}

/* Fills the columns between two known ones by interpolation. */
static void fill_gaps(double *values, int columns)
{
    int last = -1;
    for (int c = 0; c < columns; c++) {
        if (!isfinite(values[c])) {
            continue;
        }
        for (int k = last + 1; k < c; k++) {
            double share = last < 0 ? 1 : (double)(k - last) / (c - last);
            values[k] = last < 0 ? values[c] : values[last] + share * (values[c] - values[last]);
        }
        last = c;
    }
    for (int k = last + 1; last >= 0 && k < columns; k++) {
        values[k] = values[last];
    }
}

/* Prints one chart. Each column is a bar of block characters, in steps of an eighth of a row. */
static void print_bars(const struct history_series *s, const char *kind, const char *field,
                       double *values, int columns, FILE *file)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    char label[48], low_text[48];
    enum chart_unit unit = report_field_unit(field);
    fill_columns(s, values, columns);
    fill_gaps(values, columns);
    double low = INFINITY, high = -INFINITY;
    for (int c = 0; c < columns; c++) {
        low = fmin(low, values[c]);
        high = fmax(high, values[c]);
    }
    double span = high > low ? high - low : 1;
    double bottom = low - span / (8 * TEXT_ROWS - 1); /* the smallest value has one eighth */
    fprintf(file, "%s %s: first %s, ", kind, field,
            chart_format(s->values[0], unit, label, sizeof label));
    fprintf(file, "last %s\n",
            chart_format(s->values[s->count - 1], unit, low_text, sizeof low_text));
    for (int row = TEXT_ROWS - 1; row >= 0; row--) {
        const char *text = row == TEXT_ROWS - 1 ? chart_format(high, unit, label, sizeof label)
                           : row == 0           ? chart_format(low, unit, label, sizeof label)
                                                : "";
        fprintf(file, "%*s |", TEXT_LABEL, text);
        for (int c = 0; c < columns; c++) {
            double eighths = 8 * (TEXT_ROWS * (values[c] - bottom) / (high - bottom) - row);
            int level = !(eighths > 0) ? 0 : eighths > 8 ? 8 : (int)lround(eighths);
            fputs(blocks[level], file);
        }
        fputc('\n', file);
    }
    fprintf(file, "%*s step %.0f", TEXT_LABEL, "", s->steps[0]);
    int used = snprintf(label, sizeof label, "%.0f", s->steps[0]);
    fprintf(file, "%*.0f\n", columns - 4 - used, s->steps[s->count - 1]);
}

status report_write_text(const struct history *run, const char *field, int columns, FILE *file)
{
    static const char *const kinds[] = {"training", "validation"};
    const struct history_series *series[] = {history_find(&run->train, field),
                                             history_find(&run->evaluate, field)};
    int width = columns > TEXT_LABEL + 12 ? columns - TEXT_LABEL - 2 : 10;
    bool any = false;
    double *values = NULL;
    TRY(ALLOCATE(values, width, "a chart"));
    for (int k = 0; k < 2; k++) {
        if (series[k] != NULL && series[k]->count > 1) {
            fputs(any ? "\n" : "", file);
            print_bars(series[k], kinds[k], field, values, width, file);
            any = true;
        }
    }
    free(values);
    return any ? STATUS_OK : raise_missing_field(run, 1, field);
}
