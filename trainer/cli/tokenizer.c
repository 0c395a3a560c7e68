/* bireme tokenizer train | encode | decode: text to ids and back, from the command line.
 *
 * encode writes one line of ids for each line of text (the line's end itself is not encoded),
 * decode one line of text for each line of ids. Lines are read in batches of a few megabytes; a
 * batch is divided among the workers, each writes into its own buffer, and the buffers go out in
 * order. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"

#define BATCH_BYTES ((size_t)4 << 20)
#define WORKERS_MOST 256

struct buffer {
    char *data;
    size_t bytes;
    size_t room;
};

struct job { /* what every line of a run has in common */
    const struct tokenizer *tokenizer;
    bool decode;
    bool special; /* encode: recognise special tokens; decode: write them */
    bool whole;   /* the input is one text, not one a line */
    bool around;  /* encode: [CLS] and [SEP] around each text */
    bool pair;    /* encode: a line is two texts with a tab between them */
    const char *path;
};

struct share { /* one worker's lines of a batch */
    const struct job *job;
    const char *text;
    size_t bytes;
    int64_t first_line;
    struct buffer out;
    struct token_list ids;
    pthread_t thread;
    bool started;
    struct status_note note;
};

static status append(struct buffer *b, const char *data, size_t bytes)
{
    if (b->room - b->bytes < bytes) {
        size_t room = (b->bytes + bytes) * 2 + 256;
        char *bigger = realloc(b->data, room);
        REQUIRE(bigger != NULL, STATUS_INTERNAL, "out of memory: %zu bytes of output", room);
        b->data = bigger;
        b->room = room;
    }
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return STATUS_OK;
}

static size_t put_id(char *out, int32_t id)
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

static status encode_text(struct share *s, const char *line, size_t bytes)
{
    const struct job *job = s->job;
    if (!job->around && !job->pair) {
        return tokenizer_encode(job->tokenizer, line, bytes, job->special, &s->ids);
    }
    const char *tab = job->pair ? memchr(line, '\t', bytes) : NULL;
    REQUIRE(tab != NULL || !job->pair, STATUS_DATA, "no tab between the two texts of a pair");
    size_t first = tab != NULL ? (size_t)(tab - line) : bytes;
    int64_t segment;
    return tokenizer_encode_pair(job->tokenizer, line, first, tab != NULL ? tab + 1 : NULL,
                                 tab != NULL ? bytes - first - 1 : 0, job->special, 0, &s->ids,
                                 &segment);
}

static status encode_line(struct share *s, const char *line, size_t bytes, int64_t number)
{
    s->ids.count = 0;
    status result = encode_text(s, line, bytes);
    if (result == STATUS_DATA) { /* the reason counts bytes of the line: say which line it is */
        struct status_note note;
        status_take(&note);
        RAISE(STATUS_DATA, "%s: line %lld: %.1500s", s->job->path, (long long)number, note.text);
    }
    TRY(result);
    for (int64_t i = 0; i < s->ids.count; i++) {
        char text[16];
        size_t length = put_id(text, s->ids.ids[i]);
        text[length] = i + 1 < s->ids.count ? ' ' : '\n';
        TRY(append(&s->out, text, length + 1));
    }
    return s->ids.count > 0 ? STATUS_OK : append(&s->out, "\n", 1);
}

static status read_ids(struct share *s, const char *line, size_t bytes, int64_t number)
{
    s->ids.count = 0;
    for (size_t at = 0; at < bytes;) {
        if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r') {
            at++;
            continue;
        }
        int64_t id = 0;
        size_t start = at;
        while (at < bytes && line[at] >= '0' && line[at] <= '9' && id <= INT32_MAX) {
            id = id * 10 + (line[at++] - '0');
        }
        bool ended = at == bytes || line[at] == ' ' || line[at] == '\t' || line[at] == '\r';
        REQUIRE(at > start && ended && id <= INT32_MAX, STATUS_DATA,
                "%s: line %lld, column %zu: not a token id", s->job->path, (long long)number,
                start + 1);
        TRY(token_list_reserve(&s->ids, 1));
        s->ids.ids[s->ids.count++] = (int32_t)id;
    }
    return STATUS_OK;
}

