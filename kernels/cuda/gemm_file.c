/* The file of timed plans: text, a line for each product of each kind of machine.
 *
 * Form      "bireme-products 1", then lines of five fields between tabs: the first 16 digits of the SHA-256 of what
 *           follows; the machine (GPU, driver, library); the words of struct product_key; the fused parts, the
 *           seconds and those of the untimed choice; the library's algorithm in hexadecimal digits
 * Trust     a line whose digits do not agree is left out, and a file that does not begin so is neither read nor
 *           written; an algorithm is shown to the library before it is used
 * Place     BIREME_PLANS names it ("off": none, and nothing is timed), else bireme/products.plans in the user's cache folder
 *           (XDG_CACHE_HOME, or .cache at home)
 * Writers   lines of other machines, and those that others have added since, stay; the file is replaced at once */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda/gemm.h"

#define FORM "bireme-products 1\n"

enum {
    FILE_LIMIT = 16 << 20,
    LINE_BYTES = 1024,
    CHECK_DIGITS = 16,
    WIDE_WORDS = 10, /* of 64 bits, then those of 32 */
    NARROW_WORDS = PRODUCT_KEY_WORDS - WIDE_WORDS,
};

_Static_assert(sizeof(struct product_key) ==
                   WIDE_WORDS * sizeof(int64_t) + NARROW_WORDS * sizeof(int32_t),
               "the words of a key");

struct text {
    char *data;
    size_t bytes, room;
};

static status append(struct text *t, const char *data, size_t bytes)
{
    if (t->bytes + bytes + 1 > t->room) {
        size_t room = 2 * (t->bytes + bytes + 1);
        char *grown = realloc(t->data, room);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory for the products' plans");
        t->data = grown;
        t->room = room;
    }
    memcpy(t->data + t->bytes, data, bytes);
    t->bytes += bytes;
    t->data[t->bytes] = '\0';
    return STATUS_OK;
}

/* ---- one line ---- */

static int64_t word_of(const struct product_key *key, int i)
{
    int64_t wide[WIDE_WORDS];
    int32_t narrow[NARROW_WORDS];
    memcpy(wide, key, sizeof wide);
    memcpy(narrow, (const char *)key + sizeof wide, sizeof narrow);
    return i < WIDE_WORDS ? wide[i] : narrow[i - WIDE_WORDS];
}

static void set_word(struct product_key *key, int i, int64_t value)
{
    int32_t narrow = (int32_t)value;
    if (i < WIDE_WORDS) {
        memcpy((char *)key + (size_t)i * sizeof value, &value, sizeof value);
    } else {
        size_t at = WIDE_WORDS * sizeof value + (size_t)(i - WIDE_WORDS) * sizeof narrow;
        memcpy((char *)key + at, &narrow, sizeof narrow);
    }
}

static status append_plan(struct text *t, const char *machine, const struct product_plan *plan)
{
    char line[LINE_BYTES], check[HASH_TEXT_BYTES];
    int at = snprintf(line, sizeof line, "%s\t", machine);
    for (int i = 0; i < PRODUCT_KEY_WORDS; i++) {
        at += snprintf(line + at, sizeof line - (size_t)at, "%s%lld", i > 0 ? " " : "",
                       (long long)word_of(&plan->key, i));
    }
    at += snprintf(line + at, sizeof line - (size_t)at, "\t%d %.9g %.9g\t", plan->fused,
                   (double)plan->seconds, (double)plan->untimed_seconds);
    for (size_t i = 0; i < sizeof plan->algorithm.data / sizeof *plan->algorithm.data; i++) {
        at += snprintf(line + at, sizeof line - (size_t)at, "%016llx",
                       (unsigned long long)plan->algorithm.data[i]);
    }
    TRY(hash_memory(line, (size_t)at, check));
    TRY(append(t, check, CHECK_DIGITS));
    TRY(append(t, "\t", 1));
    TRY(append(t, line, (size_t)at));
    return append(t, "\n", 1);
}

