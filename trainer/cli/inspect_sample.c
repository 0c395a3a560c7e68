/* bireme inspect --sample: prints the text of one example or document of a shard, or of one sample
 * of a training run. */
#include <glob.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "comm/comm.h"
#include "datasets/shard/labels.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_task.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/cli/inspect.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/setup/data.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/session.h"

/* A range of tokens with one role: a prompt, a response, a segment, a labeled token. */
struct part {
    const char *name; /* a constant, or one of the label names of the sample */
    int64_t first, end;
    bool in_loss;
};

struct sample {
    char path[FILE_PATH_BYTES + 64]; /* the shard, or the place in it */
    enum example_kind kind;
    int64_t index; /* in its shard, or in the order of training */
    int64_t count; /* samples in the shard; 0: no limit */
    char tokenizer_sha256[HASH_TEXT_BYTES];
    struct shard *shard;
    struct example example;
    struct labels labels;
    struct part *parts; /* [at most tokens] */
    int64_t part_count;
    const char *loss;            /* what the loss reads */
    json_t *label;               /* label, target value or answer of the example; NULL: none */
    struct tokenizer *tokenizer; /* NULL: not found */
};

/* Appends a part. Empty parts are left out. */
static void add_part(struct sample *s, const char *name, int64_t first, int64_t end, bool in_loss)
{
    if (end > first) {
        s->parts[s->part_count++] = (struct part){name, first, end, in_loss};
    }
}

static const char *get_label_name(const struct sample *s, int32_t label)
{
    return label >= 0 && label < s->labels.count ? s->labels.names[label] : "?";
}

/* ---- reading ---- */

static status allocate_sample(struct sample *s, int64_t tokens)
{
    struct example *e = &s->example;
    e->tokens = e->token_capacity = e->text_capacity = e->prediction_capacity = tokens;
    TRY(ALLOCATE(e->ids, tokens, "the tokens of a sample"));
    TRY(ALLOCATE(e->token_type_ids, tokens, "the segments of a sample"));
    TRY(ALLOCATE(e->positions, tokens, "the positions of a sample"));
    TRY(ALLOCATE(e->labels, tokens + 2, "the labels of a sample"));
    TRY(ALLOCATE(e->text_starts, tokens + 1, "the texts of a sample"));
    return ALLOCATE(s->parts, tokens + 1, "the parts of a sample");
}

static status read_pair(struct sample *s)
{
    uint32_t prompt = 0, chosen = 0;
    int64_t tokens = s->example.tokens;
    TRY(shard_read_column(s->shard, EXAMPLE_PROMPT, s->index, 1, &prompt));
    TRY(shard_read_column(s->shard, EXAMPLE_CHOSEN, s->index, 1, &chosen));
    REQUIRE(prompt + (int64_t)chosen <= tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64
            " tokens, a prompt of %u and a chosen response of %u",
            shard_path(s->shard), s->index, tokens, prompt, chosen);
    add_part(s, "prompt", 0, prompt, false);
    add_part(s, "chosen", prompt, prompt + (int64_t)chosen, true);
    add_part(s, "rejected", prompt + (int64_t)chosen, tokens, true);
    s->loss = "the tokens of both responses";
    return STATUS_OK;
}

static status read_source_and_target(struct sample *s)
{
    uint32_t source = 0;
    int64_t tokens = s->example.tokens;
    TRY(shard_read_column(s->shard, EXAMPLE_SOURCE, s->index, 1, &source));
    REQUIRE(source <= tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens and a source of %u",
            shard_path(s->shard), s->index, tokens, source);
    add_part(s, "source", 0, source, false);
    add_part(s, "target", source, tokens, true);
    s->loss = "the tokens of the target";
    return STATUS_OK;
}

static status read_segments(struct sample *s)
{
    uint32_t first = 0, next = 0;
    TRY(shard_read_column(s->shard, EXAMPLE_FIRST_SEGMENT, s->index, 1, &first));
    TRY(shard_read_column(s->shard, EXAMPLE_NEXT_SENTENCE, s->index, 1, &next));
    int64_t end = number_min(first, s->example.tokens);
    add_part(s, "segment 0", 0, end, false);
    add_part(s, "segment 1", end, s->example.tokens, false);
    s->label = json_string(next == 0 ? "next sentence" : "random sentence");
    s->loss = "the tokens that training masks, and the label";
    return STATUS_OK;
}

