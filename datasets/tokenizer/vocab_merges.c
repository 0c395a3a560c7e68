/* Reads the files of GPT-2 and RoBERTa without a tokenizer.json: vocab.json (an object of tokens
 * and ids) and merges.txt (a pair per line, after a line "#version: ..."). The text of a
 * tokenizer.json is made of them, so that the result passes all checks of such a file. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/tokenizer/json_reader_impl.h"

#define MERGES_FILE "merges.txt"

bool vocab_merges_exists(const char *folder)
{
    char vocab[FILE_PATH_BYTES], merges[FILE_PATH_BYTES];
    snprintf(vocab, sizeof vocab, "%.4000s/" VOCAB_JSON, folder);
    snprintf(merges, sizeof merges, "%.4000s/" MERGES_FILE, folder);
    return file_exists(vocab) && file_exists(merges);
}

status vocab_merges_read_vocab(const char *folder, json_t **out)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    TRY(file_join(path, folder, VOCAB_JSON));
    TRY(file_read(path, TOKENIZER_FILE_LIMIT_BYTES, &text, &bytes));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    free(text);
    REQUIRE(*out != NULL, STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    return STATUS_OK;
}

static status read_merges(const char *folder, json_t *merges)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    status result = STATUS_OK;
    TRY(file_join(path, folder, MERGES_FILE));
    TRY(file_read(path, TOKENIZER_FILE_LIMIT_BYTES, &text, &bytes));
    char *rest = text;
    for (char *line; result == STATUS_OK && (line = strsep(&rest, "\n")) != NULL;) {
        line[strcspn(line, "\r")] = '\0';
        bool is_comment = line == text && strncmp(line, "#version", 8) == 0;
        if (line[0] != '\0' && !is_comment &&
            json_array_append_new(merges, json_string(line)) != 0) {
            result = RAISE_STATUS(STATUS_DATA, "%s is not valid UTF-8", path);
        }
    }
    free(text);
    return result;
}

/* Adds a special token, if the vocabulary has it. */
static void add_special(json_t *list, const json_t *vocab, const char *token, bool lstrip)
{
    const json_t *id = json_object_get(vocab, token);
    if (id != NULL) {
        json_array_append_new(list, json_pack("{s:O, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                                              (json_t *)(uintptr_t)id, "content", token,
                                              "single_word", 0, "lstrip", lstrip, "rstrip", 0,
                                              "normalized", 0, "special", 1));
    }
}

/* Makes the list of special tokens and the post-processor: RoBERTa's if its tokens exist. */
static void make_special_parts(const json_t *vocab, json_t **added, json_t **processor)
{
    static const char *const roberta[] = {"<s>", "<pad>", "</s>", "<unk>"};
    json_t *cls = json_object_get(vocab, "<s>"), *sep = json_object_get(vocab, "</s>");
    bool is_roberta = cls != NULL && sep != NULL && json_object_get(vocab, "<mask>") != NULL;
    *added = json_array();
    for (int i = 0; is_roberta && i < COUNT(roberta); i++) {
        add_special(*added, vocab, roberta[i], false);
    }
    if (is_roberta) {
        add_special(*added, vocab, "<mask>", true);
        *processor =
            json_pack("{s:s, s:[s,O], s:[s,O], s:b, s:b}", "type", "RobertaProcessing", "sep",
                      "</s>", sep, "cls", "<s>", cls, "trim_offsets", 1, "add_prefix_space", 0);
        return;
    }
    add_special(*added, vocab, TOKENIZER_EOS, false);
    *processor = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                           "trim_offsets", 0, "use_regex", 1);
}

/* Makes the root of a tokenizer.json; takes the references of vocab and merges. */
static json_t *make_root(json_t *vocab, json_t *merges)
{
    json_t *added = NULL, *processor = NULL;
    make_special_parts(vocab, &added, &processor);
    json_t *model =
        json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                  "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                  "byte_fallback", 0, "vocab", vocab, "merges", merges);
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:o, s:{s:s, s:b, s:b, "
                     "s:b}, s:o}",
                     "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer",
                     "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", 1, "post_processor", processor, "decoder", "type", "ByteLevel",
                     "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", model);
}

status vocab_merges_open(const char *folder, struct tokenizer **out)
{
    char path[FILE_PATH_BYTES];
    json_t *vocab = NULL, *merges = json_array();
    *out = NULL;
    status result = file_join(path, folder, VOCAB_JSON);
    KEEP_FIRST(result, result == STATUS_OK ? vocab_merges_read_vocab(folder, &vocab) : result);
    KEEP_FIRST(result, result == STATUS_OK ? read_merges(folder, merges) : result);
    if (result != STATUS_OK) {
        json_decref(vocab);
        json_decref(merges);
        return result;
    }
    json_t *root = make_root(vocab, merges);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for %s", path);
    result = tokenizer_from_text(text, strlen(text), path, out);
    free(text);
    return result;
}
