/* Tests of prepare_clm with text files. The ids equal the ids of the whole text. The output does
 * not depend on the number of workers. Documents are complete and in the correct set. A failure
 * leaves no files. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "datasets/prepare/splitter.h"
#include "tests/datasets/prepared.h"
#include "tests/datasets/train_tokenizer.h"

static struct tokenizer *bpe, *char_tokenizer;
static int32_t eos;

static void write_text(const char *path, const char *text)
{
    folder_write(path, text, strlen(text));
}

/* Checks that document d has the ids of this text and the end token, if the tokenizer has one. */
static void check_document(const struct prepared *c, int64_t d, const struct tokenizer *t,
                           const char *text, size_t bytes)
{
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(t, text, bytes, false, &ids));
    bool ends = tokenizer_eos(t) >= 0;
    int64_t count = c->starts[d + 1] - c->starts[d];
    CHECK_EQUAL(count, ids.count + ends);
    CHECK(memcmp(ids.ids, c->ids + c->starts[d], (size_t)ids.count * sizeof *ids.ids) == 0);
    CHECK(!ends || c->ids[c->starts[d + 1] - 1] == tokenizer_eos(t));
    token_list_free(&ids);
}

static void check_documents(const char *split, const struct tokenizer *t, const char *const *texts,
                            int count)
{
    struct prepared c;
    prepared_read(folder_file("out"), split, &c);
    CHECK_EQUAL(c.documents, count);
    for (int i = 0; i < count; i++) {
        check_document(&c, i, t, texts[i], strlen(texts[i]));
    }
    free(c.ids);
}

/* Returns random text: words, numbers, white space, newlines, several scripts, and invalid UTF-8
 * unless `valid`. */
static char *mixed_text(size_t bytes, uint64_t seed, bool valid)
{
    static const char *const parts[] = {
        " the",  " merges", "'s",   " 2026",  "\n",    "\n\n",   "  ",     " \t",      "x",
        "naïve", " größe",  "。",   "文字列", "，",    "中文",   "🚣",      " 🚣",       "don't",
        ".\n",   "!!",      "\r\n", " /usr",  "_name", "\u00a0", "\u3000", "한국어 ",  ") ",
        "\x01",  "\x7f",    "é ",   "-",      "0x1F ", "\xff",   "\xc3 ",  "\xe4\xb8", "\xf0\x9f "};
    int kinds = COUNT(parts) - (valid ? 4 : 0);
    char *text = malloc(bytes + 32);
    size_t used = 0;
    for (uint64_t i = 0; used < bytes; i++) {
        const char *part = parts[random_below(seed, i, (uint64_t)kinds)];
        memcpy(text + used, part, strlen(part));
        used += strlen(part);
    }
    text[used] = '\0';
    return text;
}

/* At each position where the splitter may split, the two parts have the ids of the whole text. */
static void test_boundaries(void)
{
    int found = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        char *text = mixed_text(400, seed, false);
        size_t bytes = strlen(text);
        struct token_list whole = {0}, parts = {0};
        CHECK_OK(tokenizer_encode(bpe, text, bytes, false, &whole));
        for (size_t position = 1; position < bytes; position++) {
            if (!splitter_is_boundary(text, bytes, position, false)) {
                continue;
            }
            found++;
            parts.count = 0;
            CHECK_OK(tokenizer_encode(bpe, text, position, false, &parts));
            CHECK_OK(tokenizer_encode(bpe, text + position, bytes - position, false, &parts));
            CHECK_EQUAL(parts.count, whole.count);
            CHECK(memcmp(parts.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids) == 0);
        }
        token_list_free(&whole);
        token_list_free(&parts);
        free(text);
    }
    CHECK(found > 1000);
    CHECK(splitter_is_boundary("a b", 3, 1, true) && !splitter_is_boundary("a\nb", 3, 1, true));
    CHECK(!splitter_is_boundary("  b", 3, 1, false) &&
          !splitter_is_boundary("\u00a0 b", 4, 2, false));
    CHECK(!splitter_is_boundary(".\nb", 3, 1, false) && !splitter_is_boundary("ab", 2, 1, false));
}

