/* bireme tokenizer train | encode | decode: trains a tokenizer, encodes text and decodes ids.
 *
 * encode writes one line of ids for each line of text, without the newline character. decode
 * writes one line of text for each line of ids. Lines are read in batches of a few megabytes.
 * The workers divide a batch, and each worker writes into a separate buffer. The buffers are
 * printed in order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/input/input.h"
#include "base/input/line_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/text_buffer.h"
#include "base/thread/thread.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/inference/token_text.h"

#define BATCH_BYTES ((size_t)4 << 20)
#define WHOLE_BYTES_MAX ((size_t)1 << 30) /* of --whole */
#define WORKERS_MAX 256
#define SPECIAL_TOKENS_MAX 1024

#define TRAIN_EXAMPLE                                                                              \
    "bireme tokenizer train --vocab-size 4096 \\\n"                                                \
    "    --input corpus/*.txt --output data/mine/tokenizer"
#define ENCODE_EXAMPLE                                                                             \
    "echo 'the quick brown fox' |\n"                                                               \
    "    bireme tokenizer encode \\\n"                                                             \
    "    --tokenizer data/mine/tokenizer"
#define DECODE_EXAMPLE                                                                             \
    "bireme tokenizer decode \\\n"                                                                 \
    "    --tokenizer data/mine/tokenizer ids.txt"

/* Settings of a run. */
struct tokenizer_job {
    const struct tokenizer *tokenizer;
    bool decode;
    bool special;            /* encode: recognize special tokens; decode: write them */
    bool whole;              /* the input is one text, not one text per line */
    bool add_special_tokens; /* encode: enclose each text in [CLS] and [SEP] */
    bool pair;               /* encode: a line is two texts separated by a tab */
    bool prints_tokens;      /* encode: a line for each token, with its id and text */
    const char *file;        /* NULL: standard input */
    const char *name;        /* of the file, for messages */
};

/* The lines of a batch for one worker. */
struct worker_range {
    const struct tokenizer_job *job;
    const char *text;
    size_t bytes;
    int64_t first_line;
    struct text_buffer out;
    struct token_list ids;
    struct status_note note;
};

/* Writes the decimal digits of an id without a NUL and returns their number. */
static size_t format_id(char *out, int32_t id)
{
    char digits[12];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + id % 10);
        id /= 10;
    } while (id > 0);
    for (size_t i = 0; i < count; i++) {
        out[i] = digits[count - 1 - i];
    }
    return count;
}

static status encode_text(struct worker_range *range, const char *line, size_t bytes)
{
    const struct tokenizer_job *job = range->job;
    if (!job->add_special_tokens && !job->pair) {
        return tokenizer_encode(job->tokenizer, line, bytes, job->special, &range->ids);
    }
    const char *tab = job->pair ? memchr(line, '\t', bytes) : NULL;
    REQUIRE(tab != NULL || !job->pair, STATUS_DATA,
            "the line has no tab between the two texts of a pair");
    size_t first = tab != NULL ? (size_t)(tab - line) : bytes;
    int64_t segment;
    return tokenizer_encode_pair(job->tokenizer, line, first, tab != NULL ? tab + 1 : NULL,
                                 tab != NULL ? bytes - first - 1 : 0, job->special, 0, &range->ids,
                                 &segment);
}

/* Appends a line with the id and the text of a token. */
static status append_token(struct worker_range *range, int32_t id)
{
    char number[16], *text = NULL;
    size_t length = format_id(number, id);
    number[length] = '\t';
    TRY(text_buffer_append(&range->out, number, length + 1));
    TRY(token_text_quote(range->job->tokenizer, id, &text));
    status result = text_buffer_append(&range->out, text, strlen(text));
    free(text);
    return result == STATUS_OK ? text_buffer_append(&range->out, "\n", 1) : result;
}

