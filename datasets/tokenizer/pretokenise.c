#define PCRE2_CODE_UNIT_WIDTH 8
#include "datasets/tokenizer/pretokenise.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Unicode's White_Space, for use inside a class. */
#define WHITE                                                                                      \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"  \
    "\\x{205f}\\x{3000}"
#define SPACES_TAIL "[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

/* The match limits of a text that is all one word still leave room for 100 MB of it. */
#define MATCH_LIMIT 200000000u
#define DEPTH_LIMIT 10000u
#define HEAP_LIMIT_KB 65536u
#define JIT_STACK_BYTES ((size_t)1 << 20)

static const struct {
    const char *published;
    const char *pcre2;
} patterns[PRETOKENISE_PATTERNS] = {
    [PRETOKENISE_NONE] = {NULL, NULL},
    [PRETOKENISE_GPT2] = {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                          "\\s+(?!\\S)|\\s+",
                          "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE
                          "\\p{L}\\p{N}]+|" SPACES_TAIL},
    [PRETOKENISE_LLAMA3] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                            "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                            "\\s+(?!\\S)|\\s+",
                            SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WHITE
                                        "\\p{L}\\p{N}]+[\\r\\n]*|[" WHITE
                                        "]*[\\r\\n]+|" SPACES_TAIL},
    [PRETOKENISE_QWEN2] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                           SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WHITE
                                       "\\p{L}\\p{N}]+[\\r\\n]*|[" WHITE
                                       "]*[\\r\\n]+|" SPACES_TAIL},
    [PRETOKENISE_CL100K] =
        {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}|"
         " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
         "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^" WHITE
         "\\p{L}\\p{N}]++[\\r\\n]*|[" WHITE "]*[\\r\\n]|" SPACES_TAIL},
    [PRETOKENISE_O200K] = {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
                           "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                           "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
                           "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                           "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
                           "\\s+(?!\\S)|\\s+",
                           "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" SHORT_FORMS "?|"
                           "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" SHORT_FORMS "?|"
                           "\\p{N}{1,3}| ?[^" WHITE "\\p{L}\\p{N}]+[\\r\\n/]*|[" WHITE
                           "]*[\\r\\n]+|" SPACES_TAIL},
};

struct pretokeniser {
    pcre2_code *code; /* NULL: no pattern */
};

struct scanner {
    const pcre2_code *code;
    pcre2_match_context *context;
    pcre2_match_data *match;
    pcre2_jit_stack *stack;
    const char *text;
    size_t bytes;
    size_t at;
    size_t valid_end; /* text[at, valid_end) is UTF-8; equal to at: not known yet */
};

const char *pretokenise_published(enum pretokenise_pattern pattern)
{
    return patterns[pattern].published;
}

enum pretokenise_pattern pretokenise_lookup(const char *published)
{
    for (int i = PRETOKENISE_NONE + 1; i < PRETOKENISE_PATTERNS; i++) {
        if (strcmp(patterns[i].published, published) == 0) {
            return (enum pretokenise_pattern)i;
        }
    }
    return PRETOKENISE_NONE;
}

size_t pretokenise_character(const char *text, size_t bytes, uint32_t *code)
{
    const unsigned char *c = (const unsigned char *)text;
    if (bytes == 0) {
        return 0;
    }
    if (c[0] < 0x80) {
        *code = c[0];
        return 1;
    }
    size_t length = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || bytes < length) {
        return 0;
    }
    uint32_t value = c[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80) {
            return 0;
        }
        value = value << 6 | (c[i] & 0x3fu);
    }
    bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
    if (overlong || (value >= 0xd800 && value < 0xe000) || value > 0x10ffff) {
        return 0;
    }
    *code = value;
    return length;
}

static void pcre2_reason(int error, char text[128])
{
    if (pcre2_get_error_message(error, (PCRE2_UCHAR *)text, 128) < 0) {
        text[0] = '\0';
    }
}

