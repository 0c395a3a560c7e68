/* Folders of models as transformers saves them, for tests that spoil, change and compare them. */
#pragma once

#include <unistd.h>

#include "base/file.h"
#include "tests/trainer/reference_file.h"
#include "trainer/checkpoint/diff.h"
#include "trainer/checkpoint/rewrite.h"
#include "trainer/huggingface/huggingface.h"

/* This test's own, and where transformers' are. */
static char root[64];
static char reference[FILE_PATH_BYTES];

static inline void join(char out[FILE_PATH_BYTES], const char *folder, const char *name)
{
    CHECK_OK(file_join(out, folder, name));
}

/* huggingface_folder_start - makes root, in memory where the many fsyncs cost nothing. */
static inline void huggingface_folder_start(void)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    snprintf(root, sizeof root, "%s/bireme-pretrained-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CHECK(source != NULL && mkdtemp(root) != NULL);
    join(reference, source, "tests/reference/pretrained");
}

/* objective NULL: as the folder says. */
static inline status import_for(const char *objective, const char *folder, const char *name,
                                char output[FILE_PATH_BYTES], struct recipe *recipe)
{
    struct huggingface_summary summary;
    join(output, root, name);
    CHECK_OK(file_remove_tree(output));
    return huggingface_import(folder, objective, output, recipe, &summary);
}

static inline status import_to(const char *folder, const char *name, char output[FILE_PATH_BYTES],
                               struct recipe *recipe)
{
    return import_for(NULL, folder, name, output, recipe);
}

/* The import fails with this code and text, and leaves nothing behind. */
static inline void refused(const char *folder, status code, const char *text)
{
    static struct recipe recipe;
    char output[FILE_PATH_BYTES];
    CHECK_FAILS(import_to(folder, "refused", output, &recipe), code, text);
    CHECK(!file_exists(output));
}

static inline bool same_weights(const char *a, const char *b)
{
    json_t *report = NULL;
    CHECK_OK(checkpoint_diff(a, b, 0, &report));
    bool same = json_is_true(json_object_get(report, "equal"));
    json_decref(report);
    return same;
}

/* A copy of a reference folder, to be spoilt: `model` in root. */
static inline void copy_model(const char *name, char out[FILE_PATH_BYTES])
{
    char command[2 * FILE_PATH_BYTES];
    join(out, root, "model");
    CHECK_OK(file_remove_tree(out));
    snprintf(command, sizeof command, "cp -r '%.2000s/%s' '%.2000s'", reference, name, out);
    CHECK(system(command) == 0);
}

/* KEY of a folder's JSON file becomes VALUE (JSON; NULL: it goes). */
static inline void set_json(const char *folder, const char *name, const char *key,
                            const char *value)
{
    char path[FILE_PATH_BYTES];
    join(path, folder, name);
    json_t *config = json_load_file(path, 0, NULL);
    CHECK(config != NULL);
    if (value == NULL) {
        json_object_del(config, key);
    } else {
        json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL));
    }
    CHECK(json_dump_file(config, path, 0) == 0);
    json_decref(config);
}

static inline void set_config(const char *folder, const char *key, const char *value)
{
    set_json(folder, "config.json", key, value);
}

/* What becomes of a tensor: another name; NULL: it goes. */
struct renaming {
    const char *from, *to;
};

/* One more tensor. */
struct extra {
    const char *name;
    int dimensions;
    int64_t shape[2];
};

enum { REWRITTEN_MAX = 64, REWRITTEN_ELEMENTS = 4096 };

/* model.safetensors anew, with some tensors renamed and one more of these values; NULL: none, and zeros. */
static inline void rewrite(const char *folder, const struct renaming *renamings, int count,
                           const struct extra *extra, const float *values)
{
    static const float zeros[REWRITTEN_ELEMENTS];
    struct safetensors *file = NULL;
    struct safetensors_writer *writer = NULL;
    struct safetensors_shape shapes[REWRITTEN_MAX];
    const struct safetensors_tensor *kept[REWRITTEN_MAX];
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    float buffer[REWRITTEN_ELEMENTS];
    int all, used = 0;
    join(from, folder, "model.safetensors");
    join(to, folder, "rewritten");
    CHECK_OK(safetensors_open(from, &file));
    const struct safetensors_tensor *t = safetensors_tensors(file, &all);
    for (int i = 0; i < all; i++) {
        const char *name = t[i].name;
        for (int r = 0; r < count && name != NULL; r++) {
            name = strcmp(name, renamings[r].from) == 0 ? renamings[r].to : name;
        }
        if (name != NULL) {
            kept[used] = &t[i];
            shapes[used++] =
                (struct safetensors_shape){name, t[i].dimensions, {t[i].shape[0], t[i].shape[1]}};
        }
    }
    int total = used;
    if (extra != NULL) {
        shapes[total++] = (struct safetensors_shape){
            extra->name, extra->dimensions, {extra->shape[0], extra->shape[1]}};
    }
    CHECK_OK(safetensors_create(to, SAFETENSORS_F32, shapes, total, &writer));
    for (int i = 0; i < used; i++) {
        CHECK(kept[i]->elements <= REWRITTEN_ELEMENTS);
        CHECK_OK(safetensors_read(file, kept[i], 0, kept[i]->elements, buffer));
        CHECK_OK(safetensors_write(writer, buffer, kept[i]->elements));
    }
    if (extra != NULL) {
        int64_t n = extra->shape[0] * (extra->dimensions == 2 ? extra->shape[1] : 1);
        CHECK_OK(safetensors_write(writer, values != NULL ? values : zeros, n));
    }
    CHECK_OK(safetensors_finish(&writer));
    safetensors_close(&file);
    CHECK(rename(to, from) == 0);
}
