#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

struct hash {
    EVP_MD_CTX *context;
};

status hash_create(struct hash **out)
{
    *out = NULL;
    struct hash *hash;
    TRY(ALLOCATE(hash, 1, "a hash"));
    hash->context = EVP_MD_CTX_new();
    if (hash->context == NULL || EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) != 1) {
        hash_destroy(&hash);
        RAISE(STATUS_INTERNAL, "libcrypto cannot start SHA-256");
    }
    *out = hash;
    return STATUS_OK;
}

status hash_update(struct hash *hash, const void *data, size_t bytes)
{
    REQUIRE(EVP_DigestUpdate(hash->context, data, bytes) == 1, STATUS_INTERNAL,
            "libcrypto failed to compute SHA-256");
    return STATUS_OK;
}

status hash_finish(struct hash **hash, char text[HASH_TEXT_BYTES])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    int ok = EVP_DigestFinal_ex((*hash)->context, digest, &bytes);
    hash_destroy(hash);
    REQUIRE(ok == 1 && bytes == 32, STATUS_INTERNAL, "libcrypto failed to compute SHA-256");
    for (unsigned int i = 0; i < bytes; i++) {
        snprintf(text + 2 * (size_t)i, 3, "%02x", digest[i]);
    }
    return STATUS_OK;
}

void hash_destroy(struct hash **hash)
{
    if (*hash != NULL) {
        EVP_MD_CTX_free((*hash)->context);
        free(*hash);
        *hash = NULL;
    }
}

status hash_memory(const void *data, size_t bytes, char text[HASH_TEXT_BYTES])
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    status result = hash_update(hash, data, bytes);
    if (result == STATUS_OK) {
        result = hash_finish(&hash, text);
    }
    hash_destroy(&hash);
    return result;
}

static status hash_descriptor(struct hash *hash, int file, const char *path, int64_t *bytes)
{
    static const size_t block_bytes = 1 << 20;
    status result = STATUS_OK;
    char *block = malloc(block_bytes);
    REQUIRE(block != NULL, STATUS_INTERNAL, "out of memory for reading %s", path);
    *bytes = 0;
    for (;;) {
        ssize_t bytes_read = read(file, block, block_bytes);
        if (bytes_read < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE_GOTO(result, done, bytes_read >= 0, STATUS_DATA,
                     "cannot read %s at byte %" PRId64 ": %s", path, *bytes, strerror(errno));
        if (bytes_read == 0) {
            break;
        }
        TRY_GOTO(result, done, hash_update(hash, block, (size_t)bytes_read));
        *bytes += bytes_read;
    }
done:
    free(block);
    return result;
}

status hash_file(const char *path, char text[HASH_TEXT_BYTES], int64_t *out_bytes)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(file >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA), "cannot open %s: %s",
            path, strerror(errno));
    struct hash *hash = NULL;
    int64_t bytes = 0;
    status result = hash_create(&hash);
    if (result == STATUS_OK) {
        result = hash_descriptor(hash, file, path, &bytes);
    }
    if (result == STATUS_OK) {
        result = hash_finish(&hash, text);
    }
    hash_destroy(&hash);
    close(file);
    if (out_bytes != NULL) {
        *out_bytes = bytes;
    }
    return result;
}
