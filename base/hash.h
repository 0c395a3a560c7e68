/* SHA-256 of memory and files, through OpenSSL's libcrypto (which uses the processor's SHA
 * instructions). The only place in the house that includes it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HASH_TEXT_BYTES 65 /* 64 hexadecimal digits and the end */

struct hash; /* a running SHA-256 */

status hash_create(struct hash **out);
status hash_update(struct hash *hash, const void *data, size_t bytes);
/* hash_finish - the digest of everything so far as lower-case hexadecimal; destroys the hash. */
status hash_finish(struct hash **hash, char text[HASH_TEXT_BYTES]);
void hash_destroy(struct hash **hash);

status hash_memory(const void *data, size_t bytes, char text[HASH_TEXT_BYTES]);

/* hash_file - the digest of a whole file, read in 1 MiB pieces.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA if it cannot be read */
status hash_file(const char *path, char text[HASH_TEXT_BYTES], int64_t *out_bytes);
