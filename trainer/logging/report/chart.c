#include "trainer/logging/report/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/text.h"

/* Sizes in units of the picture. */
enum {
    WIDTH = 640,
    LEFT = 64,
    RIGHT = 624,
    TOP = 36,
    BOTTOM = 240,
    AXIS = 44,        /* height below the plot: tick labels and label of the axis */
    LEGEND_ROW = 20,  /* height of a row of the legend */
    POINTS_MAX = 400, /* points of a curve */
    NAME_MAX = 60     /* characters of a name in the legend */
};

static const char style[] =
    "<style>svg{font:13px system-ui,sans-serif;fill:#1f2328;background:#fff}"
    ".grid{stroke:#d8dee4}.axis{stroke:#6e7781}.c0{stroke:#0969da}.c1{stroke:#bc4c00}"
    ".c2{stroke:#1a7f37}.c3{stroke:#8250df}.c4{stroke:#bf3989}.c5{stroke:#7d6608}"
    ".c6{stroke:#0b7285}.c7{stroke:#57606a}"
    "@media(prefers-color-scheme:dark){svg{fill:#e6edf3;background:#0d1117}.grid{stroke:#30363d}"
    ".axis{stroke:#8b949e}.c0{stroke:#58a6ff}.c1{stroke:#f0883e}.c2{stroke:#3fb950}"
    ".c3{stroke:#bc8cff}.c4{stroke:#f778ba}.c5{stroke:#d4a72c}.c6{stroke:#39c5cf}"
    ".c7{stroke:#b1bac4}}</style>\n";

/* The difference of two larger values can be infinite. */
static const double largest_value = 1e300;

struct range {
    double low, high;
};

/* ---- text ---- */

