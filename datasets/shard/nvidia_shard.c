#include "datasets/shard/nvidia_shard.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/deflated_chunk.h"
#include "datasets/shard/h5file.h"

enum {
    IDS,
    MASK,
    SEGMENTS,
    POSITIONS,
    LABELS,
    NEXT_SENTENCE,
    FIELDS,
    TOKENS_MAX = 65536,
    BAND_BYTES_MAX = 64 << 20
};

static const struct {
    const char *name;
    bool is_int32; /* otherwise int8 */
    int dimensions;
} fields[FIELDS] = {
    [IDS] = {"input_ids", true, 2},         [MASK] = {"input_mask", false, 2},
    [SEGMENTS] = {"segment_ids", false, 2}, [POSITIONS] = {"masked_lm_positions", true, 2},
    [LABELS] = {"masked_lm_ids", true, 2},  [NEXT_SENTENCE] = {"next_sentence_labels", false, 1},
};

/* The rows of one dataset that are read together, see nvidia_shard.h. */
struct band {
    hid_t dataset;
    int64_t width;                     /* values per row */
    int64_t rows;                      /* rows read at a time */
    int64_t chunk_rows, chunk_columns; /* 0, 0: the dataset is contiguous */
    void *chunk;                       /* [chunk_rows * chunk_columns] values as stored */
    int64_t first, end;                /* cached rows */
    int32_t *values;                   /* [rows * width] */
};

struct nvidia_shard {
    char *path;
    hid_t file;
    int64_t examples, tokens, predictions;
    struct band bands[FIELDS];
};

status nvidia_shard_detect(const char *path, bool *out)
{
    hid_t file;
    TRY(h5file_open(path, &file));
    *out = H5Lexists(file, fields[IDS].name, H5P_DEFAULT) > 0;
    H5Fclose(file);
    return STATUS_OK;
}

/* Sets b->rows to the rows of one row of chunks; for a contiguous dataset, to the rows of
 * 64 KiB. */
static status compute_band_rows(const struct nvidia_shard *s, struct band *b, const char *name,
                                int dimensions)
{
    hid_t properties = H5Dget_create_plist(b->dataset);
    hsize_t chunk[2] = {0};
    bool chunked = H5Pget_layout(properties) == H5D_CHUNKED &&
                   H5Pget_chunk(properties, 2, chunk) == dimensions;
    H5Pclose(properties);
    int64_t bytes = b->width * (int64_t)sizeof *b->values;
    b->rows = chunked ? (int64_t)chunk[0] : 1 + 65536 / bytes;
    uint64_t columns = chunked && dimensions == 2 ? chunk[1] : 1;
    REQUIRE(chunk[0] <= BAND_BYTES_MAX && columns > 0 && columns <= BAND_BYTES_MAX &&
                chunk[0] * columns <= BAND_BYTES_MAX / sizeof *b->values,
            STATUS_DATA, "%s: /%s has chunks of %" PRIu64 " values; at most %d MiB are accepted",
            s->path, name, (uint64_t)chunk[0] * columns, BAND_BYTES_MAX >> 20);
    b->chunk_rows = chunked ? (int64_t)chunk[0] : 0;
    b->chunk_columns = chunked ? (int64_t)columns : 0;
    b->rows = number_min(b->rows, s->examples);
    REQUIRE(b->rows > 0 && b->rows <= BAND_BYTES_MAX / bytes, STATUS_DATA,
            "%s: /%s has chunks of %" PRId64 " rows of %" PRId64
            " values; at most %d MiB are accepted",
            s->path, name, b->rows, b->width, BAND_BYTES_MAX >> 20);
    return STATUS_OK;
}

static size_t get_chunk_bytes(const struct band *b, int field)
{
    return (size_t)(b->chunk_rows * b->chunk_columns) *
           (fields[field].is_int32 ? sizeof(int32_t) : sizeof(int8_t));
}