static const char *get_role(uint32_t bits)
{
    return (bits & EXAMPLE_IS_ASSISTANT) != 0    ? "assistant"
           : (bits & EXAMPLE_IS_COMPLETION) != 0 ? "completion"
                                                 : "prompt";
}

static status read_conversation(struct sample *s, int64_t first_token)
{
    uint32_t *mask = NULL;
    int64_t tokens = s->example.tokens, first = 0;
    TRY(ALLOCATE(mask, tokens, "the loss mask of a sample"));
    status result = shard_read_column(s->shard, EXAMPLE_LOSS_MASK, first_token, tokens, mask);
    for (int64_t i = 1; result == STATUS_OK && i <= tokens; i++) {
        if (i == tokens || mask[i] != mask[first]) {
            add_part(s, get_role(mask[first]), first, i, (mask[first] & EXAMPLE_IS_DEFAULT) != 0);
            first = i;
        }
    }
    s->loss = "the marked tokens, unless sft.*_only_loss is set";
    free(mask);
    return result;
}

static void add_texts(struct sample *s)
{
    const struct example *e = &s->example;
    for (int64_t text = 0; text < e->texts; text++) {
        int64_t first = e->text_starts[text], end = e->text_starts[text + 1], middle = first;
        while (middle < end && e->token_type_ids[middle] == 0) {
            middle++;
        }
        add_part(s, "segment 0", first, middle, false);
        add_part(s, "segment 1", middle, end, false);
    }
    s->loss = "the label";
}

/* Adds one part for each range of tokens between labels; a labeled token has a separate part. */
static void add_labeled_tokens(struct sample *s)
{
    const struct example *e = &s->example;
    int64_t done = 0;
    for (int64_t i = 0; i < e->predictions; i++) {
        add_part(s, "no label", done, e->positions[i], false);
        add_part(s, get_label_name(s, e->labels[i]), e->positions[i], e->positions[i] + 1, true);
        done = e->positions[i] + 1;
    }
    add_part(s, "no label", done, e->tokens, false);
    s->loss = "the labeled tokens";
}

static status read_task(struct sample *s)
{
    struct example *e = &s->example;
    TRY(shard_task_read(s->shard, s->index, e->tokens, e));
    enum example_kind kind = shard_get_header(s->shard)->kind;
    if (kind == EXAMPLE_CLASSIFY_TOKENS) {
        add_labeled_tokens(s);
        return STATUS_OK;
    }
    add_texts(s);
    if (kind == EXAMPLE_CLASSIFY) {
        s->label = json_string(get_label_name(s, e->labels[0]));
    } else if (kind == EXAMPLE_REGRESS) {
        s->label = json_real((double)e->float_label);
    } else if (kind == EXAMPLE_CHOOSE) {
        s->label = json_integer(e->labels[0]);
        s->loss = "the label: the index of the correct text, from 0";
    } else if (kind == EXAMPLE_ANSWER) {
        s->label = json_pack("[i, i]", e->labels[0], e->labels[1]);
        s->loss = "the label: first and last token of the answer; 0 and 0: not in this window";
    } else {
        s->loss = "the similarity of both texts";
    }
    return STATUS_OK;
}

static status read_sample(struct sample *s)
{
    int64_t range[2];
    TRY(shard_read_documents(s->shard, s->index, 2, range));
    TRY(allocate_sample(s, range[1] - range[0]));
    if (shard_labels(s->shard) != NULL) {
        TRY(labels_parse_json(shard_labels(s->shard), shard_path(s->shard), &s->labels));
    }
    TRY(shard_read(s->shard, range[0], s->example.tokens, s->example.ids));
    switch (shard_get_header(s->shard)->kind) {
    case EXAMPLE_TEXT:
        add_part(s, "document", 0, s->example.tokens, true);
        s->loss = "all tokens";
        return STATUS_OK;
    case EXAMPLE_SENTENCE_PAIRS:
        return read_segments(s);
    case EXAMPLE_PREFERENCE_PAIRS:
        return read_pair(s);
    case EXAMPLE_SFT:
        return read_conversation(s, range[0]);
    case EXAMPLE_SEQ2SEQ:
        return read_source_and_target(s);
    default:
        return read_task(s);
    }
}

/* ---- printing ---- */