/* Whether the line, without its end, says what was written. */
static bool is_whole(const char *line, size_t bytes)
{
    char check[HASH_TEXT_BYTES];
    if (bytes <= CHECK_DIGITS || bytes > LINE_BYTES || line[CHECK_DIGITS] != '\t' ||
        hash_memory(line + CHECK_DIGITS + 1, bytes - CHECK_DIGITS - 1, check) != STATUS_OK) {
        status_clear();
        return false;
    }
    return memcmp(check, line, CHECK_DIGITS) == 0;
}

static bool read_numbers(const char *from, struct product_plan *plan)
{
    char *end = NULL;
    for (int i = 0; i < PRODUCT_KEY_WORDS; i++) {
        set_word(&plan->key, i, strtoll(from, &end, 10));
        if (end == from) {
            return false;
        }
        from = end;
    }
    int read = 0;
    if (sscanf(from, " %d %g %g %n", &plan->fused, &plan->seconds, &plan->untimed_seconds, &read) !=
            3 ||
        read == 0) {
        return false;
    }
    from += read;
    for (size_t i = 0; i < sizeof plan->algorithm.data / sizeof *plan->algorithm.data; i++) {
        unsigned long long word;
        if (sscanf(from, "%16llx%n", &word, &read) != 1 || read != 16) {
            return false;
        }
        plan->algorithm.data[i] = word;
        from += read;
    }
    return true;
}

/* The fused parts must be one of the ways that there are. */
static bool has_way(const struct product_plan *plan)
{
    int ways[PRODUCT_WAYS_MAX], count = product_plan_ways(&plan->key, ways);
    for (int i = 0; i < count; i++) {
        if (ways[i] == plan->fused) {
            return true;
        }
    }
    return false;
}

enum line_kind { LINE_DAMAGED, LINE_FOREIGN, LINE_OURS };

static enum line_kind read_line(const struct cuda_products *products, const char *line,
                                size_t bytes, struct product_plan *plan)
{
    char copy[LINE_BYTES + 1];
    size_t machine_bytes = strlen(products->machine);
    *plan = (struct product_plan){.timed = true};
    if (!is_whole(line, bytes)) {
        return LINE_DAMAGED;
    }
    memcpy(copy, line, bytes);
    copy[bytes] = '\0';
    const char *machine = copy + CHECK_DIGITS + 1;
    if (strncmp(machine, products->machine, machine_bytes) != 0 || machine[machine_bytes] != '\t') {
        return LINE_FOREIGN;
    }
    bool good = read_numbers(machine + machine_bytes + 1, plan) && has_way(plan);
    return good ? LINE_OURS : LINE_DAMAGED;
}

/* ---- all of them ---- */

static struct product_plan *known(struct cuda_products *products, const struct product_key *key)
{
    for (int i = 0; i < products->count; i++) {
        if (memcmp(&products->plans[i].key, key, sizeof *key) == 0) {
            return &products->plans[i];
        }
    }
    return NULL;
}

/* Calls act for each line between text and its end, without the lines' ends. */
#define FOR_LINES(text, line, line_bytes)                                                          \
    for (const char *line = (text), *line_end = NULL;                                              \
         *line != '\0' && (line_end = line + strcspn(line, "\n"), true);                           \
         line = *line_end == '\n' ? line_end + 1 : line_end)                                       \
        for (size_t line_bytes = (size_t)(line_end - line), once = 1; once > 0; once = 0)

/* The number of damaged lines. */
static int take(struct cuda_products *products, const char *text)
{
    int damaged = 0;
    FOR_LINES(text, line, bytes)
    {
        struct product_plan plan;
        enum line_kind kind = read_line(products, line, bytes, &plan);
        damaged += kind == LINE_DAMAGED;
        if (kind == LINE_OURS && products->count < PRODUCT_PLANS_MAX &&
            known(products, &plan.key) == NULL) {
            products->plans[products->count++] = plan;
        }
    }
    return damaged;
}

void product_file_take(struct cuda_products *products, const char *text)
{
    (void)take(products, text);
}

status product_file_text(const struct cuda_products *products, char **out)
{
    struct text t = {0};
    status result = append(&t, "", 0);
    for (int i = 0; i < products->count && result == STATUS_OK; i++) {
        if (products->plans[i].timed) {
            result = append_plan(&t, products->machine, &products->plans[i]);
        }
    }
    *out = t.data;
    if (result != STATUS_OK) {
        free(t.data);
        *out = NULL;
    }
    return result;
}

