/* Tests of supervised fine-tuning: examples with loss masks, best-fit decreasing compared with a
 * direct implementation, each example once per epoch, and equal batches for all numbers of ranks
 * and after resume. */
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/datasets/chat_tokenizer.h"
#include "tests/datasets/loader_options.h"
#include "tests/datasets/prepared.h"

static struct tokenizer *tokenizer;
static struct chat_template *chat;

/* ---- rows ---- */

static status prepare_shards(const char *rows, const char *output, struct prepare_options overrides,
                             struct prepare_report *report)
{
    overrides.tokenizer = tokenizer;
    return prepared_run(prepare_sft, "rows.jsonl", rows, output, overrides, report);
}

/* Checks the text of example i, and the text of its tokens that have all of these mask bits. */
static void check_example(struct shard *s, int64_t i, const char *expected, uint32_t bits,
                          const char *loss_text)
{
    int64_t range[2];
    CHECK_OK(shard_read_documents(s, i, 2, range));
    int64_t count = range[1] - range[0];
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    uint32_t *marks = malloc((size_t)count * sizeof *marks);
    CHECK_OK(shard_read(s, range[0], count, ids));
    CHECK_OK(shard_read_column(s, EXAMPLE_LOSS_MASK, range[0], count, marks));
    int64_t masked_count = 0;
    char *text = NULL;
    CHECK_OK(tokenizer_decode(tokenizer, ids, count, false, &text, NULL));
    CHECK_TEXT(text, expected);
    free(text);
    for (int64_t k = 0; k < count; k++) {
        if ((marks[k] & bits) == bits) {
            ids[masked_count++] = ids[k];
        }
    }
    CHECK_OK(tokenizer_decode(tokenizer, ids, masked_count, false, &text, NULL));
    CHECK_TEXT(text, loss_text);
    free(text);
    free(ids);
    free(marks);
}

#define END "<|endoftext|>"

/* Checks the ids and the completion bits of example i. */
static void check_ids(struct shard *s, int64_t i, const struct token_list *expected,
                      int64_t prompt_tokens)
{
    int64_t range[2];
    int32_t ids[64];
    uint32_t marks[64];
    CHECK_OK(shard_read_documents(s, i, 2, range));
    CHECK_EQUAL(range[1] - range[0], expected->count);
    CHECK_OK(shard_read(s, range[0], expected->count, ids));
    CHECK_OK(shard_read_column(s, EXAMPLE_LOSS_MASK, range[0], expected->count, marks));
    CHECK(memcmp(ids, expected->ids, (size_t)expected->count * sizeof *ids) == 0);
    for (int64_t k = 0; k < expected->count; k++) {
        CHECK_EQUAL((marks[k] & EXAMPLE_IS_COMPLETION) != 0, k >= prompt_tokens);
    }
}

/* The rule of TRL: encode the prompt, encode prompt and completion as one text with the end token,
 * and mask as many tokens as the prompt has. Default: encode both separately. */
static void test_join_encoding(void)
{
    static const char *const texts[][2] = {{"of t", "he files"}, {"What?", " the list"},
                                           {"the", "the"},       {"", "the user"},
                                           {"t", "he"},          {"the ", "user"}};
    enum { ROWS = COUNT(texts) };
    char rows[1024] = "";
    int64_t differing = 0;
    for (int i = 0; i < ROWS; i++) {
        size_t used = strlen(rows);
        snprintf(rows + used, sizeof rows - used, "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n",
                 texts[i][0], texts[i][1]);
    }
    for (int join = 0; join < 2; join++) {
        struct prepare_report report;
        struct shard *s = NULL;
        CHECK_OK(prepare_shards(rows, "joined", (struct prepare_options){.join_encoding = join},
                                &report));
        CHECK_OK(shard_open(folder_file("joined/train-00000-of-00001.h5"), &s));
        CHECK(shard_get_header(s)->join_encoding == join);
        for (int i = 0; i < ROWS; i++) {
            struct token_list prompt = {0}, whole = {0}, apart = {0};
            char text[64];
            int32_t eos = tokenizer_eos(tokenizer);
            const char *const *t = texts[i];
            snprintf(text, sizeof text, "%s%s" END, t[0], t[1]);
            CHECK_OK(tokenizer_encode(tokenizer, t[0], strlen(t[0]), true, &prompt));
            CHECK_OK(tokenizer_encode(tokenizer, text, strlen(text), true, &whole));
            CHECK_OK(tokenizer_encode(tokenizer, t[0], strlen(t[0]), true, &apart));
            CHECK_OK(tokenizer_encode(tokenizer, t[1], strlen(t[1]), true, &apart));
            CHECK_OK(token_list_add(&apart, eos));
            differing += join && whole.count != apart.count;
            check_ids(s, i, join ? &whole : &apart, prompt.count);
            token_list_free(&prompt);
            token_list_free(&whole);
            token_list_free(&apart);
        }
        CHECK_OK(shard_close(&s));
    }
    CHECK(differing >= 2);
}

