/* Inspection of a folder of shards. Each shard is verified completely. Shards with the same stem
 * ("train" in train-00000-of-00004.h5) form a set. */
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"
#include "trainer/cli/inspect.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/logging/json_text.h"

struct shard_line {
    const char *name;           /* without the folder */
    int stem_bytes;             /* length of the part of the name that the set shares */
    int set_size;               /* shards of the complete set; 0: not a numbered set */
    struct shard_header header; /* zeros: the shard could not be opened */
    status result;              /* STATUS_OK: valid */
    char reason[512];
};

struct listing {
    glob_t found;
    struct shard_line *lines;
    int count, fault_count;
    const struct shard_header *reference; /* of the first shard that could be opened */
};

status inspect_list_shards(const char *folder, glob_t *found)
{
    char pattern[FILE_PATH_BYTES];
    TRY(file_join(pattern, folder, "*.h5"));
    int failed = glob(pattern, 0, NULL, found); /* sorted by name */
    REQUIRE(failed == 0 || failed == GLOB_NOMATCH, STATUS_INTERNAL,
            "out of memory for the names of the files in %s", folder);
    return STATUS_OK;
}

bool inspect_has_shards(const char *folder)
{
    glob_t found = {0};
    bool any = inspect_list_shards(folder, &found) == STATUS_OK && found.gl_pathc > 0;
    status_clear();
    globfree(&found);
    return any;
}

/* Opens and verifies a shard. */
static void examine_shard(const char *path, struct shard_line *line)
{
    struct shard *shard = NULL;
    const char *slash = strrchr(path, '/'), *number = shard_set_parse_number(path, &line->set_size);
    line->name = slash != NULL ? slash + 1 : path;
    line->set_size = number != NULL ? line->set_size : 0;
    line->stem_bytes = number != NULL ? (int)(number - line->name) : (int)strlen(line->name);
    status result = shard_open(path, &shard);
    if (result == STATUS_OK) {
        line->header = *shard_get_header(shard);
        result = shard_verify(shard);
        KEEP_FIRST(result, shard_close(&shard));
    }
    line->result = result;
    snprintf(line->reason, sizeof line->reason, "%.500s", status_pending()->text);
    status_clear();
}

static bool is_same_set(const struct shard_line *a, const struct shard_line *b)
{
    return a->stem_bytes == b->stem_bytes && a->set_size == b->set_size &&
           strncmp(a->name, b->name, (size_t)a->stem_bytes) == 0;
}

/* Adds up the set that starts at line `first`. *members is below set_size if shards are missing. */
static void sum_set(const struct listing *listing, int first, int64_t *tokens, int64_t *documents,
                    int *members)
{
    *tokens = *documents = 0;
    *members = 0;
    for (int i = first;
         i < listing->count && is_same_set(&listing->lines[first], &listing->lines[i]); i++) {
        *tokens += listing->lines[i].header.tokens;
        *documents += listing->lines[i].header.documents;
        (*members)++;
    }
}

static bool is_first_of_set(const struct listing *listing, int i)
{
    return i == 0 || !is_same_set(&listing->lines[i - 1], &listing->lines[i]);
}

static const struct shard_header *find_reference(const struct listing *listing)
{
    for (int i = 0; i < listing->count; i++) {
        if (listing->lines[i].header.tokens > 0) {
            return &listing->lines[i].header;
        }
    }
    return &listing->lines[0].header;
}

/* A shard that could not be opened is not compared. */
static bool has_other_tokenizer(const struct listing *listing, const struct shard_line *l)
{
    return l->header.tokens > 0 &&
           strcmp(l->header.tokenizer_sha256, listing->reference->tokenizer_sha256) != 0;
}

/* Returns the status of the inspection: STATUS_PERMISSION if a shard cannot be read, because it may
 * be valid. */
static status choose_code(const struct listing *listing)
{
    for (int i = 0; i < listing->count; i++) {
        if (listing->lines[i].result == STATUS_PERMISSION) {
            return STATUS_PERMISSION;
        }
    }
    return STATUS_DATA;
}