static status open_band(struct nvidia_shard *s, int field)
{
    struct band *b = &s->bands[field];
    const char *name = fields[field].name;
    int64_t shape[2] = {0, 1};
    int dimensions = 0;
    TRY(h5file_open_deflated_dataset(s->file, s->path, name,
                                     fields[field].is_int32 ? H5T_STD_I32LE : H5T_STD_I8LE, 2,
                                     &b->dataset, shape, &dimensions));
    b->width = dimensions == 1 ? 1 : shape[1];
    if (field == IDS) {
        s->examples = shape[0];
        s->tokens = b->width;
    } else if (field == POSITIONS) {
        s->predictions = b->width;
    }
    int64_t expected = fields[field].dimensions == 1           ? 1
                       : field == LABELS || field == POSITIONS ? s->predictions
                                                               : s->tokens;
    bool matches =
        dimensions == fields[field].dimensions && shape[0] == s->examples && b->width == expected;
    REQUIRE(matches, STATUS_DATA,
            "%s: /%s is [%" PRId64 ", %" PRId64 "] with %d dimensions; %" PRId64 " rows of %" PRId64
            " values are expected",
            s->path, name, shape[0], shape[1], dimensions, s->examples, expected);
    bool in_range = s->examples > 0 && b->width > 0 && b->width <= TOKENS_MAX;
    REQUIRE(in_range, STATUS_DATA,
            "%s: /%s has %" PRId64 " rows of %" PRId64
            " values; at least one row and 1 to %d values are accepted",
            s->path, name, s->examples, b->width, TOKENS_MAX);
    TRY(compute_band_rows(s, b, name, dimensions));
    TRY(ALLOCATE(b->values, b->rows * b->width, s->path));
    return memory_allocate_array(&b->chunk, get_chunk_bytes(b, field) + 1, 1, s->path);
}

status nvidia_shard_open(const char *path, struct nvidia_shard **out)
{
    *out = NULL;
    struct nvidia_shard *s;
    TRY(ALLOCATE(s, 1, "a shard"));
    s->file = H5I_INVALID_HID;
    for (int i = 0; i < FIELDS; i++) {
        s->bands[i].dataset = H5I_INVALID_HID;
    }
    status result = STATUS_OK;
    TRY_GOTO(result, failed, memory_copy_text(&s->path, path, "a path"));
    TRY_GOTO(result, failed, h5file_open(path, &s->file));
    for (int i = 0; i < FIELDS; i++) {
        TRY_GOTO(result, failed, open_band(s, i));
    }
    *out = s;
    return STATUS_OK;
failed:
    nvidia_shard_close(&s);
    return result;
}

void nvidia_shard_close(struct nvidia_shard **shard)
{
    struct nvidia_shard *s = *shard;
    if (s == NULL) {
        return;
    }
    *shard = NULL;
    h5file_init();
    for (int i = 0; i < FIELDS; i++) {
        if (s->bands[i].dataset >= 0) {
            H5Dclose(s->bands[i].dataset);
        }
        free(s->bands[i].values);
        free(s->bands[i].chunk);
    }
    if (s->file >= 0) {
        H5Fclose(s->file);
    }
    free(s->path);
    free(s);
}

int64_t nvidia_shard_examples(const struct nvidia_shard *shard)
{
    return shard->examples;
}

int64_t nvidia_shard_tokens(const struct nvidia_shard *shard)
{
    return shard->tokens;
}

/* Copies the rows of the chunk that begins at column `column`. */
static void copy_chunk(struct band *b, int field, int64_t rows, int64_t column)
{
    int64_t left = b->width - column, columns = number_min(left, b->chunk_columns);
    for (int64_t r = 0; r < rows; r++) {
        int32_t *out = b->values + r * b->width + column;
        const int32_t *wide = (const int32_t *)b->chunk + r * b->chunk_columns;
        const int8_t *narrow = (const int8_t *)b->chunk + r * b->chunk_columns;
        for (int64_t i = 0; i < columns; i++) {
            out[i] = fields[field].is_int32 ? wide[i] : narrow[i];
        }
    }
}

static status read_chunks(struct nvidia_shard *s, int field, int64_t first, int64_t rows)
{
    struct band *b = &s->bands[field];
    for (int64_t column = 0; column < b->width; column += b->chunk_columns) {
        const hsize_t offset[2] = {(hsize_t)first, (hsize_t)column};
        TRY(deflated_chunk_read(b->dataset, s->path, fields[field].name, offset, b->chunk,
                                get_chunk_bytes(b, field)));
        copy_chunk(b, field, rows, column);
    }
    return STATUS_OK;
}

static status read_contiguous(struct nvidia_shard *s, int field, int64_t first, int64_t rows)
{
    struct band *b = &s->bands[field];
    hsize_t start[2] = {(hsize_t)first, 0}, count[2] = {(hsize_t)rows, (hsize_t)b->width};
    h5file_init();
    hid_t space = H5Dget_space(b->dataset);
    hid_t memory = H5Screate_simple(fields[field].dimensions, count, NULL);
    bool read = space >= 0 && memory >= 0 &&
                H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                H5Dread(b->dataset, H5T_NATIVE_INT32, memory, space, H5P_DEFAULT, b->values) >= 0;
    const char *reason = read ? "" : h5file_reason();
    H5Sclose(memory);
    H5Sclose(space);
    REQUIRE(read, STATUS_DATA,
            "%s is damaged: rows %" PRId64 " to %" PRId64 " of /%s cannot be read: %s", s->path,
            first, first + rows - 1, fields[field].name, reason);
    return STATUS_OK;
}

