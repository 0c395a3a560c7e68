/* What the reader and the writer of shards agree on; only for the shard files. */
#pragma once

#define SHARD_FORMAT "bireme-tokens"
#define SHARD_VOCAB_LIMIT (INT64_C(1) << 31) /* ids are int32 in memory */

enum {
    SHARD_FORMAT_VERSION = 1,
    SHARD_NAME_BYTES = 64,        /* of an attribute that goes with a column */
    SHARD_CHUNK_BYTES = 16 << 10, /* of /tokens: a window reads and checks whole chunks */
    SHARD_DOCUMENT_CHUNK = 1024   /* entries of /documents */
};
