/* bireme prepare: text, JSON Lines or other programs' token files into HDF5 shards. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "datasets/prepare/prepare.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"

#define OBJECTIVES "clm|mlm|sft|dpo|classify|regress|classify_tokens|answer|choose|embed"
#define SEQUENCE_LENGTH 128 /* of sentence pairs and of texts of a task, where none is given */
#define WINDOW_LENGTH 384   /* of a question with a part of its text, likewise */
#define PAIR_LENGTH 1024    /* of a prompt with an answer, where none is given: TRL's max_length */

struct request {
    const char *objective, *tokenizer, *output, *documents, *sentences, *chat_template, *labels;
    struct option_list inputs, validation_inputs;
    double validation_fraction, short_fraction;
    int64_t seed;
    int64_t shuffle_split; /* the seed; -1: not given */
    int64_t sequence_length, shard_tokens, workers;
    bool skip_bad_rows, json;
};

static status parse(struct request *q, int argc, char **argv, bool *help)
{
    const struct option table[] = {
        {"objective", OPTION_TEXT, &q->objective, "NAME", "clm",
         "what the shards are for: clm, mlm with sentence pairs (RoBERTa's tokenizer: without), "
         "sft with rows to answer, dpo with "
         "pairs of answers, classify and regress with texts (fields text, text_pair, label), "
         "classify_tokens with words (tokens, labels), answer (question, context, answer, "
         "answer_start), choose (text, choices, label), embed with pairs (text, text_pair)"},
        {"tokenizer", OPTION_TEXT, &q->tokenizer, "DIR", OPTION_REQUIRED,
         "folder of tokenizer.json; token files are checked against its vocabulary"},
        {"input", OPTION_LIST, &q->inputs, "FILE...", OPTION_REQUIRED,
         "text, *.jsonl (field \"text\"), Megatron's .bin with .idx, llm.c's .bin; sft, dpo: JSON "
         "Lines; classify, regress: JSON Lines or *.csv"},
        {"output", OPTION_TEXT, &q->output, "DIR", OPTION_REQUIRED,
         "folder for train-00000-of-00004.h5, validation-...; shards in it are replaced"},
        {"validation-fraction", OPTION_NUMBER, &q->validation_fraction, "F", "0",
         "share to hold out, from 0 to less than 1: the last documents, or the end of a single one",
         .least = 0, .most = 0.999999},
        {"validation-input", OPTION_LIST, &q->validation_inputs, "FILE...", NULL,
         "rows to hold out, instead of a fraction (not clm, mlm)"},
        {"labels", OPTION_TEXT, &q->labels, "A,B,...", NULL,
         "classify: the labels in the order of their numbers, or a file with one a line; else "
         "those "
         "of all rows, sorted"},
        {"chat-template", OPTION_TEXT, &q->chat_template, "NAME", NULL,
         "sft, dpo: how messages become text: " CHAT_NAMES
         ", or a file; it is put into the tokenizer's "
         "folder, whose own is taken where none is given"},
        {"documents", OPTION_CHOICE, &q->documents, "KIND", NULL,
         "what a document of plain text is; paragraphs are separated by blank lines (clm: file; "
         "mlm: "
         "paragraph)",
         .choices = "file|paragraph|line"},
        {"sentences", OPTION_CHOICE, &q->sentences, "KIND", "auto",
         "mlm: sentences end with lines, also after . ? ! (stop), or that where a document is one "
         "line",
         .choices = "auto|line|stop"},
        {"short-fraction", OPTION_NUMBER, &q->short_fraction, "F", "0.1",
         "mlm: share of the documents that give shorter examples", .least = 0, .most = 1},
        {"seed", OPTION_INTEGER, &q->seed, "SEED", "1337", "mlm: of the random pairs", .least = 0,
         .most = 1e15},
        {"shuffle-split", OPTION_INTEGER, &q->shuffle_split, "SEED", NULL,
         "hold out documents drawn at random instead of the last ones", .least = 0, .most = 1e15},
        {"sequence-length", OPTION_INTEGER, &q->sequence_length, "N", NULL,
         "mlm: tokens of an example at most, 128 where not given; sft: rows that learn nothing "
         "within "
         "it are bad; dpo: of a prompt with an answer, which is cut there, 1024 where not given; "
         "classify and what follows it: of a text or a pair, which is cut there, 128 where not "
         "given; answer: of a window, 384; "
         "shards for clm suit any length",
         .least = 1, .most = 1e9},
        {"shard-tokens", OPTION_INTEGER, &q->shard_tokens, "N", "100000000",
         "tokens of a shard at most", .least = 1, .most = 1e12},
        {"workers", OPTION_INTEGER, &q->workers, "N", "0", "encoding threads; 0: all cores",
         .least = 0, .most = 256},
        {"skip-bad-rows", OPTION_FLAG, &q->skip_bad_rows, NULL, NULL,
         "count rows of JSON Lines or CSV that cannot be used instead of stopping"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "the report as one JSON document"},
    };
    struct options options = {
        .usage = "bireme prepare --tokenizer DIR --input FILE... --output DIR [--objective clm] "
                 "[flags]",
        .about = "Encodes text and writes it as HDF5 shards, with a held-out part. Memory does not "
                 "depend on the size of the input, nor the output on the number of workers.",
        .table = table,
        .count = (int)(sizeof table / sizeof *table)};
    return options_parse(&options, argc, argv, help);
}

