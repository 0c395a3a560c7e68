/* Tests of prepare_clm with token files of other programs: llm.c and Megatron-LM. */
#include "base/log.h"
#include "tests/datasets/prepared.h"
#include "tests/datasets/train_tokenizer.h"

static struct tokenizer *bpe;

static void test_llmc(void)
{
    struct {
        int32_t head[256];
        uint16_t ids[10];
    } file = {.head = {20240520, 1, 10}};
    const uint16_t end = (uint16_t)tokenizer_eos(bpe),
                   ids[10] = {end, 1, 2, 3, end, 4, end, 5, 6, 7};
    memcpy(file.ids, ids, sizeof ids);
    char *inputs[] = {folder_file("fineweb.bin")};
    struct prepare_options o = prepared_options(bpe, inputs, 1);
    struct prepare_report report;
    folder_write(inputs[0], &file, 1024 + sizeof ids);
    CHECK_OK(prepare_clm(&o, &report));
    struct prepared c;
    prepared_read(o.output, "train", &c);
    CHECK(c.count == 10 && c.documents == 3 && c.starts[1] == 4 && c.starts[2] == 6);
    for (int i = 0; i < 10; i++) {
        CHECK_EQUAL(c.ids[i], ids[i]);
    }
    free(c.ids);
    folder_write(inputs[0], &file, 1023);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "fineweb.bin");
    folder_write(inputs[0], &file, 1024 + sizeof ids - 2);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "claims 10 tokens");
    file.ids[3] = (uint16_t)tokenizer_vocab_size(bpe);
    folder_write(inputs[0], &file, 1024 + sizeof ids);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "token at byte 1030");
    file.head[0] = 1;
    folder_write(inputs[0], &file, 1024 + sizeof ids);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "not an llm.c token file");
}

/* Ids of 4 bytes. The begin token starts each document. */
static void test_llmc_llama(void)
{
    struct {
        int32_t head[256];
        uint32_t ids[8];
    } file = {.head = {20240801, 7, 8}, .ids = {0, 300, 1, 339, 0, 5, 0, 6}};
    char folder[FILE_PATH_BYTES];
    char *inputs[] = {folder_file("llama.bin")};
    struct tokenizer *bos_tokenizer = NULL;
    struct prepare_report report;
    struct prepared c;
    snprintf(folder, sizeof folder, "%s/tests/reference/tokenizer/begun",
             getenv("BIREME_SOURCE_DIR"));
    CHECK_OK(tokenizer_open(folder, &bos_tokenizer));
    struct prepare_options o = prepared_options(bos_tokenizer, inputs, 1);
    folder_write(inputs[0], &file, sizeof file);
    CHECK_OK(prepare_clm(&o, &report));
    prepared_read(o.output, "train", &c);
    CHECK(c.count == 8 && c.documents == 3 && c.starts[1] == 4 && c.starts[2] == 6);
    for (int i = 0; i < 8; i++) {
        CHECK_EQUAL(c.ids[i], file.ids[i]);
    }
    free(c.ids);
    o.append_eod = true; /* the begin token is no end token */
    CHECK_OK(prepare_clm(&o, &report));
    prepared_read(o.output, "train", &c);
    CHECK(c.count == 11 && c.documents == 3 && c.starts[1] == 5 && c.starts[2] == 8);
    CHECK(c.ids[4] == tokenizer_eos(bos_tokenizer) && c.ids[10] == c.ids[4]);
    free(c.ids);
    folder_write(inputs[0], &file, sizeof file - 1);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "1055 bytes instead of 1056");
    file.ids[5] = UINT32_MAX;
    folder_write(inputs[0], &file, sizeof file);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "byte 1044 has the id 4294967295");
    file.head[1] = 1;
    folder_write(inputs[0], &file, sizeof file);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "not an llm.c token file");
    CHECK_OK(tokenizer_destroy(&bos_tokenizer));
}

