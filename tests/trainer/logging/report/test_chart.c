/* Charts: all points lie in the plot, for constant, single, missing, huge and many values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/check.h"
#include "trainer/logging/report/chart.h"

enum { MANY = 100003 };

static char *svg; /* the last picture */
static size_t svg_bytes;

static void draw_chart(const struct chart *c)
{
    free(svg);
    FILE *file = open_memstream(&svg, &svg_bytes);
    CHECK(file != NULL);
    chart_write(c, true, file);
    CHECK(fclose(file) == 0);
}

/* Returns the number of points of the first curve; each must lie in the plot. */
static int count_points(void)
{
    double left, right, top, bottom, x, y;
    int count = 0, used;
    const char *plot = strstr(svg, "data-plot=\"");
    CHECK(plot != NULL &&
          sscanf(plot, "data-plot=\"%lf,%lf,%lf,%lf", &left, &right, &top, &bottom) == 4);
    const char *points = strstr(svg, "<polyline points=\"");
    CHECK(points != NULL);
    points += strlen("<polyline points=\"");
    while (sscanf(points, "%lf,%lf%n", &x, &y, &used) == 2) {
        CHECK(x >= left - 0.1 && x <= right + 0.1 && y >= top - 0.1 && y <= bottom + 0.1);
        points += used;
        count++;
    }
    return count;
}

static int draw_curve(const double *x, const double *y, int64_t count, enum chart_unit unit)
{
    struct chart *c = calloc(1, sizeof *c);
    CHECK(c != NULL);
    c->title = "a < b & \"c\"";
    c->x_label = "step";
    c->unit = unit;
    c->count = 1;
    c->curves[0] = (struct chart_curve){.name = "curve", .x = x, .y = y, .count = count};
    draw_chart(c);
    CHECK(strstr(svg, "a &lt; b &amp; &quot;c&quot;") != NULL && strstr(svg, "nan") == NULL &&
          strstr(svg, "inf") == NULL);
    int points = count_points();
    CHECK(chart_has_points(c) == (points > 1));
    free(c);
    return points;
}

static void check_curves(void)
{
    const double x[] = {0, 1, 2, 1000}, constant[] = {3, 3, 3, 3}, zero[] = {0, 0, 0, 0};
    const double missing[] = {NAN, 2, INFINITY, -2}, wide[] = {-1e30, 1e-30, 1e30, 5};
    const double none[] = {NAN, NAN, NAN, NAN}, bytes[] = {1, 1 << 20, 3e9, 7e12};
    CHECK(draw_curve(x, constant, 4, CHART_NUMBER) == 4);
    CHECK(draw_curve(x, zero, 4, CHART_SHARE) == 4);
    CHECK(draw_curve(x, missing, 4, CHART_NUMBER) == 2);
    CHECK(draw_curve(x, wide, 4, CHART_NUMBER) == 4);
    CHECK(draw_curve(x, bytes, 4, CHART_BYTES) == 4);
    CHECK(draw_curve(x, none, 4, CHART_NUMBER) == 0);
    CHECK(draw_curve(x, wide, 1, CHART_BYTES) == 1);
    CHECK(draw_curve(x, wide, 0, CHART_NUMBER) == 0);
    const double overflow[] = {1e308, 2, -1e308, 4}; /* their difference is infinite */
    CHECK(draw_curve(x, overflow, 4, CHART_NUMBER) == 2);
    const double large[] = {9e18, 9e18 + 1024}; /* adjacent numbers */
    CHECK(draw_curve(large, x, 2, CHART_NUMBER) == 2);
    CHECK(draw_curve(large, x, 1, CHART_NUMBER) == 1);
}

/* A long curve is averaged; its mean stays the same. */
static void check_long_curve(void)
{
    double *x = malloc(MANY * sizeof *x), *y = malloc(MANY * sizeof *y);
    CHECK(x != NULL && y != NULL);
    for (int i = 0; i < MANY; i++) {
        x[i] = i;
        y[i] = i % 2;
    }
    int points = draw_curve(x, y, MANY, CHART_NUMBER);
    CHECK(points > 300 && points <= 400);
    free(x);
    free(y);
}

static void check_format(void)
{
    static const struct {
        double value;
        enum chart_unit unit;
        const char *text;
    } cases[] = {
        {0, CHART_NUMBER, "0"},
        {0.0123, CHART_NUMBER, "0.0123"},
        {9999, CHART_NUMBER, "9999"},
        {12500, CHART_NUMBER, "12.5k"},
        {-2e6, CHART_NUMBER, "-2M"},
        {512, CHART_BYTES, "512 B"},
        {3221225472., CHART_BYTES, "3 GiB"},
        {0.415, CHART_SHARE, "41.5 %"},
    };
    char text[48];
    for (int i = 0; i < COUNT(cases); i++) {
        chart_format(cases[i].value, cases[i].unit, text, sizeof text);
        CHECK(strcmp(text, cases[i].text) == 0);
    }
}

int main(void)
{
    check_curves();
    check_long_curve();
    check_format();
    free(svg);
    return 0;
}
