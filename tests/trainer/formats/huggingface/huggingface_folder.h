/* Functions for tests that damage, change and compare model folders of transformers. */
#pragma once

#include <jansson.h>
#include <unistd.h>

#include "base/file.h"
#include "base/number.h"
#include "tests/trainer/reference_file.h"
#include "trainer/formats/checkpoint/diff.h"
#include "trainer/formats/checkpoint/rewrite.h"
#include "trainer/formats/huggingface/huggingface.h"

static char root[64];                   /* temporary folder of this test */
static char reference[FILE_PATH_BYTES]; /* the folder of the models that transformers saved */

static inline void join_path(char out[FILE_PATH_BYTES], const char *folder, const char *name)
{
    CHECK_OK(file_join(out, folder, name));
}

enum { TEXT_ROWS_MAX = 64 };

/* Texts of a reference file, one after another without padding. */
struct reference_texts {
    int32_t *ids;
    int32_t positions[TEXT_ROWS_MAX], segments[TEXT_ROWS_MAX], cu_rows[TEXT_ROWS_MAX + 1];
    int64_t rows, texts, longest;
};

/* Reads the dataset folder/name of a file. */
static inline void *read_values(hid_t file, const char *folder, const char *name, hid_t type,
                                size_t size, int64_t *count)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return reference_dataset(file, path, type, size, count);
}

/* read_texts - read the datasets `ids` and `lengths` of a folder. The second segment begins at
 * position 2.
 *
 * Memory    the caller frees out->ids */
static inline void read_texts(hid_t file, const char *folder, const char *ids, const char *lengths,
                              struct reference_texts *out)
{
    *out = (struct reference_texts){0};
    out->ids = read_values(file, folder, ids, H5T_NATIVE_INT32, 4, &out->rows);
    int32_t *counts = read_values(file, folder, lengths, H5T_NATIVE_INT32, 4, &out->texts), row = 0;
    CHECK(out->rows <= TEXT_ROWS_MAX && out->texts <= TEXT_ROWS_MAX);
    for (int64_t i = 0; i < out->texts; i++) {
        for (int32_t position = 0; position < counts[i]; position++) {
            out->segments[row] = position >= 2;
            out->positions[row++] = position;
        }
        out->cu_rows[i + 1] = row;
        out->longest = number_max(out->longest, counts[i]);
    }
    CHECK_EQUAL(row, out->rows);
    free(counts);
}

/* Compares a tensor with the dataset folder/name of a file, relative to values above 1. */
static inline void compare_tensor(hid_t file, const char *folder, const char *name,
                                  struct tensor actual, double tolerance)
{
    int64_t count;
    double *expected = read_values(file, folder, name, H5T_NATIVE_DOUBLE, 8, &count);
    const float *values = actual.data;
    CHECK_EQUAL(count, actual.rows * actual.columns);
    for (int64_t i = 0; i < count; i++) {
        double value = values[i / actual.columns * actual.stride + i % actual.columns];
        CHECK_NEAR(value, expected[i], tolerance * fmax(1, fabs(expected[i])));
    }
    free(expected);
}

/* huggingface_folder_start - create the folder `root`, if possible in memory (fast fsync). */
static inline void huggingface_folder_start(void)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    snprintf(root, sizeof root, "%s/bireme-pretrained-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CHECK(source != NULL && mkdtemp(root) != NULL);
    join_path(reference, source, "tests/reference/pretrained");
}

/* Imports a folder into root/name. objective NULL: the one that the folder names. */
static inline status import_for(const char *objective, const char *folder, const char *name,
                                char output[FILE_PATH_BYTES], struct recipe *recipe)
{
    struct huggingface_summary summary;
    join_path(output, root, name);
    CHECK_OK(file_remove_tree(output));
    return huggingface_import(folder, objective, output, NULL, 0, recipe, &summary);
}

static inline status import_to(const char *folder, const char *name, char output[FILE_PATH_BYTES],
                               struct recipe *recipe)
{
    return import_for(NULL, folder, name, output, recipe);
}

/* The import fails with this code and text, and no output remains. */
static inline void check_refused(const char *folder, status code, const char *text)
{
    static struct recipe recipe;
    char output[FILE_PATH_BYTES];
    CHECK_FAILS(import_to(folder, "refused", output, &recipe), code, text);
    CHECK(!file_exists(output));
}

static inline bool has_same_weights(const char *a, const char *b)
{
    json_t *report = NULL;
    CHECK_OK(checkpoint_diff(a, b, 0, &report));
    bool same = json_is_true(json_object_get(report, "equal"));
    json_decref(report);
    return same;
}

/* Copies a reference folder to root/model. */
static inline void copy_model(const char *name, char out[FILE_PATH_BYTES])
{
    char command[2 * FILE_PATH_BYTES];
    join_path(out, root, "model");
    CHECK_OK(file_remove_tree(out));
    snprintf(command, sizeof command, "cp -r '%.2000s/%s' '%.2000s'", reference, name, out);
    CHECK(system(command) == 0);
}

