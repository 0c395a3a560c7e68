/* A line chart as SVG. The colors are CSS classes: c0 to c7 for curves. A standalone picture
 * contains its own style sheet, for light and dark backgrounds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CHART_COLORS = 8, CHART_CURVES_MAX = 64 };

enum chart_unit { CHART_NUMBER, CHART_BYTES, CHART_SHARE /* printed in percent */ };

struct chart_curve {
    const char *name;
    const double *x, *y; /* [count]; x increases; y beyond 1e300 is left out */
    int64_t count;
    int color;    /* 0 <= color < CHART_COLORS */
    bool markers; /* draw a circle at each point */
    bool dashed;
};

struct chart {
    const char *title;
    const char *x_label;
    enum chart_unit unit;
    struct chart_curve curves[CHART_CURVES_MAX];
    int count;
};

/* chart_format - write a number in short form: "0.0123", "12.5k", "3.2 GiB", "41 %".
 *
 * Memory    text[bytes]
 * Returns   text */
char *chart_format(double value, enum chart_unit unit, char *text, size_t bytes);

/* chart_escape - write text with the characters of HTML escaped and control characters replaced. */
void chart_escape(const char *text, FILE *file);

/* chart_has_points - return whether a curve has at least two finite points. */
bool chart_has_points(const struct chart *c);

/* chart_write - write the <svg> element. A curve with many points is averaged over groups of
 * neighbors. The attributes data-x and data-y of a curve contain its values, for scripts.
 *
 * The caller checks the file for errors. */
void chart_write(const struct chart *c, bool standalone, FILE *file);
