/* What the reader and the writer of shards agree on; only for the shard files. */
#pragma once

#define SHARD_FORMAT "bireme-tokens"
#define SHARD_VOCAB_LIMIT (INT64_C(1) << 31) /* ids are int32 in memory */

enum {
    SHARD_FORMAT_VERSION = 1,
    SHARD_CHUNK_BYTES =
        64 << 10, /* of /tokens: a window reads whole chunks: 1 MiB is 12 times slower */
    SHARD_DOCUMENT_CHUNK = 1024,       /* entries of /documents */
    SHARD_CHUNK_LIMIT_BYTES = 64 << 20 /* a foreign chunk is read whole: no larger ones */
};