#define ALPACA                                                                                     \
    "Below is an instruction that describes a task. Write a response that appropriately "          \
    "completes the request.\n\n### Instruction:\n"

static void test_rows(void)
{
    static const char rows[] =
        "{\"prompt\": \"What?\", \"completion\": \" the list\"}\n"
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": "
        "\"assistant\", \"content\": \"b\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
        "\"content\": \"b\"}]}\n"
        "{\"text\": \"the files" END "\"}\n"
        "{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}\n";
    struct prepare_report report;
    CHECK_OK(
        prepare_shards(rows, "rows", (struct prepare_options){.chat_template = chat}, &report));
    CHECK(report.examples == 5 && report.documents == 5 && report.bad_rows == 0);
    struct shard *s;
    CHECK_OK(shard_open(folder_file("rows/train-00000-of-00001.h5"), &s));
    CHECK_OK(shard_verify(s));
    const char *conversation = ALPACA "a\n\n### Response:b" END;
    check_example(s, 0, "What? the list" END, EXAMPLE_IS_COMPLETION, " the list" END);
    check_example(s, 0, "What? the list" END, EXAMPLE_IS_DEFAULT, " the list" END);
    check_example(s, 0, "What? the list" END, EXAMPLE_IS_ASSISTANT, "");
    check_example(s, 1, conversation, EXAMPLE_IS_DEFAULT | EXAMPLE_IS_ASSISTANT, "b" END);
    check_example(s, 2, conversation, EXAMPLE_IS_DEFAULT, conversation);
    check_example(s, 2, conversation, EXAMPLE_IS_ASSISTANT, "b" END);
    check_example(s, 2, conversation, EXAMPLE_IS_COMPLETION, "");
    check_example(s, 3, "the files" END END, EXAMPLE_IS_DEFAULT, "the files" END END);
    check_example(s, 4, conversation, EXAMPLE_IS_COMPLETION, "b" END);
    /* An end token in the text is encoded as text. Only the last token is the end token. */
    int64_t range[2];
    int32_t ids[64];
    CHECK_OK(shard_read_documents(s, 3, 2, range));
    CHECK_OK(shard_read(s, range[0], range[1] - range[0], ids));
    for (int64_t i = 0; i < range[1] - range[0]; i++) {
        CHECK_EQUAL(ids[i] == tokenizer_eos(tokenizer), i + 1 == range[1] - range[0]);
    }
    CHECK_OK(shard_close(&s));
}

