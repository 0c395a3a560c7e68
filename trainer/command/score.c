/* bireme score: the log-probability of each line of a text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/command/command.h"
#include "trainer/command/options.h"
#include "trainer/command/report.h"
#include "trainer/score.h"
#include "trainer/session.h"

/* The lines of one input. */
struct lines {
    const char *name; /* of the file, for messages */
    FILE *file;
    int64_t number; /* of the line that is looked at, from 1 */
    bool json;
};

/* at_line - the reason counts bytes of the line: say which file and line it is. */
static status at_line(const struct lines *in, status result)
{
    struct status_note note;
    if (result != STATUS_DATA) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_DATA, "%s:%lld: %.1500s", in->name, (long long)in->number, note.text);
}

static status encode_line(const struct session *s, const char *text, size_t bytes,
                          struct token_list *ids)
{
    const struct tokenizer *t = s->tokenizer;
    int64_t positions = model_config_of(s->model)->positions;
    ids->count = 0;
    if (tokenizer_eos(t) >= 0) { /* so that the first token is scored too */
        TRY(token_list_reserve(ids, 1));
        ids->ids[ids->count++] = tokenizer_eos(t);
    }
    TRY(tokenizer_encode(t, text, bytes, false, ids));
    REQUIRE(ids->count - 1 <= positions, STATUS_DATA,
            "%lld tokens to score, the model has %lld positions: cut the line in pieces",
            (long long)ids->count - 1, (long long)positions);
    return STATUS_OK;
}

static status print_score(const struct lines *in, const struct score_result *r)
{
    if (!in->json) {
        printf("%.6f\t%lld\n", r->log_probability, (long long)r->tokens);
        return STATUS_OK;
    }
    json_t *mean = r->tokens > 0 ? json_real(r->log_probability / (double)r->tokens) : json_null();
    return report_print(json_pack("{s:f, s:I, s:o}", "log_probability", r->log_probability,
                                  "tokens", (json_int_t)r->tokens, "mean", mean));
}

/* Each line gets one, also an empty one: no tokens, and a log-probability of 0. */
static status score_line(struct session *s, const struct lines *in, const char *text, size_t bytes,
                         struct token_list *ids)
{
    struct score_result r = {0};
    TRY(encode_line(s, text, bytes, ids));
    if (ids->count >= 2) {
        struct score_item item = {ids->ids, ids->count, ids->count - 1};
        TRY(score_run(s->kernels, s->model, s->recipe.model.max_position_embeddings, &item, 1, &r));
    }
    return print_score(in, &r);
}

static status score_lines(struct session *s, struct lines *in)
{
    char *text = NULL;
    size_t capacity = 0;
    struct token_list ids = {0};
    status result = STATUS_OK;
    for (ssize_t got; result == STATUS_OK && (got = getline(&text, &capacity, in->file)) >= 0;) {
        size_t bytes = (size_t)got - (got > 0 && text[got - 1] == '\n');
        in->number++;
        result = at_line(in, score_line(s, in, text, bytes, &ids));
    }
    if (result == STATUS_OK && ferror(in->file)) {
        result = status_raise(STATUS_DATA, __FILE__, __LINE__, "%s:%lld: cannot read: %s", in->name,
                              (long long)in->number + 1, strerror(errno));
    }
    token_list_free(&ids);
    free(text);
    return result;
}

static status score_path(struct session *s, const char *path, bool json)
{
    struct lines in = {.name = "standard input", .file = stdin, .json = json};
    if (path == NULL || strcmp(path, "-") == 0) {
        return score_lines(s, &in);
    }
    in.name = path;
    in.file = fopen(path, "r");
    REQUIRE(in.file != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    status result = score_lines(s, &in);
    fclose(in.file);
    return result;
}

static status run(const char *checkpoint, const struct option_list *overrides, const char *path,
                  bool json)
{
    struct comm *world = NULL;
    struct session s = {0};
    TRY(comm_self_create(&world));
    status result =
        session_open_checkpoint(&s, world, checkpoint, overrides->items, overrides->count, 0);
    if (result == STATUS_OK) {
        result = session_require_causal(&s, checkpoint);
    }
    if (result == STATUS_OK && s.tokenizer == NULL) {
        result = status_raise(STATUS_DATA, __FILE__, __LINE__, "%s holds no tokenizer", checkpoint);
    }
    if (result == STATUS_OK) {
        result = score_path(&s, path, json);
    }
    KEEP_FIRST(result, session_stop(&s));
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}

status command_score(int argc, char **argv)
{
    const char *checkpoint = NULL;
    struct option_list overrides = {0};
    bool json = false, help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &checkpoint, "DIR", OPTION_REQUIRED,
         "a run folder, its checkpoints/, one of these, or final/"},
        {"set", OPTION_LIST, &overrides, "KEY=VALUE...", NULL,
         "settings of the recipe that differ here"},
        {"json", OPTION_FLAG, &json, NULL, NULL, "one JSON object a line"},
    };
    struct options options = {
        .usage = "bireme score --checkpoint DIR [FILE]",
        .about = "Prints the natural log-probability of each line and its number of tokens: a line "
                 "for each line, 0 and\n0 for an empty one. A line with more tokens than the model "
                 "has positions is an error.\n"
                 "Where the tokenizer has an end-of-text token, a line is scored as what follows "
                 "it.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "FILE",
        .operands_least = 0,
        .operands_most = 1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    status result =
        run(checkpoint, &overrides, options.operand_count > 0 ? options.operands[0] : NULL, json);
    free(overrides.items);
    return result;
}
