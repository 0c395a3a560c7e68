#define _GNU_SOURCE /* memmem */
/* The loader: the same global batch at any number of ranks and any micro-batch, exact resume, nothing
 * lost in an epoch, errors delivered in their place.
 *
 * In these shards token i of the set has the value i, so that a row names its place in the data. */
#include <fcntl.h>
#include <hdf5.h>

#include "base/log.h"
#include "datasets/loader/loader.h"
#include "datasets/shard/shard.h"
#include "tests/datasets/folder.h"

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

static struct loader_source one_source;

static struct loader_options plain(const char *path)
{
    one_source = (struct loader_source){path, 1.0};
    return (struct loader_options){.sources = &one_source,
                                   .source_count = 1,
                                   .sequence_tokens = T,
                                   .global_sequences = 5,
                                   .micro_sequences = 2,
                                   .ranks = 1,
                                   .seed = 11,
                                   .shuffle = true,
                                   .vocab_size = VOCAB,
                                   .tokenizer_sha256 = tokenizer,
                                   .prefetch_batches = 3};
}

/* Check a batch without document mask and append the first token of each sample to list. */
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

/* Samples of `steps` steps by one rank, placed into list[step][G] where its share belongs. */
static void read_rank(struct loader_options o, int64_t steps, int32_t *list, bool *filled)
{
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    for (int64_t step = 0; step < steps; step++) {
        bool last = false, end = false;
        int64_t share = 0, batches = 0;
        while (!last) {
            struct batch b;
            CHECK_OK(loader_next(l, &b, &last, &end));
            CHECK(!end);
            int64_t number = b.first_row / T;
            CHECK(b.sequences <= o.micro_sequences);
            CHECK(last || b.sequences == o.micro_sequences);
            int64_t place = number - o.first_sample;
            check_batch(&b, number, list + place);
            for (int64_t i = 0; i < b.sequences; i++) {
                CHECK_EQUAL((place + i) / o.global_sequences, step);
                CHECK(!filled[place + i]);
                filled[place + i] = true;
            }
            int64_t in_step = place % o.global_sequences;
            CHECK(!o.interleave_micro_batches || b.sequences == 0 ||
                  in_step % (o.micro_sequences * o.ranks) == o.micro_sequences * o.rank);
            share += b.sequences;
            batches++;
        }
        int64_t least = o.global_sequences / o.ranks;
        CHECK(o.interleave_micro_batches || share == least || share == least + 1);
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
    struct loader_options o = plain(path);
    read_rank(o, STEPS, reference, filled);
    for (int ways = 2; ways < 16;
         ways++) { /* more ranks than samples of a step too; shared or dealt out */
        int ranks = ways / 2;
        o.interleave_micro_batches = ways % 2 == 1;
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
        o = plain(path);
        o.first_sample = cursor * G;
        o.micro_sequences = 1 + cursor % 3;
        int64_t steps = STEPS - cursor < 3 ? STEPS - cursor : 3;
        read_rank(o, steps, list, filled);
        CHECK(memcmp(list, reference + cursor * G, (size_t)steps * G * sizeof *list) == 0);
    }
}

/* The set of test_shards: which first tokens are samples, in the order of the shards. */
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
    struct loader_options o = plain(path);
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
            CHECK_OK(loader_next(l, &b, &last, &end)); /* and again */
            CHECK(end && b.sequences == 0);
            break;
        }
        int32_t list[2];
        int64_t got = check_batch(&b, total, list);
        for (int64_t i = 0; i < got; i++) {
            int64_t k = 0;
            while (k < n && expected[k] != list[i]) {
                k++;
            }
            CHECK(k < n && seen[k]++ == 0);
            char text[FILE_PATH_BYTES + 64], wanted[64];
            loader_locate(l, b.samples[i], text, (int)sizeof text);
            int32_t base = list[i] < 108 ? 0 : 108;
            snprintf(wanted, sizeof wanted, "tokens %d to %d", list[i] - base, list[i] - base + T);
            CHECK(strstr(text, wanted) != NULL);
            CHECK(strstr(text, base == 0 ? "t-00000-of" : "t-00002-of") != NULL);
        }
        total += got;
        steps += last;
    }
    CHECK_EQUAL(total, n);
    CHECK_EQUAL(steps, 13); /* twelve of five and one of one */
    CHECK_OK(loader_close(&l));
}

