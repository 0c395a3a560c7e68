#include "datasets/shard/deflated_chunk.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/memory.h"
#include "datasets/shard/fletcher32.h"

enum { CHECKSUM_BYTES = 4, OVERHEAD_BYTES = 4096 /* of data that deflate cannot compress */ };

/* A chunk as stored. */
struct stored_chunk {
    unsigned char *data;
    size_t bytes;
    uint32_t skipped; /* bit mask of the filters that were not applied */
};

/* Removes the checksum at the end. */
static const char *remove_checksum(struct stored_chunk *c)
{
    uint32_t stored;
    if (c->bytes < CHECKSUM_BYTES) {
        return "a chunk has no checksum";
    }
    c->bytes -= CHECKSUM_BYTES;
    memcpy(&stored, c->data + c->bytes, sizeof stored);
    return fletcher32(c->data, c->bytes) == stored ? NULL : "the checksum of a chunk is wrong";
}

static const char *decompress_chunk(const struct stored_chunk *c, void *out, size_t bytes)
{
    uLongf got = bytes;
    bool good = uncompress(out, &got, c->data, c->bytes) == Z_OK && got == bytes;
    return good ? NULL : "the compressed data of a chunk is damaged or has another size";
}

/* Undoes the filters, the last one first. Returns NULL, or the reason why this is impossible. */
static const char *undo_filters(hid_t properties, struct stored_chunk *c, void *out, size_t bytes)
{
    const char *reason = NULL;
    for (int i = H5Pget_nfilters(properties) - 1; i >= 0 && reason == NULL; i--) {
        unsigned flags = 0, config = 0;
        size_t values = 0;
        H5Z_filter_t filter =
            H5Pget_filter2(properties, (unsigned)i, &flags, &values, NULL, 0, NULL, &config);
        if ((c->skipped >> i & 1) != 0) {
            continue;
        }
        if (filter == H5Z_FILTER_DEFLATE) { /* it is the first filter */
            return decompress_chunk(c, out, bytes);
        }
        reason = remove_checksum(c);
    }
    if (reason == NULL && c->bytes != bytes) {
        return "a chunk has another size";
    }
    if (reason == NULL) {
        memcpy(out, c->data, bytes);
    }
    return reason;
}

static const char *read_stored(hid_t dataset, const hsize_t *offset, struct stored_chunk *c)
{
    return H5Dread_chunk(dataset, H5P_DEFAULT, offset, &c->skipped, c->data) >= 0 ? NULL
                                                                                  : h5file_reason();
}

status deflated_chunk_read(hid_t dataset, const char *path, const char *name, const hsize_t *offset,
                           void *out, size_t bytes)
{
    hsize_t stored = 0;
    struct stored_chunk c = {0};
    h5file_init();
    bool found = H5Dget_chunk_storage_size(dataset, offset, &stored) >= 0 && stored > 0;
    REQUIRE(found && stored <= 2 * bytes + OVERHEAD_BYTES, STATUS_DATA,
            "%s is damaged: a chunk of /%s is missing or has another size", path, name);
    c.bytes = (size_t)stored;
    TRY(ALLOCATE(c.data, stored, "a chunk"));
    const char *reason = read_stored(dataset, offset, &c);
    if (reason == NULL) {
        hid_t properties = H5Dget_create_plist(dataset);
        reason = undo_filters(properties, &c, out, bytes);
        H5Pclose(properties);
    }
    free(c.data);
    REQUIRE(reason == NULL, STATUS_DATA, "%s is damaged: /%s: %s", path, name, reason);
    return STATUS_OK;
}
