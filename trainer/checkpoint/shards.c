/* Who writes what: every tensor's rows (in memory) are cut into one contiguous share a replica, small
 * tensors go whole to whoever has least so far. All ranks compute the same cut. A share of a transposed
 * tensor's rows is a range of columns in the file: the copy stays a plain memcpy, and the writer turns
 * it round. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/checkpoint_impl.h"

static const double copy_seconds = 300; /* that a snapshot of a device may take */

enum { WHOLE_BELOW_ELEMENTS = 16384 };

struct share {
    int64_t first, rows, columns; /* first row, rows; a vector has one column */
};

static int lightest(const int64_t *loads, int replicas)
{
    int best = 0;
    for (int i = 1; i < replicas; i++) {
        if (loads[i] < loads[best]) {
            best = i;
        }
    }
    return best;
}

static struct share share_of(const struct checkpoint_tensor *t, bool sharded, int64_t *loads,
                             int replicas, int replica)
{
    int64_t rows = t->dimensions == 1 ? t->rows * t->columns : t->rows;
    int64_t columns = t->dimensions == 1 ? 1 : t->columns;
    if (sharded || t->read_only) {
        return (struct share){0, t->read_only ? 0 : rows, columns};
    }
    if (rows < replicas || rows * columns < WHOLE_BELOW_ELEMENTS) {
        int owner = lightest(loads, replicas);
        loads[owner] += rows * columns;
        return (struct share){0, owner == replica ? rows : 0, columns};
    }
    for (int i = 0; i < replicas; i++) {
        loads[i] += (rows * (i + 1) / replicas - rows * i / replicas) * columns;
    }
    int64_t first = rows * replica / replicas;
    return (struct share){first, rows * (replica + 1) / replicas - first, columns};
}

int64_t checkpoint_memory_bytes(const struct checkpoint_family *families, int count, int replicas,
                                int replica)
{
    int64_t *loads = calloc((size_t)replicas, sizeof *loads);
    int64_t elements = 0;
    for (int f = 0; f < count && loads != NULL; f++) {
        for (int i = 0; i < families[f].count; i++) {
            struct share s =
                share_of(&families[f].tensors[i], families[f].sharded, loads, replicas, replica);
            elements += s.rows * s.columns;
        }
    }
    free(loads);
    return elements * (int64_t)sizeof(float);
}

/* The share's box in the file. */
static void place(struct checkpoint_piece *p, const struct checkpoint_tensor *t, struct share s)
{
    int along = p->transposed ? 1 : 0; /* the file's dimension that memory's rows run along */
    p->offset[0] = t->offset[0];
    p->offset[1] = p->dimensions == 2 ? t->offset[1] : 0;
    p->offset[along] += s.first;
    p->shape[along] = s.rows;
    p->shape[1 - along] = s.columns;
}

/* name, or name@K for the K-th further part of one tensor that this rank holds. */
static char *dataset_name(const struct checkpoint_job *job, int family, const char *name)
{
    int parts = 0;
    for (int i = job->count - 1; i >= 0 && job->pieces[i].family == family; i--) {
        if (strcmp(job->pieces[i].name, name) != 0) {
            break;
        }
        parts++;
    }
    if (parts == 0) {
        return strdup(name);
    }
    size_t bytes = strlen(name) + 16;
    char *text = malloc(bytes);
    if (text != NULL) {
        snprintf(text, bytes, "%s@%d", name, parts);
    }
    return text;
}

static status add_piece(struct checkpoint_job *job, int family, const struct checkpoint_tensor *t,
                        struct share s)
{
    struct checkpoint_piece p = {
        .family = family,
        .dimensions = t->dimensions,
        .global_shape = {t->global_shape[0], t->dimensions == 2 ? t->global_shape[1] : 1},
        .rows = s.rows,
        .columns = s.columns,
        .transposed = t->transposed && t->dimensions == 2};
    p.source = p.data = t->data != NULL ? t->data + s.first * s.columns : NULL;
    place(&p, t, s);
    p.dataset = dataset_name(job, family, t->name);
    p.name = strdup(t->name);
    job->pieces[job->count++] = p;
    job->elements += s.rows * s.columns;
    REQUIRE(p.name != NULL && p.dataset != NULL, STATUS_INTERNAL, "out of memory for %s", t->name);
    return STATUS_OK;
}