/* The last documents may be shorter or longer than the others. */
static void warn_of_share(const struct request *q, const struct prepare_report *r)
{
    double all = (double)(r->train_tokens + r->validation_tokens);
    double share = all > 0 ? (double)r->validation_tokens / all : 0, asked = q->validation_fraction;
    if (asked > 0 && (share < asked / 2 || share > 2 * asked)) {
        log_warning("VALIDATION",
                    "%.2g%% of the tokens are held out, of the documents %.2g%%, since their "
                    "lengths differ; "
                    "--shuffle-split SEED draws them from everywhere",
                    100 * share, 100 * asked);
    }
}

static status print_report(const struct request *q, const struct prepare_report *r)
{
    double megabytes = (double)r->bytes / 1e6;
    log_info("%" PRId64 " document%s (%" PRId64 " empty left out), %.1f MB in %.1f s: %.1f MB/s",
             r->documents, text_plural(r->documents), r->empty_documents, megabytes, r->seconds,
             r->seconds > 0.0 ? megabytes / r->seconds : 0.0);
    if (r->sentences > 0) {
        log_info("%" PRId64 " sentences, %" PRId64 " examples", r->sentences, r->examples);
    }
    if (r->longest > 0 && r->learned_tokens == 0) {
        log_info("%" PRId64 " rows of at most %" PRId64 " tokens; %" PRId64
                 " cut at --sequence-length, by %" PRId64 " tokens together",
                 r->examples, r->longest, r->over_long, r->cut_tokens);
    } else if (r->longest > 0) {
        log_info("%" PRId64 " rows of at most %" PRId64 " tokens, %" PRId64
                 " tokens to learn, %" PRId64 " rows longer than --sequence-length",
                 r->examples, r->longest, r->learned_tokens, r->over_long);
    }
    if (r->labels > 0) {
        log_info("%d labels", r->labels);
    }
    if (r->bad_rows > 0) {
        log_warning("BAD-ROWS", "%" PRId64 " rows were skipped", r->bad_rows);
    }
    if (r->forced_cuts > 0) {
        log_warning("CUTS", "%" PRId64 " cuts inside of words: their ids may differ there",
                    r->forced_cuts);
    }
    warn_of_share(q, r);
    if (!q->json) {
        printf("train       %" PRId64 " tokens in %d shard%s\n", r->train_tokens, r->train_shards,
               text_plural(r->train_shards));
        printf("validation  %" PRId64 " tokens in %d shard%s\n", r->validation_tokens,
               r->validation_shards, text_plural(r->validation_shards));
        REQUIRE(fflush(stdout) == 0, STATUS_WRITE, "cannot write to standard output");
        return STATUS_OK;
    }
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f}",
        "documents", (json_int_t)r->documents, "sentences", (json_int_t)r->sentences, "examples",
        (json_int_t)r->examples, "empty_documents", (json_int_t)r->empty_documents, "train_tokens",
        (json_int_t)r->train_tokens, "validation_tokens", (json_int_t)r->validation_tokens,
        "train_shards", r->train_shards, "validation_shards", r->validation_shards, "bytes",
        (json_int_t)r->bytes, "bad_rows", (json_int_t)r->bad_rows, "forced_cuts",
        (json_int_t)r->forced_cuts, "over_long", (json_int_t)r->over_long, "longest",
        (json_int_t)r->longest, "learned_tokens", (json_int_t)r->learned_tokens, "cut_tokens",
        (json_int_t)r->cut_tokens, "labels", r->labels, "seconds", r->seconds);
    REQUIRE(root != NULL, STATUS_INTERNAL, "out of memory: a report");
    bool written = json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && fputc('\n', stdout) != EOF;
    json_decref(root);
    REQUIRE(written && fflush(stdout) == 0, STATUS_WRITE, "cannot write to standard output");
    return STATUS_OK;
}

static enum prepare_documents documents_named(const char *name)
{
    if (strcmp(name, "paragraph") == 0) {
        return PREPARE_PARAGRAPH;
    }
    return strcmp(name, "line") == 0 ? PREPARE_LINE : PREPARE_FILE;
}