/* In the second epoch a shard's windows begin elsewhere, and none leaves its shard (check_batch). */
static void test_later_epochs(const char *path)
{
    struct loader_options o = plain(path);
    struct loader *l;
    o.first_sample = 65; /* 61 samples are an epoch */
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
        int64_t got = check_batch(&b, number, list);
        for (int64_t i = 0; i < got; i++) {
            moved += (list[i] < 108 ? list[i] : list[i] - 108) % T != 0;
            CHECK(list[i] + T < 100 || (list[i] >= 108 && list[i] + T < 508));
        }
        number += got;
    }
    CHECK_EQUAL(number, 120);
    CHECK(moved > 40);
    CHECK_OK(loader_close(&l));
}

/* Evaluation: in order, each sample once, all ranks the same number of steps. */
static void test_evaluation(const char *path)
{
    int32_t expected[100];
    int64_t n = expected_samples(expected);
    static const int64_t limits[] = {LOADER_ONE_EPOCH, 1000, 61, 60, 13, 4, 1};
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        int64_t wanted = limits[k] > 0 && limits[k] < n ? limits[k] : n, total = 0;
        for (int rank = 0; rank < 4; rank++) {
            struct loader_options o = plain(path);
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
            CHECK_EQUAL(steps, (wanted + 4) / 5);
            CHECK_OK(loader_close(&l));
        }
        CHECK_EQUAL(total, wanted);
    }
}

/* Training in the order of the shards: epoch after epoch, without an end. */
static void test_in_order(const char *path)
{
    int32_t expected[100], list[2];
    int64_t n = expected_samples(expected), number = 0;
    struct loader_options o = plain(path);
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
    struct loader_options o = plain(path);
    o.document_mask = true;
    o.limit_samples = LOADER_ONE_EPOCH;
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    int64_t ignored = 0, pieces = 0;
    for (bool last, end = false; !end;) {
        struct batch b;
        CHECK_OK(loader_next(l, &b, &last, &end));
        CHECK_EQUAL(b.cu_rows[0], 0);
        CHECK_EQUAL(b.cu_rows[b.segments], b.rows);
        int64_t piece = 0, longest = 0;
        for (int64_t row = 0; row < b.rows; row++) {
            int32_t id = b.inputs[row]; /* its place in its shard tells its document */
            int32_t place = id < 108 ? id : id - 108;
            bool starts = row % T == 0 || place % 5 == 0, next_starts = (place + 1) % 5 == 0;
            if (starts) {
                CHECK_EQUAL(b.cu_rows[piece], row);
                piece++;
            }
            int64_t begin = b.cu_rows[piece - 1];
            CHECK_EQUAL(b.positions[row], row - begin);
            CHECK_EQUAL(b.targets[row], next_starts ? BATCH_IGNORED : id + 1);
            longest = row - begin + 1 > longest ? row - begin + 1 : longest;
            ignored += next_starts;
        }
        CHECK_EQUAL(piece, b.segments);
        CHECK_EQUAL(longest, b.longest);
        pieces += piece;
    }
    CHECK(ignored > 50 && pieces > 61);
    CHECK_OK(loader_close(&l));
}