/* The same for BPE over characters, which puts U+2581 before a text and not before a chunk. */
static void test_character_chunks(const char *name)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    char path[FILE_PATH_BYTES], *inputs[] = {folder_file("characters.txt")};
    struct tokenizer *t = NULL;
    struct prepare_report report;
    struct prepared c;
    struct token_list ids = {0};
    snprintf(path, sizeof path, "%s/tests/reference/tokenizer/%s", source, name);
    CHECK_OK(tokenizer_open(path, &t));
    char *text = mixed_text(600000, 78, true);
    write_text(inputs[0], text);
    struct prepare_options o = prepared_options(t, inputs, 1);
    CHECK_OK(prepare_clm(&o, &report));
    CHECK_EQUAL(report.forced_splits, 0);
    prepared_read(o.output, "train", &c);
    CHECK_OK(tokenizer_append_bos(t, &ids));
    CHECK_OK(tokenizer_encode(t, text, strlen(text), false, &ids));
    CHECK_EQUAL(c.count, ids.count + 1); /* and the end token */
    CHECK(memcmp(c.ids, ids.ids, (size_t)ids.count * sizeof *ids.ids) == 0);
    free(c.ids);
    free(text);
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

/* A document of several chunks has the ids of the whole text, for any number of workers. */
static void test_chunks(void)
{
    char *text = mixed_text(900000, 77, false);
    size_t bytes = strlen(text), first_bytes = 0;
    write_text(folder_file("long.txt"), text);
    char *inputs[] = {folder_file("long.txt")}, *first = NULL;
    for (int workers = 1; workers <= 5; workers += 2) {
        struct prepare_options o = prepared_options(bpe, inputs, 1);
        struct prepare_report report;
        o.workers = workers;
        CHECK_OK(prepare_clm(&o, &report));
        CHECK_EQUAL(report.documents, 1);
        CHECK_EQUAL(report.forced_splits, 0);
        CHECK_EQUAL(report.bytes, bytes);
        CHECK_EQUAL(report.train_shards, 1);
        CHECK(report.validation_tokens == 0 && report.validation_shards == 0);
        struct prepared c;
        prepared_read(o.output, "train", &c);
        check_document(&c, 0, bpe, text, bytes);
        CHECK_EQUAL(report.train_tokens, c.count);
        free(c.ids);
        size_t got;
        char *data = folder_read(folder_file("out/train-00000-of-00001.h5"), &got);
        if (first == NULL) {
            first = data;
            first_bytes = got;
            continue;
        }
        CHECK(got == first_bytes && memcmp(data, first, got) == 0);
        free(data);
    }
    free(first);
    free(text);
}

static void test_forced_splits(void)
{
    size_t bytes = 2 * ENCODER_CHUNK_BYTES + 99;
    char *text = malloc(bytes + 3);
    for (size_t i = 0; i < bytes; i += 3) {
        memcpy(text + i, "\xE4\xB8\xAD", 3); /* no word boundary */
    }
    folder_write(folder_file("wall.txt"), text, bytes / 3 * 3);
    char *inputs[] = {folder_file("wall.txt")};
    struct prepare_options o = prepared_options(char_tokenizer, inputs, 1);
    struct prepare_report report;
    CHECK_OK(prepare_clm(&o, &report));
    CHECK_EQUAL(report.forced_splits, 2);
    CHECK_EQUAL(report.train_tokens, bytes / 3); /* all characters, none split */
    free(text);
}

static void test_documents(void)
{
    const char *text = "\n\nOne line.\nand another \n  \t\nTwo.\r\n\r\n   three\n\nfour";
    write_text(folder_file("a.txt"), text);
    write_text(folder_file("b.txt"), "five\n");
    write_text(folder_file("empty.txt"), "");
    char *inputs[] = {folder_file("a.txt"), folder_file("empty.txt"), folder_file("b.txt")};
    struct prepare_options o = prepared_options(bpe, inputs, 3);
    struct prepare_report report;
    CHECK_OK(prepare_clm(&o, &report));
    CHECK(report.documents == 2 && report.empty_documents == 1);
    check_documents("train", bpe, (const char *const[]){text, "five\n"}, 2);
    o.document_unit = PREPARE_DOCUMENT_PARAGRAPH;
    CHECK_OK(prepare_clm(&o, &report));
    check_documents(
        "train", bpe,
        (const char *const[]){"One line.\nand another ", "Two.", "   three", "four", "five"}, 5);
    o.document_unit = PREPARE_DOCUMENT_LINE;
    CHECK_OK(prepare_clm(&o, &report));
    CHECK_EQUAL(report.documents, 6);
    check_documents(
        "train", bpe,
        (const char *const[]){"One line.", "and another ", "Two.", "   three", "four", "five"}, 6);
}

