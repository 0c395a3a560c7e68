#define PCRE2_CODE_UNIT_WIDTH 8
#include "datasets/text/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

status pattern_matches(const char *pattern, const char *text, bool *out)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, NULL);
    REQUIRE(code != NULL, STATUS_DATA,
            "the pattern %.100s is not a valid regular expression at offset %zu", pattern,
            (size_t)offset);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    int found = PCRE2_ERROR_NOMEMORY;
    if (match != NULL) {
        found = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, match, NULL);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    REQUIRE(found >= 0 || found == PCRE2_ERROR_NOMATCH, STATUS_DATA,
            "the pattern %.100s takes too long to match", pattern);
    *out = found >= 0;
    return STATUS_OK;
}

/* ---- all matches ---- */

struct pattern {
    pcre2_code *code;
    pcre2_match_data *match;
};

status pattern_open(const char *text, struct pattern **out)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    TRY(ALLOCATE(*out, 1, "a regular expression"));
    (*out)->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                 &error, &offset, NULL);
    (*out)->match =
        (*out)->code != NULL ? pcre2_match_data_create_from_pattern((*out)->code, NULL) : NULL;
    if ((*out)->match == NULL) {
        pattern_close(out);
        RAISE(STATUS_DATA, "the pattern %.100s is not a valid regular expression at offset %zu",
              text, (size_t)offset);
    }
    return STATUS_OK;
}

void pattern_close(struct pattern **p)
{
    if (*p != NULL) {
        pcre2_match_data_free((*p)->match);
        pcre2_code_free((*p)->code);
        free(*p);
        *p = NULL;
    }
}

/* Finds the next match from *at on. An empty match is not found twice. */
static status find_next(const struct pattern *p, const char *text, size_t bytes, size_t *at,
                        bool *was_empty, bool *found)
{
    for (*found = false; *at <= bytes;) {
        uint32_t flags = *was_empty ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
        int count = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, *at, flags, p->match, NULL);
        REQUIRE(count >= 0 || count == PCRE2_ERROR_NOMATCH, STATUS_DATA,
                "a regular expression takes too long to match, or the text is not UTF-8");
        if (count >= 0) {
            const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(p->match);
            *found = true;
            *was_empty = ends[0] == ends[1];
            *at = ends[1];
            return STATUS_OK;
        }
        if (!*was_empty) {
            return STATUS_OK;
        }
        *was_empty = false;
        *at += *at < bytes ? utf8_character_bytes(text + *at, bytes - *at) : 1;
    }
    return STATUS_OK;
}

static status count_matches(const struct pattern *p, const char *text, size_t bytes, int64_t *out)
{
    size_t at = 0;
    bool was_empty = false, found = true;
    for (*out = -1; found; ++*out) {
        TRY(find_next(p, text, bytes, &at, &was_empty, &found));
    }
    return STATUS_OK;
}

status pattern_select(const struct pattern *p, const char *text, size_t bytes, int64_t index,
                      const char **found, size_t *found_bytes)
{
    int64_t count = 0;
    size_t at = 0;
    bool was_empty = false, is_found;
    *found = NULL;
    TRY(count_matches(p, text, bytes, &count));
    index += index < 0 ? count : 0;
    if (index < 0 || index >= count) {
        return STATUS_OK;
    }
    for (int64_t i = 0; i <= index; i++) {
        TRY(find_next(p, text, bytes, &at, &was_empty, &is_found));
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(p->match);
    uint32_t groups = pcre2_get_ovector_count(p->match);
    for (uint32_t g = groups > 1 ? 1 : 0; g < groups && *found == NULL; g++) {
        bool is_set = ends[2 * g] != PCRE2_UNSET && ends[2 * g + 1] > ends[2 * g];
        *found =
            is_set || groups <= 2 ? text + (ends[2 * g] != PCRE2_UNSET ? ends[2 * g] : 0) : NULL;
        *found_bytes = is_set ? ends[2 * g + 1] - ends[2 * g] : 0;
    }
    return STATUS_OK;
}

status pattern_remove(const struct pattern *p, const char *text, size_t bytes, char **out,
                      size_t *out_bytes)
{
    PCRE2_SIZE size = bytes + 1;
    TRY(ALLOCATE(*out, size, "a text"));
    int count = pcre2_substitute(p->code, (PCRE2_SPTR)text, bytes, 0, PCRE2_SUBSTITUTE_GLOBAL,
                                 p->match, NULL, (PCRE2_SPTR) "", 0, (PCRE2_UCHAR *)*out, &size);
    *out_bytes = size;
    if (count < 0) {
        free(*out);
        *out = NULL;
        RAISE(STATUS_DATA, "a regular expression takes too long to match");
    }
    return STATUS_OK;
}