/* Returns the tokenizer of a part; NULL: none. */
static const struct tokenizer *get_tokenizer(const struct sample *s, const struct part *p)
{
    bool is_target = s->kind == EXAMPLE_SEQ2SEQ && p->in_loss;
    return is_target ? tokenizer_target(s->tokenizer) : s->tokenizer;
}

static status print_part(const struct sample *s, const struct part *p)
{
    printf("\n[%s: tokens %" PRId64 " to %" PRId64 "%s]\n", p->name, p->first, p->end - 1,
           p->in_loss ? ", in the loss" : "");
    if (s->tokenizer != NULL) {
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(get_tokenizer(s, p), s->example.ids + p->first, p->end - p->first,
                             false, &text, &bytes));
        fwrite(text, 1, bytes, stdout);
        free(text);
    }
    for (int64_t i = p->first; s->tokenizer == NULL && i < p->end; i++) {
        printf("%s%d", i > p->first ? " " : "", s->example.ids[i]);
    }
    putchar('\n');
    return STATUS_OK;
}

static status print_text(const struct sample *s)
{
    char *label = s->label != NULL ? json_dumps(s->label, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    printf("shard            %s\n", s->path);
    if (s->count > 0) {
        printf("sample           %" PRId64 " of %" PRId64 ", counted from 0\n", s->index, s->count);
    } else {
        printf("sample           %" PRId64 " in the order of training, counted from 0\n", s->index);
    }
    printf("examples         %s\n", example_get_format(s->kind)->name);
    printf("tokens           %" PRId64 "\n", s->example.tokens);
    printf("in the loss      %s\n", s->loss);
    if (label != NULL) {
        printf("label            %s\n", label);
    }
    free(label);
    if (s->tokenizer == NULL) {
        printf("text             unknown: no tokenizer with SHA-256 %.12s...\n"
               "                 in or next to the folder; give --tokenizer DIR. The ids are:\n",
               s->tokenizer_sha256);
    }
    for (int64_t i = 0; i < s->part_count; i++) {
        TRY(print_part(s, &s->parts[i]));
    }
    return STATUS_OK;
}

/* Decodes a range of tokens: null without a tokenizer, or if the bytes are not valid UTF-8 because
 * the range ends within a character. */
static status make_json_text(const struct sample *s, const struct tokenizer *tokenizer,
                             int64_t first, int64_t end, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    if (tokenizer != NULL) {
        TRY(tokenizer_decode(tokenizer, s->example.ids + first, end - first, false, &text, &bytes));
        *out = json_stringn(text, bytes);
        free(text);
    }
    *out = *out != NULL ? *out : json_null();
    return STATUS_OK;
}

/* Appends each part to `parts` and the loss mask of its tokens to `mask`. */
static status fill_parts(const struct sample *s, json_t *parts, json_t *mask)
{
    for (int64_t i = 0; i < s->part_count; i++) {
        const struct part *p = &s->parts[i];
        json_t *text = NULL;
        TRY(make_json_text(s, get_tokenizer(s, p), p->first, p->end, &text));
        json_array_append_new(parts,
                              json_pack("{s:s, s:I, s:I, s:b, s:o}", "name", p->name, "first",
                                        (json_int_t)p->first, "end", (json_int_t)p->end, "in_loss",
                                        p->in_loss, "text", text));
        for (int64_t j = p->first; j < p->end; j++) {
            json_array_append_new(mask, json_integer(p->in_loss));
        }
    }
    return STATUS_OK;
}

static status print_json(const struct sample *s)
{
    json_t *ids = json_array(), *mask = json_array(), *parts = json_array(), *text = NULL;
    for (int64_t i = 0; i < s->example.tokens; i++) {
        json_array_append_new(ids, json_integer(s->example.ids[i]));
    }
    status result = fill_parts(s, parts, mask);
    /* two vocabularies: only the parts have texts */
    const struct tokenizer *t = tokenizer_has_target(s->tokenizer) ? NULL : s->tokenizer;
    KEEP_FIRST(result, make_json_text(s, t, 0, s->example.tokens, &text));
    if (result == STATUS_OK) {
        result = inspect_print_json(json_pack(
            "{s:s, s:s, s:I, s:s, s:I, s:O, s:O, s:O, s:s, s:O?, s:O}", "kind", "sample", "path",
            s->path, "index", (json_int_t)s->index, "examples", example_get_format(s->kind)->name,
            "tokens", (json_int_t)s->example.tokens, "ids", ids, "text", text, "loss_mask", mask,
            "loss", s->loss, "label", s->label, "parts", parts));
    }
    json_decref(ids);
    json_decref(mask);
    json_decref(parts);
    json_decref(text);
    return result;
}

/* ---- the tokenizer ---- */

/* Opens folder/name if it is the tokenizer of the shard. Otherwise s->tokenizer stays NULL. */
static void try_tokenizer(struct sample *s, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    const char *hash = shard_get_header(s->shard)->tokenizer_sha256;
    bool opened = s->tokenizer == NULL && file_join(path, folder, name) == STATUS_OK &&
                  tokenizer_exists(path) && tokenizer_open(path, &s->tokenizer) == STATUS_OK;
    if (opened && strcmp(tokenizer_sha256(s->tokenizer), hash) != 0) {
        tokenizer_destroy(&s->tokenizer);
    }
    status_clear();
}

/* Looks for the tokenizer of the shard in the folders that match folder/pattern. */
static void try_tokenizers(struct sample *s, const char *folder, const char *pattern)
{
    char path[FILE_PATH_BYTES];
    glob_t found = {0};
    if (s->tokenizer == NULL && file_join(path, folder, pattern) == STATUS_OK &&
        glob(path, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            try_tokenizer(s, found.gl_pathv[i], ".");
        }
    }
    globfree(&found);
    status_clear();
}

/* Opens the given tokenizer, which must be the tokenizer of the shard. Without a given one, it
 * searches the folder of the shard, a folder `tokenizer` in or next to it, the folders of other
 * data, and runs. */
static status open_tokenizer(struct sample *s, const char *given)
{
    if (given != NULL) {
        TRY(tokenizer_open(given, &s->tokenizer));
        return shard_check_tokenizer(s->shard, tokenizer_max_vocab_size(s->tokenizer),
                                     tokenizer_sha256(s->tokenizer));
    }
    const char *path = shard_path(s->shard), *slash = strrchr(path, '/');
    char folder[FILE_PATH_BYTES];
    int length = slash == NULL || slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    try_tokenizer(s, folder, ".");
    try_tokenizer(s, folder, "tokenizer");
    try_tokenizer(s, folder, "../tokenizer");
    try_tokenizers(s, folder, "../*/tokenizer");
    try_tokenizers(s, folder, "../../runs/*/final/tokenizer");
    return STATUS_OK;
}

/* ---- the sample ---- */

static status check_index(const char *path, int64_t index, int64_t count)
{
    REQUIRE(index < count, STATUS_USAGE,
            "--sample %" PRId64 ": %s contains the samples 0 to %" PRId64, index, path, count - 1);
    return STATUS_OK;
}

/* Opens the shard that contains the sample. The samples of a folder are counted over its shards, in
 * the order of their names. */
static status open_shard(const char *path, int64_t index, struct sample *s)
{
    glob_t found = {0};
    int64_t first = 0;
    if (!file_is_folder(path)) {
        TRY(shard_open(path, &s->shard));
        s->index = index;
        return check_index(path, index, shard_get_header(s->shard)->documents);
    }
    TRY(inspect_list_shards(path, &found));
    status result = STATUS_OK;
    for (size_t i = 0; i < found.gl_pathc && result == STATUS_OK; i++) {
        TRY_GOTO(result, done, shard_open(found.gl_pathv[i], &s->shard));
        int64_t documents = shard_get_header(s->shard)->documents;
        s->index = index - first;
        if (s->index < documents) {
            goto done;
        }
        first += documents;
        TRY_GOTO(result, done, shard_close(&s->shard));
    }
    result = first == 0 ? RAISE_STATUS(STATUS_USAGE, "--sample: %s contains no shards (*.h5)", path)
                        : check_index(path, index, first);
done:
    globfree(&found);
    return result;
}

static status close_sample(struct sample *s)
{
    struct example *e = &s->example;
    free(e->ids);
    free(e->token_type_ids);
    free(e->positions);
    free(e->labels);
    free(e->text_starts);
    free(s->parts);
    labels_free(&s->labels);
    json_decref(s->label);
    status result = tokenizer_destroy(&s->tokenizer);
    KEEP_FIRST(result, shard_close(&s->shard));
    return result;
}

/* Copies what the output contains about the shard. */
static void set_place(struct sample *s)
{
    const struct shard_header *h = shard_get_header(s->shard);
    snprintf(s->path, sizeof s->path, "%s", shard_path(s->shard));
    snprintf(s->tokenizer_sha256, sizeof s->tokenizer_sha256, "%s", h->tokenizer_sha256);
    s->kind = h->kind;
    s->count = h->documents;
}

status inspect_sample(const char *path, int64_t index, const char *tokenizer, bool json)
{
    struct sample s = {0};
    status result = open_shard(path, index, &s);
    result = result == STATUS_OK ? open_tokenizer(&s, tokenizer) : result;
    result = result == STATUS_OK ? read_sample(&s) : result;
    if (result == STATUS_OK) {
        set_place(&s);
        result = json ? print_json(&s) : print_text(&s);
    }
    KEEP_FIRST(result, close_sample(&s));
    return result;
}

/* ---- samples of a training run ---- */

/* Adds a segment of a window or pack: its rows and the token that the last row predicts. A token
 * counts in the loss if the row before it predicts it. */
static void add_segment(struct sample *s, const struct batch *b, int64_t first, int64_t end,
                        const char *name)
{
    struct example *e = &s->example;
    int64_t part = e->tokens;
    bool in_loss = false;
    for (int64_t row = first; row <= end; row++) {
        bool predicted = row > first && b->targets[row - 1] != BATCH_IGNORED;
        if (row == end && !predicted) {
            break;
        }
        if (predicted != in_loss) {
            add_part(s, name, part, e->tokens, in_loss);
            part = e->tokens;
            in_loss = predicted;
        }
        e->ids[e->tokens++] = row < end ? b->inputs[row] : b->targets[row - 1];
    }
    add_part(s, name, part, e->tokens, in_loss);
}

static status read_batch(struct sample *s, const struct recipe *r, const struct batch *b)
{
    TRY(allocate_sample(s, b->rows + b->segments));
    s->example.tokens = 0;
    const char *name = s->kind == EXAMPLE_SFT  ? "example"
                       : r->data.document_mask ? "document"
                                               : "window";
    for (int64_t i = 0; i < b->segments; i++) {
        add_segment(s, b, b->cu_rows[i], b->cu_rows[i + 1], name);
    }
    s->loss = "the tokens that a row predicts";
    return STATUS_OK;
}

static status read_training_sample(const struct recipe *r, const char *folder, struct sample *s)
{
    int64_t vocabulary = 0;
    struct loader *loader = NULL;
    struct batch batch;
    bool last = false, end = false;
    TRY(data_require_train(r));
    TRY(session_tokenizer(r, folder, &s->tokenizer, &vocabulary));
    const struct data_setup data = {
        .recipe = r,
        .ranks = 1,
        .vocabulary = vocabulary,
        .tokenizer_sha256 = s->tokenizer != NULL ? tokenizer_sha256(s->tokenizer) : NULL};
    TRY(data_open_train(&data, s->index, &loader));
    loader_locate(loader, s->index, s->path, (int)sizeof s->path);
    status result = loader_next(loader, &batch, &last, &end);
    if (result == STATUS_OK) {
        result = read_batch(s, r, &batch);
    }
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}

/* Reads a recipe as train does: settings of the model can come from model.init_from. */
static status read_recipe(const char *path, struct recipe *out)
{
    const struct initial_model_request request = {
        .recipe_path = path, .resume = "", .optional = true};
    struct comm *self = NULL;
    TRY(comm_self_create(&self));
    status result = initial_model_read_recipe(&request, self, out);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

status inspect_training_sample(const char *recipe, int64_t number, const char *tokenizer, bool json)
{
    struct recipe r;
    TRY(read_recipe(recipe, &r));
    struct sample s = {.index = number, .kind = objective_spec_example(&r)};
    REQUIRE(r.objective == OBJECTIVE_CLM || s.kind == EXAMPLE_SFT, STATUS_UNAVAILABLE,
            "--sample of a recipe supports the objectives clm and sft, but %s has %s; give a shard "
            "and the number of an example instead",
            recipe, recipe_objective_name(r.objective));
    r.batch.global_size = r.batch.micro_size = 1;
    r.parallel.reproducible = false;
    status result = read_training_sample(&r, tokenizer != NULL ? tokenizer : r.data.tokenizer, &s);
    if (result == STATUS_OK) {
        result = json ? print_json(&s) : print_text(&s);
    }
    KEEP_FIRST(result, close_sample(&s));
    return result;
}
