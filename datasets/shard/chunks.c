#include "datasets/shard/chunks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/fletcher32.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "items are returned as stored, in little endian"
#endif

enum {
    CHUNK_BYTES_MAX = 4 << 20, /* largest chunk; a window reads whole chunks, and one is cached */
    CHECKSUM_BYTES = 4
};

struct chunks {
    const char *path, *name;
    hid_t dataset;
    int64_t items, chunk_items;
    int item_bytes;
    int64_t cached;      /* index of the chunk in `data`; -1: none */
    unsigned char *data; /* [chunk_bytes + CHECKSUM_BYTES] */
    hsize_t chunk_bytes;
};

int64_t chunks_item_count(const struct chunks *chunks)
{
    return chunks->items;
}

int chunks_item_bytes(const struct chunks *chunks)
{
    return chunks->item_bytes;
}

static status check_layout(struct chunks *c)
{
    hid_t properties = H5Dget_create_plist(c->dataset);
    hsize_t items = 0;
    bool chunked =
        H5Pget_layout(properties) == H5D_CHUNKED && H5Pget_chunk(properties, 1, &items) == 1;
    bool has_checksum =
        H5Pget_nfilters(properties) == 1; /* h5file_open_dataset accepts only Fletcher32 */
    H5Pclose(properties);
    REQUIRE(chunked && has_checksum, STATUS_DATA,
            "%s: /%s is not stored in chunks with Fletcher32 checksums; make the shard with "
            "`bireme prepare`",
            c->path, c->name);
    hsize_t limit = (hsize_t)(CHUNK_BYTES_MAX / c->item_bytes);
    REQUIRE(items > 0 && items <= limit, STATUS_DATA,
            "%s: /%s has chunks of %llu elements; 1 to %llu are accepted", c->path, c->name,
            (unsigned long long)items, (unsigned long long)limit);
    c->chunk_items = (int64_t)items;
    c->chunk_bytes = items * (hsize_t)c->item_bytes;
    return STATUS_OK;
}

static status open_dataset(struct chunks *c, hid_t file, hid_t type)
{
    int dimensions = 0;
    TRY(h5file_open_dataset(file, c->path, c->name, type, 1, &c->dataset, &c->items, &dimensions));
    REQUIRE(dimensions == 1, STATUS_DATA, "%s: /%s has %d dimensions instead of 1", c->path,
            c->name, dimensions);
    hid_t stored = H5Dget_type(c->dataset);
    c->item_bytes = (int)H5Tget_size(stored);
    H5Tclose(stored);
    return check_layout(c);
}

/* Reopens the dataset without the chunk cache of HDF5, which is not used and would need memory. */
static status reopen_without_cache(struct chunks *c, hid_t file)
{
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 0, 0, 1.0);
    H5Dclose(c->dataset);
    c->dataset = H5Dopen2(file, c->name, access);
    const char *reason = c->dataset >= 0 ? "" : h5file_reason();
    H5Pclose(access);
    REQUIRE(c->dataset >= 0, STATUS_DATA, "%s: /%s cannot be opened: %s", c->path, c->name, reason);
    return STATUS_OK;
}

status chunks_open(hid_t file, const char *path, const char *name, hid_t type, struct chunks **out)
{
    *out = NULL;
    struct chunks *c;
    TRY(ALLOCATE(c, 1, "a dataset"));
    *c = (struct chunks){.path = path, .name = name, .dataset = H5I_INVALID_HID, .cached = -1};
    status result = STATUS_OK;
    TRY_GOTO(result, failed, open_dataset(c, file, type));
    TRY_GOTO(result, failed, reopen_without_cache(c, file));
    TRY_GOTO(result, failed, ALLOCATE(c->data, c->chunk_bytes + CHECKSUM_BYTES, path));
    *out = c;
    return STATUS_OK;
failed:
    chunks_close(&c);
    return result;
}

void chunks_close(struct chunks **chunks)
{
    struct chunks *c = *chunks;
    if (c == NULL) {
        return;
    }
    *chunks = NULL;
    if (c->dataset >= 0) {
        H5Dclose(c->dataset);
    }
    free(c->data);
    free(c);
}

/* Reads a chunk as stored: the items, then the checksum. H5Dread_chunk does not check the size of
 * the buffer, so the stored size is checked first. */
static status read_stored(struct chunks *c, int64_t first)
{
    hsize_t offset = (hsize_t)first, stored = 0;
    uint32_t skipped = 0; /* bit mask of the filters that were not applied to the chunk */
    const char *reason = NULL;
    h5file_init();
    if (H5Dget_chunk_storage_size(c->dataset, &offset, &stored) < 0) {
        reason = h5file_reason();
    } else if (stored != c->chunk_bytes + CHECKSUM_BYTES) {
        reason = "the chunk is missing, has another size or has no checksum";
    } else if (H5Dread_chunk(c->dataset, H5P_DEFAULT, &offset, &skipped, c->data) < 0) {
        reason = h5file_reason();
    } else if (skipped != 0) {
        reason = "the chunk has no checksum";
    }
    REQUIRE(reason == NULL, STATUS_DATA,
            "%s is damaged: /%s cannot be read from element %" PRId64 ": %s", c->path, c->name,
            first, reason);
    return STATUS_OK;
}

static status read_chunk(struct chunks *c, int64_t chunk)
{
    int64_t first = chunk * c->chunk_items, left = c->items - first;
    uint32_t stored;
    c->cached = -1;
    TRY(read_stored(c, first));
    memcpy(&stored, c->data + c->chunk_bytes, sizeof stored);
    uint32_t computed = fletcher32(c->data, c->chunk_bytes);
    REQUIRE(computed == stored, STATUS_DATA,
            "%s is damaged: /%s elements %" PRId64 " to %" PRId64
            " have the checksum %08x, but the file stores %08x",
            c->path, c->name, first, first + number_min(left, c->chunk_items) - 1, computed,
            stored);
    c->cached = chunk;
    return STATUS_OK;
}

status chunks_read(struct chunks *chunks, int64_t first, const void **items, int64_t *count)
{
    struct chunks *c = chunks;
    int64_t chunk = first / c->chunk_items, skip = first % c->chunk_items;
    if (chunk != c->cached) {
        TRY(read_chunk(c, chunk));
    }
    int64_t left = c->items - first, in_chunk = c->chunk_items - skip;
    *items = c->data + skip * c->item_bytes;
    *count = number_min(left, in_chunk);
    return STATUS_OK;
}