static void test_json_lines(void)
{
    write_text(folder_file("rows.jsonl"), "\xEF\xBB\xBF{\"text\": \"first\\nrow\", \"id\": "
                                          "1}\n\n{\"text\": \"\\u00fc \\ud83d\\udea3\"}\r\n"
                                          "{\"text\": \"\"}\n{\"id\": 2, \"text\": \"last\"}");
    char *inputs[] = {folder_file("rows.jsonl")};
    struct prepare_options o = prepared_options(bpe, inputs, 1);
    struct prepare_report report;
    CHECK_OK(prepare_clm(&o, &report));
    CHECK(report.documents == 3 && report.empty_documents == 1 && report.bad_rows == 0);
    check_documents("train", bpe, (const char *const[]){"first\nrow", "ü 🚣", "last"}, 3);

    static const struct {
        const char *row, *reason;
    } bad[] = {{"{\"text\": 1}", "not a string"},
               {"{\"body\": \"x\"}", "no field 'text'"},
               {"[1]", "not a JSON object"},
               {"\"text\"", "not a JSON object"},
               {"{\"text\": \"x\"", "not valid JSON"},
               {"{\"text\": \"x\"} {}", "not valid JSON"},
               {"{\"text\": \"x\", \"text\": \"y\"}", "not valid JSON"},
               {"{\"text\": \"\xff\"}", "not valid JSON"},
               {"{\"text\": \"\\ud800\"}", "not valid JSON"},
               {"{", "not valid JSON: string or '}' expected near end of file; write one object "
                     "per line, for example with `jq -c .`"},
               {"nonsense", "; the input must be JSON Lines, one object per line"}};
    for (int i = 0; i < COUNT(bad); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"text\": \"good\"}\n%s\n{\"text\": \"end\"}\n", bad[i].row);
        write_text(folder_file("rows.jsonl"), text);
        o.skip_bad_rows = false;
        CHECK_EQUAL(prepare_clm(&o, &report), STATUS_DATA);
        CHECK(strstr(status_pending()->text, "rows.jsonl:2: ") != NULL);
        CHECK_FAILS(status_pending()->code, STATUS_DATA, bad[i].reason);
        o.skip_bad_rows = true;
        CHECK_OK(prepare_clm(&o, &report));
        CHECK(report.bad_rows == 1 && report.documents == 2);
        check_documents("train", bpe, (const char *const[]){"good", "end"}, 2);
    }
}

/* Writes 20 documents of different lengths. */
static void write_documents(char *texts[20], char *inputs[20])
{
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "doc%02d.txt", i);
        texts[i] = mixed_text(50 + 97 * (size_t)(i % 7), 500 + (uint64_t)i, true);
        inputs[i] = strdup(folder_file(name));
        write_text(inputs[i], texts[i]);
    }
}

/* Checks that the tokens are the tokens of the documents with chosen[i] == value, in order. */
static void check_tokens(const struct prepared *c, char *const *texts, const bool *chosen,
                         bool value)
{
    struct token_list ids = {0};
    for (int i = 0; i < 20; i++) {
        if (chosen[i] == value) {
            CHECK_OK(tokenizer_encode(bpe, texts[i], strlen(texts[i]), false, &ids));
            CHECK_OK(token_list_add(&ids, eos));
        }
    }
    CHECK_EQUAL(ids.count, c->count);
    CHECK(memcmp(ids.ids, c->ids, (size_t)ids.count * sizeof *ids.ids) == 0);
    token_list_free(&ids);
}

