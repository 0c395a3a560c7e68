/* bireme prepare: converts text, JSON Lines or token files of other programs into HDF5 shards. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/comm.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/labels.h"
#include "trainer/cli/command.h"
#include "trainer/cli/instruction_file.h"
#include "trainer/cli/options.h"
#include "trainer/cli/output/prepare_report.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/recipe/foreign.h"
#include "trainer/recipe/settings.h"

#define USAGE "bireme prepare --tokenizer DIR --input FILE... --output DIR [options]"
#define OBJECTIVES "clm|mlm|sft|dpo|seq2seq|classify|regress|classify_tokens|answer|choose|embed"

/* Default values of --sequence-length. */
#define SEQUENCE_LENGTH 128 /* sentence pairs of mlm and texts of the fine-tuning tasks */
#define WINDOW_LENGTH 384   /* question with a window of the context */
#define PAIR_LENGTH 1024    /* prompt with a response, as max_length of TRL */
#define SOURCE_LENGTH 512   /* source and target each */

#define SPLIT_SEED 1337 /* default of --shuffle-split */

struct request {
    const char *objective, *tokenizer, *output, *documents, *sentences, *chat_template, *labels;
    const char *split; /* NULL: not given */
    const char *columns, *delimiter;
    const char *source_language, *target_language, *source_prefix;
    const char *templates; /* file; NULL: not given */
    struct option_list inputs, validation_inputs;
    struct option_list sources, targets, validation_sources, validation_targets;
    double validation_fraction, short_fraction;
    int64_t seed;
    int64_t shuffle_split; /* seed; -1: not given */
    int64_t sequence_length, shard_tokens, workers;
    bool sentence_order, skip_bad_rows, join_encoding, encoder_decoder, append_eod, json;
    char labels_file[FILE_PATH_BYTES]; /* of a run given as --labels */
};

/* Options of the files to read and of their fields. */
static status add_input_options(struct request *q, struct option_table *table)
{
    const struct option rows[] = {
        {"objective", OPTION_TEXT, &q->objective, "NAME", "clm",
         "training objective: clm, mlm (sentence pairs; no pairs with a RoBERTa tokenizer), sft "
         "(conversations or prompt and response), dpo (preference pairs), seq2seq (fields source, "
         "target, or translation), classify and regress (fields text, text_pair, label), "
         "classify_tokens (tokens, labels), answer (question, context, answer, answer_start), "
         "choose (text, choices, label), embed (text, text_pair)"},
        {"tokenizer", OPTION_TEXT, &q->tokenizer, "DIR", OPTION_REQUIRED,
         "folder with tokenizer.json or tokenizer.model; ids in token files are checked against "
         "its vocabulary"},
        {"input", OPTION_LIST, &q->inputs, "FILE...", NULL,
         "clm, mlm: text, *.jsonl (field 'text'), .bin with .idx of Megatron or .bin of llm.c; "
         "other objectives: JSON Lines, *.csv or *.tsv; answer: also the JSON of SQuAD. All but "
         "token files can be compressed (.gz, .zst, .xz, .bz2); - is standard input"},
        {"source", OPTION_LIST, &q->sources, "FILE...", NULL,
         "seq2seq, or sft with --templates, instead of --input: text files, each line one source, "
         "for example a sentence to translate"},
        {"target", OPTION_LIST, &q->targets, "FILE...", NULL,
         "seq2seq: for each file of --source a text file, line by line the targets of its sources"},
        {"validation-source", OPTION_LIST, &q->validation_sources, "FILE...", NULL,
         "seq2seq: sources of the validation set, instead of --validation-fraction"},
        {"validation-target", OPTION_LIST, &q->validation_targets, "FILE...", NULL,
         "seq2seq: targets of the validation set"},
        {"source-lang", OPTION_TEXT, &q->source_language, "CODE", NULL,
         "seq2seq: language of the sources in the field 'translation', for example en; the token "
         "of the language, for example en_XX, if the tokenizer has such tokens (mBART), also for "
         "sft"},
        {"target-lang", OPTION_TEXT, &q->target_language, "CODE", NULL,
         "seq2seq: the same for the targets"},
        {"source-prefix", OPTION_TEXT, &q->source_prefix, "TEXT", NULL,
         "seq2seq: text before each source that names the task, for example 'translate English to "
         "Spanish: '"},
        {"columns", OPTION_TEXT, &q->columns, "FIELD=COLUMN,...", NULL,
         "columns of the input that hold the fields of the objective, for example "
         "text=review,label=sentiment (default: columns with the names of the fields); choose: "
         "choices=A,choices=B if each choice has a column"},
        {"delimiter", OPTION_CHOICE, &q->delimiter, "NAME", NULL,
         "delimiter of *.csv and *.tsv (default: tab for *.tsv, otherwise the one of the first "
         "line)",
         .choices = "comma|semicolon|tab|pipe"},
    };
    return options_add(table, rows, COUNT(rows));
}

