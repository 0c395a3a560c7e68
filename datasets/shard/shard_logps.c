#include "datasets/shard/shard_logps.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/number.h"
#include "datasets/shard/h5file.h"

#define LOGPS_FORMAT "bireme-logps"

enum { LOGPS_VERSION = 1, CHUNK_PAIRS = 1024, NAME_BYTES = 32 };

/* ---- writing ---- */

static status write_key(hid_t file, const char *path, const struct shard_logps_key *key,
                        int64_t done)
{
    const int64_t version = LOGPS_VERSION;
    TRY(h5file_write_text(file, path, "format", LOGPS_FORMAT));
    TRY(h5file_write_i64(file, path, "format_version", &version, 1));
    TRY(h5file_write_text(file, path, "weights", key->weights));
    TRY(h5file_write_text(file, path, "tokenizer_sha256", key->tokenizer_sha256));
    TRY(h5file_write_text(file, path, "data", key->data));
    TRY(h5file_write_text(file, path, "precision", key->precision));
    return h5file_write_i64(file, path, "done", &done, 1);
}

static status write_values(hid_t file, const char *path, const double *values, int64_t pairs)
{
    hsize_t shape[2] = {(hsize_t)pairs, 2};
    hsize_t chunk[2] = {(hsize_t)number_min(pairs, CHUNK_PAIRS), 2};
    hid_t properties;
    TRY(h5file_create_chunk_properties(2, chunk, &properties));
    hid_t space = H5Screate_simple(2, shape, NULL);
    hid_t dataset =
        H5Dcreate2(file, "logps", H5T_IEEE_F64LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    bool written = dataset >= 0 &&
                   H5Dwrite(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
    status result = STATUS_OK;
    if (!written) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", path, h5file_reason());
    }
    if (dataset >= 0) {
        H5Dclose(dataset);
    }
    H5Sclose(space);
    H5Pclose(properties);
    return result;
}

static status rename_synced(const char *temporary, const char *path)
{
    char folder[FILE_PATH_BYTES];
    TRY(file_sync(temporary));
    REQUIRE(rename(temporary, path) == 0, status_from_errno(errno, STATUS_CREATE, STATUS_WRITE),
            "cannot rename %s to %s: %s", temporary, path, strerror(errno));
    snprintf(folder, sizeof folder, "%s", path);
    return file_sync(dirname(folder));
}

status shard_logps_write(const char *path, const struct shard_logps_key *key, const double *values,
                         int64_t done)
{
    char temporary[FILE_PATH_BYTES];
    int used = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    REQUIRE(used < FILE_PATH_BYTES, STATUS_USAGE, "path too long: %s", path);
    hid_t file;
    TRY(h5file_create(temporary, &file));
    status result = write_key(file, temporary, key, done);
    if (result == STATUS_OK) {
        result = write_values(file, temporary, values, key->pairs);
    }
    KEEP_FIRST(result, h5file_close(temporary, &file));
    if (result == STATUS_OK) {
        result = rename_synced(temporary, path);
    }
    if (result != STATUS_OK) {
        (void)unlink(temporary);
    }
    return result;
}

/* ---- reading ---- */

static status check_attribute(hid_t file, const char *path, const char *name, const char *expected,
                              const char *relation)
{
    char value[HASH_TEXT_BYTES];
    TRY(h5file_read_text(file, path, name, value, sizeof value));
    REQUIRE(strcmp(value, expected) == 0, STATUS_DATA,
            "%s does not belong to this run: it was computed %s %.16s, but this run uses %.16s; "
            "remove it to compute it again",
            path, relation, value, expected);
    return STATUS_OK;
}

static status check_key(hid_t file, const char *path, const struct shard_logps_key *key)
{
    int64_t version = 0;
    char format[NAME_BYTES];
    TRY(h5file_read_text(file, path, "format", format, sizeof format));
    TRY(h5file_read_i64(file, path, "format_version", &version, 1));
    REQUIRE(strcmp(format, LOGPS_FORMAT) == 0 && version == LOGPS_VERSION, STATUS_DATA,
            "%s has the format %s, version %" PRId64 "; expected " LOGPS_FORMAT ", version %d",
            path, format, version, LOGPS_VERSION);
    TRY(check_attribute(file, path, "weights", key->weights, "with the weights"));
    TRY(check_attribute(file, path, "tokenizer_sha256", key->tokenizer_sha256,
                        "with the tokenizer"));
    TRY(check_attribute(file, path, "data", key->data, "for the shards"));
    return check_attribute(file, path, "precision", key->precision, "in");
}

static status read_values(hid_t file, const char *path, int64_t pairs, int64_t done, double *values)
{
    hid_t dataset;
    int64_t shape[2] = {0, 0};
    int dimensions = 0;
    TRY(h5file_open_dataset(file, path, "logps", H5T_IEEE_F64LE, 2, &dataset, shape, &dimensions));
    bool matches = dimensions == 2 && shape[0] == pairs && shape[1] == 2;
    const hsize_t start[2] = {0, 0}, count[2] = {(hsize_t)pairs, 2};
    status checked =
        matches ? h5file_check_chunks(dataset, path, "logps", start, count) : STATUS_OK;
    bool read = matches && checked == STATUS_OK &&
                H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
    const char *reason = matches && !read ? h5file_reason() : "";
    H5Dclose(dataset);
    TRY(checked);
    REQUIRE(matches, STATUS_DATA,
            "%s has log-probabilities of %" PRId64 " pairs, but the shards have %" PRId64 " pairs",
            path, shape[0], pairs);
    REQUIRE(read, STATUS_DATA, "cannot read %s: %s", path, reason);
    for (int64_t i = 0; i < 2 * done; i++) {
        REQUIRE(isfinite(values[i]) && values[i] <= 0, STATUS_DATA,
                "%s: pair %" PRId64
                " has a log-probability of %g; remove the file to compute it again",
                path, i / 2, values[i]);
    }
    return STATUS_OK;
}

status shard_logps_read(const char *path, const struct shard_logps_key *key, double *values,
                        int64_t *done)
{
    hid_t file;
    *done = 0;
    REQUIRE(file_exists(path), STATUS_NO_INPUT, "%s does not exist", path);
    TRY(h5file_open_checked(path, &file));
    int64_t count = 0;
    status result = check_key(file, path, key);
    if (result == STATUS_OK) {
        result = h5file_read_i64(file, path, "done", &count, 1);
    }
    REQUIRE_GOTO(result, done, result != STATUS_OK || (count >= 0 && count <= key->pairs),
                 STATUS_DATA,
                 "%s: %" PRId64 " of %" PRId64
                 " pairs are computed, which is impossible; remove the file to compute it again",
                 path, count, key->pairs);
    if (result == STATUS_OK) {
        result = read_values(file, path, key->pairs, count, values);
    }
done:
    KEEP_FIRST(result, h5file_close(path, &file));
    *done = result == STATUS_OK ? count : 0;
    return result;
}
