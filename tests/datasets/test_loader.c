/* Tests of the loader with text shards: equal global batches for all numbers of ranks and sizes of
 * micro-batches, exact resume, complete epochs, and errors at the correct batch.
 *
 * In these shards token i of the set has the id i, so that a row identifies its position. */
#define _GNU_SOURCE /* memmem */
#include <fcntl.h>
#include <hdf5.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/shard.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/loader_options.h"

enum { T = 8, VOCAB = 1 << 20 };

static const char *const tokenizer =
    "00000000000000000000000000000000000000000000000000000000000000ff";

static void write_shard(const char *path, int32_t first, int64_t tokens, int64_t document)
{
    struct shard_header header = {.vocab_size = VOCAB, .eos_id = -1};
    snprintf(header.tokenizer_sha256, sizeof header.tokenizer_sha256, "%s", tokenizer);
    struct shard_writer *w;
    CHECK_OK(shard_writer_create(path, &header, &w));
    for (int64_t i = 0; i < tokens; i++) {
        int32_t id = (int32_t)(first + i);
        CHECK_OK(shard_writer_append_tokens(w, &id, 1));
        if ((i + 1) % document == 0) {
            CHECK_OK(shard_writer_end_document(w));
        }
    }
    CHECK_OK(shard_writer_close(&w));
}

static struct loader_options make_options(const char *path)
{
    struct loader_options o = make_loader_options(path, EXAMPLE_TEXT, T, VOCAB);
    o.tokenizer_sha256 = tokenizer;
    o.prefetch_batches = 3;
    return o;
}

/* Checks a batch without document mask, and writes the first token of each sample to list. */
static int64_t check_batch(const struct batch *b, int64_t expected_number, int32_t *list)
{
    CHECK_EQUAL(b->rows, b->sequences * T);
    CHECK_EQUAL(b->tokens, T);
    CHECK_EQUAL(b->segments, b->sequences);
    CHECK_EQUAL(b->first_row, expected_number * T);
    CHECK_EQUAL(b->cu_rows[0], 0);
    for (int64_t i = 0; i < b->sequences; i++) {
        CHECK_EQUAL(b->samples[i], expected_number + i);
        CHECK_EQUAL(b->cu_rows[i + 1], (i + 1) * T);
        CHECK_EQUAL(b->longest, T);
        for (int64_t j = 0; j < T; j++) {
            CHECK_EQUAL(b->inputs[i * T + j], b->inputs[i * T] + j);
            CHECK_EQUAL(b->targets[i * T + j], b->inputs[i * T + j] + 1);
            CHECK_EQUAL(b->positions[i * T + j], j);
        }
        list[i] = b->inputs[i * T];
    }
    return b->sequences;
}

/* Reads the samples of one rank for `steps` steps into list[step][G], at their position in the
 * global batch. */
static void read_rank(struct loader_options o, int64_t steps, int32_t *list, bool *filled)
{
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    for (int64_t step = 0; step < steps; step++) {
        bool last = false, end = false;
        int64_t rank_samples = 0, batches = 0;
        while (!last) {
            struct batch b;
            CHECK_OK(loader_next(l, &b, &last, &end));
            CHECK(!end);
            int64_t number = b.first_row / T;
            CHECK(b.sequences <= o.micro_sequences);
            CHECK(last || b.sequences == o.micro_sequences);
            int64_t position = number - o.first_sample;
            check_batch(&b, number, list + position);
            for (int64_t i = 0; i < b.sequences; i++) {
                CHECK_EQUAL((position + i) / o.global_sequences, step);
                CHECK(!filled[position + i]);
                filled[position + i] = true;
            }
            int64_t in_step = position % o.global_sequences;
            CHECK(!o.interleave_micro_batches || b.sequences == 0 ||
                  in_step % (o.micro_sequences * o.ranks) == o.micro_sequences * o.rank);
            rank_samples += b.sequences;
            batches++;
        }
        int64_t minimum = o.global_sequences / o.ranks;
        CHECK(o.interleave_micro_batches || rank_samples == minimum || rank_samples == minimum + 1);
        CHECK(batches >= 1);
    }
    CHECK(loader_stall_seconds(l) >= 0.0);
    CHECK_OK(loader_close(&l));
    CHECK(l == NULL);
}