static void test_bad_rows(void)
{
    static const char *const bad_rows[][2] = {
        {"{\"prompt\": \"a\"}", "no field 'completion'"},
        {"{\"prompt\": \"a\", \"completion\": \" \\n\"}", "'completion' is empty"},
        {"{\"prompt\": [], \"completion\": []}", "'prompt' is not a non-empty list of messages"},
        {"{\"prompt\": \"a\", \"completion\": [1]}", "'completion' is not a string"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": "
         "\"assistant\", \"content\": \"\"}]}",
         "message 1: the assistant message is empty"},
        {"{\"text\": \"\"}", "'text' is empty"},
        {"{\"instruction\": \"a\"}", "no field 'output'"},
        {"{\"question\": \"a\"}", "no field 'prompt' with"},
        {"{\"prompt\": \"a long prompt of many words\", \"completion\": \"b\"}",
         "nothing to learn"},
        {"7", "not a JSON object"},
    };
    struct prepare_report report;
    char rows[1024];
    for (int i = 0; i < COUNT(bad_rows); i++) {
        struct prepare_options o = {.chat_template = chat, .sequence_tokens = 8};
        snprintf(rows, sizeof rows, "{\"text\": \"a\"}\n%s\n{\"text\": \"b\"}\n", bad_rows[i][0]);
        CHECK_FAILS(prepare_shards(rows, "bad", o, &report), STATUS_DATA, "rows.jsonl:2: ");
        CHECK_FAILS(prepare_shards(rows, "bad", o, &report), STATUS_DATA, bad_rows[i][1]);
        CHECK(!file_exists(folder_file("bad/train-00000-of-00001.h5")));
    }
    for (int i = 0; i < COUNT(bad_rows); i++) {
        struct prepare_options o = {
            .chat_template = chat, .sequence_tokens = 8, .skip_bad_rows = true};
        snprintf(rows, sizeof rows, "{\"text\": \"a\"}\n%s\n{\"text\": \"b\"}\n", bad_rows[i][0]);
        CHECK_OK(prepare_shards(rows, "skipped", o, &report));
        CHECK(report.bad_rows == 1 && report.examples == 2);
    }
    CHECK_FAILS(prepare_shards("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "bad",
                               (struct prepare_options){0}, &report),
                STATUS_DATA, "messages need a chat template");
}

/* The validation set contains the last rows, or the rows of a validation input. */
static void test_split(void)
{
    static const char rows[] = "{\"prompt\": \"a\", \"completion\": \"1\"}\n"
                               "{\"prompt\": \"aa\", \"completion\": \"2\"}\n"
                               "{\"prompt\": \"aaa\", \"completion\": \"3\"}\n"
                               "{\"prompt\": \"aaaa\", \"completion\": \"4\"}\n";
    struct prepare_report report;
    struct shard *s;
    CHECK_OK(prepare_shards(rows, "split", (struct prepare_options){.validation_fraction = 0.5},
                            &report));
    CHECK_OK(shard_open(folder_file("split/validation-00000-of-00001.h5"), &s));
    CHECK_OK(shard_verify(s));
    check_example(s, 0, "aaa3" END, EXAMPLE_IS_COMPLETION, "3" END);
    check_example(s, 1, "aaaa4" END, EXAMPLE_IS_COMPLETION, "4" END);
    CHECK_OK(shard_close(&s));
    CHECK_OK(shard_open(folder_file("split/train-00000-of-00001.h5"), &s));
    check_example(s, 1, "aa2" END, EXAMPLE_IS_COMPLETION, "2" END);
    CHECK_EQUAL(shard_get_header(s)->documents, 2);
    CHECK_OK(shard_close(&s));
    char *validation_input = folder_file("held.jsonl");
    folder_write(validation_input, "{\"text\": \"b\"}\n", 14);
    struct prepare_options o = {.validation_inputs = &validation_input,
                                .validation_input_count = 1};
    CHECK_OK(prepare_shards(rows, "given", o, &report));
    CHECK_OK(shard_open(folder_file("given/validation-00000-of-00001.h5"), &s));
    check_example(s, 0, "b" END, EXAMPLE_IS_DEFAULT, "b" END);
    CHECK_OK(shard_close(&s));
    o.validation_fraction = 0.5;
    CHECK_FAILS(prepare_shards(rows, "given", o, &report), STATUS_USAGE, "either");
}

/* ---- packing ---- */

static struct packing *create_packing(enum packing_kind kind, int64_t capacity,
                                      const int64_t *lengths, int count)
{
    struct packing *p;
    struct packing_rules rules = {.kind = kind, .max_length = capacity};
    CHECK_OK(packing_create(&rules, capacity, &p));
    for (int i = 0; i < count; i++) {
        CHECK_OK(packing_add(p, i, lengths[i]));
    }
    CHECK_OK(packing_finish(p));
    return p;
}

