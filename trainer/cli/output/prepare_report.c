#include "trainer/cli/output/prepare_report.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"

enum { LABELS_PRINTED = 10, SINGLE_LABELS = 10, LIST_BYTES = 1024 };

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
    char names[LIST_BYTES] = "", name[TEXT_NAME_BYTES];
    size_t used = 0;
    int missing = 0;
    for (int i = 0; i < c->count; i++) {
        if (counts[i] == 0 && missing++ < LABELS_PRINTED && used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                     used > 0 ? ", " : "", text_quote_name(c->names[i], name));
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

/* Copies a label in lower case, with single spaces between its words. */
static char *fold_label(const char *name)
{
    char *folded = malloc(strlen(name) + 1), *to = folded;
    for (const char *c = name; folded != NULL && *c != '\0'; c++) {
        if (!isspace((unsigned char)*c)) {
            *to++ = (char)tolower((unsigned char)*c);
        } else if (to > folded && to[-1] != ' ') {
            *to++ = ' ';
        }
    }
    if (folded != NULL) {
        to -= to > folded && to[-1] == ' ';
        *to = '\0';
    }
    return folded;
}

struct folded_label {
    char *text;
    int index;
};

static int compare_folded(const void *a, const void *b)
{
    const struct folded_label *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order != 0 ? order : x->index - y->index;
}

/* Logs the pairs of neighbors with equal texts as one warning. */
static void warn_equal_neighbors(const struct prepare_label_counts *c,
                                 const struct folded_label *labels)
{
    char pairs[LIST_BYTES] = "";
    size_t used = 0;
    int similar = 0;
    for (int i = 1; i < c->count; i++) {
        if (strcmp(labels[i - 1].text, labels[i].text) == 0 && similar++ < LABELS_PRINTED &&
            used < sizeof pairs) {
            used += (size_t)snprintf(pairs + used, sizeof pairs - used, "%s'%.60s' and '%.60s'",
                                     used > 0 ? ", " : "", c->names[labels[i - 1].index],
                                     c->names[labels[i].index]);
        }
    }
    if (similar > 0) {
        log_warning("SIMILAR-LABELS",
                    "labels that differ only in case or spaces are different classes: %s%s; "
                    "write them in the same way if they are the same class",
                    pairs, similar > LABELS_PRINTED ? ", ..." : "");
    }
}

/* Warns about labels that differ only in the case of letters or in spaces. */
static void warn_similar_labels(const struct prepare_label_counts *c)
{
    struct folded_label *labels = calloc((size_t)c->count, sizeof *labels);
    bool folded = labels != NULL;
    for (int i = 0; i < c->count && folded; i++) {
        labels[i] = (struct folded_label){fold_label(c->names[i]), i};
        folded = labels[i].text != NULL;
    }
    if (folded) { /* without memory, there is no warning */
        qsort(labels, (size_t)c->count, sizeof *labels, compare_folded);
        warn_equal_neighbors(c, labels);
    }
    for (int i = 0; i < c->count && labels != NULL; i++) {
        free(labels[i].text);
    }
    free(labels);
}

/* Warns if most examples have a label that no other example has. The columns of texts and labels
 * can be exchanged. */
static void warn_single_labels(const struct prepare_label_counts *c)
{
    char name[TEXT_NAME_BYTES];
    int64_t examples = 0, singles = 0;
    int last = 0;
    for (int i = 0; i < c->count; i++) {
        int64_t count = c->train[i] + c->validation[i];
        examples += count;
        singles += count == 1;
        last = count == 1 ? i : last;
    }
    if (singles > SINGLE_LABELS && 2 * singles > examples) {
        log_warning("SINGLE-LABELS",
                    "%" PRId64 " of %" PRId64
                    " examples have a label that no other example has, such as %s; check the "
                    "columns (--columns text=NAME,label=NAME), or use --objective regress for "
                    "numbers",
                    singles, examples, text_quote_name(c->names[last], name));
    }
}

static void warn_labels(const struct prepare_options *o, const struct prepare_report *r)
{
    const struct prepare_label_counts *c = o->label_counts;
    if (r->train_examples > 0) {
        warn_missing_labels(o, "training", c->train);
    }
    if (r->validation_examples > 0) {
        warn_missing_labels(o, "validation", c->validation);
    }
    if (c->count == 1 && o->labels == NULL) {
        log_warning("ONE-LABEL",
                    "all rows have the label '%.80s', so a model has nothing to learn; check "
                    "the column of the labels (--columns label=NAME)",
                    c->names[0]);
    }
    warn_single_labels(c);
    warn_similar_labels(c);
}

static void print_warnings(const struct prepare_options *o, const struct prepare_report *r)
{
    if (r->bad_rows > 0) {
        log_warning("SKIPPED-ROWS", "skipped %" PRId64 " invalid row%s", r->bad_rows,
                    text_plural(r->bad_rows));
    }
    if (r->plain_rows > 0 && o->chat_template != NULL) {
        log_warning("NO-TEMPLATE",
                    "%" PRId64 " of %" PRId64
                    " rows have texts instead of messages, so the chat template '%s' is not "
                    "applied to them, but `bireme chat` applies it; write each text as a list of "
                    "messages, [{\"role\": \"user\", \"content\": \"...\"}]",
                    r->plain_rows, r->examples, chat_name(o->chat_template));
    }
    if (r->forced_splits > 0) {
        log_warning("SPLIT-WORDS",
                    "text was split inside a word %" PRId64
                    " time%s; the token ids may differ there",
                    r->forced_splits, text_plural(r->forced_splits));
    }
    if (r->joined_documents > 0) {
        log_warning("END-TOKEN",
                    "%" PRId64 " of %" PRId64
                    " documents follow another one without an end token between them, so a model "
                    "reads both as one text; %s",
                    r->joined_documents, r->documents,
                    tokenizer_eos(o->tokenizer) >= 0
                        ? "use --append-eod to add the end token"
                        : "use a tokenizer with an end token (tokenizer train --special-tokens "
                          "'<|endoftext|>'), or data.document_mask: true");
    }
    if (r->shared_examples > 0) {
        log_warning("SAME-DATA",
                    "%" PRId64 " of %" PRId64
                    " validation example%s also in the training set, so the validation measures "
                    "memory; remove duplicates, or give other --validation-input",
                    r->shared_examples, r->validation_examples,
                    r->validation_examples == 1 ? " is" : "s are");
    }
    warn_validation_share(o, r);
    if (o->label_counts->count > 0) {
        warn_labels(o, r);
    }
}

/* ---- lines for people ---- */

/* Logs how many examples were longer than the sequence length, and by how much. */
static void log_truncation(const struct prepare_options *o, const struct prepare_report *r)
{
    if (r->truncated_tokens > 0) {
        log_text("%" PRId64 " of %" PRId64 " example%s %s cut at %" PRId64
                 " tokens (--sequence-length): %" PRId64 " token%s removed, at most %" PRId64
                 " from one example",
                 r->overlong_rows, r->examples, text_plural(r->examples),
                 r->overlong_rows == 1 ? "was" : "were", o->sequence_tokens, r->truncated_tokens,
                 text_plural(r->truncated_tokens), r->most_truncated);
    } else if (r->longest_tokens > 0 && r->overlong_rows > 0) {
        log_text("%" PRId64 " of %" PRId64 " example%s %s more than %" PRId64
                 " tokens (--sequence-length), the longest %" PRId64,
                 r->overlong_rows, r->examples, text_plural(r->examples),
                 r->overlong_rows == 1 ? "has" : "have", o->sequence_tokens, r->longest_tokens);
    } else if (r->longest_tokens > 0) {
        log_text("the longest example has %" PRId64 " token%s", r->longest_tokens,
                 text_plural(r->longest_tokens));
    }
}

/* Logs the rows that each template has rendered. */
static void log_templates(const struct instruction_templates *t)
{
    for (int i = 0; t != NULL && i < instruction_templates_count(t); i++) {
        int64_t rows;
        const char *name = instruction_templates_name(t, i, &rows);
        log_info("template %s: %" PRId64 " row%s", name, rows, text_plural(rows));
    }
}

static void log_summary(const struct prepare_options *o, const struct prepare_report *r,
                        bool has_rows)
{
    char size[TEXT_NUMBER_BYTES], rate[TEXT_NUMBER_BYTES], tokens[TEXT_NUMBER_BYTES];
    int64_t units = has_rows ? r->examples : r->documents;
    int shards = r->train_shards + r->validation_shards;
    text_scale_bytes((double)r->bytes, size);
    text_scale_bytes(r->seconds > 0 ? (double)r->bytes / r->seconds : 0, rate);
    log_info("%" PRId64 " %s%s from %s in %.1f s, %s/s", units, has_rows ? "example" : "document",
             text_plural(units), size, r->seconds, rate);
    if (r->empty_documents > 0) {
        log_info("%" PRId64 " empty document%s skipped", r->empty_documents,
                 text_plural(r->empty_documents));
    }
    if (r->sentences > 0) {
        log_info("%" PRId64 " sentence%s, %" PRId64 " example%s", r->sentences,
                 text_plural(r->sentences), r->examples, text_plural(r->examples));
    }
    log_templates(o->templates);
    log_truncation(o, r);
    if (r->learned_tokens > 0) {
        log_info("%s tokens in the loss", text_scale_count((double)r->learned_tokens, tokens));
    }
    log_info("%s tokens in %d shard%s",
             text_scale_count((double)(r->train_tokens + r->validation_tokens), tokens), shards,
             text_plural(shards));
}

/* Prints the examples of a set, and of each label in it. */
static void print_set(const struct prepare_options *o, const char *name, int64_t examples,
                      int64_t tokens, const int64_t *counts, bool has_rows)
{
    const struct prepare_label_counts *c = o->label_counts;
    char text[TEXT_NUMBER_BYTES];
    if (has_rows) {
        printf("%-10s  %" PRId64 " example%s", name, examples, text_plural(examples));
    } else {
        printf("%-10s  %s tokens", name, text_scale_count((double)tokens, text));
    }
    int shown = examples == 0 ? 0 : c->count < LABELS_PRINTED ? c->count : LABELS_PRINTED;
    for (int i = 0; i < shown; i++) {
        char label[TEXT_NAME_BYTES];
        printf("%s%s %" PRId64, i == 0 ? ": " : ", ", text_quote_name(c->names[i], label),
               counts[i]);
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

static json_t *make_template_counts(const struct instruction_templates *t)
{
    json_t *object = json_object();
    for (int i = 0; i < instruction_templates_count(t); i++) {
        int64_t rows;
        const char *name = instruction_templates_name(t, i, &rows);
        json_object_set_new(object, name, json_integer(rows));
    }
    return object;
}

static status print_json(const struct prepare_options *o, const struct prepare_report *r)
{
    const struct prepare_label_counts *c = o->label_counts;
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:i, s:f}",
        "documents", (json_int_t)r->documents, "joined_documents", (json_int_t)r->joined_documents,
        "sentences", (json_int_t)r->sentences, "examples", (json_int_t)r->examples,
        "empty_documents", (json_int_t)r->empty_documents, "train_examples",
        (json_int_t)r->train_examples, "validation_examples", (json_int_t)r->validation_examples,
        "train_tokens", (json_int_t)r->train_tokens, "validation_tokens",
        (json_int_t)r->validation_tokens, "train_shards", r->train_shards, "validation_shards",
        r->validation_shards, "bytes", (json_int_t)r->bytes, "bad_rows", (json_int_t)r->bad_rows,
        "shared_examples", (json_int_t)r->shared_examples, "plain_rows", (json_int_t)r->plain_rows,
        "forced_cuts", (json_int_t)r->forced_splits, "over_long", (json_int_t)r->overlong_rows,
        "longest", (json_int_t)r->longest_tokens, "learned_tokens", (json_int_t)r->learned_tokens,
        "cut_tokens", (json_int_t)r->truncated_tokens, "most_cut_tokens",
        (json_int_t)r->most_truncated, "labels", r->label_count, "seconds", r->seconds);
    if (root != NULL && c->count > 0) {
        json_object_set_new(root, "train_labels", make_label_counts(c, c->train));
        json_object_set_new(root, "validation_labels", make_label_counts(c, c->validation));
    }
    if (root != NULL && o->templates != NULL) {
        json_object_set_new(root, "templates", make_template_counts(o->templates));
    }
    REQUIRE(root != NULL, STATUS_INTERNAL, "out of memory for the report");
    bool written = json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && fputc('\n', stdout) != EOF;
    json_decref(root);
    return terminal_flush(written);
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
    return terminal_flush(true);
}