static void test_ranks(const char *path)
{
    enum { STEPS = 60, G = 5 };
    int32_t reference[STEPS * G], list[STEPS * G];
    bool filled[STEPS * G] = {false};
    struct loader_options o = make_options(path);
    read_rank(o, STEPS, reference, filled);
    for (int variant = 2; variant < 16; variant++) { /* some with more ranks than samples */
        int ranks = variant / 2;
        o.interleave_micro_batches = variant % 2 == 1;
        for (int micro = 1; micro <= 6; micro += ranks > 4 ? 5 : 1) {
            memset(filled, 0, sizeof filled);
            for (int rank = 0; rank < ranks; rank++) {
                o.rank = rank;
                o.ranks = ranks;
                o.micro_sequences = micro;
                read_rank(o, STEPS, list, filled);
            }
            for (int i = 0; i < STEPS * G; i++) {
                CHECK(filled[i]);
            }
            CHECK(memcmp(list, reference, sizeof list) == 0);
        }
    }
    for (int cursor = 0; cursor < STEPS; cursor++) { /* resume */
        memset(filled, 0, sizeof filled);
        o = make_options(path);
        o.first_sample = cursor * G;
        o.micro_sequences = 1 + cursor % 3;
        int64_t steps = number_min(STEPS - cursor, 3);
        read_rank(o, steps, list, filled);
        CHECK(memcmp(list, reference + cursor * G, (size_t)steps * G * sizeof *list) == 0);
    }
}

/* Lists the first token of each sample of the set that main writes, in the order of the shards. */
static int64_t expected_samples(int32_t *first)
{
    static const int64_t sizes[3] = {100, 8, 400}; /* 12, 0 and 49 samples */
    int64_t count = 0;
    for (int64_t s = 0, base = 0; s < 3; base += sizes[s++]) {
        for (int64_t j = 0; (j + 1) * T + 1 <= sizes[s]; j++) {
            first[count++] = (int32_t)(base + j * T);
        }
    }
    return count;
}

static void test_epoch(const char *path)
{
    int32_t expected[100], seen[100] = {0};
    int64_t n = expected_samples(expected);
    CHECK_EQUAL(n, 61);
    struct loader_options o = make_options(path);
    o.limit_samples = LOADER_ONE_EPOCH;
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    CHECK_EQUAL(loader_samples(l), n);
    CHECK_EQUAL(loader_tokens(l), 508);
    bool last, end = false;
    int64_t total = 0, steps = 0;
    for (;;) {
        struct batch b;
        CHECK_OK(loader_next(l, &b, &last, &end));
        if (end) {
            CHECK(b.sequences == 0 && !last);
            CHECK_OK(loader_next(l, &b, &last, &end)); /* the end is repeated */
            CHECK(end && b.sequences == 0);
            break;
        }
        int32_t list[2];
        int64_t count = check_batch(&b, total, list);
        for (int64_t i = 0; i < count; i++) {
            int64_t k = 0;
            while (k < n && expected[k] != list[i]) {
                k++;
            }
            CHECK(k < n && seen[k]++ == 0);
            char text[FILE_PATH_BYTES + 64], expected_text[64];
            loader_locate(l, b.samples[i], text, (int)sizeof text);
            int32_t base = list[i] < 108 ? 0 : 108;
            snprintf(expected_text, sizeof expected_text, "tokens %d to %d", list[i] - base,
                     list[i] - base + T);
            CHECK(strstr(text, expected_text) != NULL);
            CHECK(strstr(text, base == 0 ? "t-00000-of" : "t-00002-of") != NULL);
        }
        total += count;
        steps += last;
    }
    CHECK_EQUAL(total, n);
    CHECK_EQUAL(steps, 13); /* 12 steps of 5 samples and one of 1 */
    CHECK_OK(loader_close(&l));
}