static int count_faults(const struct listing *listing)
{
    int faults = 0, members = 0;
    int64_t tokens = 0, documents = 0;
    for (int i = 0; i < listing->count; i++) {
        const struct shard_line *l = &listing->lines[i];
        faults += l->result != STATUS_OK || has_other_tokenizer(listing, l);
        if (is_first_of_set(listing, i)) {
            sum_set(listing, i, &tokens, &documents, &members);
            faults += members < l->set_size;
        }
    }
    return faults;
}

static status print_text(const char *folder, const struct listing *listing)
{
    char tokens_text[32], documents_text[32];
    const struct shard_header *h = listing->reference;
    printf("%s: %d shard%s, %s\n", folder, listing->count, text_plural(listing->count),
           listing->fault_count == 0 ? "valid (all checksums match)" : "NOT valid");
    printf("  vocabulary  %" PRId64 ", tokenizer %.12s...\n\n", h->vocab_size, h->tokenizer_sha256);
    printf("  %-32s %18s %14s  %s\n", "shard", "tokens", "documents", "");
    for (int i = 0; i < listing->count; i++) {
        const struct shard_line *l = &listing->lines[i];
        printf("  %-32s %18s %14s  %s\n", l->name,
               json_output_scale_count(l->header.tokens, tokens_text),
               json_output_scale_count(l->header.documents, documents_text),
               l->result != STATUS_OK            ? l->reason
               : has_other_tokenizer(listing, l) ? "made with another tokenizer"
                                                 : "valid");
    }
    for (int i = 0; i < listing->count; i++) {
        int64_t tokens = 0, documents = 0;
        int members = 0, of = listing->lines[i].set_size;
        if (is_first_of_set(listing, i) && of > 0) {
            sum_set(listing, i, &tokens, &documents, &members);
            printf("  total of %-23.*s %18s %14s  %s\n", listing->lines[i].stem_bytes - 1,
                   listing->lines[i].name, json_output_scale_count(tokens, tokens_text),
                   json_output_scale_count(documents, documents_text),
                   members < of ? "shards are missing" : "");
        }
    }
    return STATUS_OK;
}

static status print_json(const char *folder, const struct listing *listing)
{
    json_t *shards = json_array();
    int64_t tokens = 0, documents = 0;
    for (int i = 0; i < listing->count; i++) {
        const struct shard_line *l = &listing->lines[i];
        json_t *line =
            json_pack("{s:o, s:I, s:I, s:b}", "name", json_text_create(l->name, strlen(l->name)),
                      "tokens", (json_int_t)l->header.tokens, "documents",
                      (json_int_t)l->header.documents, "whole", l->result == STATUS_OK);
        if (l->result != STATUS_OK) {
            json_object_set_new(line, "reason", json_text_create(l->reason, strlen(l->reason)));
        }
        json_array_append_new(shards, line);
        tokens += l->header.tokens;
        documents += l->header.documents;
    }
    const struct shard_header *h = listing->reference;
    return inspect_print_json(
        json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:s, s:o}", "kind", "shards", "path", folder,
                  "whole", listing->fault_count == 0, "tokens", (json_int_t)tokens, "documents",
                  (json_int_t)documents, "vocab_size", (json_int_t)h->vocab_size,
                  "tokenizer_sha256", h->tokenizer_sha256, "shards", shards));
}

static status raise_faults(const char *folder, const struct listing *listing)
{
    status code = choose_code(listing);
    RAISE(code, "%s: found %d fault%s in its shards; %s", folder, listing->fault_count,
          text_plural(listing->fault_count),
          code == STATUS_PERMISSION ? "make the shards in the list readable"
                                    : "run `bireme prepare` to create them again");
}

status inspect_shards(const char *folder, bool json)
{
    struct listing listing = {0};
    TRY(inspect_list_shards(folder, &listing.found));
    status result = STATUS_OK;
    listing.count = (int)listing.found.gl_pathc;
    TRY_GOTO(result, done, ALLOCATE(listing.lines, (size_t)listing.count + 1, "shards"));
    for (int i = 0; i < listing.count; i++) {
        examine_shard(listing.found.gl_pathv[i], &listing.lines[i]);
    }
    listing.reference = find_reference(&listing);
    listing.fault_count = count_faults(&listing);
    result = json ? print_json(folder, &listing) : print_text(folder, &listing);
    if (result == STATUS_OK && listing.fault_count > 0) {
        result = raise_faults(folder, &listing);
    }
done:
    free(listing.lines);
    globfree(&listing.found);
    return result;
}
