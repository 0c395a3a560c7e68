/* The division of the output of a GEMM into strips of columns, and of each strip into units.
 *
 * The strips minimize the estimated time of the largest unit, if each thread gets at most `rounds`
 * units. Several numbers of rounds are tried, and the fastest one is used.
 *
 *   1. A limit of the time of a unit gives the largest number of rows of a unit of w columns, and
 *      therefore the number of units of a strip of w columns (count_units).
 *   2. Dynamic programming over the columns finds the widths of the strips that need the fewest
 *      units in total for this limit (find_strips).
 *   3. Bisection finds the smallest limit with at most `rounds` units for each thread
 *      (grid_make_strips). */
#include "base/number.h"
#include "kernels/cpu/gemm/grid.h"

enum {
    WIDTH_MAX = GRID_UNIT_COLUMNS / GRID_PIECE_MULTIPLE, /* of a unit */
    COLUMNS_MAX = 1024,                                  /* of the output */
    ROUNDS_MAX = 4,                                      /* units for each thread */
    BISECTIONS = 24,
};

/* Rows count in multiples of row_multiple, and columns in multiples of GRID_PIECE_MULTIPLE. */
struct search {
    int64_t row_multiple, rows, columns, unit_rows_max, width_max;
    int64_t group_unit_rows;            /* as in struct grid */
    int64_t border;                     /* no strip contains it; 0: none */
    int64_t strip_units[WIDTH_MAX + 1]; /* of a strip of this width; 0: its units take too long */
    int64_t units[COLUMNS_MAX + 1];     /* smallest number for the first columns; 0: none exists */
    int64_t width[COLUMNS_MAX + 1];     /* of the last strip of these columns */
};

/* Returns the number of units of a strip; 0 if each of its units takes longer than the limit. */
static int64_t count_units(const struct search *s, int64_t width, double limit)
{
    double columns = (double)(width * GRID_PIECE_MULTIPLE);
    double most = (limit - GRID_PACKING * columns) / (columns + GRID_PACKING);
    int64_t rows = most > 0 ? (int64_t)most / s->row_multiple : 0;
    rows = number_min(rows, s->unit_rows_max);
    return rows > 0 ? number_divide_up(s->rows, rows) : 0;
}

/* Finds the strips with the fewest units. Returns the number of units; 0: the limit is too low. */
static int64_t find_strips(struct search *s, double limit)
{
    for (int64_t width = 1; width <= s->width_max; width++) {
        s->strip_units[width] = count_units(s, width, limit);
    }
    s->units[0] = 0;
    for (int64_t i = 1; i <= s->columns; i++) {
        s->units[i] = 0;
        for (int64_t width = number_min(i, s->width_max); width > 0; width--) {
            int64_t before = s->units[i - width], units = s->strip_units[width];
            bool is_whole = i <= s->border || i - width >= s->border;
            bool exists = units > 0 && is_whole && (before > 0 || i == width);
            if (exists && (s->units[i] == 0 || before + units < s->units[i])) {
                s->units[i] = before + units;
                s->width[i] = width;
            }
        }
    }
    return s->units[s->columns];
}

/* Makes the strips that find_strips found last. They are found from right to left. */
static bool make_grid(const struct search *s, const struct tensor *c, struct grid *out)
{
    struct grid_strip reversed[GRID_STRIPS];
    int count = 0;
    for (int64_t end = s->columns; end > 0; end -= s->width[end]) {
        int64_t width = s->width[end], first = (end - width) * GRID_PIECE_MULTIPLE;
        int64_t left = c->columns - first;
        int64_t rows = number_divide_up(s->rows, s->strip_units[width]) * s->row_multiple;
        if (count == GRID_STRIPS) {
            return false;
        }
        width *= GRID_PIECE_MULTIPLE;
        reversed[count++] = (struct grid_strip){first, number_min(left, width), rows, 0,
                                                number_divide_up(c->rows, rows)};
    }
    *out = (struct grid){.strips = count, .group_unit_rows = s->group_unit_rows};
    int64_t units = 0;
    for (int i = 0; i < count; i++) {
        out->strip[i] = reversed[count - 1 - i];
        out->strip[i].first = units;
        units += out->strip[i].units;
    }
    return out->group_unit_rows == 0 || units <= GRID_KINDS_MAX;
}

/* Finds the smallest limit of the time of a unit with at most `units` units, and makes the grid. */
static bool find_grid(struct search *s, const struct matmul_call *call, int64_t units,
                      struct grid *out)
{
    double high = grid_unit_time(GRID_UNIT_ROWS, grid_max_unit_columns(call)), low = 0;
    int64_t found = find_strips(s, high);
    if (found == 0 || found > units) {
        return false;
    }
    for (int i = 0; i < BISECTIONS; i++) {
        double limit = (low + high) / 2;
        found = find_strips(s, limit);
        *(found > 0 && found <= units ? &high : &low) = limit;
    }
    (void)find_strips(s, high);
    return make_grid(s, &call->c, out);
}

bool grid_make_strips(const struct matmul_call *call, int threads,
                      const struct grid_strip_rule *rule, struct grid *out)
{
    const struct tensor *c = &call->c;
    bool has_units = call->unit_rows > 0 || call->unit_columns > 0 || call->keep_columns ||
                     call->private_elements > 0;
    struct search s = {
        .row_multiple = rule->row_multiple,
        .group_unit_rows = rule->group_unit_rows,
        .rows = number_divide_up(c->rows, rule->row_multiple),
        .columns = number_divide_up(c->columns, GRID_PIECE_MULTIPLE),
        .unit_rows_max = rule->unit_rows_max / rule->row_multiple,
        .width_max = grid_max_unit_columns(call) / GRID_PIECE_MULTIPLE,
        .border = rule->border / GRID_PIECE_MULTIPLE,
    };
    if (has_units || s.columns > COLUMNS_MAX || c->rows > GRID_STRIPS_ELEMS / c->columns) {
        return false;
    }
    bool is_found = false;
    for (int rounds = 1; rounds <= ROUNDS_MAX; rounds++) {
        struct grid g;
        bool is_faster =
            find_grid(&s, call, (int64_t)rounds * threads, &g) &&
            (!is_found || grid_estimate_time(&g, threads) < grid_estimate_time(out, threads));
        *out = is_faster ? g : *out;
        is_found = is_found || is_faster;
    }
    return is_found;
}