/* ---- the file ---- */

/* Where it is; false: there is none. */
static bool find_file(char path[FILE_PATH_BYTES])
{
    const char *named = getenv("BIREME_PLANS"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (named != NULL) {
        snprintf(path, FILE_PATH_BYTES, "%s", named);
        return strcmp(named, "off") != 0 && *named != '\0';
    }
    bool cached = cache != NULL && *cache == '/';
    snprintf(path, FILE_PATH_BYTES, "%s%s/bireme/products.plans", cached ? cache : home,
             cached ? "" : "/.cache");
    return cached || (home != NULL && *home == '/');
}

bool product_file_wanted(void)
{
    char path[FILE_PATH_BYTES];
    return find_file(path);
}

static void warn(const char *path)
{
    log_warning("PRODUCT-PLANS", "%s: the products' times are not kept: %s", path,
                status_pending()->text);
    status_clear();
}

/* The lines of a file of this form, for free(). NULL: there is none, or (*foreign) it is something else. */
static char *lines_of(const char *path, bool *foreign)
{
    char *text = NULL;
    size_t bytes = 0;
    *foreign = false;
    if (!file_exists(path)) {
        return NULL;
    }
    if (file_read(path, FILE_LIMIT, &text, &bytes) != STATUS_OK) {
        status_clear();
        *foreign = true;
        return NULL;
    }
    if (strncmp(text, FORM, sizeof FORM - 1) != 0) {
        free(text);
        *foreign = true;
        return NULL;
    }
    memmove(text, text + sizeof FORM - 1, bytes + 2 - sizeof FORM);
    return text;
}

void product_file_read(struct cuda_products *products)
{
    char path[FILE_PATH_BYTES];
    bool foreign = false;
    if (!find_file(path)) {
        return;
    }
    char *lines = lines_of(path, &foreign);
    if (foreign) {
        log_warning("PRODUCT-PLANS",
                    "%s is no file of products' plans, or cannot be read: it is left alone and "
                    "nothing is kept; BIREME_PLANS names another one",
                    path);
    }
    int damaged = lines != NULL ? take(products, lines) : 0;
    if (damaged > 0) {
        log_warning("PRODUCT-PLANS", "%s: %d damaged lines are left out", path, damaged);
    }
    free(lines);
}

/* What stays of the file: whole lines about other machines, or about what we have not timed. */
static status keep_others(const struct cuda_products *products, const char *lines, struct text *out)
{
    FOR_LINES(lines, line, bytes)
    {
        struct product_plan plan;
        enum line_kind kind = read_line(products, line, bytes, &plan);
        const struct product_plan *ours =
            kind == LINE_OURS ? known((struct cuda_products *)products, &plan.key) : NULL;
        if (kind == LINE_FOREIGN || (kind == LINE_OURS && (ours == NULL || !ours->timed))) {
            TRY(append(out, line, bytes));
            TRY(append(out, "\n", 1));
        }
    }
    return STATUS_OK;
}

static status write_all(const struct cuda_products *products, const char *path, const char *lines)
{
    struct text t = {0};
    char folder[FILE_PATH_BYTES], *own = NULL;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL && slash != folder) {
        *slash = '\0';
        TRY(file_make_folders(folder));
    }
    status result = product_file_text(products, &own);
    KEEP_FIRST(result, append(&t, FORM, sizeof FORM - 1));
    KEEP_FIRST(result, lines != NULL ? keep_others(products, lines, &t) : STATUS_OK);
    KEEP_FIRST(result, own != NULL ? append(&t, own, strlen(own)) : STATUS_OK);
    KEEP_FIRST(result, result == STATUS_OK ? file_write(path, t.data, t.bytes) : STATUS_OK);
    free(own);
    free(t.data);
    return result;
}

void product_file_write(const struct cuda_products *products)
{
    char path[FILE_PATH_BYTES];
    bool foreign = false;
    if (!find_file(path)) {
        return;
    }
    char *lines = lines_of(path, &foreign);
    if (!foreign && write_all(products, path, lines) != STATUS_OK) {
        warn(path);
    }
    free(lines);
}
