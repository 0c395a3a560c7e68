/* The file of tuned GEMM plans: a text file with a line for each GEMM of each machine.
 *
 * Format    "bireme-products 1", then lines of five fields separated by tabs: the first 16 digits
 *           of the SHA-256 of the rest of the line; the machine (GPU, driver, library); the numbers
 *           of struct gemm_key; the fused parts, the seconds and the seconds of the default plan;
 *           the algorithm of cuBLASLt in hexadecimal digits
 * Checks    A line with a wrong hash is skipped. A file with another first line is neither read nor
 *           written. cuBLASLt validates an algorithm before its first use.
 * Location  the value of BIREME_PLANS ("off": no file and no tuning), else bireme/gemm.plans in
 *           XDG_CACHE_HOME or in ~/.cache. An existing products.plans there, the name of version
 *           0.1, stays in use while there is no gemm.plans
 * Writers   The file is replaced atomically. Lines of other machines, and lines that other
 *           processes have added in the meantime, stay. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text_buffer.h"
#include "kernels/cuda/gemm/gemm.h"

#define FILE_HEADER "bireme-products 1\n"

enum {
    FILE_BYTES_MAX = 16 << 20,
    LINE_BYTES = 1024,
    CHECK_DIGITS = 16,
    WORDS_64 = 10, /* numbers of 64 bits, followed by numbers of 32 bits */
    WORDS_32 = GEMM_KEY_WORDS - WORDS_64,
};

_Static_assert(sizeof(struct gemm_key) == WORDS_64 * sizeof(int64_t) + WORDS_32 * sizeof(int32_t),
               "struct gemm_key has no padding");

/* ---- one line ---- */

static int64_t get_word(const struct gemm_key *key, int i)
{
    int64_t words64[WORDS_64];
    int32_t words32[WORDS_32];
    memcpy(words64, key, sizeof words64);
    memcpy(words32, (const char *)key + sizeof words64, sizeof words32);
    return i < WORDS_64 ? words64[i] : words32[i - WORDS_64];
}

static void set_word(struct gemm_key *key, int i, int64_t value)
{
    int32_t words32 = (int32_t)value;
    if (i < WORDS_64) {
        memcpy((char *)key + (size_t)i * sizeof value, &value, sizeof value);
    } else {
        size_t length = WORDS_64 * sizeof value + (size_t)(i - WORDS_64) * sizeof words32;
        memcpy((char *)key + length, &words32, sizeof words32);
    }
}

static status append_plan(struct text_buffer *t, const char *machine, const struct gemm_plan *plan)
{
    char line[LINE_BYTES], check[HASH_TEXT_BYTES];
    int length = snprintf(line, sizeof line, "%s\t", machine);
    for (int i = 0; i < GEMM_KEY_WORDS; i++) {
        length += snprintf(line + length, sizeof line - (size_t)length, "%s%" PRId64,
                           i > 0 ? " " : "", get_word(&plan->key, i));
    }
    length += snprintf(line + length, sizeof line - (size_t)length, "\t%d %.9g %.9g\t", plan->fused,
                       (double)plan->seconds, (double)plan->default_seconds);
    for (int i = 0; i < COUNT(plan->algorithm.data); i++) {
        length += snprintf(line + length, sizeof line - (size_t)length, "%016" PRIx64,
                           plan->algorithm.data[i]);
    }
    TRY(hash_memory(line, (size_t)length, check));
    TRY(text_buffer_append(t, check, CHECK_DIGITS));
    TRY(text_buffer_append(t, "\t", 1));
    TRY(text_buffer_append(t, line, (size_t)length));
    return text_buffer_append(t, "\n", 1);
}

/* Returns whether the hash of a line, without its line end, is correct. */
static bool is_intact(const char *line, size_t bytes)
{
    char check[HASH_TEXT_BYTES];
    if (bytes <= CHECK_DIGITS || bytes > LINE_BYTES || line[CHECK_DIGITS] != '\t' ||
        hash_memory(line + CHECK_DIGITS + 1, bytes - CHECK_DIGITS - 1, check) != STATUS_OK) {
        status_clear();
        return false;
    }
    return memcmp(check, line, CHECK_DIGITS) == 0;
}

