#include "datasets/loader/data_check.h"

#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "datasets/loader/loader_impl.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"

/* The first shard with a tokenizer, and the first one with prompts and completions. */
struct reference {
    const char *path, *sft_path;
    const struct shard_header *header, *sft_header;
    bool warned; /* W-JOIN-ENCODING was logged */
};

static status compare_shard(struct reference *first, const char *path, const struct shard_header *h)
{
    if (first->header == NULL && h->tokenizer_sha256[0] != '\0') {
        first->header = h;
        first->path = path;
    }
    REQUIRE(h->tokenizer_sha256[0] == '\0' || first->header == NULL ||
                strcmp(h->tokenizer_sha256, first->header->tokenizer_sha256) == 0,
            STATUS_DATA,
            "%s and %s were made with different tokenizers, so the same ids mean different texts; "
            "run `bireme prepare` with the same --tokenizer for all data",
            first->path, path);
    if (h->kind != EXAMPLE_SFT) {
        return STATUS_OK;
    }
    if (first->sft_header == NULL) {
        first->sft_header = h;
        first->sft_path = path;
    }
    if (h->join_encoding != first->sft_header->join_encoding && !first->warned) {
        first->warned = true;
        log_warning("JOIN-ENCODING",
                    "%s was prepared %s --join-encoding, %s %s it, so the end of a prompt can have "
                    "different ids; prepare both in the same way",
                    first->sft_path, h->join_encoding ? "without" : "with", path,
                    h->join_encoding ? "with" : "without");
    }
    return STATUS_OK;
}

static status compare_loader(struct reference *first, const struct loader *l)
{
    for (int i = 0; i < l->options.source_count; i++) {
        for (int s = 0; s < shard_set_count(l->sets[i]); s++) {
            TRY(compare_shard(first, shard_set_path(l->sets[i], s),
                              shard_set_header(l->sets[i], s)));
        }
    }
    return STATUS_OK;
}

/* Returns the path of a training shard with the tokens of this shard; NULL: none. The shards of
 * NVIDIA store no hash, so their paths are compared. */
static const char *find_copy(const struct loader *train, const char *path,
                             const struct shard_header *h)
{
    for (int i = 0; i < train->options.source_count; i++) {
        for (int s = 0; s < shard_set_count(train->sets[i]); s++) {
            const struct shard_header *other = shard_set_header(train->sets[i], s);
            const char *other_path = shard_set_path(train->sets[i], s);
            bool equal = h->tokens_sha256[0] != '\0' &&
                         strcmp(h->tokens_sha256, other->tokens_sha256) == 0 &&
                         strcmp(h->tokenizer_sha256, other->tokenizer_sha256) == 0;
            if (equal || strcmp(path, other_path) == 0) {
                return other_path;
            }
        }
    }
    return NULL;
}

static void warn_same_data(const struct loader *train, const struct shard_set *validation)
{
    for (int s = 0; s < shard_set_count(validation); s++) {
        const char *path = shard_set_path(validation, s);
        const char *copy = find_copy(train, path, shard_set_header(validation, s));
        if (copy != NULL) {
            log_warning("SAME-DATA",
                        "data.validation has the tokens of data.train: %s%s%s; a validation loss "
                        "on training data does not show overfitting",
                        path, strcmp(path, copy) == 0 ? "" : " is equal to ",
                        strcmp(path, copy) == 0 ? "" : copy);
            return;
        }
    }
}

status data_check_compare(const struct loader *train, const struct loader *validation)
{
    struct reference first = {0};
    TRY(compare_loader(&first, train));
    if (validation != NULL) {
        TRY(compare_loader(&first, validation));
        warn_same_data(train, validation->sets[0]);
    }
    return STATUS_OK;
}

const char *data_check_tokenizer(const struct loader *l)
{
    return shard_set_header(l->sets[0], 0)->tokenizer_sha256;
}