/* Options of the output folder and of the validation set. */
static status add_split_options(struct request *q, struct option_table *table)
{
    const struct option rows[] = {
        {"output", OPTION_TEXT, &q->output, "DIR", OPTION_REQUIRED,
         "folder for train-00000-of-00004.h5, validation-...; existing shards are replaced"},
        {"validation-fraction", OPTION_NUMBER, &q->validation_fraction, "F", "0",
         "fraction of the rows or documents for the validation set, 0 to below 1; see --split",
         .min = 0, .max = 0.999999},
        {"split", OPTION_CHOICE, &q->split, "KIND", NULL,
         "how to select the validation set: random (rows: the same fraction of each label; answer: "
         "whole contexts) or last. clm and mlm select documents; a single document is split near "
         "its end (default: random for rows, last for clm and mlm)",
         .choices = "random|last"},
        {"validation-input", OPTION_LIST, &q->validation_inputs, "FILE...", NULL,
         "rows for the validation set, instead of --validation-fraction (not for clm and mlm). "
         "Without --input, only this set is written, for example a test set for `bireme evaluate`; "
         "training shards in the output folder stay"},
    };
    return options_add(table, rows, COUNT(rows));
}

/* Options of the objectives: how texts become examples. */
static status add_example_options(struct request *q, struct option_table *table)
{
    const struct option rows[] = {
        {"labels", OPTION_TEXT, &q->labels, "A,B,...", NULL,
         "classify: the labels in the order of their ids, a file with one label per line, or a run "
         "or checkpoint with the labels of its training (default: the labels of all rows, "
         "sorted)"},
        {"chat-template", OPTION_TEXT, &q->chat_template, "NAME", NULL,
         "sft, dpo: chat template to copy into the tokenizer folder and to apply: " CHAT_NAMES
         " or a file (default: the template of the tokenizer folder)"},
        {"join-encoding", OPTION_FLAG, &q->join_encoding, NULL, NULL,
         "sft: encode a plain prompt and its completion as one text, as in TRL (default: "
         "separately)"},
        {"templates", OPTION_TEXT, &q->templates, "FILE", NULL,
         "sft: YAML or JSON file of instruction templates with fields of the row, such as "
         "'Translate to Spanish: {source}'; each row is rendered with one of them, selected at "
         "random with --seed"},
        {"encoder-decoder", OPTION_FLAG, &q->encoder_decoder, NULL, NULL,
         "sft: examples for marian, bart, mbart and t5: the source is the prompt, with all "
         "messages before the last one; the target is the answer"},
        {"append-eod", OPTION_FLAG, &q->append_eod, NULL, NULL,
         "clm: end the documents of token files with the tokenizer's end token, unless they begin "
         "or end with it. Documents of text always end with it, if the tokenizer has one"},
        {"documents", OPTION_CHOICE, &q->documents, "KIND", NULL,
         "unit of plain text that is one document; paragraphs are separated by blank lines "
         "(default: file for clm, paragraph for mlm)",
         .choices = "file|paragraph|line"},
        {"sentences", OPTION_CHOICE, &q->sentences, "KIND", "auto",
         "mlm: a sentence ends at the end of a line (line), or also after . ? ! (stop); auto: stop "
         "if the document is a single line",
         .choices = "auto|line|stop"},
        {"short-fraction", OPTION_NUMBER, &q->short_fraction, "F", "0.1",
         "mlm: fraction of the documents that yield shorter examples", .min = 0, .max = 1},
        {"sentence-order", OPTION_FLAG, &q->sentence_order, NULL, NULL,
         "mlm: the second segment follows the first one, or both are swapped (ALBERT); without "
         "this option it follows or is random (BERT)"},
        {"seed", OPTION_INTEGER, &q->seed, "SEED", "1337",
         "mlm: seed of the random sentence pairs; sft: seed of --templates", .min = 0, .max = 1e15},
    };
    return options_add(table, rows, COUNT(rows));
}