char *chart_format(double value, enum chart_unit unit, char *text, size_t bytes)
{
    static const char *const thousands[] = {"", "k", "M", "G", "T", "P"};
    static const char *const binary[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    double base = unit == CHART_BYTES ? 1024 : 1000;
    int prefix = 0;
    if (unit == CHART_SHARE) {
        snprintf(text, bytes, "%.3g %%", 100 * value);
        return text;
    }
    bool scaled = unit == CHART_BYTES || fabs(value) >= 1e4; /* "9999", but "10k" */
    while (scaled && fabs(value) >= base && prefix < 5) {
        value /= base;
        prefix++;
    }
    snprintf(text, bytes, "%.4g%s", value, (unit == CHART_BYTES ? binary : thousands)[prefix]);
    return text;
}

void chart_escape(const char *text, FILE *file)
{
    char *copy = strdup(text);
    if (copy == NULL) {
        return;
    }
    text_replace_controls(copy, "\n");
    for (const char *c = copy; *c != '\0'; c++) {
        switch (*c) {
        case '&':
            fputs("&amp;", file);
            break;
        case '<':
            fputs("&lt;", file);
            break;
        case '>':
            fputs("&gt;", file);
            break;
        case '"':
            fputs("&quot;", file);
            break;
        default:
            fputc(*c, file);
        }
    }
    free(copy);
}

/* ---- ranges ---- */

static void extend_range(struct range *r, double value)
{
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

static bool is_point(const struct chart_curve *c, int64_t i)
{
    return isfinite(c->x[i]) && fabs(c->y[i]) <= largest_value;
}

bool chart_has_points(const struct chart *c)
{
    for (int k = 0; k < c->count; k++) {
        int points = 0;
        for (int64_t i = 0; i < c->curves[k].count; i++) {
            points += is_point(&c->curves[k], i);
            if (points == 2) {
                return true;
            }
        }
    }
    return false;
}

/* Returns a step of 1, 2 or 5 times a power of ten (bytes: of 1024) for about four intervals. */
static double choose_tick(double span, enum chart_unit unit)
{
    double scale = unit == CHART_BYTES ? pow(1024, floor(log(span / 2) / log(1024))) : 1;
    double raw = span / scale / 4;
    double power = pow(10, floor(log10(raw)));
    double digit = raw / power;
    return scale * power * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
}

/* Extends the range to multiples of the tick. Returns the tick. */
static double round_range(struct range *r, enum chart_unit unit)
{
    if (!(r->high > r->low)) {
        double margin = fmax(fabs(r->low) * 0.1, 1e-12);
        *r = (struct range){r->low - margin, r->high + margin};
    }
    double tick = choose_tick(r->high - r->low, unit);
    r->low = floor(r->low / tick) * tick;
    r->high = ceil(r->high / tick) * tick;
    return tick;
}

static void find_ranges(const struct chart *c, struct range *x, struct range *y)
{
    *x = *y = (struct range){INFINITY, -INFINITY};
    for (int k = 0; k < c->count; k++) {
        for (int64_t i = 0; i < c->curves[k].count; i++) {
            if (is_point(&c->curves[k], i)) {
                extend_range(x, c->curves[k].x[i]);
                extend_range(y, c->curves[k].y[i]);
            }
        }
    }
    if (!(x->high > x->low)) {                        /* also without points */
        double width = fmax(1, fabs(x->low) * 1e-12); /* x + 1 can be x */
        *x = isfinite(x->low) ? (struct range){x->low, x->low + width} : (struct range){0, 1};
        *y = isfinite(y->low) ? *y : (struct range){0, 1};
    }
}

static double scale_value(double value, const struct range *r, double from, double to)
{
    return from + (to - from) * (value - r->low) / (r->high - r->low);
}

/* ---- parts of the picture ---- */

static void write_grid(const struct chart *c, const struct range *x, const struct range *y,
                       double tick, FILE *file)
{
    char text[48];
    for (int i = 0; y->low + i * tick <= y->high + tick / 2; i++) {
        double value = y->low + i * tick;
        value = fabs(value) < tick / 1e6 ? 0 : value;
        double height = scale_value(value, y, BOTTOM, TOP);
        fprintf(file, "<path class=\"grid\" d=\"M%d,%.1fH%d\"/>", LEFT, height, RIGHT);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 8,
                height + 4, chart_format(value, c->unit, text, sizeof text));
    }
    double step = fmax(choose_tick(x->high - x->low, CHART_NUMBER), 1);
    double first = ceil(x->low / step) * step;
    for (int i = 0; first + i * step <= x->high; i++) { /* a sum of steps can stay the same */
        double value = first + i * step;
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                scale_value(value, x, LEFT, RIGHT), BOTTOM + 18,
                chart_format(value, CHART_NUMBER, text, sizeof text));
    }
    fprintf(file, "<path class=\"axis\" fill=\"none\" d=\"M%d,%dV%dH%d\"/>\n", LEFT, TOP, BOTTOM,
            RIGHT);
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + RIGHT) / 2,
            BOTTOM + 36);
    chart_escape(c->x_label, file);
    fputs("</text>\n", file);
}

/* Averages the curve over at most POINTS_MAX groups of neighbors; the last member gives x. */
static int reduce_curve(const struct chart_curve *c, double *x, double *y)
{
    int64_t group = number_divide_up(c->count, POINTS_MAX);
    int used = 0;
    for (int64_t first = 0; first < c->count; first += group) {
        double sum = 0;
        int64_t members = 0;
        for (int64_t i = first; i < first + group && i < c->count; i++) {
            if (is_point(c, i)) {
                sum += c->y[i];
                members++;
                x[used] = c->x[i];
            }
        }
        if (members > 0) {
            y[used++] = sum / (double)members;
        }
    }
    return used;
}

static void write_list(const char *name, const double *values, int count, FILE *file)
{
    fprintf(file, " data-%s=\"", name);
    for (int i = 0; i < count; i++) {
        fprintf(file, "%s%.6g", i > 0 ? "," : "", values[i]);
    }
    fputc('"', file);
}