static bool read_numbers(const char *from, struct gemm_plan *plan)
{
    char *end = NULL;
    for (int i = 0; i < GEMM_KEY_WORDS; i++) {
        set_word(&plan->key, i, strtoll(from, &end, 10));
        if (end == from) {
            return false;
        }
        from = end;
    }
    int read = 0;
    if (sscanf(from, " %d %g %g %n", &plan->fused, &plan->seconds, &plan->default_seconds, &read) !=
            3 ||
        read == 0) {
        return false;
    }
    from += read;
    for (int i = 0; i < COUNT(plan->algorithm.data); i++) {
        unsigned long long word;
        if (sscanf(from, "%16llx%n", &word, &read) != 1 || read != 16) {
            return false;
        }
        plan->algorithm.data[i] = word;
        from += read;
    }
    return true;
}

/* Returns whether the fused parts are one of the fusions of the key. */
static bool has_known_fusion(const struct gemm_plan *plan)
{
    int fusions[GEMM_FUSIONS_MAX], count = gemm_plan_fusions(&plan->key, fusions);
    for (int i = 0; i < count; i++) {
        if (fusions[i] == plan->fused) {
            return true;
        }
    }
    return false;
}

enum line_kind { LINE_DAMAGED, LINE_FOREIGN, LINE_OURS };

static enum line_kind read_line(const struct cuda_gemm_context *gemm, const char *line,
                                size_t bytes, struct gemm_plan *plan)
{
    char copy[LINE_BYTES + 1];
    size_t machine_bytes = strlen(gemm->machine);
    *plan = (struct gemm_plan){.tuned = true};
    if (!is_intact(line, bytes)) {
        return LINE_DAMAGED;
    }
    memcpy(copy, line, bytes);
    copy[bytes] = '\0';
    const char *machine = copy + CHECK_DIGITS + 1;
    if (strncmp(machine, gemm->machine, machine_bytes) != 0 || machine[machine_bytes] != '\t') {
        return LINE_FOREIGN;
    }
    bool valid = read_numbers(machine + machine_bytes + 1, plan) && has_known_fusion(plan);
    return valid ? LINE_OURS : LINE_DAMAGED;
}

/* ---- all lines ---- */

static struct gemm_plan *find_plan(struct cuda_gemm_context *gemm, const struct gemm_key *key)
{
    for (int i = 0; i < gemm->count; i++) {
        if (memcmp(&gemm->plans[i].key, key, sizeof *key) == 0) {
            return &gemm->plans[i];
        }
    }
    return NULL;
}

/* Loops over the lines of a text; line_bytes excludes the line end. */
#define FOR_LINES(text, line, line_bytes)                                                          \
    for (const char *line = (text), *line_end = NULL;                                              \
         *line != '\0' && (line_end = line + strcspn(line, "\n"), true);                           \
         line = *line_end == '\n' ? line_end + 1 : line_end)                                       \
        for (size_t line_bytes = (size_t)(line_end - line), once = 1; once > 0; once = 0)

/* Adds the plans of this machine; returns the number of damaged lines. */
static int parse_lines(struct cuda_gemm_context *gemm, const char *text)
{
    int damaged = 0;
    FOR_LINES(text, line, bytes)
    {
        struct gemm_plan plan;
        enum line_kind kind = read_line(gemm, line, bytes, &plan);
        damaged += kind == LINE_DAMAGED;
        if (kind == LINE_OURS && gemm->count < GEMM_PLANS_MAX &&
            find_plan(gemm, &plan.key) == NULL) {
            gemm->plans[gemm->count++] = plan;
        }
    }
    return damaged;
}

void gemm_file_parse(struct cuda_gemm_context *gemm, const char *text)
{
    (void)parse_lines(gemm, text);
}

status gemm_file_format(const struct cuda_gemm_context *gemm, char **out)
{
    struct text_buffer t = {0};
    status result = STATUS_OK;
    for (int i = 0; i < gemm->count && result == STATUS_OK; i++) {
        if (gemm->plans[i].tuned) {
            result = append_plan(&t, gemm->machine, &gemm->plans[i]);
        }
    }
    KEEP_FIRST(result, text_buffer_append(&t, "", 1));
    if (result != STATUS_OK) {
        text_buffer_free(&t);
    }
    *out = t.bytes;
    return result;
}

/* ---- the file ---- */

