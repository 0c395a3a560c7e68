#define PCRE2_CODE_UNIT_WIDTH 8
#include "datasets/text/pretokenizer.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

/* Unicode's White_Space, for use inside a class. */
#define WHITE_SPACE                                                                                \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"  \
    "\\x{205f}\\x{3000}"
/* Characters that Unicode 15 and 16 added. PCRE2 10.42 has Unicode 14 and PCRE2 10.45 has
 * Unicode 16. With these classes both split a text into the same words as Hugging Face
 * `tokenizers`. */
#define CAPITALS_SINCE_14 "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"
#define SMALLS_SINCE_14 "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"
#define UNCASED_SINCE_14                                                                           \
    "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4f}\\x{10d6f}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{"     \
    "11240}"                                                                                       \
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}"           \
    "\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}"          \
    "\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{"     \
    "16d6c}"                                                                                       \
    "\\x{18cff}\\x{1b132}\\x{1b155}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{"      \
    "1e5ed}"                                                                                       \
    "\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define MARKS_SINCE_14                                                                             \
    "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"                 \
    "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}"          \
    "\\x{113d2}\\x{113e1}-\\x{113e2}\\x{1171e}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{"      \
    "11f3a}"                                                                                       \
    "\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}"          \
    "\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"
#define NUMBERS_SINCE_14                                                                           \
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}"         \
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}"         \
    "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define LETTER "\\p{L}" CAPITALS_SINCE_14 SMALLS_SINCE_14 UNCASED_SINCE_14
#define NUMBER "\\p{N}" NUMBERS_SINCE_14
#define SPACES_TAIL "[" WHITE_SPACE "]+(?![^" WHITE_SPACE "])|[" WHITE_SPACE "]+"
#define UNCASED "\\p{Lm}\\p{Lo}\\p{M}" UNCASED_SINCE_14 MARKS_SINCE_14
#define UPPER "\\p{Lu}\\p{Lt}" CAPITALS_SINCE_14 UNCASED
#define LOWER "\\p{Ll}" SMALLS_SINCE_14 UNCASED
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

/* PCRE2's limits. A text of 100 MB that is one word stays within them. */
#define MATCH_LIMIT 200000000u
#define DEPTH_LIMIT 10000u
#define HEAP_LIMIT_KB 65536u
#define JIT_STACK_BYTES ((size_t)1 << 20)

#define OPTIONAL_OTHER "[^\\r\\n" LETTER NUMBER "]?"
#define SYMBOLS " ?[^" WHITE_SPACE LETTER NUMBER "]+"

static const struct {
    const char *published;
    const char *pcre2;
} patterns[PRETOKENIZER_PATTERNS] = {
    [PRETOKENIZER_NONE] = {NULL, NULL},
    [PRETOKENIZER_GPT2] =
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         "'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]+| ?[" NUMBER "]+|" SYMBOLS "|" SPACES_TAIL},
    [PRETOKENIZER_LLAMA3] =
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         CONTRACTIONS "|" OPTIONAL_OTHER "[" LETTER "]+|[" NUMBER "]{1,3}|" SYMBOLS
                      "[\\r\\n]*|[" WHITE_SPACE "]*[\\r\\n]+|" SPACES_TAIL},
    [PRETOKENIZER_QWEN2] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                            CONTRACTIONS "|" OPTIONAL_OTHER "[" LETTER "]+|[" NUMBER "]|" SYMBOLS
                                         "[\\r\\n]*|[" WHITE_SPACE "]*[\\r\\n]+|" SPACES_TAIL},
    [PRETOKENIZER_CL100K] = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}|"
                             " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
                             "'(?i:[sdmt]|ll|ve|re)|" OPTIONAL_OTHER "+[" LETTER "]+|[" NUMBER
                             "]{1,3}|" SYMBOLS "+[\\r\\n]*|[" WHITE_SPACE
                             "]*[\\r\\n]|" SPACES_TAIL},
    [PRETOKENIZER_O200K] =
        {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
         "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
         "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         OPTIONAL_OTHER "[" UPPER "]*[" LOWER "]+" CONTRACTIONS "?|" OPTIONAL_OTHER "[" UPPER
                        "]+[" LOWER "]*" CONTRACTIONS "?|[" NUMBER "]{1,3}|" SYMBOLS
                        "[\\r\\n/]*|[" WHITE_SPACE "]*[\\r\\n]+|" SPACES_TAIL},
};

struct pretokenizer {
    pcre2_code *code; /* NULL: no pattern */
};

