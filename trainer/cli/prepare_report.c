#include "trainer/cli/prepare_report.h"

#include <inttypes.h>
#include <stdio.h>

#include <jansson.h>

#include "base/log.h"
#include "base/text.h"

enum { LABELS_PRINTED = 10, SCALED_BYTES = 32, LIST_BYTES = 1024 };

/* Writes a number with three digits and a decimal unit: 950, 17.1 k, 2.05 M. */
static const char *scale_number(double value, char out[SCALED_BYTES])
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    int unit = 0;
    while (value >= 999.5 && unit < 4) {
        value /= 1000;
        unit++;
    }
    snprintf(out, SCALED_BYTES, "%.*f%s",
             unit == 0       ? 0
             : value < 9.995 ? 2
             : value < 99.95 ? 1
                             : 0,
             value, units[unit]);
    return out;
}

/* The same for a number of bytes: 950 bytes, 17.1 kB. */
static const char *scale_bytes(double value, char out[SCALED_BYTES])
{
    char number[SCALED_BYTES];
    scale_number(value, number);
    snprintf(out, SCALED_BYTES, value < 999.5 ? "%.20s bytes" : "%.20sB", number);
    return out;
}

/* ---- warnings ---- */

/* Warns if the share of the tokens in the validation set differs much from the requested fraction
 * of the documents. A random split by label has at least one row of each label in both sets. */
static void warn_validation_share(const struct prepare_options *o, const struct prepare_report *r)
{
    double all = (double)(r->train_tokens + r->validation_tokens);
    double share = all > 0 ? (double)r->validation_tokens / all : 0;
    double requested = o->validation_fraction;
    if (requested > 0 && (share < requested / 2 || share > 2 * requested)) {
        log_warning(
            "VALIDATION",
            "the validation set contains %.2g%% of the tokens, but %.2g%% was requested, because "
            "%s%s",
            100 * share, 100 * requested,
            o->shuffle_split && o->label_counts->count > 0
                ? "the lengths differ or some labels have few rows"
                : "the lengths differ",
            o->shuffle_split ? "" : "; use --split random to draw the validation set at random");
    }
}

/* Warns if a set has no example of some label. */
static void warn_missing_labels(const struct prepare_options *o, const char *set,
                                const int64_t *counts)
{
    const struct prepare_label_counts *c = o->label_counts;
    char names[LIST_BYTES] = "";
    size_t used = 0;
    int missing = 0;
    for (int i = 0; i < c->count; i++) {
        if (counts[i] == 0 && missing++ < LABELS_PRINTED && used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.80s",
                                     used > 0 ? ", " : "", c->names[i]);
        }
    }
    if (missing > 0) {
        log_warning("MISSING-LABEL", "the %s set has no example of %d of the %d labels: %s%s%s",
                    set, missing, c->count, names, missing > LABELS_PRINTED ? ", ..." : "",
                    o->validation_fraction > 0 && !o->shuffle_split
                        ? "; use --split random to draw rows of each label"
                        : "; add rows, or give --labels without it");
    }
}

static void print_warnings(const struct prepare_options *o, const struct prepare_report *r)
{
    if (r->bad_rows > 0) {
        log_warning("SKIPPED-ROWS", "skipped %" PRId64 " invalid row%s", r->bad_rows,
                    text_plural(r->bad_rows));
    }
    if (r->forced_splits > 0) {
        log_warning("SPLIT-WORDS",
                    "text was split inside a word %" PRId64
                    " times; the token ids may differ there",
                    r->forced_splits);
    }
    warn_validation_share(o, r);
    if (o->label_counts->count > 0) {
        warn_missing_labels(o, "training", o->label_counts->train);
        if (r->validation_examples > 0) {
            warn_missing_labels(o, "validation", o->label_counts->validation);
        }
    }
}

/* ---- lines for people ---- */

/* Logs how many examples were longer than the sequence length, and by how much. */
static void log_truncation(const struct prepare_options *o, const struct prepare_report *r)
{
    if (r->truncated_tokens > 0) {
        log_info("%" PRId64 " of %" PRId64 " examples were cut at %" PRId64
                 " tokens (--sequence-length): %" PRId64 " tokens removed, at most %" PRId64
                 " from one example",
                 r->overlong_rows, r->examples, o->sequence_tokens, r->truncated_tokens,
                 r->most_truncated);
    } else if (r->longest_tokens > 0 && r->overlong_rows > 0) {
        log_info("%" PRId64 " of %" PRId64 " examples have more than %" PRId64
                 " tokens (--sequence-length), the longest %" PRId64,
                 r->overlong_rows, r->examples, o->sequence_tokens, r->longest_tokens);
    } else if (r->longest_tokens > 0) {
        log_info("the longest example has %" PRId64 " tokens", r->longest_tokens);
    }
}

