/* A folder of shards: each is verified in full; sets are told by their stem ("train" of
 * train-00000-of-00004.h5). */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"
#include "trainer/cli/inspect.h"
#include "trainer/cli/json_output.h"

struct shard_line {
    const char *name; /* without the folder */
    int stem;         /* letters of the name that its set shares */
    int of;           /* members that the set should have; 0: not a numbered set */
    struct shard_header header;
    bool whole;
    char reason[512];
};

struct survey {
    glob_t found;
    struct shard_line *lines;
    int count, faults;
};

static status list(const char *folder, glob_t *found)
{
    char pattern[FILE_PATH_BYTES];
    TRY(file_join(pattern, folder, "*.h5"));
    int failed = glob(pattern, 0, NULL, found); /* by name */
    REQUIRE(failed == 0 || failed == GLOB_NOMATCH, STATUS_INTERNAL, "cannot list %s", folder);
    return STATUS_OK;
}

bool inspect_has_shards(const char *folder)
{
    glob_t found = {0};
    bool any = list(folder, &found) == STATUS_OK && found.gl_pathc > 0;
    status_clear();
    globfree(&found);
    return any;
}

static void look_at(const char *path, struct shard_line *line)
{
    struct shard *shard = NULL;
    const char *slash = strrchr(path, '/'), *number = shard_set_number(path, &line->of);
    line->name = slash != NULL ? slash + 1 : path;
    line->of = number != NULL ? line->of : 0;
    line->stem = number != NULL ? (int)(number - line->name) : (int)strlen(line->name);
    status result = shard_open(path, &shard);
    if (result == STATUS_OK) {
        line->header = *shard_header_of(shard);
        result = shard_verify(shard);
        KEEP_FIRST(result, shard_close(&shard));
    }
    line->whole = result == STATUS_OK;
    snprintf(line->reason, sizeof line->reason, "%.500s", status_pending()->text);
    status_clear();
}

static bool same_set(const struct shard_line *a, const struct shard_line *b)
{
    return a->stem == b->stem && a->of == b->of && strncmp(a->name, b->name, (size_t)a->stem) == 0;
}

/* The first line of each set: its totals; *members < of where some are missing. */
static void sum_set(const struct survey *s, int first, int64_t *tokens, int64_t *documents,
                    int *members)
{
    *tokens = *documents = 0;
    *members = 0;
    for (int i = first; i < s->count && same_set(&s->lines[first], &s->lines[i]); i++) {
        *tokens += s->lines[i].header.tokens;
        *documents += s->lines[i].header.documents;
        (*members)++;
    }
}

static bool begins_set(const struct survey *s, int i)
{
    return i == 0 || !same_set(&s->lines[i - 1], &s->lines[i]);
}

static int count_faults(const struct survey *s)
{
    int faults = 0, members = 0;
    int64_t tokens = 0, documents = 0;
    for (int i = 0; i < s->count; i++) {
        const struct shard_line *l = &s->lines[i];
        bool other = strcmp(l->header.tokenizer_sha256, s->lines[0].header.tokenizer_sha256) != 0;
        faults += !l->whole || other;
        if (begins_set(s, i)) {
            sum_set(s, i, &tokens, &documents, &members);
            faults += members < l->of;
        }
    }
    return faults;
}

static status print_text(const char *folder, const struct survey *s)
{
    char tokens_text[32], documents_text[32];
    const struct shard_header *h = &s->lines[0].header;
    printf("%s: %d shard%s, %s\n", folder, s->count, text_plural(s->count),
           s->faults == 0 ? "whole (every checksum holds)" : "NOT whole");
    printf("  vocabulary  %lld, tokenizer %.12s...\n\n", (long long)h->vocab_size,
           h->tokenizer_sha256);
    printf("  %-32s %18s %14s  %s\n", "shard", "tokens", "documents", "");
    for (int i = 0; i < s->count; i++) {
        const struct shard_line *l = &s->lines[i];
        bool other = strcmp(l->header.tokenizer_sha256, h->tokenizer_sha256) != 0;
        printf("  %-32s %18s %14s  %s\n", l->name, report_count(l->header.tokens, tokens_text),
               report_count(l->header.documents, documents_text),
               !l->whole ? l->reason
               : other   ? "of another tokenizer"
                         : "whole");
    }
    for (int i = 0; i < s->count; i++) {
        int64_t tokens = 0, documents = 0;
        int members = 0, of = s->lines[i].of;
        if (begins_set(s, i) && of > 0) {
            sum_set(s, i, &tokens, &documents, &members);
            printf("  all of %-25.*s %18s %14s  %s\n", s->lines[i].stem - 1, s->lines[i].name,
                   report_count(tokens, tokens_text), report_count(documents, documents_text),
                   members < of ? "shards are missing" : "");
        }
    }
    return STATUS_OK;
}

static status print_json(const char *folder, const struct survey *s)
{
    json_t *shards = json_array();
    int64_t tokens = 0, documents = 0;
    for (int i = 0; i < s->count; i++) {
        const struct shard_line *l = &s->lines[i];
        json_t *line = json_pack("{s:s, s:I, s:I, s:b}", "name", l->name, "tokens",
                                 (json_int_t)l->header.tokens, "documents",
                                 (json_int_t)l->header.documents, "whole", l->whole);
        if (!l->whole) {
            json_object_set_new(line, "reason", json_string(l->reason));
        }
        json_array_append_new(shards, line);
        tokens += l->header.tokens;
        documents += l->header.documents;
    }
    const struct shard_header *h = &s->lines[0].header;
    return inspect_print(json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:s, s:o}", "kind", "shards",
                                   "path", folder, "whole", s->faults == 0, "tokens",
                                   (json_int_t)tokens, "documents", (json_int_t)documents,
                                   "vocab_size", (json_int_t)h->vocab_size, "tokenizer_sha256",
                                   h->tokenizer_sha256, "shards", shards));
}

status inspect_shards(const char *folder, bool json)
{
    struct survey s = {0};
    TRY(list(folder, &s.found));
    status result = STATUS_OK;
    s.count = (int)s.found.gl_pathc;
    s.lines = calloc((size_t)s.count + 1, sizeof *s.lines);
    REQUIRE_GOTO(result, done, s.lines != NULL, STATUS_INTERNAL, "out of memory for %d shards",
                 s.count);
    for (int i = 0; i < s.count; i++) {
        look_at(s.found.gl_pathv[i], &s.lines[i]);
    }
    s.faults = count_faults(&s);
    result = json ? print_json(folder, &s) : print_text(folder, &s);
    REQUIRE_GOTO(result, done, result != STATUS_OK || s.faults == 0, STATUS_DATA,
                 "%s: %d fault%s in its shards; `bireme prepare` makes them again", folder,
                 s.faults, text_plural(s.faults));
done:
    free(s.lines);
    globfree(&s.found);
    return result;
}