/* In the second epoch the windows of a shard are shifted, and each window stays in its shard. */
static void test_later_epochs(const char *path)
{
    struct loader_options o = make_options(path);
    struct loader *l;
    o.first_sample = 65; /* an epoch has 61 samples */
    o.limit_samples = 120;
    CHECK_OK(loader_open(&o, &l));
    int64_t moved = 0, number = 65;
    for (bool last, end = false;;) {
        struct batch b;
        int32_t list[2];
        CHECK_OK(loader_next(l, &b, &last, &end));
        if (end) {
            break;
        }
        int64_t count = check_batch(&b, number, list);
        for (int64_t i = 0; i < count; i++) {
            moved += (list[i] < 108 ? list[i] : list[i] - 108) % T != 0;
            CHECK(list[i] + T < 100 || (list[i] >= 108 && list[i] + T < 508));
        }
        number += count;
    }
    CHECK_EQUAL(number, 120);
    CHECK(moved > 40);
    CHECK_OK(loader_close(&l));
}

/* Evaluation: each sample once, in order, with the same number of steps on all ranks. */
static void test_evaluation(const char *path)
{
    int32_t expected[100];
    int64_t n = expected_samples(expected);
    static const int64_t limits[] = {LOADER_ONE_EPOCH, 1000, 61, 60, 13, 4, 1};
    for (int k = 0; k < COUNT(limits); k++) {
        int64_t expected_total = limits[k] > 0 && limits[k] < n ? limits[k] : n, total = 0;
        for (int rank = 0; rank < 4; rank++) {
            struct loader_options o = make_options(path);
            o.shuffle = false;
            o.limit_samples = limits[k];
            o.rank = rank;
            o.ranks = 4;
            o.interleave_micro_batches = k % 2 == 1;
            struct loader *l;
            CHECK_OK(loader_open(&o, &l));
            int64_t steps = 0;
            for (bool last = false, end = false; !end; steps += last) {
                struct batch b;
                int32_t list[2];
                CHECK_OK(loader_next(l, &b, &last, &end));
                if (end) {
                    break;
                }
                check_batch(&b, b.first_row / T, list);
                for (int64_t i = 0; i < b.sequences; i++) {
                    CHECK_EQUAL(list[i], expected[b.samples[i]]);
                }
                total += b.sequences;
            }
            CHECK_EQUAL(steps, (expected_total + 4) / 5);
            CHECK_OK(loader_close(&l));
        }
        CHECK_EQUAL(total, expected_total);
    }
}

/* Training without shuffle: the order of the shards, in every epoch, without an end. */
static void test_in_order(const char *path)
{
    int32_t expected[100], list[2];
    int64_t n = expected_samples(expected), number = 0;
    struct loader_options o = make_options(path);
    struct loader *l;
    o.shuffle = false;
    CHECK_OK(loader_open(&o, &l));
    while (number < 2 * n + 7) {
        struct batch b;
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        CHECK(!end);
        check_batch(&b, b.first_row / T, list);
        for (int64_t i = 0; i < b.sequences; i++) {
            CHECK_EQUAL(b.samples[i], number++);
            CHECK_EQUAL(list[i], expected[b.samples[i] % n]);
        }
    }
    CHECK_OK(loader_close(&l));
}

static void test_document_mask(const char *path)
{
    struct loader_options o = make_options(path);
    o.document_mask = true;
    o.limit_samples = LOADER_ONE_EPOCH;
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    int64_t ignored = 0, segments = 0;
    for (bool last, end = false; !end;) {
        struct batch b;
        CHECK_OK(loader_next(l, &b, &last, &end));
        CHECK_EQUAL(b.cu_rows[0], 0);
        CHECK_EQUAL(b.cu_rows[b.segments], b.rows);
        int64_t segment = 0, longest = 0;
        for (int64_t row = 0; row < b.rows; row++) {
            int32_t id = b.inputs[row]; /* the position in the shard determines the document */
            int32_t position = id < 108 ? id : id - 108;
            bool starts = row % T == 0 || position % 5 == 0, next_starts = (position + 1) % 5 == 0;
            if (starts) {
                CHECK_EQUAL(b.cu_rows[segment], row);
                segment++;
            }
            int64_t begin = b.cu_rows[segment - 1];
            CHECK_EQUAL(b.positions[row], row - begin);
            CHECK_EQUAL(b.targets[row], next_starts ? BATCH_IGNORED : id + 1);
            longest = number_max(longest, row - begin + 1);
            ignored += next_starts;
        }
        CHECK_EQUAL(segment, b.segments);
        CHECK_EQUAL(longest, b.longest);
        segments += segment;
    }
    CHECK(ignored > 50 && segments > 61);
    CHECK_OK(loader_close(&l));
}