static void log_summary(const struct prepare_options *o, const struct prepare_report *r,
                        bool has_rows)
{
    char size[SCALED_BYTES], rate[SCALED_BYTES], tokens[SCALED_BYTES];
    int64_t units = has_rows ? r->examples : r->documents;
    int shards = r->train_shards + r->validation_shards;
    scale_bytes((double)r->bytes, size);
    scale_bytes(r->seconds > 0 ? (double)r->bytes / r->seconds : 0, rate);
    log_info("%" PRId64 " %s%s from %s in %.1f s, %s/s", units, has_rows ? "example" : "document",
             text_plural(units), size, r->seconds, rate);
    if (r->empty_documents > 0) {
        log_info("%" PRId64 " empty document%s skipped", r->empty_documents,
                 text_plural(r->empty_documents));
    }
    if (r->sentences > 0) {
        log_info("%" PRId64 " sentences, %" PRId64 " examples", r->sentences, r->examples);
    }
    log_truncation(o, r);
    if (r->learned_tokens > 0) {
        log_info("%s tokens in the loss", scale_number((double)r->learned_tokens, tokens));
    }
    log_info("%s tokens in %d shard%s",
             scale_number((double)(r->train_tokens + r->validation_tokens), tokens), shards,
             text_plural(shards));
}

/* Prints the examples of a set, and of each label in it. */
static void print_set(const struct prepare_options *o, const char *name, int64_t examples,
                      int64_t tokens, const int64_t *counts, bool has_rows)
{
    const struct prepare_label_counts *c = o->label_counts;
    char text[SCALED_BYTES];
    if (has_rows) {
        printf("%-10s  %" PRId64 " example%s", name, examples, text_plural(examples));
    } else {
        printf("%-10s  %s tokens", name, scale_number((double)tokens, text));
    }
    int shown = examples == 0 ? 0 : c->count < LABELS_PRINTED ? c->count : LABELS_PRINTED;
    for (int i = 0; i < shown; i++) {
        char label[LIST_BYTES];
        snprintf(label, sizeof label, "%s", c->names[i]);
        text_replace_controls(label, "");
        printf("%s%s %" PRId64, i == 0 ? ": " : ", ", label, counts[i]);
    }
    printf("%s\n", shown > 0 && shown < c->count ? ", ..." : "");
}

/* ---- JSON ---- */

static json_t *make_label_counts(const struct prepare_label_counts *c, const int64_t *counts)
{
    json_t *object = json_object();
    for (int i = 0; i < c->count; i++) {
        json_object_set_new(object, c->names[i], json_integer(counts[i]));
    }
    return object;
}

static status print_json(const struct prepare_options *o, const struct prepare_report *r)
{
    const struct prepare_label_counts *c = o->label_counts;
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:i, s:f}",
        "documents", (json_int_t)r->documents, "sentences", (json_int_t)r->sentences, "examples",
        (json_int_t)r->examples, "empty_documents", (json_int_t)r->empty_documents,
        "train_examples", (json_int_t)r->train_examples, "validation_examples",
        (json_int_t)r->validation_examples, "train_tokens", (json_int_t)r->train_tokens,
        "validation_tokens", (json_int_t)r->validation_tokens, "train_shards", r->train_shards,
        "validation_shards", r->validation_shards, "bytes", (json_int_t)r->bytes, "bad_rows",
        (json_int_t)r->bad_rows, "forced_cuts", (json_int_t)r->forced_splits, "over_long",
        (json_int_t)r->overlong_rows, "longest", (json_int_t)r->longest_tokens, "learned_tokens",
        (json_int_t)r->learned_tokens, "cut_tokens", (json_int_t)r->truncated_tokens,
        "most_cut_tokens", (json_int_t)r->most_truncated, "labels", r->label_count, "seconds",
        r->seconds);
    if (root != NULL && c->count > 0) {
        json_object_set_new(root, "train_labels", make_label_counts(c, c->train));
        json_object_set_new(root, "validation_labels", make_label_counts(c, c->validation));
    }
    REQUIRE(root != NULL, STATUS_INTERNAL, "out of memory for the report");
    bool written = json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && fputc('\n', stdout) != EOF;
    json_decref(root);
    REQUIRE(written && fflush(stdout) == 0, STATUS_WRITE, "cannot write to standard output");
    return STATUS_OK;
}

status prepare_report_print(const struct prepare_options *options, const struct prepare_report *r,
                            bool has_rows, bool json)
{
    log_summary(options, r, has_rows);
    print_warnings(options, r);
    if (json) {
        return print_json(options, r);
    }
    print_set(options, "train", r->train_examples, r->train_tokens, options->label_counts->train,
              has_rows);
    print_set(options, "validation", r->validation_examples, r->validation_tokens,
              options->label_counts->validation, has_rows);
    REQUIRE(fflush(stdout) == 0, STATUS_WRITE, "cannot write to standard output");
    return STATUS_OK;
}