/* Options of the lengths, the workers and the report. */
static status add_limit_options(struct request *q, struct option_table *table)
{
    const struct option rows[] = {
        {"shuffle-split", OPTION_INTEGER, &q->shuffle_split, "SEED", NULL,
         "seed of --split random, default 1337; clm, mlm: also selects --split random", .min = 0,
         .max = 1e15},
        {"sequence-length", OPTION_INTEGER, &q->sequence_length, "N", NULL,
         "maximum number of tokens of an example. mlm: default 128. sft: a row without trainable "
         "tokens in this length is a bad row. dpo: prompt and response are truncated to it, "
         "default 1024. seq2seq and sft --encoder-decoder: a row with a longer source or target "
         "is a bad row, default 512. answer: length of a window, default 384. classify, regress, "
         "classify_tokens, choose, embed: texts are truncated to it, default 128. clm: not used, "
         "because shards fit any length",
         .min = 1, .max = 1e9},
        {"shard-tokens", OPTION_INTEGER, &q->shard_tokens, "N", "100000000",
         "maximum number of tokens of a shard", .min = 1, .max = 1e12},
        {"workers", OPTION_INTEGER, &q->workers, "N", "0",
         "number of encoding threads; 0: one per core", .min = 0, .max = 256},
        {"skip-bad-rows", OPTION_FLAG, &q->skip_bad_rows, NULL, NULL,
         "skip and count invalid rows of JSON Lines or CSV instead of stopping with an error"},
        {"json", OPTION_FLAG, &q->json, NULL, NULL, "print the report as one JSON document"},
    };
    return options_add(table, rows, COUNT(rows));
}

static status parse_options(struct request *q, int argc, char **argv, bool *help)
{
    struct option_table table = {.count = 0};
    TRY(add_input_options(q, &table)); /* in the order of --help */
    TRY(add_split_options(q, &table));
    TRY(add_example_options(q, &table));
    TRY(add_limit_options(q, &table));
    struct options options = {
        .usage = USAGE,
        .description = "Encodes text and writes it as HDF5 shards of tokens, with a validation set "
                       "if requested. The memory use does not depend on the size of the input. The "
                       "shards do not depend on the number of workers.",
        .table = table.rows,
        .count = table.count,
        .examples = "bireme prepare --tokenizer data/mine/tokenizer \\\n"
                    "    --input corpus/*.txt --output data/mine \\\n"
                    "    --validation-fraction 0.05\n"
                    "bireme prepare --objective sft --chat-template alpaca \\\n"
                    "    --tokenizer data/mine/tokenizer \\\n"
                    "    --input conversations.jsonl --output data/mine_sft\n"
                    "bireme prepare --objective classify \\\n"
                    "    --tokenizer data/mine/tokenizer \\\n"
                    "    --columns text=review,label=sentiment \\\n"
                    "    --input reviews.csv --output data/rows"};
    return options_parse(&options, argc, argv, help);
}