struct index_parts {
    uint8_t type;
    uint64_t sequences, entries;
    int32_t lengths[4];
    int64_t offsets[4], documents[4];
    int documents_written;
};

static void write_index(const char *path, const struct index_parts *p)
{
    FILE *f = fopen(path, "wb");
    const uint64_t version = 1;
    CHECK(f != NULL);
    fwrite("MMIDIDX\0\0", 1, 9, f);
    fwrite(&version, 8, 1, f);
    fwrite(&p->type, 1, 1, f);
    fwrite(&p->sequences, 8, 1, f);
    fwrite(&p->entries, 8, 1, f);
    fwrite(p->lengths, 4, 4, f);
    fwrite(p->offsets, 8, 4, f);
    fwrite(p->documents, 8, (size_t)p->documents_written, f);
    CHECK(fclose(f) == 0);
}

static void test_megatron(void)
{
    const int32_t ids[9] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    const struct index_parts good = {4, 4, 3, {2, 3, 0, 4}, {0, 8, 20, 20}, {0, 1, 4}, 3};
    char *inputs[] = {folder_file("wiki.bin"), folder_file("wiki.idx"), folder_file("wiki")};
    folder_write(inputs[0], ids, sizeof ids);
    write_index(inputs[1], &good);
    struct prepare_report report;
    for (int first = 0; first < 3; first++) { /* both files, only the index, or the prefix */
        struct prepare_options o = prepared_options(bpe, inputs + first, first == 0 ? 2 : 1);
        CHECK_OK(prepare_clm(&o, &report));
        struct prepared c;
        prepared_read(o.output, "train", &c);
        CHECK(c.count == 9 && c.documents == 2 && c.starts[1] == 2);
        for (int i = 0; i < 9; i++) {
            CHECK_EQUAL(c.ids[i], 9 - i);
        }
        free(c.ids);
    }
    struct prepare_options o = prepared_options(bpe, inputs, 1);
    struct index_parts bad = good;
#define BAD(change, text)                                                                          \
    bad = good;                                                                                    \
    change;                                                                                        \
    write_index(inputs[1], &bad);                                                                  \
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, text)
    BAD(bad.type = 7, "type 7");
    BAD(bad.type = 200, "type 200");
    BAD(bad.sequences = UINT64_MAX / 2, "claims");
    BAD(bad.entries = UINT64_C(1) << 61, "claims");
    BAD(bad.entries = 0, "claims");
    BAD(bad.lengths[3] = 5, "sequence 3 has 5 tokens");
    BAD(bad.lengths[0] = -1, "sequence 0 has -1 tokens");
    BAD(bad.offsets[1] = INT64_MAX, "sequence 1");
    BAD(bad.offsets[1] = -4, "sequence 1");
    BAD(bad.lengths[2] = 1, "sequence 3 overlaps an earlier one");
    BAD(bad.documents[1] = 5, "entry 1 of the document index is 5");
    BAD(bad.documents[2] = 3, "contain 3 of 4");
    BAD(bad.documents[0] = 1, "entry 0");
    BAD(bad.type = 5, "outside of"); /* 8 bytes per id exceed the file */
    folder_write(inputs[1], "MMIDIDX", 7);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "wiki.idx");
    uint16_t ids16[9] = {9, 8, 7, 6, 5, 4, 3, 2, 65535};
    folder_write(inputs[0], ids16, sizeof ids16);
    bad = good;
    bad.type = 8;
    memcpy(bad.offsets, (int64_t[]){0, 4, 10, 10}, sizeof bad.offsets);
    write_index(inputs[1], &bad);
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "the id 65535");
}

int main(void)
{
    folder_make();
    log_quiet(true);
    char license[FILE_PATH_BYTES];
    CHECK_OK(file_join(license, getenv("BIREME_SOURCE_DIR"), "LICENSE"));
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, (char *[]){license}, 1, 1, &bpe));
    test_llmc();
    test_llmc_llama();
    test_megatron();
    CHECK_OK(tokenizer_destroy(&bpe));
    return 0;
}