/* Finds the path of the file. Returns false if there is none. */
static bool find_file(char path[FILE_PATH_BYTES])
{
    const char *configured = getenv("BIREME_PLANS"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (configured != NULL) {
        snprintf(path, FILE_PATH_BYTES, "%s", configured);
        return strcmp(configured, "off") != 0 && *configured != '\0';
    }
    bool cached = cache != NULL && *cache == '/';
    if (!cached && (home == NULL || *home != '/')) {
        return false;
    }
    const char *root = cached ? cache : home, *subfolder = cached ? "" : "/.cache";
    char old[FILE_PATH_BYTES];
    snprintf(old, sizeof old, "%s%s/bireme/products.plans", root, subfolder);
    snprintf(path, FILE_PATH_BYTES, "%s%s/bireme/gemm.plans", root, subfolder);
    if (!file_exists(path) && file_exists(old)) {
        memcpy(path, old, sizeof old);
    }
    return true;
}

bool gemm_file_is_enabled(void)
{
    char path[FILE_PATH_BYTES];
    return find_file(path);
}

static void warn_not_written(const char *path)
{
    log_warning("GEMM-PLANS", "%s: the tuned GEMM plans cannot be written: %s", path,
                status_pending()->text);
    status_clear();
}

/* Reads the lines of the file; the caller frees them with free(). Returns NULL if the file does not
 * exist, or, with *foreign set, if it has another format or cannot be read. */
static char *read_lines(const char *path, bool *foreign)
{
    char *text = NULL;
    size_t bytes = 0;
    *foreign = false;
    if (!file_exists(path)) {
        return NULL;
    }
    if (file_read(path, FILE_BYTES_MAX, &text, &bytes) != STATUS_OK) {
        status_clear();
        *foreign = true;
        return NULL;
    }
    if (strncmp(text, FILE_HEADER, sizeof FILE_HEADER - 1) != 0) {
        free(text);
        *foreign = true;
        return NULL;
    }
    memmove(text, text + sizeof FILE_HEADER - 1, bytes + 2 - sizeof FILE_HEADER);
    return text;
}

void gemm_file_read(struct cuda_gemm_context *gemm)
{
    char path[FILE_PATH_BYTES];
    bool foreign = false;
    if (!find_file(path)) {
        return;
    }
    char *lines = read_lines(path, &foreign);
    if (foreign) {
        log_warning("GEMM-PLANS",
                    "%s is not a file of GEMM plans, or cannot be read: it is not changed, and no "
                    "plans are stored; set BIREME_PLANS to another file",
                    path);
    }
    int damaged = lines != NULL ? parse_lines(gemm, lines) : 0;
    if (damaged > 0) {
        log_warning("GEMM-PLANS", "%s: %d damaged lines are skipped", path, damaged);
    }
    free(lines);
}

/* Appends the lines of the file that stay: plans of other machines, and plans that this process has
 * not tuned. */
static status append_others(const struct cuda_gemm_context *gemm, const char *lines,
                            struct text_buffer *out)
{
    FOR_LINES(lines, line, bytes)
    {
        struct gemm_plan plan;
        enum line_kind kind = read_line(gemm, line, bytes, &plan);
        const struct gemm_plan *ours =
            kind == LINE_OURS ? find_plan((struct cuda_gemm_context *)gemm, &plan.key) : NULL;
        if (kind == LINE_FOREIGN || (kind == LINE_OURS && (ours == NULL || !ours->tuned))) {
            TRY(text_buffer_append(out, line, bytes));
            TRY(text_buffer_append(out, "\n", 1));
        }
    }
    return STATUS_OK;
}

static status write_file(const struct cuda_gemm_context *gemm, const char *path, const char *lines)
{
    struct text_buffer t = {0};
    char folder[FILE_PATH_BYTES], *own_lines = NULL;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL && slash != folder) {
        *slash = '\0';
        TRY(file_make_folders(folder));
    }
    status result = gemm_file_format(gemm, &own_lines);
    KEEP_FIRST(result, text_buffer_append(&t, FILE_HEADER, sizeof FILE_HEADER - 1));
    KEEP_FIRST(result, lines != NULL ? append_others(gemm, lines, &t) : STATUS_OK);
    KEEP_FIRST(result, own_lines != NULL ? text_buffer_append(&t, own_lines, strlen(own_lines))
                                         : STATUS_OK);
    KEEP_FIRST(result, result == STATUS_OK ? file_write(path, t.bytes, t.count) : STATUS_OK);
    free(own_lines);
    text_buffer_free(&t);
    return result;
}

void gemm_file_write(const struct cuda_gemm_context *gemm)
{
    char path[FILE_PATH_BYTES];
    bool foreign = false;
    if (!find_file(path)) {
        return;
    }
    char *lines = read_lines(path, &foreign);
    if (!foreign && write_file(gemm, path, lines) != STATUS_OK) {
        warn_not_written(path);
    }
    free(lines);
}