/* Sets a key of a JSON file of the folder to a JSON value. NULL removes the key. */
static inline void set_json(const char *folder, const char *name, const char *key,
                            const char *value)
{
    char path[FILE_PATH_BYTES];
    join_path(path, folder, name);
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

/* A key of config.json of a reference folder, and the result of its import. */
struct config_case {
    const char *model, *key, *value; /* value NULL: the key is removed */
    status code;
    const char *text; /* of the error; NULL: accepted */
};

static inline void check_config_cases(const struct config_case *cases, size_t count)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    for (size_t i = 0; i < count; i++) {
        copy_model(cases[i].model, folder);
        set_config(folder, cases[i].key, cases[i].value);
        if (cases[i].text == NULL) {
            CHECK_OK(import_to(folder, "accepted", output, &recipe));
        } else {
            check_refused(folder, cases[i].code, cases[i].text);
        }
    }
}

/* Exports the checkpoint `a` and imports the folder as `b`. Both have the same weights. */
static inline void export_and_import(const char *a, char b[FILE_PATH_BYTES], struct recipe *recipe)
{
    struct huggingface_summary summary;
    char folder[FILE_PATH_BYTES];
    join_path(folder, root, "out");
    CHECK_OK(file_remove_tree(folder));
    CHECK_OK(huggingface_export(a, folder, SAFETENSORS_F32, false, &summary));
    CHECK_OK(import_to(folder, "b", b, recipe));
    CHECK(has_same_weights(a, b));
}

struct renaming {
    const char *from, *to; /* to NULL: the tensor is removed */
};

struct new_tensor {
    const char *name;
    int dimensions;
    int64_t shape[2];
};

enum { REWRITTEN_MAX = 128, REWRITTEN_ELEMENTS = 4096 };

/* Writes model.safetensors again, with renamed tensors and, if added is not NULL, an additional
 * tensor with these values. values NULL: zeros. */
static inline void rewrite_tensors(const char *folder, const struct renaming *renamings, int count,
                                   const struct new_tensor *added, const float *values)
{
    static const float zeros[REWRITTEN_ELEMENTS];
    struct safetensors *file = NULL;
    struct safetensors_writer *writer = NULL;
    struct safetensors_shape shapes[REWRITTEN_MAX];
    const struct safetensors_tensor *tensors[REWRITTEN_MAX];
    char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES];
    float buffer[REWRITTEN_ELEMENTS];
    int all, used = 0;
    join_path(from, folder, "model.safetensors");
    join_path(to, folder, "rewritten");
    CHECK_OK(safetensors_open(from, &file));
    const struct safetensors_tensor *t = safetensors_tensors(file, &all);
    for (int i = 0; i < all; i++) {
        const char *name = t[i].name;
        for (int r = 0; r < count && name != NULL; r++) {
            name = strcmp(name, renamings[r].from) == 0 ? renamings[r].to : name;
        }
        if (name != NULL) {
            tensors[used] = &t[i];
            shapes[used++] =
                (struct safetensors_shape){name, t[i].dimensions, {t[i].shape[0], t[i].shape[1]}};
        }
    }
    int total = used;
    if (added != NULL) {
        shapes[total++] = (struct safetensors_shape){
            added->name, added->dimensions, {added->shape[0], added->shape[1]}};
    }
    CHECK_OK(safetensors_create(to, SAFETENSORS_F32, shapes, total, &writer));
    for (int i = 0; i < used; i++) {
        CHECK(tensors[i]->elements <= REWRITTEN_ELEMENTS);
        CHECK_OK(safetensors_read(file, tensors[i], 0, tensors[i]->elements, buffer));
        CHECK_OK(safetensors_write(writer, buffer, tensors[i]->elements));
    }
    if (added != NULL) {
        int64_t n = added->shape[0] * (added->dimensions == 2 ? added->shape[1] : 1);
        CHECK_OK(safetensors_write(writer, values != NULL ? values : zeros, n));
    }
    CHECK_OK(safetensors_finish(&writer));
    safetensors_close(&file);
    CHECK(rename(to, from) == 0);
}

/* Reads a tensor of folder/model.safetensors. The caller frees the values. */
static inline float *read_tensor(const char *folder, const char *name, int64_t *rows,
                                 int64_t *columns)
{
    char path[FILE_PATH_BYTES];
    struct safetensors *file = NULL;
    join_path(path, folder, "model.safetensors");
    CHECK_OK(safetensors_open(path, &file));
    const struct safetensors_tensor *t = safetensors_find(file, name);
    CHECK(t != NULL);
    *rows = t->shape[0];
    *columns = t->dimensions > 1 ? t->shape[1] : 1;
    float *values = malloc((size_t)t->elements * sizeof *values);
    CHECK_OK(safetensors_read(file, t, 0, t->elements, values));
    safetensors_close(&file);
    return values;
}