static void write_curve(const struct chart_curve *c, const struct range *xs, const struct range *ys,
                        FILE *file)
{
    double x[POINTS_MAX], y[POINTS_MAX];
    int count = reduce_curve(c, x, y);
    fprintf(file, "<g class=\"curve c%d\" fill=\"none\" stroke-width=\"%s\"%s data-name=\"",
            c->color, c->markers ? "2" : "1.5", c->dashed ? " stroke-dasharray=\"6 4\"" : "");
    chart_escape(c->name, file);
    fputc('"', file);
    write_list("x", x, count, file);
    write_list("y", y, count, file);
    fputs("><polyline points=\"", file);
    for (int i = 0; i < count; i++) {
        fprintf(file, "%s%.1f,%.1f", i > 0 ? " " : "", scale_value(x[i], xs, LEFT, RIGHT),
                scale_value(y[i], ys, BOTTOM, TOP));
    }
    fputs("\"/>", file);
    for (int i = 0; i < count && c->markers && count <= POINTS_MAX / 4; i++) {
        fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>",
                scale_value(x[i], xs, LEFT, RIGHT), scale_value(y[i], ys, BOTTOM, TOP));
    }
    fputs("</g>\n", file);
}

static void write_legend(const struct chart *c, FILE *file)
{
    char number[48], name[NAME_MAX + 8];
    for (int k = 0; k < c->count; k++) {
        const struct chart_curve *curve = &c->curves[k];
        int height = BOTTOM + AXIS + LEGEND_ROW * k + 14;
        size_t length = strlen(curve->name);
        bool cut = length > NAME_MAX; /* The end of a path distinguishes runs. */
        const char *shown = cut ? curve->name + length - NAME_MAX : curve->name;
        while (cut && ((unsigned char)*shown & 0xC0) == 0x80) {
            shown++; /* the middle of a UTF-8 character */
        }
        snprintf(name, sizeof name, "%s%s", cut ? "..." : "", shown);
        fprintf(file, "<path class=\"c%d\" stroke-width=\"3\"%s d=\"M%d,%dH%d\"/>", curve->color,
                curve->dashed ? " stroke-dasharray=\"6 4\"" : "", LEFT, height - 4, LEFT + 24);
        fprintf(file, "<text x=\"%d\" y=\"%d\">", LEFT + 32, height);
        chart_escape(name, file);
        int64_t last = curve->count - 1;
        while (last >= 0 && !is_point(curve, last)) {
            last--;
        }
        if (last >= 0) {
            fprintf(file, ": last %s",
                    chart_format(curve->y[last], c->unit, number, sizeof number));
        }
        fputs("</text>\n", file);
    }
}

void chart_write(const struct chart *c, bool standalone, FILE *file)
{
    struct range x, y;
    find_ranges(c, &x, &y);
    double tick = round_range(&y, c->unit);
    int height = BOTTOM + AXIS + LEGEND_ROW * c->count + 4;
    fprintf(file, "<svg%s viewBox=\"0 0 %d %d\" role=\"img\" data-plot=\"%d,%d,%d,%d\" ",
            standalone ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", WIDTH, height, LEFT, RIGHT,
            TOP, BOTTOM);
    fprintf(file, "data-range=\"%.9g,%.9g,%.9g,%.9g\">\n", x.low, x.high, y.low, y.high);
    fputs(standalone ? style : "", file);
    fprintf(file, "<title>");
    chart_escape(c->title, file);
    fprintf(file, "</title><text class=\"title\" x=\"%d\" y=\"20\" font-weight=\"600\">", LEFT);
    chart_escape(c->title, file);
    fputs("</text>\n", file);
    write_grid(c, &x, &y, tick, file);
    for (int k = 0; k < c->count; k++) {
        write_curve(&c->curves[k], &x, &y, file);
    }
    write_legend(c, file);
    fputs("</svg>\n", file);
}
