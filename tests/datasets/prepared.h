/* Shards of prepare_*, for tests. */
#pragma once

#include "datasets/prepare/prepare.h"
#include "datasets/shard/shard.h"
#include "tests/datasets/folder.h"

/* All tokens of a shard set, and the start of each document (over all shards). */
struct prepared {
    int32_t *ids;
    int64_t count;
    int64_t starts[4096];
    int64_t documents;
    int shards;
};

/* prepared_read - read all shards of a split; the caller frees out->ids. */
static inline void prepared_read(const char *folder, const char *split, struct prepared *out)
{
    *out = (struct prepared){0};
    char name[64], path[FILE_PATH_BYTES];
    int shard_count = 0;
    for (int n = 1; n <= 200 && shard_count == 0; n++) {
        snprintf(name, sizeof name, "%s-00000-of-%05d.h5", split, n);
        CHECK_OK(file_join(path, folder, name));
        shard_count = file_exists(path) ? n : 0;
    }
    for (int i = 0; i < shard_count; i++) {
        snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", split, i, shard_count);
        CHECK_OK(file_join(path, folder, name));
        struct shard *s;
        CHECK_OK(shard_open(path, &s));
        CHECK_OK(shard_verify(s));
        const struct shard_header *h = shard_get_header(s);
        out->ids = realloc(out->ids, (size_t)(out->count + h->tokens) * sizeof *out->ids);
        CHECK_OK(shard_read(s, 0, h->tokens, out->ids + out->count));
        CHECK(out->documents + h->documents < 4096);
        for (int64_t d = 0; d < h->documents; d++) {
            CHECK_OK(shard_read_documents(s, d, 1, &out->starts[out->documents]));
            out->starts[out->documents++] += out->count;
        }
        out->count += h->tokens;
        out->starts[out->documents] = out->count;
        CHECK_OK(shard_close(&s));
    }
    out->shards = shard_count;
}

/* prepared_options - return options with the output folder "out" and two workers. */
static inline struct prepare_options prepared_options(const struct tokenizer *t,
                                                      char *const *inputs, int count)
{
    return (struct prepare_options){.tokenizer = t,
                                    .inputs = inputs,
                                    .input_count = count,
                                    .output = folder_file("out"),
                                    .shard_tokens = 1 << 20,
                                    .workers = 2};
}

/* prepared_run - prepare rows, the text of a file `name`, into the folder `output` with one of the
 * functions prepare_*. */
static inline status prepared_run(status (*prepare)(const struct prepare_options *options,
                                                    struct prepare_report *report),
                                  const char *name, const char *rows, const char *output,
                                  struct prepare_options o, struct prepare_report *report)
{
    static char *path;
    path = folder_file(name);
    folder_write(path, rows, strlen(rows));
    o.inputs = &path;
    o.input_count = 1;
    o.output = folder_file(output);
    o.shard_tokens = o.shard_tokens > 0 ? o.shard_tokens : 1 << 20;
    return prepare(&o, report);
}