static enum prepare_document_unit parse_documents(const char *name)
{
    if (strcmp(name, "paragraph") == 0) {
        return PREPARE_DOCUMENT_PARAGRAPH;
    }
    return strcmp(name, "line") == 0 ? PREPARE_DOCUMENT_LINE : PREPARE_DOCUMENT_FILE;
}

static enum prepare_sentence_rule parse_sentences(const char *name)
{
    if (strcmp(name, "auto") == 0) {
        return PREPARE_SENTENCE_AUTO;
    }
    return strcmp(name, "line") == 0 ? PREPARE_SENTENCE_LINES : PREPARE_SENTENCE_PUNCTUATION;
}

/* Returns the delimiter of tables; '\0': not given. */
static char parse_delimiter(const char *name)
{
    static const struct {
        const char *name;
        char delimiter;
    } table[] = {{"comma", ','}, {"semicolon", ';'}, {"tab", '\t'}, {"pipe", '|'}};
    for (int i = 0; name != NULL && i < COUNT(table); i++) {
        if (strcmp(table[i].name, name) == 0) {
            return table[i].delimiter;
        }
    }
    return '\0';
}

/* An objective of this command. */
struct preparation {
    const char *name;
    status (*run)(const struct prepare_options *options, struct prepare_report *out);
    int64_t sequence_length; /* default of --sequence-length; 0: no limit */
    bool has_rows;           /* every input is rows, so --validation-input is allowed */
    bool has_messages;       /* --chat-template is allowed */
    bool has_labels;         /* --labels is allowed */
};

static const struct preparation preparations[] = {
    {"clm", prepare_clm, 0},
    {"mlm", prepare_mlm, SEQUENCE_LENGTH},
    {"sft", prepare_sft, 0, .has_rows = true, .has_messages = true},
    {"dpo", prepare_preferences, PAIR_LENGTH, .has_rows = true, .has_messages = true},
    {"seq2seq", prepare_seq2seq, SOURCE_LENGTH, .has_rows = true},
    {"classify", prepare_classify, SEQUENCE_LENGTH, .has_rows = true, .has_labels = true},
    {"regress", prepare_regress, SEQUENCE_LENGTH, .has_rows = true},
    {"classify_tokens", prepare_classify_tokens, SEQUENCE_LENGTH, .has_rows = true,
     .has_labels = true},
    {"answer", prepare_answer, WINDOW_LENGTH, .has_rows = true},
    {"choose", prepare_choose, SEQUENCE_LENGTH, .has_rows = true, .has_labels = true},
    {"embed", prepare_embed, SEQUENCE_LENGTH, .has_rows = true},
};

/* Installs the shipped template that is equal to the Jinja template of the tokenizer folder. */
static status install_known_template(const struct request *q, const struct tokenizer *tokenizer)
{
    char *jinja = NULL;
    status result = STATUS_OK;
    TRY(chat_read_jinja(q->tokenizer, &jinja));
    const char *name = jinja != NULL ? chat_recognize_jinja(jinja, tokenizer) : NULL;
    if (name != NULL) {
        log_info("the chat template of %s is '%s'", q->tokenizer, name);
        result = chat_install(name, q->tokenizer, tokenizer);
    } else if (jinja != NULL) {
        log_text("the chat template of %s is not one of " CHAT_NAMES ", or the tokenizer lacks its "
                 "special tokens, so it is not used; it begins with '%.60s'",
                 q->tokenizer, jinja);
    }
    free(jinja);
    return result;
}

/* Opens the requested template, or the template of the tokenizer folder. Sets *out to NULL if
 * there is none. */
