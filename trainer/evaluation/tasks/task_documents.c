#include "trainer/evaluation/tasks/task_documents_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/rows/jsonl.h"
#include "trainer/recipe/settings.h"

static status add_row(void *user, struct jsonl_row *row)
{
    struct task_documents *d = user;
    const char *name;
    json_t *value;
    if (d->count == d->capacity) {
        int64_t capacity = 2 * d->capacity + 64;
        TRY(GROW(d->rows, capacity, "the documents of a task"));
        d->capacity = capacity;
    }
    json_object_foreach(row->value, name, value)
    {
        json_object_set_new(d->features, name, json_true());
    }
    d->rows[d->count++] =
        (struct task_document){row->value, d->paths[d->path_count - 1], row->line};
    row->value = NULL;
    return STATUS_OK;
}

static status add_path(const struct task_config *c, const char *name, struct task_documents *d)
{
    const char *slash = strrchr(c->path, '/');
    int folder = slash != NULL && name[0] != '/' ? (int)(slash - c->path) + 1 : 0;
    size_t bytes = (size_t)folder + strlen(name) + 1;
    TRY(GROW(d->paths, d->path_count + 1, "the paths of a task"));
    TRY(ALLOCATE(d->paths[d->path_count], bytes, "the path of a document"));
    snprintf(d->paths[d->path_count++], bytes, "%.*s%s", folder, c->path, name);
    return STATUS_OK;
}

static status read_file(const struct task_config *c, const struct node *node,
                        struct task_documents *d)
{
    struct jsonl_bad_rows bad = {0};
    int64_t bytes = 0;
    if (node->text == NULL || node->text[0] == '\0') {
        return task_config_fail(c, node, "data_files", "must be a path or a list of paths");
    }
    TRY(add_path(c, node->text, d));
    return jsonl_read(d->paths[d->path_count - 1], &bad, &bytes, add_row, d);
}

/* Returns the files of a split: a path, a list of paths, or NULL. A file without a split is the
 * split "train", as in datasets. */
static const struct node *find_files(const struct task_config *c, const char *split)
{
    const struct node *at = c->data_files;
    if (at->kind != NODE_MAPPING) {
        return strcmp(split, "train") == 0 ? at : NULL;
    }
    for (at = at->first; at != NULL && strcmp(at->key, split) != 0;) {
        at = at->next;
    }
    return at;
}

status task_documents_read(const struct task_config *c, const char *split,
                           struct task_documents *out)
{
    const struct node *files = find_files(c, split);
    *out = (struct task_documents){.features = json_object()};
    if (files == NULL) {
        return task_config_fail(c, c->data_files, "data_files", "has no split '%.80s'%s", split,
                                c->data_files->kind == NODE_MAPPING
                                    ? ""
                                    : "; a file without a split is the split train");
    }
    if (files->kind != NODE_SEQUENCE) {
        TRY(read_file(c, files, out));
    }
    for (const struct node *n = files->kind == NODE_SEQUENCE ? files->first : NULL; n != NULL;
         n = n->next) {
        TRY(read_file(c, n, out));
    }
    REQUIRE(out->count > 0, STATUS_DATA, "%s contains no documents",
            out->path_count > 0 ? out->paths[0] : c->path);
    return STATUS_OK;
}

void task_documents_free(struct task_documents *d)
{
    for (int64_t i = 0; i < d->count; i++) {
        json_decref(d->rows[i].value);
    }
    for (int i = 0; i < d->path_count; i++) {
        free(d->paths[i]);
    }
    free(d->rows);
    free(d->paths);
    json_decref(d->features);
    *d = (struct task_documents){0};
}