static enum prepare_sentences sentences_named(const char *name)
{
    if (strcmp(name, "auto") == 0) {
        return PREPARE_AUTO;
    }
    return strcmp(name, "line") == 0 ? PREPARE_LINES : PREPARE_STOPS;
}

/* The template that is asked for, else the folder's own, where it has one. */
static status open_template(const struct request *q, const struct tokenizer *tokenizer,
                            struct chat_template **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, q->tokenizer, CHAT_FILE));
    if (q->chat_template != NULL) {
        TRY(chat_install(q->chat_template, q->tokenizer, tokenizer));
    }
    return file_exists(path) ? chat_open(q->tokenizer, tokenizer, out) : STATUS_OK;
}

typedef status (*preparation)(const struct prepare_options *options, struct prepare_report *out);

static status find_preparation(const struct request *q, preparation *out)
{
    static const struct {
        const char *name;
        preparation run;
        bool rows, messages, labels; /* rows alone; perhaps of messages; that have labels */
    } known[] = {{"clm", prepare_clm, false, false, false},
                 {"mlm", prepare_mlm, false, false, false},
                 {"sft", prepare_sft, true, true, false},
                 {"dpo", prepare_preferences, true, true, false},
                 {"classify", prepare_classify, true, false, true},
                 {"regress", prepare_regress, true, false, false},
                 {"classify_tokens", prepare_classify_tokens, true, false, true},
                 {"answer", prepare_answer, true, false, false},
                 {"choose", prepare_choose, true, false, true},
                 {"embed", prepare_embed, true, false, false}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, q->objective) == 0) {
            REQUIRE(known[i].rows || q->validation_inputs.count == 0, STATUS_USAGE,
                    "--validation-input is not for --objective %s", q->objective);
            REQUIRE(known[i].messages || q->chat_template == NULL, STATUS_USAGE,
                    "--chat-template is not for --objective %s", q->objective);
            REQUIRE(known[i].labels || q->labels == NULL, STATUS_USAGE,
                    "--labels is not for --objective %s", q->objective);
            *out = known[i].run;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE, "the objective '%s' is not in this version; available: " OBJECTIVES,
          q->objective);
}

static int64_t length_of(const struct request *q)
{
    bool any = strcmp(q->objective, "clm") == 0 || strcmp(q->objective, "sft") == 0;
    int64_t preset = any                                   ? 0
                     : strcmp(q->objective, "dpo") == 0    ? PAIR_LENGTH
                     : strcmp(q->objective, "answer") == 0 ? WINDOW_LENGTH
                                                           : SEQUENCE_LENGTH;
    return q->sequence_length > 0 ? q->sequence_length : preset;
}

static status prepare_with(const struct request *q, preparation prepare,
                           const struct tokenizer *tokenizer, const struct chat_template *chat)
{
    bool pairs = strcmp(q->objective, "mlm") == 0;
    const struct prepare_options options = {
        .tokenizer = tokenizer,
        .inputs = q->inputs.items,
        .input_count = q->inputs.count,
        .validation_inputs = q->validation_inputs.items,
        .validation_input_count = q->validation_inputs.count,
        .chat = chat,
        .output = q->output,
        .documents = documents_named(q->documents != NULL ? q->documents
                                     : pairs              ? "paragraph"
                                                          : "file"),
        .sentences = sentences_named(q->sentences),
        .sequence_tokens = length_of(q),
        .short_fraction = q->short_fraction,
        .pair_seed = (uint64_t)q->seed,
        .validation_fraction = q->validation_fraction,
        .shuffle_split = q->shuffle_split >= 0,
        .split_seed = q->shuffle_split >= 0 ? (uint64_t)q->shuffle_split : 0,
        .shard_tokens = q->shard_tokens,
        .workers = (int)q->workers,
        .skip_bad_rows = q->skip_bad_rows,
        .labels = q->labels,
    };
    struct prepare_report report;
    TRY(prepare(&options, &report));
    return print_report(q, &report);
}

static status run(const struct request *q)
{
    struct tokenizer *tokenizer;
    struct chat_template *chat = NULL;
    preparation prepare = NULL;
    TRY(find_preparation(q, &prepare)); /* before anything is read or written */
    TRY(tokenizer_open(q->tokenizer, &tokenizer));
    status result = open_template(q, tokenizer, &chat);
    if (result == STATUS_OK) {
        result = prepare_with(q, prepare, tokenizer, chat);
    }
    chat_close(&chat);
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    return result;
}

status command_prepare(int argc, char **argv)
{
    struct request q = {.shuffle_split = -1};
    bool help;
    TRY(parse(&q, argc, argv, &help));
    status result = help ? STATUS_OK : run(&q);
    free(q.inputs.items);
    free(q.validation_inputs.items);
    return result;
}
