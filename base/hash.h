/* SHA-256 of memory and files, with libcrypto of OpenSSL, which uses the SHA instructions of the
 * processor. Only hash.c includes the headers of libcrypto.
 *
 * Calls     hash_memory or hash_file for a whole message. For a message in parts: hash_create,
 *           hash_update for each part, hash_finish */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HASH_TEXT_BYTES 65 /* 64 hexadecimal digits and a NUL */

struct hash; /* a SHA-256 computation in progress */

/* hash_create - start a SHA-256 computation.
 *
 * Memory    release it with hash_finish or hash_destroy */
status hash_create(struct hash **out);

/* hash_update - append data to the hashed message. */
status hash_update(struct hash *hash, const void *data, size_t bytes);

/* hash_finish - write the digest as lower-case hexadecimal digits and destroy the hash. */
status hash_finish(struct hash **hash, char text[HASH_TEXT_BYTES]);

/* hash_destroy - release the hash and set *hash to NULL; NULL is allowed. */
void hash_destroy(struct hash **hash);

/* hash_memory - compute the SHA-256 of a block of memory. */
status hash_memory(const void *data, size_t bytes, char text[HASH_TEXT_BYTES]);

/* hash_file - compute the SHA-256 of a file. The file is read in blocks of 1 MiB.
 *
 * Memory    out_bytes receives the size of the file and may be NULL
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if the file cannot be read */
status hash_file(const char *path, char text[HASH_TEXT_BYTES], int64_t *out_bytes);