static status decode_line(struct share *s, const char *line, size_t bytes, int64_t number)
{
    TRY(read_ids(s, line, bytes, number));
    char *text = NULL;
    size_t length = 0;
    status result = tokenizer_decode(s->job->tokenizer, s->ids.ids, s->ids.count, !s->job->special,
                                     &text, &length);
    if (result == STATUS_DATA) {
        struct status_note note;
        status_take(&note);
        RAISE(STATUS_DATA, "%s: line %lld: %.1500s", s->job->path, (long long)number, note.text);
    }
    TRY(result);
    text[length] = '\n'; /* in place of the NUL */
    result = append(&s->out, text, length + 1);
    free(text);
    return result;
}

static status work_lines(struct share *s)
{
    int64_t number = s->first_line;
    if (s->job->whole) {
        return s->bytes == 0 ? STATUS_OK : encode_line(s, s->text, s->bytes, number);
    }
    for (size_t at = 0; at < s->bytes; number++) {
        const char *line = s->text + at;
        const char *end = memchr(line, '\n', s->bytes - at);
        size_t length = end == NULL ? s->bytes - at : (size_t)(end - line);
        TRY(s->job->decode ? decode_line(s, line, length, number)
                           : encode_line(s, line, length, number));
        at += length + 1;
    }
    return STATUS_OK;
}

static void *share_main(void *argument)
{
    struct share *s = argument;
    s->out.bytes = 0;
    work_lines(s);
    status_take(&s->note);
    return NULL;
}

/* Cut text[bytes] into one run of whole lines for each worker. */
static void divide(struct share *shares, int workers, const char *text, size_t bytes, int64_t line)
{
    size_t at = 0;
    for (int i = 0; i < workers; i++) {
        size_t end = i + 1 == workers ? bytes : at + (bytes - at) / (size_t)(workers - i);
        if (end < bytes) {
            const char *newline = memchr(text + end, '\n', bytes - end);
            end = newline == NULL ? bytes : (size_t)(newline - text) + 1;
        }
        shares[i].text = text + at;
        shares[i].bytes = end - at;
        shares[i].first_line = line;
        for (const char *c = text + at; (c = memchr(c, '\n', (size_t)(text + end - c))) != NULL;
             c++) {
            line++;
        }
        at = end;
    }
}

static status write_shares(struct share *shares, int workers)
{
    for (int i = 0; i < workers; i++) {
        struct share *s = &shares[i];
        TRY(status_restore(&s->note));
        REQUIRE(fwrite(s->out.data, 1, s->out.bytes, stdout) == s->out.bytes, STATUS_WRITE,
                "cannot write to the standard output: %s", strerror(errno));
    }
    return STATUS_OK;
}

static status work_batch(struct share *shares, int workers, const char *text, size_t bytes,
                         int64_t line)
{
    divide(shares, workers, text, bytes, line);
    for (int i = 1; i < workers; i++) {
        shares[i].started = pthread_create(&shares[i].thread, NULL, share_main, &shares[i]) == 0;
    }
    share_main(&shares[0]);
    for (int i = 1; i < workers; i++) {
        if (shares[i].started) {
            pthread_join(shares[i].thread, NULL);
        } else {
            share_main(&shares[i]);
        }
    }
    return write_shares(shares, workers);
}

static size_t last_line_end(const struct buffer *in)
{
    for (size_t at = in->bytes; at > 0; at--) {
        if (in->data[at - 1] == '\n') {
            return at;
        }
    }
    return 0;
}

/* Read on to about BATCH_BYTES, further where no line has ended by then. */
static status read_batch(FILE *file, const struct job *job, struct buffer *in, bool *ended)
{
    do {
        if (in->room - in->bytes < BATCH_BYTES) {
            size_t room = in->bytes * 2 + BATCH_BYTES;
            char *bigger = realloc(in->data, room);
            REQUIRE(bigger != NULL, STATUS_INTERNAL, "out of memory: a line of %zu bytes",
                    in->bytes);
            in->data = bigger;
            in->room = room;
        }
        size_t got = fread(in->data + in->bytes, 1, BATCH_BYTES, file);
        REQUIRE(!ferror(file), STATUS_DATA, "cannot read %s: %s", job->path, strerror(errno));
        in->bytes += got;
        *ended = got < BATCH_BYTES;
    } while (!*ended && (job->whole || last_line_end(in) == 0));
    return STATUS_OK;
}