static status open_template(const struct request *q, const struct preparation *p,
                            const struct tokenizer *tokenizer, struct chat_template **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, q->tokenizer, CHAT_FILE));
    if (q->chat_template != NULL) {
        TRY(chat_install(q->chat_template, q->tokenizer, tokenizer));
    }
    if (p->has_messages && !file_exists(path)) {
        TRY(install_known_template(q, tokenizer));
    }
    return file_exists(path) ? chat_open(q->tokenizer, tokenizer, out) : STATUS_OK;
}

static status raise_unknown_objective(const char *name)
{
    const char *need = foreign_find_missing(name);
    REQUIRE(need == NULL, STATUS_UNAVAILABLE, "--objective: " FOREIGN_MISSING, name, need);
    static const char *const shared[][2] = {{"denoise", "clm"}, {"reward", "dpo"}};
    for (int i = 0; i < COUNT(shared); i++) {
        REQUIRE(strcmp(name, shared[i][0]) != 0, STATUS_USAGE,
                "--objective %s: this objective is trained on the shards of --objective %s", name,
                shared[i][1]);
    }
    const char *names[COUNT(preparations)], *synonym = recipe_find_synonym(name);
    for (int i = 0; i < COUNT(preparations); i++) {
        names[i] = preparations[i].name;
    }
    int nearest = text_nearest(synonym != NULL ? synonym : name, names, COUNT(preparations));
    RAISE(STATUS_USAGE, "--objective %s: must be one of " OBJECTIVES "%s%s%s", name,
          nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? names[nearest] : "",
          nearest >= 0 ? "'?" : "");
}

static status find_preparation(const char *name, const struct preparation **out)
{
    for (int i = 0; i < COUNT(preparations); i++) {
        if (strcmp(preparations[i].name, name) == 0) {
            *out = &preparations[i];
            return STATUS_OK;
        }
    }
    return raise_unknown_objective(name);
}

/* Refuses options of other objectives. */
static status check_options(const struct request *q, const struct preparation *p)
{
    REQUIRE(p->has_rows || q->validation_inputs.count == 0, STATUS_USAGE,
            "--validation-input cannot be used with --objective %s; use --validation-fraction",
            p->name);
    REQUIRE(p->has_messages || q->chat_template == NULL, STATUS_USAGE,
            "--chat-template can only be used with --objective sft or dpo, not %s", p->name);
    REQUIRE(p->run == prepare_sft || !q->join_encoding, STATUS_USAGE,
            "--join-encoding can only be used with --objective sft, not %s", p->name);
    REQUIRE(p->run == prepare_sft || !q->encoder_decoder, STATUS_USAGE,
            "--encoder-decoder can only be used with --objective sft, not %s", p->name);
    REQUIRE(!q->encoder_decoder || !q->join_encoding, STATUS_USAGE,
            "--join-encoding cannot be used with --encoder-decoder: source and target are encoded "
            "separately");
    REQUIRE(p->run == prepare_sft || q->templates == NULL, STATUS_USAGE,
            "--templates can only be used with --objective sft, not %s", p->name);
    REQUIRE(p->run == prepare_clm || !q->append_eod, STATUS_USAGE,
            "--append-eod can only be used with --objective clm, not %s", p->name);
    REQUIRE(p->run == prepare_mlm || !q->sentence_order, STATUS_USAGE,
            "--sentence-order can only be used with --objective mlm, not %s", p->name);
    REQUIRE(p->has_labels || q->labels == NULL, STATUS_USAGE,
            "--labels cannot be used with --objective %s", p->name);
    if (p->run == prepare_clm && q->sequence_length > 0) {
        log_warning("UNUSED-SETTING", "--sequence-length has no effect with --objective clm: the "
                                      "shards fit any data.sequence_length of a recipe");
    }
    return STATUS_OK;
}