/* Two sets with weights 3 and 1; the tokens of the second begin at 500000. */
static void test_mixture(const char *path)
{
    write_shard(folder_file("other.h5"), 500000, 90, 7);
    const struct loader_source sources[2] = {{path, 3.0}, {folder_file("other.h5"), 1.0}};
    struct loader_options o = make_options(path);
    o.sources = sources;
    o.source_count = 2;
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    char fingerprint[65];
    snprintf(fingerprint, sizeof fingerprint, "%s", loader_fingerprint(l));
    int32_t order[400];
    int64_t source_samples[2] = {0, 0}, total = 0;
    while (total < 400) {
        struct batch b;
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        total += check_batch(&b, total, order + total);
    }
    for (int64_t i = 0; i < total; i++) {
        source_samples[order[i] >= 500000]++;
        CHECK_NEAR((double)source_samples[1], (double)(i + 1) / 4, 1.0);
    }
    CHECK_OK(loader_close(&l));
    o.first_sample = 200;
    CHECK_OK(loader_open(&o, &l));
    CHECK_TEXT(fingerprint, loader_fingerprint(l));
    for (total = 200; total < 395;) {
        struct batch b;
        int32_t list[2];
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        int64_t count = check_batch(&b, total, list);
        CHECK(memcmp(list, order + total, (size_t)count * sizeof *list) == 0);
        total += count;
    }
    CHECK_OK(loader_close(&l));
    o.seed++;
    CHECK_OK(loader_open(&o, &l));
    CHECK(strcmp(fingerprint, loader_fingerprint(l)) != 0);
    CHECK_OK(loader_close(&l));
}

static int64_t read_resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* More shards than may be open at once. Memory does not grow with the number of samples read. */
static void test_many_shards(void)
{
    char name[64];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "many-%05d-of-00040.h5", i);
        write_shard(folder_file(name), i * 41, 41, 41);
    }
    struct loader_options o = make_options(folder_file("nothing-*.h5"));
    int64_t one_shard_bytes = loader_memory_bytes(&o);
    o = make_options(folder_file("many-0000*.h5"));
    int64_t base_bytes =
        one_shard_bytes - (loader_memory_bytes(&o) - one_shard_bytes) / 9; /* without shards */
    CHECK(base_bytes > 0 && base_bytes < one_shard_bytes);
    o = make_options(folder_file("many-*.h5")); /* not all 40 are open at once */
    CHECK_EQUAL(loader_memory_bytes(&o), base_bytes + 32 * (one_shard_bytes - base_bytes));
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    CHECK_EQUAL(loader_samples(l), 200);
    int64_t total = 0, resident_bytes = read_resident_bytes();
    int seen[200] = {0};
    while (total < 1200) {
        struct batch b;
        int32_t list[2];
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        int64_t count = check_batch(&b, total, list);
        for (int64_t i = 0; i < count; i++) {
            CHECK_EQUAL(seen[list[i] / 41 * 5 + list[i] % 41 / T]++, (total + i) / 200);
        }
        total += count;
        resident_bytes = total <= 400 ? read_resident_bytes() : resident_bytes;
    }
#if !defined __SANITIZE_ADDRESS__ &&                                                               \
    !defined __SANITIZE_THREAD__ /* the sanitizers use more memory */
    CHECK(read_resident_bytes() - resident_bytes < 4 << 20);