static status work_file(FILE *file, const struct job *job, struct share *shares, int workers)
{
    struct buffer in = {0};
    bool ended = false;
    int64_t line = 1;
    status result = STATUS_OK;
    while (!ended && result == STATUS_OK) {
        TRY_GOTO(result, done, read_batch(file, job, &in, &ended));
        size_t bytes = ended ? in.bytes : last_line_end(&in);
        TRY_GOTO(result, done, work_batch(shares, workers, in.data, bytes, line));
        for (size_t i = 0; i < bytes; i++) {
            line += in.data[i] == '\n';
        }
        memmove(in.data, in.data + bytes, in.bytes - bytes);
        in.bytes -= bytes;
    }
    REQUIRE_GOTO(result, done, fflush(stdout) == 0, STATUS_WRITE,
                 "cannot write to the standard output: %s", strerror(errno));
done:
    free(in.data);
    return result;
}

static status work_workers(FILE *file, const struct job *job, int workers)
{
    struct share *shares = calloc((size_t)workers, sizeof *shares);
    REQUIRE(shares != NULL, STATUS_INTERNAL, "out of memory: %d workers", workers);
    for (int i = 0; i < workers; i++) {
        shares[i].job = job;
    }
    status result = work_file(file, job, shares, workers);
    for (int i = 0; i < workers; i++) {
        free(shares[i].out.data);
        token_list_free(&shares[i].ids);
    }
    free(shares);
    return result;
}

static status translate(bool decode, int argc, char **argv)
{
    const char *folder = NULL;
    int64_t workers = 1;
    bool special = false;
    bool whole = false;
    bool around = false;
    bool pair = false;
    const struct option table[] = {
        {"tokenizer", OPTION_TEXT, &folder, "DIR", OPTION_REQUIRED, "folder with tokenizer.json",
         .choices = NULL},
        {"special", OPTION_FLAG, &special, NULL, NULL,
         decode ? "write special tokens too" : "recognise special tokens in the text",
         .choices = NULL},
        {"workers", OPTION_INTEGER, &workers, "N", "1", "threads", .least = 1,
         .most = WORKERS_MOST},
        {"whole", OPTION_FLAG, &whole, NULL, NULL,
         "the input is one text with its line ends: one line of ids", .choices = NULL},
        {"add-special-tokens", OPTION_FLAG, &around, NULL, NULL,
         "put [CLS] before and [SEP] after each text", .choices = NULL},
        {"pair", OPTION_FLAG, &pair, NULL, NULL,
         "a line is two texts with a tab between them: [CLS] A [SEP] B [SEP]", .choices = NULL},
    };
    struct options options = {
        decode ? "bireme tokenizer decode --tokenizer DIR [FILE]"
               : "bireme tokenizer encode --tokenizer DIR [FILE]",
        decode ? "Writes a line of text for each line of blank-separated ids, to standard output."
               : "Writes a line of blank-separated ids for each line of text, to standard output.",
        table,
        decode ? 3 : 6,
        .operand = "FILE",
        .operands_most = 1};
    bool help = false;
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    bool standard = options.operand_count == 0 || strcmp(options.operands[0], "-") == 0;
    struct job job = {.decode = decode,
                      .special = special,
                      .whole = whole,
                      .around = around,
                      .pair = pair,
                      .path = standard ? "standard input" : options.operands[0]};
    struct tokenizer *tokenizer = NULL;
    TRY(tokenizer_open(folder, &tokenizer));
    job.tokenizer = tokenizer;
    FILE *file = standard ? stdin : fopen(job.path, "rb");
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, file != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
                 "cannot open %s: %s", job.path, strerror(errno));
    result = work_workers(file, &job, whole ? 1 : (int)workers);
