#include "trainer/weights/state_dict.h"

#include <stdio.h>
#include <stdlib.h>

void family_destroy(struct family *f)
{
    free(f->tensors);
    free(f->names);
    *f = (struct family){0};
}

/* ---- views ---- */

/* Room for one more; the names may move, so that tensors get theirs at the end. */
static status grow(struct family *f)
{
    if (f->family.count < f->most) {
        return STATUS_OK;
    }
    int most = 2 * f->most + 64;
    void *tensors = realloc(f->tensors, (size_t)most * sizeof *f->tensors);
    f->tensors = tensors != NULL ? tensors : f->tensors;
    void *names = realloc(f->names, (size_t)most * sizeof *f->names);
    f->names = names != NULL ? names : f->names;
    REQUIRE(tensors != NULL && names != NULL, STATUS_INTERNAL, "out of memory for %d tensors",
            most);
    f->most = most;
    return STATUS_OK;
}

/* A rectangle of a whole parameter, [rows, columns], that lies at data. */
static status append(struct family *f, const char *prefix, const struct model_parameter *p,
                     bool written, const struct model_piece *box, float *data)
{
    TRY(grow(f));
    struct checkpoint_tensor *t = &f->tensors[f->family.count];
    snprintf(f->names[f->family.count++], sizeof *f->names, "%s%s", prefix, p->name);
    *t = (struct checkpoint_tensor){
        .dimensions = p->dimensions,
        .rows = box->rows,
        .columns = box->columns,
        .transposed = p->transposed,
        .read_only = !written,
        .data = data,
    };
    if (p->dimensions == 1) {
        t->global_shape[0] = p->whole_columns;
        t->offset[0] = box->column;
    } else {
        int rows_at = p->transposed ? 1 : 0; /* the file's dimension that memory's rows run along */
        t->global_shape[rows_at] = p->whole_rows;
        t->global_shape[1 - rows_at] = p->whole_columns;
        t->offset[rows_at] = box->row;
        t->offset[1 - rows_at] = box->column;
    }
    return STATUS_OK;
}

/* Elements [first, end) of a piece, counted from its own first one, which lie at data: whole rows, and what
 * there is of a row before and behind them. */
static status append_elements(struct family *f, const char *prefix, const struct model_parameter *p,
                              bool written, const struct model_piece *piece, int64_t first,
                              int64_t end, float *data)
{
    int64_t width = piece->columns;
    for (int64_t at = first; at < end;) {
        int64_t column = at % width, left = end - at;
        struct model_piece box = {.row = piece->row + at / width,
                                  .column = piece->column + column,
                                  .rows = column == 0 && left >= width ? left / width : 1,
                                  .columns = left < width - column ? left : width - column};
        TRY(append(f, prefix, p, written, &box, data != NULL ? data + (at - first) : NULL));
        at += box.rows * box.columns;
    }
    return STATUS_OK;
}

/* What lies of a parameter in elements [first, end) of the flat buffer; element `first` is at data. */
static status append_range(struct family *f, const char *prefix, const struct family_layout *layout,
                           int index, int64_t first, int64_t end, float *data)
{
    const struct model_parameter *p = &layout->parameters[index];
    bool written = !p->replicated || layout->writes_replicated;
    for (int i = 0; i < p->piece_count; i++) {
        const struct model_piece *piece = &p->pieces[i];
        int64_t from = p->first + piece->first, to = from + piece->rows * piece->columns;
        int64_t low = first > from ? first : from, high = end < to ? end : to;
        if (low < high) {
            TRY(append_elements(f, prefix, p, written, piece, low - from, high - from,
                                data != NULL ? data + (low - first) : NULL));
        }
    }
    return STATUS_OK;
}

static status finish(status result, const char *stem, struct family *f)
{
    if (result != STATUS_OK) {
        family_destroy(f);
        return result;
    }
    for (int i = 0; i < f->family.count; i++) {
        f->tensors[i].name = f->names[i];
    }
    f->family.stem = stem;
    f->family.tensors = f->tensors;
    return STATUS_OK;
}

/* ---- families ---- */

static bool takes(const struct family_layout *layout, int index)
{
    const struct model_parameter *p = &layout->parameters[index];
    switch (layout->part) {
    case FAMILY_TRAINED:
        return p->trained;
    case FAMILY_FROZEN:
        return !p->trained;
    case FAMILY_MODEL:
        return !model_is_adapter(p);
    case FAMILY_HEAD:
        return p->trained && !model_is_adapter(p);
    default:
        return true;
    }
}

static status append_all(struct family *f, const char *prefix, const struct family_layout *layout,
                         const struct family_ranges *ranges, float *data)
{
    f->family.sharded = ranges->sharded;
    for (int i = 0; i < layout->count; i++) {
        for (int r = 0; r < ranges->count && takes(layout, i); r++) {
            const struct optimizer_range *range = &ranges->ranges[r];
            TRY(append_range(f, prefix, layout, i, range->first, range->first + range->count,
                             data != NULL ? data + range->at : NULL));
        }
    }
    return STATUS_OK;
}

status family_weights(const struct family_layout *layout, const struct family_ranges *ranges,
                      float *weights, struct family *out)
{
    *out = (struct family){0};
    return finish(append_all(out, "", layout, ranges, weights), "model", out);
}

status family_moments(const struct family_layout *layout, const struct family_ranges *ranges,
                      float *moment1, float *moment2, struct family *out)
{
    *out = (struct family){0};
    status result = append_all(out, "exp_avg/", layout, ranges, moment1);
    if (result == STATUS_OK) {
        result = append_all(out, "exp_avg_sq/", layout, ranges, moment2);
    }
    return finish(result, "optimizer", out);
}