/* The example of TRL: lengths 4, 2, 3, 1 in packs of 4. */
static void test_known_packs(void)
{
    static const int64_t lengths[] = {4, 2, 3, 1};
    static const int64_t expected[][3] = {{0, 0, 0}, {1, 0, 2}, {1, 1, 3}, {2, 0, 1}};
    struct packing *p = create_packing(PACKING_BFD, 4, lengths, 4);
    struct packing_epoch epoch = {0};
    CHECK_EQUAL(packing_pack_count(p), 3);
    for (int i = 0; i < 4; i++) {
        int64_t first, length;
        packing_get_example(p, &epoch, expected[i][0], expected[i][1], &first, &length);
        CHECK_EQUAL(first, expected[i][2]);
        CHECK_EQUAL(length, lengths[first]);
    }
    packing_destroy(&p);
}

/* Best-fit decreasing as defined: a search of all packs for each example. Returns the number of
 * packs, and writes the free space of each pack to free_space. */
static int pack_directly(int64_t capacity, const int64_t *lengths, int count, int64_t *free_space)
{
    int packs = 0;
    for (int64_t length = capacity; length > 0; length--) {
        for (int i = 0; i < count; i++) {
            int best = -1;
            if (lengths[i] != length) {
                continue;
            }
            for (int k = 0; k < packs; k++) {
                best = free_space[k] >= length && (best < 0 || free_space[k] < free_space[best])
                           ? k
                           : best;
            }
            if (best < 0) {
                best = packs++;
                free_space[best] = capacity;
            }
            free_space[best] -= length;
        }
    }
    return packs;
}

enum { MANY = 1500 };