done:
    if (file != NULL && file != stdin) {
        fclose(file);
    }
    tokenizer_destroy(&tokenizer);
    return result;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum tokenizer_kind kind_of(const char *type)
{
    if (strcmp(type, "char") == 0) {
        return TOKENIZER_CHAR;
    }
    return strcmp(type, "wordpiece") == 0 ? TOKENIZER_WORDPIECE : TOKENIZER_BPE;
}

static status train(int argc, char **argv)
{
    const char *type = NULL;
    const char *output = NULL;
    const char *specials = NULL;
    int64_t vocab_size = 0;
    int64_t workers = 1;
    struct option_list inputs = {0};
    const struct option table[] = {
        {"type", OPTION_CHOICE, &type, "TYPE", "bpe", "the kind of tokenizer",
         .choices = "bpe|wordpiece|char"},
        {"vocab-size", OPTION_INTEGER, &vocab_size, "N", NULL,
         "ids at most (needed for bpe and wordpiece; char: an upper limit)", .least = 1,
         .most = 1 << 24},
        {"input", OPTION_LIST, &inputs, "FILE...", OPTION_REQUIRED,
         "text, or *.jsonl (field \"text\"), to learn from", .choices = NULL},
        {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED,
         "folder for tokenizer.json (made where missing)", .choices = NULL},
        {"workers", OPTION_INTEGER, &workers, "N", "1", "threads that count words", .least = 1,
         .most = WORKERS_MOST},
        {"special-tokens", OPTION_CHOICE, &specials, "NAME", "usual",
         "usual: <|endoftext|> for bpe, BERT's for wordpiece; roberta: <s> <pad> </s> <unk> <mask> "
         "for bpe",
         .choices = "usual|roberta"},
    };
    struct options options = {"bireme tokenizer train --type bpe|wordpiece|char --vocab-size N "
                              "--input FILE... --output DIR",
                              "Learns a tokenizer; DIR/tokenizer.json is the format of the Hugging "
                              "Face tokenizers package.",
                              table, sizeof table / sizeof table[0], .operand = NULL};
    bool help = false;
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    struct tokenizer *tokenizer = NULL;
    double start = seconds_now();
    enum tokenizer_kind kind = kind_of(type);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, kind == TOKENIZER_CHAR || vocab_size > 0, STATUS_USAGE,
                 "--vocab-size is needed for --type %s, for example --vocab-size 4096", type);
    bool roberta = strcmp(specials, "roberta") == 0;
    REQUIRE_GOTO(result, done, !roberta || kind == TOKENIZER_BPE, STATUS_USAGE,
                 "--special-tokens roberta is for --type bpe, not %s", type);
    TRY_GOTO(result, done,
             roberta ? tokenizer_train_roberta(vocab_size, inputs.items, inputs.count, (int)workers,
                                               &tokenizer)
                     : tokenizer_train(kind, vocab_size, inputs.items, inputs.count, (int)workers,
                                       &tokenizer));
    TRY_GOTO(result, done, tokenizer_save(tokenizer, output));
    if (kind != TOKENIZER_CHAR && tokenizer_vocab_size(tokenizer) < vocab_size) {
        log_warning(
            "SMALLER",
            "%lld ids instead of %lld: nothing else in the input occurs often enough to be a "
            "token; give more text, or ask for less",
            (long long)tokenizer_vocab_size(tokenizer), (long long)vocab_size);
    }
    log_info("tokenizer of %lld tokens learned in %.1f s: %s/tokenizer.json",
             (long long)tokenizer_vocab_size(tokenizer), seconds_now() - start, output);
done:
    tokenizer_destroy(&tokenizer);
    free(inputs.items);
    return result;
}

status command_tokenizer(int argc, char **argv)
{
    int choice = -1;
    TRY(options_choose("bireme tokenizer train|encode|decode [flags]", "train|encode|decode",
                       "  train    learns a tokenizer from texts\n"
                       "  encode   text to ids, a line for each line\n"
                       "  decode   ids to text",
                       argc, argv, &choice));
    if (choice < 0) {
        return STATUS_OK;
    }
    return choice == 0 ? train(argc - 1, argv + 1) : translate(choice == 2, argc - 1, argv + 1);
}