struct pretokenizer_scanner {
    const pcre2_code *code;
    pcre2_match_context *context;
    pcre2_match_data *match;
    pcre2_jit_stack *stack;
    const char *text;
    size_t bytes;
    size_t pos;
    size_t valid_end; /* text[pos, valid_end) is UTF-8; equal to pos: not computed yet */
};

const char *pretokenizer_published_regex(enum pretokenizer_pattern pattern)
{
    return patterns[pattern].published;
}

enum pretokenizer_pattern pretokenizer_find_pattern(const char *published)
{
    for (int i = PRETOKENIZER_NONE + 1; i < PRETOKENIZER_PATTERNS; i++) {
        if (strcmp(patterns[i].published, published) == 0) {
            return (enum pretokenizer_pattern)i;
        }
    }
    return PRETOKENIZER_NONE;
}

static void get_pcre2_message(int error, char text[128])
{
    if (pcre2_get_error_message(error, (PCRE2_UCHAR *)text, 128) < 0) {
        text[0] = '\0';
    }
}

status pretokenizer_create(enum pretokenizer_pattern pattern, struct pretokenizer **out)
{
    *out = NULL;
    struct pretokenizer *p = NULL;
    TRY(ALLOCATE(p, 1, "a pre-tokenizer"));
    if (patterns[pattern].pcre2 != NULL) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        p->code = pcre2_compile((PCRE2_SPTR)patterns[pattern].pcre2, PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, NULL);
        if (p->code == NULL) {
            char reason[128];
            get_pcre2_message(error, reason);
            free(p);
            RAISE(STATUS_INTERNAL, "PCRE2 rejects the pre-tokenization pattern at offset %zu: %s",
                  offset, reason);
        }
        /* Without JIT on this processor, PCRE2 interprets the pattern: slower, with the
         * same words. */
        pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    }
    *out = p;
    return STATUS_OK;
}

void pretokenizer_destroy(struct pretokenizer *p)
{
    if (p != NULL) {
        pcre2_code_free(p->code);
        free(p);
    }
}

status pretokenizer_scanner_create(const struct pretokenizer *p, struct pretokenizer_scanner **out)
{
    *out = NULL;
    struct pretokenizer_scanner *s = NULL;
    TRY(ALLOCATE(s, 1, "a scanner"));
    s->code = p->code;
    if (s->code != NULL) {
        s->context = pcre2_match_context_create(NULL);
        s->match = pcre2_match_data_create(1, NULL);
        if (s->context == NULL || s->match == NULL) {
            pretokenizer_scanner_destroy(s);
            RAISE(STATUS_INTERNAL, "out of memory for a scanner");
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

void pretokenizer_scanner_destroy(struct pretokenizer_scanner *s)
{
    if (s != NULL) {
        pcre2_match_context_free(s->context);
        pcre2_match_data_free(s->match);
        pcre2_jit_stack_free(s->stack);
        free(s);
    }
}

void pretokenizer_scanner_start(struct pretokenizer_scanner *s, const char *text, size_t bytes)
{
    s->text = text;
    s->bytes = bytes;
    s->pos = 0;
    s->valid_end = 0;
}

/* Returns the position of the next valid UTF-8 character at or after `pos`. */
static size_t find_invalid_end(const char *text, size_t bytes, size_t pos)
{
    uint32_t code;
    while (pos < bytes && utf8_read(text + pos, bytes - pos, &code) == 0) {
        pos++;
    }
    return pos;
}

static status scan_invalid(struct pretokenizer_scanner *s, size_t *end)
{
    *end = find_invalid_end(s->text, s->bytes, s->pos);
    s->pos = *end;
    s->valid_end = *end;
    return STATUS_OK;
}

status pretokenizer_scanner_next(struct pretokenizer_scanner *s, size_t *start, size_t *end)
{
    *start = s->pos;
    *end = s->bytes;
    if (s->pos == s->bytes || s->code == NULL) {
        s->pos = s->bytes;
        return STATUS_OK;
    }
    if (s->pos == s->valid_end) {
        s->valid_end = utf8_find_valid_end(s->text, s->bytes, s->pos);
        if (s->valid_end == s->pos) {
            return scan_invalid(s, end);
        }
    }
    int found = pcre2_match(s->code, (PCRE2_SPTR)s->text, s->valid_end, s->pos, PCRE2_NO_UTF_CHECK,
                            s->match, s->context);
    size_t match_end = found > 0 ? pcre2_get_ovector_pointer(s->match)[1] : 0;
    if (found <= 0 || match_end <= s->pos) {
        char reason[128];
        get_pcre2_message(found, reason);
        RAISE(STATUS_DATA, "the text cannot be split into words at byte %zu: PCRE2: %s", s->pos,
              reason);
    }
    *end = match_end;
    s->pos = match_end;
    return STATUS_OK;
}