static status check_tensor(const struct checkpoint_tensor *t)
{
    bool flat = t->dimensions == 1;
    int64_t a = flat ? t->rows * t->columns : t->transposed ? t->columns : t->rows;
    int64_t b = flat ? 1 : t->transposed ? t->rows : t->columns;
    bool fits = (flat || t->dimensions == 2) && t->rows >= 0 && t->columns >= 0 &&
                t->offset[0] >= 0 && t->offset[0] + a <= t->global_shape[0] &&
                (flat || (t->offset[1] >= 0 && t->offset[1] + b <= t->global_shape[1]));
    REQUIRE(fits, STATUS_INTERNAL, "%s: a part of [%lld, %lld] does not lie in the whole", t->name,
            (long long)a, (long long)b);
    return STATUS_OK;
}

static status cut(struct checkpoint_job *job, const struct checkpoint_family *families, int count,
                  int64_t *loads, int replicas, int replica)
{
    for (int f = 0; f < count; f++) {
        snprintf(job->stems[f], sizeof job->stems[f], "%s", families[f].stem);
        for (int i = 0; i < families[f].count; i++) {
            const struct checkpoint_tensor *t = &families[f].tensors[i];
            TRY(check_tensor(t));
            struct share s = share_of(t, families[f].sharded, loads, replicas, replica);
            if (s.rows > 0 && s.columns > 0) {
                TRY(add_piece(job, f, t, s));
            }
        }
    }
    return STATUS_OK;
}

status checkpoint_pieces_create(struct checkpoint_job *job,
                                const struct checkpoint_family *families, int count, int replicas,
                                int replica)
{
    REQUIRE(count <= CHECKPOINT_FAMILIES_MAX, STATUS_INTERNAL, "%d families of tensors, at most %d",
            count, CHECKPOINT_FAMILIES_MAX);
    size_t most = 1;
    for (int f = 0; f < count; f++) {
        most += (size_t)families[f].count;
    }
    job->families = count;
    job->pieces = calloc(most, sizeof *job->pieces);
    int64_t *loads = calloc((size_t)replicas, sizeof *loads);
    status result = STATUS_OK;
    if (job->pieces == NULL || loads == NULL) {
        result = status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory for %zu tensors",
                              most);
    } else {
        result = cut(job, families, count, loads, replicas, replica);
    }
    free(loads);
    return result;
}

void checkpoint_pieces_destroy(struct checkpoint_job *job)
{
    for (int i = 0; i < job->count; i++) {
        free(job->pieces[i].name);
        free(job->pieces[i].dataset);
    }
    free(job->pieces);
    job->pieces = NULL;
    job->count = 0;
    job->elements = 0;
}

status checkpoint_pieces_snapshot(struct checkpoint_job *job,
                                  const struct checkpoint_family *families, float *memory)
{
    for (int i = 0; i < job->count; i++) {
        struct checkpoint_piece *p = &job->pieces[i];
        const struct checkpoint_family *f = &families[p->family];
        size_t elements = (size_t)(p->rows * p->columns);
        if (f->device != NULL) {
            TRY(device_copy(f->device, f->stream, memory, p->source, elements * sizeof(float)));
        } else {
            memcpy(memory, p->source, elements * sizeof(float));
        }
        p->data = memory;
        memory += elements;
    }
    for (int i = 0; i < job->families; i++) {
        if (families[i].device != NULL) {
            TRY(device_wait(families[i].device, families[i].stream, copy_seconds));
        }
    }
    return STATUS_OK;
}
