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

/* A block is on the stack, because malloc would take most of the time for small files. */
enum { BLOCK_BYTES = 1 << 16 };

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
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    int ok = EVP_DigestFinal_ex((*hash)->context, digest, &bytes);
    hash_destroy(hash);
    REQUIRE(ok == 1 && bytes == 32, STATUS_INTERNAL, "libcrypto failed to compute SHA-256");
    for (size_t i = 0; i < bytes; i++) {
        text[2 * i] = digits[digest[i] >> 4];
        text[2 * i + 1] = digits[digest[i] & 15];
    }
    text[2 * (size_t)bytes] = '\0';
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
    char block[BLOCK_BYTES];
    *bytes = 0;
    for (;;) {
        ssize_t bytes_read = read(file, block, sizeof block);
        if (bytes_read < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(bytes_read >= 0, STATUS_DATA, "cannot read %s at byte %" PRId64 ": %s", path,
                *bytes, strerror(errno));
        if (bytes_read == 0) {
            return STATUS_OK;
        }
        TRY(hash_update(hash, block, (size_t)bytes_read));
        *bytes += bytes_read;
    }
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