static status read_band(struct nvidia_shard *s, int field, int64_t row)
{
    struct band *b = &s->bands[field];
    int64_t first = row / b->rows * b->rows, left = s->examples - first;
    int64_t rows = number_min(left, b->rows);
    b->first = b->end = 0;
    TRY(b->chunk_rows > 0 ? read_chunks(s, field, first, rows)
                          : read_contiguous(s, field, first, rows));
    b->first = first;
    b->end = first + rows;
    return STATUS_OK;
}

/* Returns the values of one row in *out, and reads its band if it is not cached. */
static status get_row(struct nvidia_shard *s, int field, int64_t row, const int32_t **out)
{
    struct band *b = &s->bands[field];
    if (row < b->first || row >= b->end) {
        TRY(read_band(s, field, row));
    }
    *out = b->values + (row - b->first) * b->width;
    return STATUS_OK;
}

static status check_value(const struct nvidia_shard *s, int64_t row, int field, int64_t index,
                          int64_t value, int64_t limit)
{
    REQUIRE(value >= 0 && value < limit, STATUS_DATA,
            "%s: example %" PRId64 ": /%s has the value %" PRId64 " at index %" PRId64
            "; 0 to %" PRId64 " are valid",
            s->path, row, fields[field].name, value, index, limit - 1);
    return STATUS_OK;
}

static status read_tokens(struct nvidia_shard *s, int64_t row, int64_t vocab_size,
                          struct example *out)
{
    const int32_t *ids, *mask, *segments;
    TRY(get_row(s, MASK, row, &mask));
    TRY(get_row(s, IDS, row, &ids));
    TRY(get_row(s, SEGMENTS, row, &segments));
    int64_t count = 0;
    for (int64_t i = 0; i < s->tokens; i++) {
        TRY(check_value(s, row, MASK, i, mask[i], 2));
        count += mask[i] == 1 && count == i;
        REQUIRE(mask[i] == (i < count), STATUS_DATA,
                "%s: example %" PRId64 ": /input_mask has a 0 before the 1 at index %" PRId64,
                s->path, row, i);
    }
    REQUIRE(count > 0 && count <= out->token_capacity, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens; 1 to %" PRId64
            " (the sequence length) are accepted",
            s->path, row, count, out->token_capacity);
    for (int64_t i = 0; i < count; i++) {
        TRY(check_value(s, row, IDS, i, ids[i], vocab_size));
        TRY(check_value(s, row, SEGMENTS, i, segments[i], 2));
    }
    memcpy(out->ids, ids, (size_t)count * sizeof *ids);
    memcpy(out->token_type_ids, segments, (size_t)count * sizeof *segments);
    out->tokens = count;
    return STATUS_OK;
}

static status read_predictions(struct nvidia_shard *s, int64_t row, int64_t vocab_size,
                               struct example *out)
{
    const int32_t *positions, *labels;
    TRY(get_row(s, POSITIONS, row, &positions));
    TRY(get_row(s, LABELS, row, &labels));
    int64_t count = 0;
    while (count < s->predictions && positions[count] != 0) {
        TRY(check_value(s, row, POSITIONS, count, positions[count], out->tokens));
        TRY(check_value(s, row, LABELS, count, labels[count], vocab_size));
        REQUIRE(count == 0 || positions[count] > positions[count - 1], STATUS_DATA,
                "%s: example %" PRId64 ": /masked_lm_positions does not increase at index %" PRId64,
                s->path, row, count);
        count++;
    }
    REQUIRE(count <= out->prediction_capacity, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " predictions; at most %" PRId64 " are accepted",
            s->path, row, count, out->prediction_capacity);
    memcpy(out->positions, positions, (size_t)count * sizeof *positions);
    memcpy(out->labels, labels, (size_t)count * sizeof *labels);
    out->predictions = count;
    return STATUS_OK;
}

status nvidia_shard_read(struct nvidia_shard *s, int64_t row, int64_t vocab_size,
                         struct example *out)
{
    REQUIRE(row >= 0 && row < s->examples, STATUS_INTERNAL,
            "%s: example %" PRId64 " is outside of the %" PRId64 " examples", s->path, row,
            s->examples);
    const int32_t *next;
    TRY(get_row(s, NEXT_SENTENCE, row, &next));
    TRY(check_value(s, row, NEXT_SENTENCE, 0, *next, 2));
    out->next_sentence = *next;
    out->masked = true;
    TRY(read_tokens(s, row, vocab_size, out));
    return read_predictions(s, row, vocab_size, out);
}