static void test_validation(void)
{
    char *texts[20], *inputs[20];
    write_documents(texts, inputs);
    static const int64_t sizes[] = {150, 1000, 1 << 20};
    for (size_t k = 0; k < 3; k++) {
        for (int held_out = 1; held_out < 20; held_out += 9) {
            struct prepare_options o = prepared_options(bpe, inputs, 20);
            struct prepare_report report;
            bool chosen[20];
            for (int i = 0; i < 20; i++) {
                chosen[i] = i >= 20 - held_out;
            }
            o.shard_tokens = sizes[k];
            o.validation_fraction = held_out / 20.0;
            CHECK_OK(prepare_clm(&o, &report));
            CHECK_EQUAL(report.documents, 20);
            struct prepared c;
            prepared_read(o.output, "train", &c);
            check_tokens(&c, texts, chosen, false);
            CHECK(c.count == report.train_tokens && c.shards == report.train_shards);
            CHECK(c.documents >= 20 - held_out && c.documents < 20 - held_out + c.shards);
            free(c.ids);
            prepared_read(o.output, "validation", &c);
            check_tokens(&c, texts, chosen, true);
            CHECK(c.count == report.validation_tokens && c.shards == report.validation_shards);
            free(c.ids);
        }
    }
    bool validation[3][20];
    for (int k = 0; k < 3; k++) { /* a random split keeps the order of documents */
        struct prepare_options o = prepared_options(bpe, inputs, 20);
        struct prepare_report report;
        o.validation_fraction = 0.2;
        o.shuffle_split = true;
        o.split_seed = k < 2 ? 5 : 6;
        o.shard_tokens = 300;
        CHECK_OK(prepare_clm(&o, &report));
        struct prepared c;
        prepared_read(o.output, "validation", &c);
        int64_t token = 0;
        int count = 0;
        for (int i = 0; i < 20; i++) {
            struct token_list ids = {0};
            CHECK_OK(tokenizer_encode(bpe, texts[i], strlen(texts[i]), false, &ids));
            validation[k][i] = token + ids.count < c.count &&
                               memcmp(ids.ids, c.ids + token, (size_t)ids.count * 4) == 0 &&
                               c.ids[token + ids.count] == eos;
            token += validation[k][i] ? ids.count + 1 : 0;
            count += validation[k][i];
            token_list_free(&ids);
        }
        CHECK_EQUAL(count, 4);
        check_tokens(&c, texts, validation[k], true);
        free(c.ids);
        prepared_read(o.output, "train", &c);
        check_tokens(&c, texts, validation[k], false);
        free(c.ids);
    }
    CHECK(memcmp(validation[0], validation[1], sizeof validation[0]) == 0);
    CHECK(memcmp(validation[0], validation[2], sizeof validation[0]) != 0);
    struct prepare_options o = prepared_options(bpe, inputs, 3);
    struct prepare_report report;
    o.validation_fraction = 0.001;
    o.shuffle_split = true;
    status result = prepare_clm(&o, &report);
    CHECK(result == STATUS_OK || strstr(status_pending()->text, "validation set empty") != NULL);
    status_clear();
    for (int i = 0; i < 20; i++) {
        free(texts[i]);
        free(inputs[i]);
    }
}

/* One text without end token is split at a token, as nanoGPT does. */
static void test_single_text(void)
{
    char text[1000];
    for (int i = 0; i < 1000; i++) {
        text[i] = "abc\n"[random_below(8, (uint64_t)i, 4)];
    }
    folder_write(folder_file("one.txt"), text, sizeof text);
    char *inputs[] = {folder_file("one.txt")};
    for (int k = 0; k < 4; k++) {
        struct prepare_options o = prepared_options(char_tokenizer, inputs, 1);
        struct prepare_report report;
        o.validation_fraction = 0.1;
        o.shuffle_split = k % 2 == 1;
        o.shard_tokens = k < 2 ? 1000 : 150;
        CHECK_OK(prepare_clm(&o, &report));
        CHECK(report.train_tokens == 900 && report.validation_tokens == 100);
        struct prepared train, validation;
        prepared_read(o.output, "train", &train);
        prepared_read(o.output, "validation", &validation);
        char *decoded;
        size_t bytes;
        CHECK_OK(tokenizer_decode(char_tokenizer, train.ids, train.count, false, &decoded, &bytes));
        CHECK(bytes == 900 && memcmp(decoded, text, 900) == 0);
        free(decoded);
        CHECK_OK(tokenizer_decode(char_tokenizer, validation.ids, 100, false, &decoded, &bytes));
        CHECK(bytes == 100 && memcmp(decoded, text + 900, 100) == 0);
        free(decoded);
        free(train.ids);
        free(validation.ids);
    }
    write_text(folder_file("strange.txt"), "abc abc Z");
    char *strange[] = {folder_file("strange.txt")};
    struct prepare_options o = prepared_options(char_tokenizer, strange, 1);
    struct prepare_report report;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "strange.txt");
    write_text(folder_file("short.txt"), "a");
    char *small[] = {folder_file("short.txt")};
    o = prepared_options(char_tokenizer, small, 1);
    o.validation_fraction = 0.1;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "too few");
}

static int count_files(const char *folder)
{
    DIR *d = opendir(folder);
    int count = d != NULL ? -2 : 0; /* . and .. */
    CHECK(d != NULL || errno == ENOENT);
    for (; d != NULL && readdir(d) != NULL; count++) {
    }
    if (d != NULL) {
        closedir(d);
    }
    return count;
}