static int compare_values(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void check_epoch(const struct packing *p, const int64_t *lengths, int count,
                        int64_t capacity, struct packing_epoch epoch, int64_t *order)
{
    static bool seen[MANY];
    memset(seen, 0, sizeof seen);
    int at = 0;
    for (int64_t k = 0; k < packing_pack_count(p); k++) {
        int64_t tokens = 0;
        for (int64_t i = 0; i < packing_pack_examples(p, k); i++) {
            int64_t first, length;
            packing_get_example(p, &epoch, k, i, &first, &length);
            CHECK(!seen[first] && length == lengths[first]);
            seen[first] = true;
            tokens += length;
            order[at++] = first;
        }
        CHECK(tokens <= capacity);
    }
    CHECK_EQUAL(at, count);
}

static void test_best_fit(void)
{
    static const int64_t rooms[] = {2, 7, 64, 1000, 5000};
    static int64_t lengths[MANY], free_space[MANY], a[MANY], b[MANY];
    for (int round = 0; round < 5; round++) {
        int64_t capacity = rooms[round];
        int count = round == 0 ? 1 : MANY - round;
        for (int i = 0; i < count; i++) {
            uint64_t longest = i % 3 == 0 ? (uint64_t)capacity : (uint64_t)capacity / 3 + 1;
            lengths[i] = 1 + (int64_t)random_below(7, (uint64_t)i, longest);
        }
        struct packing *p = create_packing(PACKING_BFD, capacity, lengths, count);
        CHECK_EQUAL(packing_pack_count(p), pack_directly(capacity, lengths, count, free_space));
        for (int64_t k = 0; k < packing_pack_count(p); k++) {
            a[k] = capacity;
            for (int64_t i = 0; i < packing_pack_examples(p, k); i++) {
                int64_t first, length;
                packing_get_example(p, &(struct packing_epoch){0}, k, i, &first, &length);
                a[k] -= length;
            }
        }
        /* The packs have the same free space, in any order. */
        size_t packs = (size_t)packing_pack_count(p);
        qsort(a, packs, sizeof *a, compare_values);
        qsort(free_space, packs, sizeof *free_space, compare_values);
        CHECK(memcmp(a, free_space, packs * sizeof *a) == 0);
        check_epoch(p, lengths, count, capacity, (struct packing_epoch){5, 0, 0, true}, a);
        check_epoch(p, lengths, count, capacity, (struct packing_epoch){5, 1, 0, true}, b);
        CHECK(round < 2 || memcmp(a, b, (size_t)count * sizeof *a) != 0);
        check_epoch(p, lengths, count, capacity, (struct packing_epoch){5, 0, 0, true}, b);
        CHECK(memcmp(a, b, (size_t)count * sizeof *a) == 0);
        packing_destroy(&p);
    }
}

/* ---- batches ---- */

/* Prepares 40 rows: the prompt of row i is "p" and i % 9 + 1 letters q, its completion is i. */
static void make_rows(void)
{
    char rows[8192];
    size_t used = 0;
    for (int i = 0; i < 40; i++) {
        used += (size_t)snprintf(rows + used, sizeof rows - used,
                                 "{\"prompt\": \"p%.*s\", \"completion\": \"%d\"}\n", i % 9 + 1,
                                 "qqqqqqqqq", i);
    }
    struct prepare_report report;
    CHECK_OK(prepare_shards(rows, "many", (struct prepare_options){.shard_tokens = 150}, &report));
    CHECK(report.examples == 40 && report.train_shards > 2);
}

static struct loader_options make_options(const struct packing_rules *rules)
{
    struct loader_options o = make_loader_options(folder_file("many/train-*.h5"), EXAMPLE_SFT, 16,
                                                  tokenizer_vocab_size(tokenizer));
    o.seed = 3;
    o.packing = rules;
    return o;
}

/* The rows of a step, in the order of ranks and micro-batches. */
struct step {
    int64_t rows, tokens_seen, loss_tokens;
    int64_t first_row; /* the global index of row 0: rows of a step are numbered over all ranks */
    int32_t inputs[256], targets[256], positions[256];
};

static void add_batch(struct step *s, const struct batch *b, bool splits_examples)
{
    CHECK(s->rows == 0 || b->rows == 0 || b->first_row == s->first_row + s->rows);
    s->first_row = s->rows == 0 ? b->first_row : s->first_row;
    CHECK(b->rows <= b->sequences * b->tokens && b->cu_rows[b->segments] == b->rows);
    for (int64_t g = 0; g < b->segments; g++) {
        for (int64_t row = b->cu_rows[g]; row < b->cu_rows[g + 1]; row++) {
            bool last = row + 1 == b->cu_rows[g + 1];
            CHECK_EQUAL(b->positions[row], row - b->cu_rows[g]);
            /* A target is the token of the next row. For the last row it is the end token. */
            bool has_target = b->targets[row] != BATCH_IGNORED;
            CHECK(!has_target || last || b->targets[row] == b->inputs[row + 1]);
            CHECK(splits_examples || !last || b->targets[row] == tokenizer_eos(tokenizer));
            CHECK(splits_examples || b->inputs[row] != tokenizer_eos(tokenizer));
            s->loss_tokens += has_target;
            s->inputs[s->rows] = b->inputs[row];
            s->targets[s->rows] = b->targets[row];
            s->positions[s->rows++] = b->positions[row];
        }
    }
    s->tokens_seen += b->tokens_seen;
}

static void read_steps(const struct packing_rules *rules, int ranks, int64_t first, int64_t micro,
                       struct step *steps, int count)
{
    bool splits_examples = rules->kind == PACKING_WRAPPED || rules->kind == PACKING_BFD_SPLIT;
    memset(steps, 0, (size_t)count * sizeof *steps);
    for (int rank = 0; rank < ranks; rank++) {
        struct loader_options o = make_options(rules);
        struct loader *l;
        o.rank = rank;
        o.ranks = ranks;
        o.micro_sequences = micro;
        o.first_sample = first * o.global_sequences;
        CHECK_OK(loader_open(&o, &l));
        for (int i = 0; i < count; i++) {
            for (bool last = false, end = false; !last;) {
                struct batch b;
                CHECK_OK(loader_next(l, &b, &last, &end));
                add_batch(&steps[i], &b, splits_examples);
            }
        }
        CHECK_OK(loader_close(&l));
    }
}

static void test_batches(enum packing_kind kind)
{
    struct packing_rules rules = {.kind = kind,
                                  .max_length =
                                      kind == PACKING_NONE || kind == PACKING_BFD ? 16 : 12,
                                  .loss_mask_bits = EXAMPLE_IS_DEFAULT,
                                  .skip_empty = true};
    static struct step one_rank[12], three_ranks[12], resumed[2];
    read_steps(&rules, 1, 0, 2, one_rank, 12);
    read_steps(&rules, 3, 0, 1, three_ranks, 12);
    CHECK(memcmp(one_rank, three_ranks, sizeof one_rank) == 0);
    read_steps(&rules, 2, 9, 3, resumed, 2); /* into the second epoch */
    CHECK(memcmp(resumed, one_rank + 9, sizeof resumed) == 0);
}

static struct packing_report read_report(struct packing_rules rules)
{
    struct loader_options o = make_options(&rules);
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    struct packing_report report = loader_packing_report(l);
    CHECK_EQUAL(loader_samples(l), report.packs);
    char location[FILE_PATH_BYTES];
    loader_locate(l, 0, location, sizeof location);
    CHECK(strstr(location, "many/train-0000") != NULL);
    CHECK_OK(loader_close(&l));
    return report;
}

/* The report counts truncated and split examples, and examples without tokens in the loss. */
static void test_reports(void)
{
    struct packing_rules rules = {.kind = PACKING_NONE,
                                  .max_length = 16,
                                  .loss_mask_bits = EXAMPLE_IS_DEFAULT,
                                  .skip_empty = true};
    struct packing_report whole = read_report(rules);
    CHECK(whole.examples == 40 && whole.packs == 40 && whole.truncated == 0 && whole.empty == 0);
    rules.kind = PACKING_BFD;
    CHECK(read_report(rules).packs < 40 && read_report(rules).tokens == whole.tokens);
    rules.max_length = 6; /* prompts have 2 to 10 tokens, completions 2 or 3 */
    struct packing_report truncated = read_report(rules);
    CHECK(truncated.truncated > 0 && truncated.truncated_tokens > 0 && truncated.empty > 0);
    rules.skip_empty = false;
    struct loader_options o = make_options(&rules);
    struct loader *l;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "the loss includes none of its first 6 tokens");
    rules.skip_empty = true;
    rules.kind = PACKING_BFD_SPLIT;
    rules.loss_mask_bits = 0;
    struct packing_report split = read_report(rules);
    CHECK(split.truncated == truncated.truncated && split.truncated_tokens == 0 &&
          split.empty == 0);
    rules.kind = PACKING_WRAPPED;
    struct packing_report stream = read_report(rules);
    CHECK(stream.tokens >= whole.tokens - 3 && stream.tokens <= whole.tokens);
    rules.kind = PACKING_NONE;
    rules.loss_mask_bits = EXAMPLE_IS_ASSISTANT;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "and all later examples: the loss includes none");
}