static status encode_line(struct worker_range *range, const char *line, size_t bytes,
                          int64_t number)
{
    range->ids.count = 0;
    TRY(line_reader_locate(range->job->name, number, encode_text(range, line, bytes)));
    for (int64_t i = 0; range->job->prints_tokens && i < range->ids.count; i++) {
        TRY(append_token(range, range->ids.ids[i]));
    }
    if (range->job->prints_tokens) {
        return text_buffer_append(&range->out, "\n", 1);
    }
    for (int64_t i = 0; i < range->ids.count; i++) {
        char text[16];
        size_t length = format_id(text, range->ids.ids[i]);
        text[length] = i + 1 < range->ids.count ? ' ' : '\n';
        TRY(text_buffer_append(&range->out, text, length + 1));
    }
    return range->ids.count > 0 ? STATUS_OK : text_buffer_append(&range->out, "\n", 1);
}

static status parse_ids(struct worker_range *range, const char *line, size_t bytes, int64_t number)
{
    range->ids.count = 0;
    for (size_t offset = 0; offset < bytes;) {
        if (line[offset] == ' ' || line[offset] == '\t' || line[offset] == '\r') {
            offset++;
            continue;
        }
        int64_t id = 0;
        size_t start = offset;
        while (offset < bytes && line[offset] >= '0' && line[offset] <= '9' && id <= INT32_MAX) {
            id = id * 10 + (line[offset++] - '0');
        }
        bool ended =
            offset == bytes || line[offset] == ' ' || line[offset] == '\t' || line[offset] == '\r';
        REQUIRE(offset > start && ended && id <= INT32_MAX, STATUS_DATA,
                "%s:%" PRId64 ":%zu: not a token id; write ids separated by spaces",
                range->job->name, number, start + 1);
        TRY(token_list_add(&range->ids, (int32_t)id));
    }
    return STATUS_OK;
}

static status decode_line(struct worker_range *range, const char *line, size_t bytes,
                          int64_t number)
{
    TRY(parse_ids(range, line, bytes, number));
    char *text = NULL;
    size_t length = 0;
    TRY(line_reader_locate(range->job->name, number,
                           tokenizer_decode(range->job->tokenizer, range->ids.ids, range->ids.count,
                                            !range->job->special, &text, &length)));
    text[length] = '\n'; /* replaces the NUL */
    status result = text_buffer_append(&range->out, text, length + 1);
    free(text);
    return result;
}

static status process_lines(struct worker_range *range)
{
    int64_t number = range->first_line;
    if (range->job->whole) {
        return range->bytes == 0 ? STATUS_OK
                                 : encode_line(range, range->text, range->bytes, number);
    }
    for (size_t offset = 0; offset < range->bytes; number++) {
        const char *line = range->text + offset;
        const char *end = memchr(line, '\n', range->bytes - offset);
        size_t length = end == NULL ? range->bytes - offset : (size_t)(end - line);
        TRY(range->job->decode ? decode_line(range, line, length, number)
                               : encode_line(range, line, length, number));
        offset += length + 1;
    }
    return STATUS_OK;
}

/* Processes the lines of one struct worker_range. */
static void run_worker(void *item)
{
    struct worker_range *range = item;
    range->out.count = 0;
    process_lines(range);
    status_take(&range->note);
}

/* Divides text[bytes] into one range of complete lines for each worker. */
static void divide_lines(struct worker_range *ranges, int workers, const char *text, size_t bytes,
                         int64_t line)
{
    size_t begin = 0;
    for (int i = 0; i < workers; i++) {
        size_t end = i + 1 == workers ? bytes : begin + (bytes - begin) / (size_t)(workers - i);
        if (end < bytes) {
            const char *newline = memchr(text + end, '\n', bytes - end);
            end = newline == NULL ? bytes : (size_t)(newline - text) + 1;
        }
        ranges[i].text = text + begin;
        ranges[i].bytes = end - begin;
        ranges[i].first_line = line;
        for (const char *c = text + begin; (c = memchr(c, '\n', (size_t)(text + end - c))) != NULL;
             c++) {
            line++;
        }
        begin = end;
    }
}

static status write_output(struct worker_range *ranges, int workers)
{
    for (int i = 0; i < workers; i++) {
        struct worker_range *range = &ranges[i];
        TRY(status_restore(&range->note));
        size_t bytes = range->out.count; /* out.bytes is NULL if it is 0 */
        bool written = bytes == 0 || fwrite(range->out.bytes, 1, bytes, stdout) == bytes;
        TRY(written ? STATUS_OK : terminal_flush(false));
    }
    return STATUS_OK;
}