/* Two sets in the proportion 3 to 1; the second one's tokens begin at 500000. */
static void test_mixture(const char *path)
{
    write_shard(folder_file("other.h5"), 500000, 90, 7);
    const struct loader_source sources[2] = {{path, 3.0}, {folder_file("other.h5"), 1.0}};
    struct loader_options o = plain(path);
    o.sources = sources;
    o.source_count = 2;
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    char fingerprint[65];
    snprintf(fingerprint, sizeof fingerprint, "%s", loader_fingerprint(l));
    int32_t order[400];
    int64_t count[2] = {0, 0}, total = 0;
    while (total < 400) {
        struct batch b;
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        total += check_batch(&b, total, order + total);
    }
    for (int64_t i = 0; i < total; i++) {
        count[order[i] >= 500000]++;
        CHECK_NEAR((double)count[1], (double)(i + 1) / 4, 1.0);
    }
    CHECK_OK(loader_close(&l));
    o.first_sample = 200;
    CHECK_OK(loader_open(&o, &l));
    CHECK(strcmp(fingerprint, loader_fingerprint(l)) == 0);
    for (total = 200; total < 395;) {
        struct batch b;
        int32_t list[2];
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        int64_t got = check_batch(&b, total, list);
        CHECK(memcmp(list, order + total, (size_t)got * sizeof *list) == 0);
        total += got;
    }
    CHECK_OK(loader_close(&l));
    o.seed++;
    CHECK_OK(loader_open(&o, &l));
    CHECK(strcmp(fingerprint, loader_fingerprint(l)) != 0);
    CHECK_OK(loader_close(&l));
}

/* More shards than may be open at once, and memory that does not grow with what was read. */
static int64_t resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void test_many_shards(void)
{
    char name[64];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "many-%05d-of-00040.h5", i);
        write_shard(folder_file(name), i * 41, 41, 41);
    }
    struct loader_options o = plain(folder_file("nothing-*.h5"));
    int64_t one = loader_memory_bytes(&o);
    o = plain(folder_file("many-0000*.h5"));
    int64_t rest = one - (loader_memory_bytes(&o) - one) / 9; /* without a shard */
    CHECK(rest > 0 && rest < one);
    o = plain(folder_file("many-*.h5")); /* not all 40 are open at once */
    CHECK_EQUAL(loader_memory_bytes(&o), rest + 32 * (one - rest));
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    CHECK_EQUAL(loader_samples(l), 200);
    int64_t total = 0, before = resident_bytes();
    int seen[200] = {0};
    while (total < 1200) {
        struct batch b;
        int32_t list[2];
        bool last, end;
        CHECK_OK(loader_next(l, &b, &last, &end));
        int64_t got = check_batch(&b, total, list);
        for (int64_t i = 0; i < got; i++) {
            CHECK_EQUAL(seen[list[i] / 41 * 5 + list[i] % 41 / T]++, (total + i) / 200);
        }
        total += got;
        before = total <= 400 ? resident_bytes() : before;
    }
#if !defined __SANITIZE_ADDRESS__ &&                                                               \
    !defined __SANITIZE_THREAD__ /* they hold memory of their own */
    CHECK(resident_bytes() - before < 4 << 20);
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
    struct loader_options o = plain(folder_file("none-*.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_NO_INPUT, "none-*.h5");
    CHECK(l == NULL);
    o = plain(folder_file("no/folder/x.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_NO_INPUT, "no/folder/x.h5");
    o = plain(path);
    o.vocab_size = VOCAB - 1;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "vocabulary");
    o = plain(path);
    o.tokenizer_sha256 = "another";
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "t-00000-of-00003.h5 was made with another");
    o = plain(path);
    o.sequence_tokens = 500;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "no sample of 501");
    o = plain(path);
    one_source.weight = -1.0;
    CHECK_FAILS(loader_open(&o, &l), STATUS_RECIPE, "weight");
    folder_write(folder_file("foreign.h5"), "no shard", 8);
    o = plain(folder_file("foreign.h5"));
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "foreign.h5 is not an HDF5 file");
}

/* Damage that comes after the check: the batches before it are good, then 65 with the place. */
static void test_damage_while_reading(void)
{
    const char *path = folder_file("large.h5");
    write_shard(path, 0, 200000, 1000); /* 13 chunks */
    struct loader_options o = plain(path);
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
    CHECK_FAILS(loader_next(l, &b, &last, &end), STATUS_DATA, "large.h5"); /* and again */
    CHECK_OK(loader_close(&l));
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "large.h5");
}

static void test_close_early(const char *path)
{
    for (int i = 0; i < 50; i++) {
        struct loader_options o = plain(path);
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