/* Equal tokens with different loss masks have different fingerprints. */
static void test_fingerprint(void)
{
    static const char *const rows[] = {"{\"prompt\": \"xx\", \"completion\": \"zx\"}\n",
                                       "{\"prompt\": \"xxz\", \"completion\": \"x\"}\n"};
    const struct packing_rules rules = {.max_length = 16, .loss_mask_bits = EXAMPLE_IS_DEFAULT};
    char fingerprints[2][HASH_TEXT_BYTES];
    for (int i = 0; i < 2; i++) {
        struct prepare_report report;
        struct loader *l;
        CHECK_OK(prepare_shards(rows[i], "learned", (struct prepare_options){0}, &report));
        const struct loader_source source = {folder_file("learned/train-*.h5"), 1};
        struct loader_options o = make_options(&rules);
        o.sources = &source;
        CHECK_OK(loader_open(&o, &l));
        snprintf(fingerprints[i], sizeof fingerprints[i], "%s", loader_fingerprint(l));
        CHECK_EQUAL(loader_tokens(l), 5);
        CHECK_OK(loader_close(&l));
    }
    CHECK(strcmp(fingerprints[0], fingerprints[1]) != 0);
}

int main(void)
{
    folder_make();
    log_quiet(true);
    chat_tokenizer_make(&tokenizer, &chat);
    test_rows();
    test_join_encoding();
    test_bad_rows();
    test_split();
    test_known_packs();
    test_best_fit();
    make_rows();
    test_batches(PACKING_NONE);
    test_batches(PACKING_BFD);
    test_batches(PACKING_BFD_SPLIT);
    test_batches(PACKING_WRAPPED);
    test_reports();
    test_fingerprint();
    chat_close(&chat);
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