static status process_batch(struct worker_range *ranges, int workers, const char *text,
                            size_t bytes, int64_t line)
{
    divide_lines(ranges, workers, text, bytes, line);
    thread_run_each(run_worker, ranges, sizeof *ranges, workers);
    return write_output(ranges, workers);
}

/* Reads the whole input as one text. */
static status read_whole(const struct tokenizer_job *job, struct text_buffer *out)
{
    struct input input;
    status result = STATUS_OK;
    TRY(input_open(job->file, &input));
    for (size_t got = 1; got > 0;) {
        TRY_GOTO(result, done, text_buffer_reserve(out, BATCH_BYTES));
        TRY_GOTO(result, done, input_read(&input, out->bytes + out->count, BATCH_BYTES, &got));
        out->count += got;
        REQUIRE_GOTO(result, done, out->count <= WHOLE_BYTES_MAX, STATUS_DATA,
                     "%s: the text has more than 1 GiB, the limit of --whole: split it, or omit "
                     "--whole to encode lines",
                     input.name);
    }
done:
    input_close(&input);
    return result;
}

static status process_whole(const struct tokenizer_job *job, struct worker_range *range)
{
    struct text_buffer text = {0};
    status result = read_whole(job, &text);
    if (result == STATUS_OK) {
        result = process_batch(range, 1, text.bytes, text.count, 1);
    }
    text_buffer_free(&text);
    return result;
}

/* Reads whole lines until they have BATCH_BYTES. */
static status read_batch(struct line_reader *lines, struct text_buffer *out, bool *ended)
{
    out->count = 0;
    *ended = false;
    while (out->count < BATCH_BYTES && !*ended) {
        bool found;
        TRY(line_reader_next(lines, &found));
        TRY(found ? line_reader_check_length(lines) : STATUS_OK);
        TRY(found ? text_buffer_append(out, lines->line, lines->bytes) : STATUS_OK);
        *ended = !found || !lines->has_newline;
        TRY(*ended ? STATUS_OK : text_buffer_append(out, "\n", 1));
    }
    return STATUS_OK;
}

static status process_lines_of_file(const struct tokenizer_job *job, struct worker_range *ranges,
                                    int workers)
{
    struct line_reader lines;
    struct text_buffer batch = {0};
    status result = STATUS_OK;
    TRY(line_reader_open(job->file, &lines));
    for (bool ended = false; !ended;) {
        int64_t first_line = lines.number + 1;
        TRY_GOTO(result, done, read_batch(&lines, &batch, &ended));
        if (batch.count > 0) {
            TRY_GOTO(result, done,
                     process_batch(ranges, workers, batch.bytes, batch.count, first_line));
        }
    }
done:
    text_buffer_free(&batch);
    line_reader_close(&lines);
    return result;
}

static status process_file(const struct tokenizer_job *job, int workers)
{
    struct worker_range *ranges = NULL;
    TRY(ALLOCATE(ranges, workers, "workers"));
    for (int i = 0; i < workers; i++) {
        ranges[i].job = job;
    }
    status result =
        job->whole ? process_whole(job, ranges) : process_lines_of_file(job, ranges, workers);
    if (result == STATUS_OK) {
        result = terminal_flush(true);
    }
    for (int i = 0; i < workers; i++) {
        text_buffer_free(&ranges[i].out);
        token_list_free(&ranges[i].ids);
    }
    free(ranges);
    return result;
}

struct job_request {
    const char *folder;
    int64_t workers;
    struct tokenizer_job job;
};

