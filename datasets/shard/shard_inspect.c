/* Prints the header and the labels of a shard, after its verification, for `bireme inspect`. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/terminal.h"
#include "base/text.h"
#include "datasets/shard/shard.h"

static status print_json(const char *path, const struct shard_header *h, const char *labels)
{
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:s, s:s, s:s, s:b}", "kind",
                  "shard", "path", path, "examples", example_get_format(h->kind)->name, "bytes",
                  (json_int_t)file_size(path), "tokens", (json_int_t)h->tokens, "documents",
                  (json_int_t)h->documents, "vocab_size", (json_int_t)h->vocab_size, "eos_id",
                  (json_int_t)h->eos_id, "token_bytes", h->token_bytes, "tokenizer_sha256",
                  h->tokenizer_sha256, "tokens_sha256", h->tokens_sha256, "documents_sha256",
                  h->documents_sha256, "whole", 1);
    if (root != NULL && h->join_encoding) {
        json_object_set_new(root, "join_encoding", json_true());
    }
    if (root != NULL && labels != NULL) {
        json_object_set_new(root, "labels", json_loads(labels, 0, NULL));
    }
    REQUIRE(root != NULL, STATUS_DATA,
            "the path %s is not valid UTF-8 and cannot be printed as JSON", path);
    bool written = json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && fputc('\n', stdout) != EOF;
    json_decref(root);
    return terminal_flush(written);
}

static status print_lines(const char *path, const struct shard_header *h, const char *labels)
{
    printf("shard            %s\n", path);
    char bytes[TEXT_NUMBER_BYTES], tokens[TEXT_NUMBER_BYTES], documents[TEXT_NUMBER_BYTES];
    printf("size             %s\n", text_scale_bytes((double)file_size(path), bytes));
    printf("tokens           %s of %d bytes\n", text_scale_count((double)h->tokens, tokens),
           h->token_bytes);
    printf("documents        %s, %.1f tokens each\n",
           text_scale_count((double)h->documents, documents),
           (double)h->tokens / (double)h->documents);
    printf("examples         %s\n", example_get_format(h->kind)->name);
    if (h->join_encoding) {
        printf("encoding         prompt and completion as one text\n");
    }
    if (h->label_count > 0) {
        printf("labels           %d: %.200s%s\n", h->label_count, labels,
               strlen(labels) > 200 ? " ..." : "");
    }
    printf("vocabulary       %" PRId64 "\n", h->vocab_size);
    if (h->eos_id < 0) {
        printf("end token        none\n");
    } else {
        printf("end token        %" PRId64 "\n", h->eos_id);
    }
    printf("tokenizer        SHA-256 %.32s...\n", h->tokenizer_sha256);
    printf("valid            yes: checksums, %s, all ids and documents\n",
           h->tokens_sha256[0] != '\0' ? "SHA-256" : "no SHA-256 stored");
    return terminal_flush(true);
}

status shard_inspect(const char *path, bool json)
{
    struct shard *shard;
    TRY(shard_open(path, &shard));
    status result = shard_verify(shard);
    if (result == STATUS_OK) {
        const struct shard_header *h = shard_get_header(shard);
        result = json ? print_json(path, h, shard_labels(shard))
                      : print_lines(path, h, shard_labels(shard));
    }
    KEEP_FIRST(result, shard_close(&shard));
    return result;
}
