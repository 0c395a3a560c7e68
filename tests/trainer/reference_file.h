/* Reads the files of make_reference.py: attributes, datasets and weights by name. */
#pragma once

#include <hdf5.h>
#include <math.h>

#include "tests/check.h"
#include "trainer/model/model.h"

/* Opens a file of tests/reference. */
static inline hid_t reference_open(const char *name)
{
    char path[1024];
    const char *root = getenv("BIREME_SOURCE_DIR");
    CHECK(root != NULL);
    snprintf(path, sizeof path, "%s/tests/reference/%s", root, name);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0);
    return file;
}

static inline double reference_attribute(hid_t file, const char *name)
{
    double value = 0;
    hid_t a = H5Aopen(file, name, H5P_DEFAULT);
    CHECK(a >= 0 && H5Aread(a, H5T_NATIVE_DOUBLE, &value) >= 0);
    H5Aclose(a);
    return value;
}

/* Returns a configuration with the sizes in the attributes of the file. */
static inline struct model_config reference_config(hid_t file, const char *architecture)
{
    return (struct model_config){.architecture = architecture,
                                 .layers = (int64_t)reference_attribute(file, "layers"),
                                 .width = (int64_t)reference_attribute(file, "width"),
                                 .heads = (int64_t)reference_attribute(file, "heads"),
                                 .inner = (int64_t)reference_attribute(file, "inner"),
                                 .positions = (int64_t)reference_attribute(file, "positions"),
                                 .vocabulary = (int64_t)reference_attribute(file, "vocabulary"),
                                 .activation = ACTIVATION_GELU_TANH,
                                 .norm_epsilon = 1e-5f,
                                 .rope_theta = 10000,
                                 .initializer_range = 0.02f,
                                 .tied = true};
}

static inline void *reference_dataset(hid_t file, const char *name, hid_t type, size_t size,
                                      int64_t *count)
{
    hid_t d = H5Dopen2(file, name, H5P_DEFAULT);
    CHECK(d >= 0);
    hid_t space = H5Dget_space(d);
    *count = (int64_t)H5Sget_simple_extent_npoints(space);
    void *data = malloc((size_t)*count * size);
    CHECK(data != NULL && H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Sclose(space);
    H5Dclose(d);
    return data;
}

/* Reads a weight in the orientation of memory: transposed if the file has [in, out]. */
static inline float *reference_tensor(hid_t f, const char *group, const struct model_parameter *p)
{
    char name[256];
    int64_t count, rows = p->whole_rows, columns = p->whole_columns;
    snprintf(name, sizeof name, "%s/%s", group, p->name);
    float *file = reference_dataset(f, name, H5T_NATIVE_FLOAT, 4, &count);
    CHECK_EQUAL(count, rows * columns);
    if (p->transposed) {
        float *transposed = malloc((size_t)count * sizeof *transposed);
        CHECK(transposed != NULL);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++) {
                transposed[i * columns + j] = file[j * rows + i];
            }
        }
        free(file);
        file = transposed;
    }
    return file;
}

/* Returns |a - b| / |b| in the Frobenius norm. */
static inline double reference_error(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}