static status parse_job(struct job_request *q, int argc, char **argv, bool *help)
{
    bool decode = q->job.decode;
    const struct option table[] = {
        {"tokenizer", OPTION_TEXT, &q->folder, "DIR", OPTION_REQUIRED,
         "folder with tokenizer.json or tokenizer.model", .choices = NULL},
        {"special", OPTION_FLAG, &q->job.special, NULL, NULL,
         decode ? "also write special tokens" : "recognize special tokens in the text",
         .choices = NULL},
        {"workers", OPTION_INTEGER, &q->workers, "N", "1", "number of threads", .min = 1,
         .max = WORKERS_MAX},
        {"whole", OPTION_FLAG, &q->job.whole, NULL, NULL,
         "treat the whole input (at most 1 GiB) as one text, including newlines, and write one "
         "line of ids",
         .choices = NULL},
        {"add-special-tokens", OPTION_FLAG, &q->job.add_special_tokens, NULL, NULL,
         "add the special tokens of the tokenizer's post-processor, such as [CLS] and [SEP]",
         .choices = NULL},
        {"pair", OPTION_FLAG, &q->job.pair, NULL, NULL,
         "each line is two texts separated by a tab; encode them as [CLS] A [SEP] B [SEP]",
         .choices = NULL},
        {"tokens", OPTION_FLAG, &q->job.prints_tokens, NULL, NULL,
         "print a line for each token, with its id and text, and an empty line after each text",
         .choices = NULL},
    };
    struct options options = {decode ? "bireme tokenizer decode --tokenizer DIR [FILE] [options]"
                                     : "bireme tokenizer encode --tokenizer DIR [FILE] [options]",
                              decode ? "Decodes each line of space-separated ids in FILE or "
                                       "standard input, and prints a line of text. A line has at "
                                       "most 64 MiB."
                                     : "Encodes each line of FILE or of standard input, and prints "
                                       "a line of space-separated ids. A line has at most 64 MiB.",
                              table,
                              decode ? 3 : 7,
                              decode ? DECODE_EXAMPLE
                                     : ENCODE_EXAMPLE
                                  "\nbireme tokenizer encode --tokenizer data/mine/tokenizer \\\n"
                                  "    --tokens lines.txt",
                              .operand_name = "FILE",
                              .operands_max = 1};
    TRY(options_parse(&options, argc, argv, help));
    bool has_file = options.operand_count > 0 && strcmp(options.operands[0], "-") != 0;
    q->job.file = has_file ? options.operands[0] : NULL;
    q->job.name = has_file ? q->job.file : "standard input";
    return STATUS_OK;
}

