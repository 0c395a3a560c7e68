/* Tests of the commands `bireme tokenizer train`, `encode` and `decode`, run in a shell: pipes,
 * workers, exit codes. */
#include <stdarg.h>
#include <sys/wait.h>

#include "tests/check.h"
#include "tests/datasets/folder.h"

static const char *program;

/* Runs a shell command in the temporary folder and returns its exit code; $B is the program. */
static int run_command(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run_command(const char *format, ...)
{
    char arguments[2048], command[4096 + FILE_PATH_BYTES];
    va_list values;
    va_start(values, format);
    vsnprintf(arguments, sizeof arguments, format, values);
    va_end(values);
    snprintf(command, sizeof command, "cd '%s' && B='%s' && { %s; } 2>error.txt", folder_path,
             program, arguments);
    int code = system(command);
    CHECK(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static void check_error(const char *expected)
{
    char *text = folder_read(folder_file("error.txt"), NULL);
    if (strstr(text, expected) == NULL) {
        fprintf(stderr, "expected '%s' in: %s\n", expected, text);
        exit(1);
    }
    free(text);
}

static void write_corpus(void)
{
    FILE *file = fopen(folder_file("text.txt"), "wb");
    CHECK(file != NULL);
    for (int i = 0; i < 3000; i++) {
        fprintf(file, "%d oars pull in  one stroke, r\xc3\xa4umt \xe6\xab\x82.\r\n\n", i);
    }
    CHECK(fclose(file) == 0);
}

static void test_bpe(void)
{
    CHECK_EQUAL(
        run_command("$B tokenizer train --vocab-size 320 --input text.txt text.txt --output t"), 0);
    CHECK_EQUAL(run_command("$B tokenizer encode --tokenizer t text.txt > ids"), 0);
    CHECK_EQUAL(run_command("$B tokenizer encode --tokenizer t --workers 2 < text.txt | cmp - ids"),
                0);
    CHECK_EQUAL(run_command("test $(wc -l < ids) = $(wc -l < text.txt)"), 0);
    CHECK_EQUAL(run_command("gzip -c text.txt | $B tokenizer encode --tokenizer t | cmp - ids"), 0);
    CHECK_EQUAL(run_command("$B tokenizer decode --tokenizer t ids | cmp - text.txt"), 0);
    CHECK_EQUAL(
        run_command("$B tokenizer decode --tokenizer t --workers 2 - < ids | cmp - text.txt"), 0);
    CHECK_EQUAL(run_command("$B tokenizer encode --tokenizer t --whole text.txt > whole"), 0);
    CHECK_EQUAL(run_command("test $(wc -l < whole) = 1"), 0);
    CHECK_EQUAL(run_command("(cat text.txt; echo) > more.txt; "
                            "$B tokenizer decode --tokenizer t whole | cmp - more.txt"),
                0);
    CHECK_EQUAL(
        run_command("test $(printf 'a<|endoftext|>' | $B tokenizer encode --tokenizer t --special"
                    " | wc -w) = 2"),
        0);
    CHECK_EQUAL(run_command("test -z \"$(printf '' | $B tokenizer encode --tokenizer t)\""), 0);
}

static void test_char(void)
{
    CHECK_EQUAL(run_command("$B tokenizer train --type char --input text.txt --output c"), 0);
    CHECK_EQUAL(
        run_command("tr -d '\\r' < text.txt > plain; $B tokenizer encode --tokenizer c plain | "
                    "$B tokenizer decode --tokenizer c | cmp - plain"),
        0);
    CHECK_EQUAL(run_command("printf 'oar\\noaR\\n' | $B tokenizer encode --tokenizer c"), 65);
    check_error("standard input:2: the character U+0052 'R' at byte 2");
}

static void test_wordpiece(void)
{
    CHECK_EQUAL(
        run_command(
            "$B tokenizer train --type wordpiece --vocab-size 300 --input text.txt --output w && "
            "test $(head -n 5 w/vocab.txt | tr -d '\\n') = '[PAD][UNK][CLS][SEP][MASK]'"),
        0);
    CHECK_EQUAL(
        run_command(
            "test \"$(printf '\\n' | $B tokenizer encode --tokenizer w --add-special-tokens)\" "
            "= '2 3'"),
        0);
    CHECK_EQUAL(
        run_command("test \"$(printf '[MASK]\\t\\n' | $B tokenizer encode --tokenizer w --pair "
                    "--special)\" = '2 4 3 3'"),
        0);
    CHECK_EQUAL(run_command("printf 'a\\tb\\nno\\n' | $B tokenizer encode --tokenizer w --pair"),
                65);
    check_error(":2: the line has no tab");
    CHECK_EQUAL(
        run_command("rm w/tokenizer.json; printf 'OAR\\n' | $B tokenizer encode --tokenizer w | "
                    "$B tokenizer decode --tokenizer w | grep -qx oar"),
        0);
    CHECK_EQUAL(
        run_command("printf 'a\\n' | $B tokenizer encode --tokenizer t --add-special-tokens"), 65);
    check_error("no [CLS] and [SEP]");
}

/* Training on JSON Lines reads only the field "text". The result equals training on these texts. */
static void test_rows(void)
{
    static const char rows[] =
        "\xEF\xBB\xBF{\"text\": \"oars pull in one stroke\", \"url\": \"qqqq qqqq\"}\r\n\n"
        "{\"text\": \"broken\n{\"txt\": \"zzzz zzzz\"}\n{\"text\": \"\"}\n"
        "{\"text\": \"oars pull\\nr\\u00e4umt in one stroke\"}";
    static const char first_text[] = "oars pull in one stroke";
    static const char second_text[] = "oars pull\nr\xc3\xa4umt in one stroke";
    CHECK_OK(file_write(folder_file("rows.jsonl"), rows, sizeof rows - 1));
    CHECK_OK(file_write(folder_file("same.txt"), first_text, sizeof first_text - 1));
    CHECK_OK(file_write(folder_file("more.txt"), second_text, sizeof second_text - 1));
    for (int i = 0; i < 3; i++) {
        const char *type = i == 0 ? "bpe" : i == 1 ? "wordpiece" : "char";
        CHECK_EQUAL(run_command("$B tokenizer train --type %s --vocab-size 280 --workers 2 --input "
                                "rows.jsonl --output rows",
                                type),
                    0);
        check_error("warning: rows.jsonl:3: column ");
        check_error("warning: rows.jsonl:4: no field 'text' (the row has");
        check_error("warning: 2 rows were skipped");
        check_error("[W-BAD-ROW]");
        check_error("[W-SKIPPED-ROWS]");
        CHECK_EQUAL(
            run_command("$B tokenizer train --type %s --vocab-size 280 --input same.txt more.txt "
                        "--output texts &&"
                        " cmp rows/tokenizer.json texts/tokenizer.json",
                        type),
            0);
    }
}

/* A warning reports that the fractions of documents and of tokens differ much. */
static void test_validation_warning(void)
{
    static const char prepare[] =
        "$B prepare --tokenizer t --documents line --input lines.txt --output held";
    CHECK_EQUAL(
        run_command("for i in 1 2 3 4; do echo oars pull in one stroke; done > lines.txt; %s "
                    "--validation-fraction 0.25",
                    prepare),
        0);
    CHECK_EQUAL(run_command("! grep -q VALIDATION error.txt"), 0);
    CHECK_EQUAL(
        run_command("for i in 1 2 3; do echo oars pull in one stroke, oars pull in one stroke; "
                    "done > lines.txt;"
                    " echo o >> lines.txt; %s --validation-fraction 0.25",
                    prepare),
        0);
    check_error("of the tokens, but 25% was requested");
}

static void test_errors(void)
{
    CHECK_EQUAL(run_command("$B tokenizer train --input text.txt --output t"), 64);
    check_error("--vocab-size");
    CHECK_EQUAL(run_command("$B tokenizer train --vocab-size 300 --input none.txt --output t"), 66);
    check_error("none.txt");
    CHECK_EQUAL(run_command("$B tokenizer train --type wordpiece --input text.txt --output t"), 64);
    check_error("--type wordpiece needs --vocab-size");
    CHECK_EQUAL(
        run_command("printf '\\037\\213oars oars' > packed.gz; "
                    "$B tokenizer train --vocab-size 300 --input text.txt packed.gz --output t"),
        65);
    check_error("packed.gz is a gzip file, not text");
    CHECK_EQUAL(run_command("printf '\\377\\376o\\0a\\0' > wide.txt; "
                            "$B prepare --tokenizer t --input wide.txt --output wide"),
                65);
    check_error("wide.txt is a UTF-16 file, not text; convert it, for example with `iconv");
    CHECK_EQUAL(run_command("echo '%%PDF-1.4' > a.pdf; "
                            "$B prepare --tokenizer t --input a.pdf --output wide"),
                65);
    check_error("a.pdf is a PDF file, not text");
    CHECK_EQUAL(run_command(": > a.txt; : > b.txt; "
                            "$B prepare --tokenizer t --input a.txt b.txt --output wide"),
                65);
    check_error("a.txt and the other files of the input have no tokens");
    CHECK_EQUAL(run_command("$B tokenizer encode --tokenizer none text.txt"), 66);
    CHECK_EQUAL(run_command("$B tokenizer encode --tokenizer t none.txt"), 66);
    CHECK_EQUAL(run_command("$B tokenizer encode text.txt"), 64);
    CHECK_EQUAL(run_command("printf '1 2\\n3 x4\\n' | $B tokenizer decode --tokenizer t"), 65);
    check_error(":2:3: not a token id");
    CHECK_EQUAL(run_command("printf '1 2\\n3 99999999999\\n' | $B tokenizer decode --tokenizer t"),
                65);
    CHECK_EQUAL(run_command("printf '1\\n\\n1 320\\n' | $B tokenizer decode --tokenizer t"), 65);
    check_error(":3: id 320 at index 1");
    CHECK_EQUAL(run_command("$B tokenizer encode --tokenizer t text.txt > /dev/full"), 74);
    CHECK_EQUAL(run_command("mkdir -p bad; echo '{}' > bad/tokenizer.json; "
                            "$B tokenizer encode --tokenizer bad text.txt"),
                65);
    check_error("bad/tokenizer.json: model");
}

int main(void)
{
    program = getenv("BIREME_PROGRAM");
    if (program == NULL || !file_exists(program)) {
        CHECK_SKIP("the program is not built: %s", program == NULL ? "no BIREME_PROGRAM" : program);
    }
    folder_make();
    write_corpus();
    test_bpe();
    test_char();
    test_wordpiece();
    test_rows();
    test_validation_warning();
    test_errors();
    return 0;
}
