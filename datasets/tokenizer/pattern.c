#define PCRE2_CODE_UNIT_WIDTH 8
#include "datasets/tokenizer/pattern.h"

#include <pcre2.h>
#include <string.h>

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