static status encode_or_decode(bool decode, int argc, char **argv)
{
    struct job_request q = {.workers = 1, .job = {.decode = decode}};
    struct tokenizer *tokenizer = NULL;
    bool help = false;
    TRY(parse_job(&q, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    TRY(tokenizer_open(q.folder, &tokenizer));
    q.job.tokenizer = tokenizer;
    status result = process_file(&q.job, (int)q.workers);
    tokenizer_destroy(&tokenizer);
    return result;
}

static enum tokenizer_kind parse_kind(const char *type)
{
    if (strcmp(type, "char") == 0) {
        return TOKENIZER_CHAR;
    }
    return strcmp(type, "wordpiece") == 0 ? TOKENIZER_WORDPIECE
           : strcmp(type, "unigram") == 0 ? TOKENIZER_UNIGRAM
                                          : TOKENIZER_BPE;
}

static const char *const special_sets[] = {"usual", "roberta"};

/* The tokens of --special-tokens A,B. */
struct special_tokens {
    char *text; /* memory of the items */
    char *items[SPECIAL_TOKENS_MAX];
    int count; /* 0 for the sets "usual" and "roberta" */
};

static status add_listed_token(const char *list, char *token, struct special_tokens *out)
{
    REQUIRE(token[0] != '\0', STATUS_USAGE,
            "--special-tokens %s: an empty token; separate tokens by single commas", list);
    REQUIRE(out->count < SPECIAL_TOKENS_MAX, STATUS_USAGE,
            "--special-tokens: more than %d tokens; shorten the list", SPECIAL_TOKENS_MAX);
    for (int i = 0; i < COUNT(special_sets); i++) {
        REQUIRE(strcmp(token, special_sets[i]) != 0, STATUS_USAGE,
                "--special-tokens %s: '%s' must be the only name; listed tokens come after the "
                "usual ones",
                list, token);
    }
    for (int i = 0; i < out->count; i++) {
        REQUIRE(strcmp(token, out->items[i]) != 0, STATUS_USAGE,
                "--special-tokens %s: '%s' is listed twice; remove one", list, token);
    }
    out->items[out->count++] = token;
    return STATUS_OK;
}

static status parse_special_tokens(const char *list, struct special_tokens *out)
{
    if (strcmp(list, special_sets[0]) == 0 || strcmp(list, special_sets[1]) == 0) {
        return STATUS_OK;
    }
    int nearest = text_nearest(list, special_sets, COUNT(special_sets));
    REQUIRE(nearest < 0, STATUS_USAGE, "--special-tokens %s: did you mean '%s'?", list,
            special_sets[nearest]);
    TRY(memory_copy_text(&out->text, list, "the special tokens"));
    char *rest = out->text;
    for (char *token; (token = strsep(&rest, ",")) != NULL;) {
        TRY(add_listed_token(list, token, out));
    }
    return STATUS_OK;
}

/* Returns the number of listed tokens that a tokenizer of this kind lacks without the list. */
static int count_new_tokens(const struct special_tokens *tokens, enum tokenizer_kind kind)
{
    static const char *const bpe[] = {"<|endoftext|>"};
    static const char *const wordpiece[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    static const char *const unigram[] = {"<unk>", "<s>", "</s>"};
    int usual_count = kind == TOKENIZER_BPE         ? COUNT(bpe)
                      : kind == TOKENIZER_WORDPIECE ? COUNT(wordpiece)
                      : kind == TOKENIZER_UNIGRAM   ? COUNT(unigram)
                                                    : 0;
    const char *const *usual = kind == TOKENIZER_BPE         ? bpe
                               : kind == TOKENIZER_WORDPIECE ? wordpiece
                                                             : unigram;
    int count = tokens->count;
    for (int i = 0; i < tokens->count; i++) {
        for (int k = 0; k < usual_count; k++) {
            count -= strcmp(tokens->items[i], usual[k]) == 0;
        }
    }
    return count;
}

/* Replaces the tokenizer by one with further special tokens. */
static status add_special_tokens(const struct special_tokens *tokens, struct tokenizer **t)
{
    struct tokenizer *larger = NULL;
    if (tokens->count == 0) {
        return STATUS_OK;
    }
    TRY(tokenizer_add_special(*t, (char *const *)tokens->items, tokens->count, &larger));
    TRY(tokenizer_destroy(t));
    *t = larger;
    return STATUS_OK;
}

struct training_request {
    const char *type, *output, *special_tokens, *columns;
    int64_t vocab_size, workers;
    struct option_list inputs;
};

static status parse_training(struct training_request *q, int argc, char **argv, bool *help)
{
    const struct option table[] = {
        {"type", OPTION_CHOICE, &q->type, "TYPE", "bpe", "type of the tokenizer",
         .choices = "bpe|wordpiece|unigram|char"},
        {"vocab-size", OPTION_INTEGER, &q->vocab_size, "N", NULL,
         "maximum vocabulary size (required except for char)", .min = 1, .max = 1 << 24},
        {"input", OPTION_LIST, &q->inputs, "FILE...", OPTION_REQUIRED,
         "training text: plain text, or *.jsonl (field 'text'), or tables with --columns; "
         "compressed too (.gz, .zst, .xz, .bz2); - is standard input",
         .choices = NULL},
        {"output", OPTION_TEXT, &q->output, "DIR", OPTION_REQUIRED,
         "folder for tokenizer.json; created if missing", .choices = NULL},
        {"workers", OPTION_INTEGER, &q->workers, "N", "1", "number of threads that count words",
         .min = 1, .max = WORKERS_MAX},
        {"columns", OPTION_TEXT, &q->columns, "text=COLUMN", NULL,
         "column of *.csv and *.tsv, or field of *.jsonl, that holds the text"},
        {"special-tokens", OPTION_TEXT, &q->special_tokens, "NAMES", "usual",
         "usual, roberta, or a list A,B,C. usual: <|endoftext|> for bpe, BERT's for "
         "wordpiece, <unk> <s> </s> for unigram, none for char. roberta: <s> <pad> </s> <unk> "
         "<mask>, for bpe. A list: the usual tokens and then these, for example --special-tokens "
         "'<|im_start|>,<|im_end|>'"},
    };
    struct options options = {"bireme tokenizer train --vocab-size N --input FILE... --output DIR "
                              "[options]",
                              "Trains a tokenizer and writes DIR/tokenizer.json in the format of "
                              "the Hugging Face tokenizers library.",
                              table, COUNT(table),
                              TRAIN_EXAMPLE "\nbireme tokenizer train --type wordpiece \\\n"
                                            "    --vocab-size 4096 --input corpus/*.txt \\\n"
                                            "    --output data/bert/tokenizer"};
    return options_parse(&options, argc, argv, help);
}

/* Trains the tokenizer and adds its special tokens. */
static status create_tokenizer(const struct training_request *q, enum tokenizer_kind kind,
                               const struct columns *columns, const struct special_tokens *tokens,
                               struct tokenizer **out)
{
    bool roberta = strcmp(q->special_tokens, "roberta") == 0;
    REQUIRE(!roberta || kind == TOKENIZER_BPE, STATUS_USAGE,
            "--special-tokens roberta can only be used with --type bpe, not %s", q->type);
    const struct corpus_source source = {.files = q->inputs.items,
                                         .count = q->inputs.count,
                                         .columns = q->columns != NULL ? columns : NULL};
    int new_tokens = count_new_tokens(tokens, kind);
    REQUIRE(q->vocab_size == 0 || q->vocab_size > new_tokens, STATUS_USAGE,
            "--vocab-size %" PRId64 " must be more than the %d further --special-tokens",
            q->vocab_size, new_tokens);
    int64_t learned = q->vocab_size == 0 ? 0 : q->vocab_size - new_tokens;
    TRY(tokenizer_train(kind, roberta, learned, &source, (int)q->workers, out));
    return add_special_tokens(tokens, out);
}

static status run_training(const struct training_request *q)
{
    struct tokenizer *tokenizer = NULL;
    struct special_tokens tokens = {0};
    struct columns columns = {0};
    double start = clock_seconds();
    enum tokenizer_kind kind = parse_kind(q->type);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, kind == TOKENIZER_CHAR || q->vocab_size > 0, STATUS_USAGE,
                 "--type %s needs --vocab-size, for example --vocab-size 4096", q->type);
    TRY_GOTO(result, done, parse_special_tokens(q->special_tokens, &tokens));
    TRY_GOTO(result, done, q->columns != NULL ? columns_parse(q->columns, &columns) : STATUS_OK);
    TRY_GOTO(result, done, create_tokenizer(q, kind, &columns, &tokens, &tokenizer));
    TRY_GOTO(result, done, tokenizer_save(tokenizer, q->output));
    if (kind != TOKENIZER_CHAR && tokenizer_vocab_size(tokenizer) < q->vocab_size) {
        log_warning("SMALLER",
                    "the vocabulary has %" PRId64 " ids instead of %" PRId64
                    ": no other part of the input occurs often enough to be a token; give more "
                    "text, or a smaller --vocab-size",
                    tokenizer_vocab_size(tokenizer), q->vocab_size);
    }
    log_info("trained a tokenizer with %" PRId64 " tokens in %.1f s: %s/tokenizer.json",
             tokenizer_vocab_size(tokenizer), clock_seconds() - start, q->output);
done:
    tokenizer_destroy(&tokenizer);
    free(tokens.text);
    return result;
}

static status train_tokenizer(int argc, char **argv)
{
    struct training_request q = {.workers = 1};
    bool help = false;
    TRY(parse_training(&q, argc, argv, &help));
    status result = help ? STATUS_OK : run_training(&q);
    free(q.inputs.items);
    return result;
}

status command_tokenizer(int argc, char **argv)
{
    int choice = -1;
    TRY(options_select_subcommand(
        "bireme tokenizer train|encode|decode [options]", "train|encode|decode",
        "  train    train a tokenizer on text files\n"
        "  encode   convert lines of text to lines of token ids\n"
        "  decode   convert lines of token ids to lines of text",
        TRAIN_EXAMPLE "\n" ENCODE_EXAMPLE "\n" DECODE_EXAMPLE, argc, argv, &choice));
    if (choice < 0) {
        return STATUS_OK;
    }
    return choice == 0 ? train_tokenizer(argc - 1, argv + 1)
                       : encode_or_decode(choice == 2, argc - 1, argv + 1);
}