#endif
    CHECK_OK(loader_close(&l));
    unlink(folder_file("many-00007-of-00040.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "many-00007-of-00040.h5 is missing");
    write_shard(folder_file("many-00007-of-00040.h5"), 7 * 41, 41, 41);
    write_shard(folder_file("many-00039-of-00041.h5"), 0, 41, 41);
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "two different preparations");
}

static void test_errors(const char *path)
{
    struct loader *l;
    struct loader_options o = make_options(folder_file("none-*.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_NO_INPUT, "none-*.h5");
    CHECK(l == NULL);
    o = make_options(folder_file("no/folder/x.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_NO_INPUT, "no/folder/x.h5");
    o = make_options(path);
    o.vocab_size = VOCAB - 1;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "vocabulary");
    o = make_options(path);
    o.tokenizer_sha256 = "another";
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "t-00000-of-00003.h5 was made with another");
    o = make_options(path);
    o.sequence_tokens = 500;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "no sample of 501");
    o = make_options(path);
    test_source.weight = -1.0;
    CHECK_FAILS(loader_open(&o, &l), STATUS_RECIPE, "weight");
    folder_write(folder_file("foreign.h5"), "no shard", 8);
    o = make_options(folder_file("foreign.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "foreign.h5 is not an HDF5 file");
}

/* Damage after the check of loader_open: the batches before it are correct, then the loader returns
 * STATUS_DATA with the position. */
static void test_damage_while_reading(void)
{
    const char *path = folder_file("large.h5");
    write_shard(path, 0, 200000, 1000); /* 13 chunks */
    struct loader_options o = make_options(path);
    o.shuffle = false;
    o.prefetch_batches = 1;
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    int32_t mark[64];
    for (int i = 0; i < 64; i++) {
        mark[i] = 16384 * 4 + i;
    }
    size_t bytes;
    char *data = folder_read(path, &bytes), *found = memmem(data, bytes, mark, sizeof mark);
    CHECK(found != NULL);
    int file = open(path, O_WRONLY);
    CHECK(pwrite(file, "broken", 6, found - data + 100) == 6);
    close(file);
    free(data);
    int64_t total = 0;
    status result = STATUS_OK;
    struct batch b;
    bool last, end;
    while (result == STATUS_OK && total < 30000) {
        result = loader_next(l, &b, &last, &end);
        int32_t list[2];
        total += result == STATUS_OK ? check_batch(&b, total, list) : 0;
    }
    CHECK_EQUAL(result, STATUS_DATA);
    CHECK(total > 7000 && total <= 16384 * 4 / T);
    CHECK(strstr(status_pending()->text, "large.h5 is damaged") != NULL);
    status_clear();
    CHECK_FAILS(loader_next(l, &b, &last, &end), STATUS_DATA, "large.h5"); /* repeated */
    CHECK_OK(loader_close(&l));
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "large.h5");
}

static void test_close_early(const char *path)
{
    for (int i = 0; i < 50; i++) {
        struct loader_options o = make_options(path);
        o.prefetch_batches = i % 4;
        struct loader *l;
        CHECK_OK(loader_open(&o, &l));
        for (int j = 0; j < i % 5; j++) {
            struct batch b;
            bool last, end;
            CHECK_OK(loader_next(l, &b, &last, &end));
        }
        CHECK(loader_memory_bytes(&o) > 0);
        CHECK_OK(loader_close(&l));
    }
    struct loader *none = NULL;
    CHECK_OK(loader_close(&none));
}

int main(void)
{
    folder_make();
    log_quiet(true);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    write_shard(folder_file("t-00000-of-00003.h5"), 0, 100, 5);
    write_shard(folder_file("t-00001-of-00003.h5"), 100, 8, 5); /* too short for a sample */
    write_shard(folder_file("t-00002-of-00003.h5"), 108, 400, 5);
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s", folder_file("t-*.h5"));
    test_ranks(path);
    test_epoch(path);
    test_later_epochs(path);
    test_evaluation(path);
    test_in_order(path);
    test_document_mask(path);
    test_mixture(path);
    test_many_shards();
    test_errors(path);
    test_damage_while_reading();
    test_close_early(path);
    return 0;
}