/* Checks that files of sources and targets belong together and replace other inputs. */
static status check_aligned_files(const char *source_option, const char *target_option,
                                  const struct option_list *sources,
                                  const struct option_list *targets, const char *input_option,
                                  const struct option_list *inputs)
{
    REQUIRE(sources->count == targets->count, STATUS_USAGE,
            "%s has %d file%s and %s has %d; give one file of targets for each file of sources",
            source_option, sources->count, text_plural(sources->count), target_option,
            targets->count);
    REQUIRE(sources->count == 0 || inputs->count == 0, STATUS_USAGE,
            "give either %s or %s: the first has rows with both texts", input_option,
            source_option);
    return STATUS_OK;
}

/* Checks the options of sources and targets. */
static status check_seq2seq(const struct request *q, const struct preparation *p)
{
    bool has_lines = q->sources.count > 0 || q->targets.count > 0 ||
                     q->validation_sources.count > 0 || q->validation_targets.count > 0;
    bool has_language = q->source_language != NULL || q->target_language != NULL;
    REQUIRE(p->run == prepare_seq2seq ||
                ((!has_lines || q->templates != NULL) && (!has_language || q->encoder_decoder) &&
                 q->source_prefix == NULL),
            STATUS_USAGE,
            "--source, --target, --validation-source, --validation-target, --source-lang, "
            "--target-lang and --source-prefix can only be used with --objective seq2seq, not %s",
            p->name);
    REQUIRE((q->source_language != NULL) == (q->target_language != NULL), STATUS_USAGE,
            "give both --source-lang and --target-lang, or neither");
    REQUIRE(q->columns == NULL || !has_lines || q->inputs.count > 0 ||
                q->validation_inputs.count > 0,
            STATUS_USAGE,
            "--columns cannot be used with --source and --target, which have a text on each line; "
            "give a table or JSON Lines with --input");
    TRY(check_aligned_files("--source", "--target", &q->sources, &q->targets, "--input",
                            &q->inputs));
    return check_aligned_files("--validation-source", "--validation-target", &q->validation_sources,
                               &q->validation_targets, "--validation-input", &q->validation_inputs);
}

static const struct option_list *get_inputs(const struct request *q)
{
    return q->sources.count > 0 ? &q->sources : &q->inputs;
}

static const struct option_list *get_validation_inputs(const struct request *q)
{
    return q->validation_sources.count > 0 ? &q->validation_sources : &q->validation_inputs;
}

/* Returns whether the validation set is drawn at random. */
static bool has_random_split(const struct request *q, const struct preparation *p)
{
    return q->split != NULL ? strcmp(q->split, "random") == 0
                            : p->has_rows || q->shuffle_split >= 0;
}

static status run_preparation(const struct request *q, const struct preparation *p,
                              const struct tokenizer *tokenizer, const struct chat_template *chat,
                              struct instruction_templates *templates)
{
    const struct option_list *inputs = get_inputs(q), *validation_inputs = get_validation_inputs(q);
    struct prepare_label_counts labels = {0};
    struct row_format format = {.delimiter = parse_delimiter(q->delimiter)};
    TRY(q->columns != NULL ? columns_parse(q->columns, &format.columns) : STATUS_OK);
    const struct prepare_options options = {
        .tokenizer = tokenizer,
        .inputs = inputs->items,
        .input_count = inputs->count,
        .format = format,
        .validation_inputs = validation_inputs->items,
        .validation_input_count = validation_inputs->count,
        .targets = q->sources.count > 0 ? q->targets.items : NULL,
        .validation_targets = q->validation_sources.count > 0 ? q->validation_targets.items : NULL,
        .source_language = q->source_language,
        .target_language = q->target_language,
        .source_prefix = q->source_prefix,
        .chat_template = chat,
        .output = q->output,
        .document_unit = parse_documents(q->documents != NULL    ? q->documents
                                         : p->run == prepare_mlm ? "paragraph"
                                                                 : "file"),
        .sentence_rule = parse_sentences(q->sentences),
        .sequence_tokens = q->sequence_length > 0 ? q->sequence_length
                           : q->encoder_decoder   ? SOURCE_LENGTH
                                                  : p->sequence_length,
        .short_fraction = q->short_fraction,
        .pair_seed = (uint64_t)q->seed,
        .sentence_order = q->sentence_order,
        .validation_fraction = q->validation_fraction,
        .shuffle_split = has_random_split(q, p),
        .split_seed = q->shuffle_split >= 0 ? (uint64_t)q->shuffle_split : SPLIT_SEED,
        .shard_tokens = q->shard_tokens,
        .workers = (int)q->workers,
        .skip_bad_rows = q->skip_bad_rows,
        .labels = q->labels,
        .label_counts = &labels,
        .join_encoding = q->join_encoding,
        .encoder_decoder = q->encoder_decoder,
        .templates = templates,
        .append_eod = q->append_eod,
    };
    struct prepare_report report;
    status result = p->run(&options, &report);
    if (result == STATUS_OK) {
        result = prepare_report_print(&options, &report, p->has_rows, q->json);
    }
    prepare_label_counts_free(&labels);
    return result;
}