static void test_failures(void)
{
    CHECK_OK(file_remove_tree(folder_file("out")));
    write_text(folder_file("a.txt"), "some text\n");
    char *inputs[] = {folder_file("a.txt"), folder_file("none.txt")};
    struct prepare_options o = prepared_options(bpe, inputs, 2);
    struct prepare_report report;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_NO_INPUT, "none.txt");
    inputs[1] = folder_path;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "is a folder");
    inputs[1] = folder_file("packed.gz");
    folder_write(inputs[1], "\x1f\x8b\x08", 3);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "gzip");
    CHECK_EQUAL(count_files(folder_file("out")), 0);
    o.input_count = 1;
    o.validation_fraction = 1.0;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_USAGE, "fraction");
    o.validation_fraction = (double)NAN;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_USAGE, "fraction");
    o.validation_fraction = 0.0;
    o.output = folder_file("a.txt");
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_CREATE, "a.txt");
    write_text(folder_file("nothing.txt"), "");
    char *empty[] = {folder_file("nothing.txt")};
    o = prepared_options(bpe, empty, 1);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "no tokens");
    CHECK_EQUAL(count_files(folder_file("out")), 0);

    /* An older set is kept until the new one is complete, and then replaced. */
    o = prepared_options(bpe, inputs, 1);
    o.shard_tokens = 1;
    CHECK_OK(prepare_clm(&o, &report));
    int before = count_files(folder_file("out"));
    CHECK(before > 2 && before == report.train_shards);
    o.input_count = 2;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "gzip");
    CHECK_EQUAL(count_files(folder_file("out")), before);
    o = prepared_options(bpe, inputs, 1);
    CHECK_OK(prepare_clm(&o, &report));
    CHECK_EQUAL(count_files(folder_file("out")), 1);
}

/* If writing fails, prepare returns STATUS_WRITE and leaves no files. */
static void test_no_space(void)
{
    char *text = mixed_text(800000, 3, true);
    write_text(folder_file("much.txt"), text);
    free(text);
    char *inputs[] = {folder_file("much.txt")};
    struct prepare_options o = prepared_options(bpe, inputs, 1);
    struct prepare_report report;
    o.output = folder_file("full");
    struct rlimit limit, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = limit;
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit_bytes = 1000; limit_bytes < 300000; limit_bytes *= 3) {
        small.rlim_cur = limit_bytes;
        CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
        status result = prepare_clm(&o, &report);
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        CHECK_EQUAL(result, STATUS_WRITE);
        CHECK(strstr(status_pending()->text, "full") != NULL);
        status_clear();
        CHECK_EQUAL(count_files(folder_file("full")), 0);
    }
    CHECK_OK(prepare_clm(&o, &report));
}

/* A document that is much larger than the memory limit. */
static void test_memory(void)
{
    enum { COPIES = 48 };
    char *text = malloc(1 << 20);
    for (int i = 0; i < 1 << 20; i++) {
        text[i] = "abc \n"[random_below(9, (uint64_t)i, 5)];
    }
    FILE *f = fopen(folder_file("huge.txt"), "wb");
    for (int i = 0; i < COPIES; i++) {
        CHECK(fwrite(text, 1, 1 << 20, f) == 1 << 20);
    }
    CHECK(fclose(f) == 0);
    free(text);
    char *inputs[] = {folder_file("huge.txt")};
    struct prepare_options o = prepared_options(char_tokenizer, inputs, 1);
    struct prepare_report report;
    struct rusage before, after;
    o.shard_tokens = 5 << 20;
    o.validation_fraction = 0.05;
    getrusage(RUSAGE_SELF, &before);
    CHECK_OK(prepare_clm(&o, &report));
    getrusage(RUSAGE_SELF, &after);
    CHECK_EQUAL(report.train_tokens + report.validation_tokens, (int64_t)COPIES << 20);
    CHECK_EQUAL(report.train_shards + report.validation_shards, 11);
#if !defined __SANITIZE_ADDRESS__ &&                                                               \
    !defined __SANITIZE_THREAD__ /* the sanitizers use more memory */
    CHECK((after.ru_maxrss - before.ru_maxrss) >> 10 < 24);
#endif
}

int main(void)
{
    folder_make();
    log_quiet(true);
    char *text = mixed_text(60000, 1, false);
    write_text(folder_file("train.txt"), text);
    free(text);
    write_text(folder_file("letters.txt"), "abc \n中");
    char *inputs[] = {folder_file("train.txt"), folder_file("letters.txt")};
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 600, inputs, 1, 1, &bpe));
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, inputs + 1, 1, 1, &char_tokenizer));
    eos = tokenizer_eos(bpe);
    CHECK(eos >= 0 && tokenizer_eos(char_tokenizer) < 0);
    test_boundaries();
    test_chunks();
    test_character_chunks("family_llama2");
    test_character_chunks("family_mistral");
    test_character_chunks("family_gemma");
    test_forced_splits();
    test_documents();
    test_json_lines();
    test_validation();
    test_single_text();
    test_failures();
    test_no_space();
    test_memory();
    CHECK_OK(tokenizer_destroy(&bpe));
    CHECK_OK(tokenizer_destroy(&char_tokenizer));
    return 0;
}
