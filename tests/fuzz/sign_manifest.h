/* Corrects the digest of a manifest, for fuzz targets. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/checkpoint/manifest.h"

/* sign_manifest - replace the last field of a manifest by its digest, or append the field.
 *
 * Memory    the caller frees the text with free() */
static inline char *sign_manifest(const uint8_t *data, size_t bytes, size_t *out_bytes)
{
    static const char field[] = ",\n \"sha256\": \"";
    char digest[HASH_TEXT_BYTES];
    size_t body = bytes;
    for (size_t i = 0; i + sizeof field - 1 <= bytes; i++) {
        body = memcmp(data + i, field, sizeof field - 1) == 0 ? i : body;
    }
    char *text = malloc(body + sizeof field + sizeof digest + 4);
    fuzz_require(text != NULL && hash_memory(data, body, digest) == STATUS_OK, "memory for a text");
    memcpy(text, data, body);
    *out_bytes = body + (size_t)snprintf(text + body, sizeof field + sizeof digest + 4,
                                         "%s%s\"\n}\n", field, digest);
    return text;
}