/* Finds the file of labels if --labels is a run, a checkpoint or a tokenizer folder. */
static status find_labels(struct request *q)
{
    char *path = q->labels_file;
    struct checkpoint_info found = {0};
    struct comm *self = NULL;
    char folder[FILE_PATH_BYTES];
    if (q->labels == NULL || !file_is_folder(q->labels)) {
        return STATUS_OK;
    }
    TRY(file_join(path, q->labels, LABELS_FILE));
    if (!file_exists(path)) {
        TRY(comm_self_create(&self));
        status result = checkpoint_find_recipe(self, q->labels, true, &found);
        free(found.recipe_text);
        KEEP_FIRST(result, comm_destroy(&self));
        TRY(result);
        TRY(file_join(folder, found.folder, "tokenizer"));
        TRY(file_join(path, folder, LABELS_FILE));
    }
    REQUIRE(file_exists(path), STATUS_DATA,
            "--labels %s: the checkpoint %s has no labels; give a model that was trained with "
            "objective classify, classify_tokens or choose",
            q->labels, found.folder);
    q->labels = path;
    return STATUS_OK;
}

static status run_prepare(struct request *q)
{
    struct tokenizer *tokenizer;
    struct chat_template *chat = NULL;
    struct instruction_templates *templates = NULL;
    const struct preparation *p = NULL;
    TRY(find_preparation(q->objective, &p)); /* before any file is read or written */
    TRY(check_options(q, p));
    TRY(check_seq2seq(q, p));
    REQUIRE(get_inputs(q)->count > 0 || get_validation_inputs(q)->count > 0, STATUS_USAGE,
            "--input FILE... is missing; usage: " USAGE);
    TRY(find_labels(q));
    REQUIRE(q->split == NULL || q->shuffle_split < 0 || strcmp(q->split, "random") == 0,
            STATUS_USAGE,
            "--shuffle-split is the seed of --split random, but --split is %s; remove one of them",
            q->split);
    TRY(tokenizer_open(q->tokenizer, &tokenizer));
    status result = open_template(q, p, tokenizer, &chat);
    if (result == STATUS_OK && q->templates != NULL) {
        result = instruction_templates_create((uint64_t)q->seed, chat != NULL, &templates);
    }
    if (result == STATUS_OK && templates != NULL) {
        result = instruction_file_read(q->templates, templates);
    }
    if (result == STATUS_OK) {
        result = run_preparation(q, p, tokenizer, chat, templates);
    }
    instruction_templates_destroy(&templates);
    chat_close(&chat);
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    return result;
}

status command_prepare(int argc, char **argv)
{
    struct request q = {.shuffle_split = -1};
    bool help;
    TRY(parse_options(&q, argc, argv, &help));
    status result = help ? STATUS_OK : run_prepare(&q);
    free(q.sources.items);
    free(q.validation_sources.items);
    free(q.targets.items);
    free(q.validation_targets.items);
    free(q.inputs.items);
    free(q.validation_inputs.items);
    return result;
}
