/* Constants that the reader and the writer of shards share. Only the shard files include it. */
#pragma once

#define SHARD_FORMAT "bireme-tokens"
#define SHARD_VOCAB_MAX (INT64_C(1) << 31) /* ids are int32 in memory */

enum {
    SHARD_FORMAT_VERSION = 1,
    SHARD_NAME_BYTES = 64,        /* size of the name of a column's attribute */
    SHARD_CHUNK_BYTES = 16 << 10, /* chunk of /tokens; a window reads and checks whole chunks */
    SHARD_DOCUMENT_CHUNK = 1024   /* entries in a chunk of /documents */
};