status pretokeniser_create(enum pretokenise_pattern pattern, struct pretokeniser **out)
{
    *out = NULL;
    struct pretokeniser *p = calloc(1, sizeof *p);
    REQUIRE(p != NULL, STATUS_INTERNAL, "out of memory: a pre-tokeniser");
    if (patterns[pattern].pcre2 != NULL) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        p->code = pcre2_compile((PCRE2_SPTR)patterns[pattern].pcre2, PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, NULL);
        if (p->code == NULL) {
            char reason[128];
            pcre2_reason(error, reason);
            free(p);
            RAISE(STATUS_INTERNAL, "PCRE2 refuses the pre-tokenisation pattern at %zu: %s", offset,
                  reason);
        }
        /* Where this processor has no JIT the matcher interprets: slower, the same words. */
        pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    }
    *out = p;
    return STATUS_OK;
}

void pretokeniser_destroy(struct pretokeniser *p)
{
    if (p != NULL) {
        pcre2_code_free(p->code);
        free(p);
    }
}

status scanner_create(const struct pretokeniser *p, struct scanner **out)
{
    *out = NULL;
    struct scanner *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory: a scanner");
    s->code = p->code;
    if (s->code != NULL) {
        s->context = pcre2_match_context_create(NULL);
        s->match = pcre2_match_data_create(1, NULL);
        if (s->context == NULL || s->match == NULL) {
            scanner_destroy(s);
            RAISE(STATUS_INTERNAL, "out of memory: a scanner");
        }
        pcre2_set_match_limit(s->context, MATCH_LIMIT);
        pcre2_set_depth_limit(s->context, DEPTH_LIMIT);
        pcre2_set_heap_limit(s->context, HEAP_LIMIT_KB);
        s->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_BYTES, NULL);
        if (s->stack != NULL) {
            pcre2_jit_stack_assign(s->context, NULL, s->stack);
        }
    }
    *out = s;
    return STATUS_OK;
}

void scanner_destroy(struct scanner *s)
{
    if (s != NULL) {
        pcre2_match_context_free(s->context);
        pcre2_match_data_free(s->match);
        pcre2_jit_stack_free(s->stack);
        free(s);
    }
}

void scanner_start(struct scanner *s, const char *text, size_t bytes)
{
    s->text = text;
    s->bytes = bytes;
    s->at = 0;
    s->valid_end = 0;
}

/* The end of the UTF-8 text that begins at `at`; ASCII is passed eight bytes at a time. */
static size_t valid_until(const char *text, size_t bytes, size_t at)
{
    for (;;) {
        uint64_t word;
        while (at + 8 <= bytes) {
            memcpy(&word, text + at, 8);
            if ((word & 0x8080808080808080u) != 0) {
                break;
            }
            at += 8;
        }
        uint32_t code;
        size_t length = pretokenise_character(text + at, bytes - at, &code);
        if (length == 0) {
            return at;
        }
        at += length;
    }
}

static size_t invalid_until(const char *text, size_t bytes, size_t at)
{
    uint32_t code;
    while (at < bytes && pretokenise_character(text + at, bytes - at, &code) == 0) {
        at++;
    }
    return at;
}

static status scan_invalid(struct scanner *s, size_t *end)
{
    *end = invalid_until(s->text, s->bytes, s->at);
    s->at = *end;
    s->valid_end = *end;
    return STATUS_OK;
}

status scanner_next(struct scanner *s, size_t *start, size_t *end)
{
    *start = s->at;
    *end = s->bytes;
    if (s->at == s->bytes || s->code == NULL) {
        s->at = s->bytes;
        return STATUS_OK;
    }
    if (s->at == s->valid_end) {
        s->valid_end = valid_until(s->text, s->bytes, s->at);
        if (s->valid_end == s->at) {
            return scan_invalid(s, end);
        }
    }
    int found = pcre2_match(s->code, (PCRE2_SPTR)s->text, s->valid_end, s->at, PCRE2_NO_UTF_CHECK,
                            s->match, s->context);
    size_t stop = found > 0 ? pcre2_get_ovector_pointer(s->match)[1] : 0;
    if (found <= 0 || stop <= s->at) {
        char reason[128];
        pcre2_reason(found, reason);
        RAISE(STATUS_DATA, "the text cannot be cut into words at byte %zu: PCRE2: %s", s->at,
              reason);
    }
    *end = stop;
    s->at = stop;
    return STATUS_OK;
}
