/* Tests of sentence pairs: masking, the examples of `bireme prepare`, columns of shards, and equal
 * batches for all numbers of ranks. NVIDIA's shards are tested too: the test writes them as their
 * scripts do (with deflate). */
#include <hdf5.h>

#include "datasets/prepare/prepare.h"
#include "tests/datasets/loader_options.h"
#include "tests/datasets/word_documents.h"

enum {
    DOCUMENTS = 40,
    SENTENCES = 30, /* of a document */
    T = 48,
    MAX_PREDICTIONS = 7
};

static int first_word[DOCUMENTS + 1];
static struct tokenizer *tokenizer;
static uint8_t *token_kinds;

/* ---- masking ---- */

struct mask_counts {
    int64_t masked, unchanged, changed;
};

static void check_masked(const struct masking *m, const int32_t *before, const int32_t *after,
                         int64_t count, const int32_t *positions, const int32_t *labels,
                         int64_t predictions, struct mask_counts *mask_counts)
{
    int64_t next = 0;
    for (int64_t i = 0; i < count; i++) {
        if (next == predictions || positions[next] != i) {
            CHECK_EQUAL(after[i], before[i]);
            continue;
        }
        CHECK_EQUAL(labels[next++], before[i]);
        CHECK(m->token_kinds[before[i]] != MASKING_NEVER);
        CHECK(after[i] >= 0 && after[i] < m->vocab_size);
        mask_counts->masked += after[i] == m->mask_id;
        mask_counts->unchanged += after[i] == before[i];
        mask_counts->changed += after[i] != m->mask_id && after[i] != before[i];
    }
    CHECK_EQUAL(next, predictions);
}

/* Checks that either all tokens of a word are drawn or none. */
static void check_words(const struct masking *m, const int32_t *before, int64_t count,
                        const int32_t *positions, int64_t predictions)
{
    bool chosen[256] = {false};
    for (int64_t i = 0; i < predictions; i++) {
        chosen[positions[i]] = true;
    }
    for (int64_t i = 1; i < count; i++) {
        bool continues_word = m->token_kinds[before[i]] == MASKING_CONTINUES &&
                              m->token_kinds[before[i - 1]] != MASKING_NEVER;
        CHECK(!continues_word || chosen[i] == chosen[i - 1]);
    }
}

static void test_masking(bool whole_words)
{
    enum { V = 1000, N = 100, ROUNDS = 2000 };
    uint8_t table[V];
    for (int i = 0; i < V; i++) {
        table[i] = i < SPECIALS ? MASKING_NEVER : i % 3 == 0 ? MASKING_CONTINUES : MASKING_BEGINS;
    }
    const struct masking m = {0.15, 20, whole_words, MASK, V, table};
    struct mask_counts mask_counts = {0};
    int64_t total = 0, different = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int32_t before[N], ids[N], repeated[N], positions[20], labels[20], scratch[2 * N];
        for (uint64_t i = 0; i < N; i++) {
            before[i] = i == 0 || i == N - 1 ? CLS : (int32_t)random_below(round, i, V);
        }
        memcpy(ids, before, sizeof ids);
        int64_t count = masking_apply(&m, 1, 0, round, ids, N, positions, labels, scratch);
        CHECK(whole_words ? count <= 15 && count > 8 : count == 15);
        check_masked(&m, before, ids, N, positions, labels, count, &mask_counts);
        if (whole_words) {
            check_words(&m, before, N, positions, count);
        }
        total += count;
        memcpy(repeated, before, sizeof repeated);
        masking_apply(&m, 1, 0, round, repeated, N, positions, labels, scratch);
        CHECK(memcmp(ids, repeated, sizeof ids) == 0);
        memcpy(repeated, before, sizeof repeated);
        masking_apply(&m, 1, 1, round, repeated, N, positions, labels, scratch);
        different += memcmp(ids, repeated, sizeof ids) != 0;
    }
    CHECK(different > ROUNDS - 10);
    CHECK_NEAR((double)mask_counts.masked / (double)total, 0.8, 0.01);
    CHECK_NEAR((double)mask_counts.unchanged / (double)total, 0.1, 0.01);
    CHECK_NEAR((double)mask_counts.changed / (double)total, 0.1, 0.01);
    int32_t one[] = {CLS, 7, SEP}, none[] = {CLS, SEP}, position, label, scratch[6];
    const struct masking single = {0.15, 1, whole_words, MASK, V, table};
    CHECK_EQUAL(masking_apply(&single, 1, 0, 0, one, 3, &position, &label, scratch), 1);
    CHECK(position == 1 && label == 7);
    CHECK_EQUAL(masking_apply(&single, 1, 0, 0, none, 2, &position, &label, scratch), 0);
}

/* ---- texts ---- */

static void write_texts(void)
{
    FILE *text = fopen(folder_file("text.txt"), "wb"), *one = fopen(folder_file("one.txt"), "wb");
    CHECK(text != NULL && one != NULL);
    uint64_t draws = 0;
    for (int d = 0; d < DOCUMENTS; d++) {
        first_word[d] = word_count;
        for (int s = 0; s < SENTENCES; s++) {
            int words = 1 + (int)random_below(77, draws++, 12);
            for (int w = write_sentence(text, d, words); w < word_count; w++) {
                fprintf(one, "w%d%s ", w, w + 1 == word_count ? "." : "");
            }
        }
        fprintf(text, "\n");
    }
    first_word[DOCUMENTS] = word_count;
    CHECK(fclose(text) == 0 && fclose(one) == 0);
    tokenizer = make_word_tokenizer();
    token_kinds = malloc((size_t)tokenizer_vocab_size(tokenizer));
    CHECK(token_kinds != NULL);
    masking_classify_tokens(tokenizer, token_kinds);
    CHECK(token_kinds[CLS] == MASKING_NEVER && token_kinds[MASK] == MASKING_NEVER &&
          token_kinds[SPECIALS] == MASKING_BEGINS);
}

static struct prepare_options make_prepare_options(const char *input, const char *output)
{
    static char *inputs[1];
    inputs[0] = folder_file(input);
    return (struct prepare_options){.tokenizer = tokenizer,
                                    .inputs = inputs,
                                    .input_count = 1,
                                    .output = folder_file(output),
                                    .document_unit = PREPARE_DOCUMENT_PARAGRAPH,
                                    .validation_fraction = 0.1,
                                    .shard_tokens = 4000,
                                    .workers = 2,
                                    .sequence_tokens = T,
                                    .short_fraction = 0.1,
                                    .pair_seed = 3};
}

/* ---- contents of the shards ---- */

struct pair_counts {
    int64_t examples, random, full, tokens;
    bool documents[DOCUMENTS]; /* documents of the first segments */
    bool seen[DOCUMENTS];      /* documents of all segments */
};

static void check_example(void *user, const int32_t *ids, int64_t count, int64_t first, bool random)
{
    struct pair_counts *pair_counts = user;
    CHECK(count <= T && first >= 3 && first < count);
    CHECK(ids[0] == CLS && ids[first - 1] == SEP && ids[count - 1] == SEP);
    int a = check_segment(ids + 1, first - 2);
    int b = check_segment(ids + first, count - first - 1);
    CHECK((a == b) == !random);
    CHECK(random || ids[first] > ids[first - 2]);
    pair_counts->examples++;
    pair_counts->random += random;
    pair_counts->full += count > T - 13;
    pair_counts->tokens += count;
    pair_counts->documents[a] = true;
    pair_counts->seen[a] = pair_counts->seen[b] = true;
}

static void count_pairs(const char *folder, const char *split, struct pair_counts *pair_counts)
{
    *pair_counts = (struct pair_counts){0};
    int shard_count = 1;
    for (int i = 0; i < shard_count; i++) {
        char name[64], path[FILE_PATH_BYTES];
        for (; shard_count < 1000; shard_count++) { /* the number of shards in the set */
            snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", split, i, shard_count);
            CHECK_OK(file_join(path, folder, name));
            if (file_exists(path)) {
                break;
            }
        }
        read_pairs(path, check_example, pair_counts);
    }
}

static void check_splits(const char *folder, struct pair_counts *train, int held_out)
{
    struct pair_counts validation;
    count_pairs(folder, "train", train);
    count_pairs(folder, "validation", &validation);
    int in_train = 0, in_validation = 0;
    for (int d = 0; d < DOCUMENTS; d++) {
        CHECK(train->documents[d] != validation.documents[d]); /* each document is in one set */
        CHECK(!(train->seen[d] && validation.seen[d]));
        in_train += train->documents[d];
        in_validation += validation.documents[d];
    }
    CHECK_EQUAL(in_validation, held_out);
    CHECK_EQUAL(in_train, DOCUMENTS - held_out);
}

static void test_prepare(void)
{
    struct prepare_options o = make_prepare_options("text.txt", "pairs");
    struct prepare_report report, one_worker_report;
    struct pair_counts pair_counts;
    CHECK_OK(prepare_mlm(&o, &report));
    CHECK_EQUAL(report.documents, DOCUMENTS);
    CHECK_EQUAL(report.sentences, DOCUMENTS * SENTENCES);
    CHECK(report.train_shards > 1);
    check_splits(o.output, &pair_counts, 4);
    CHECK_EQUAL(pair_counts.tokens, report.train_tokens);
    double random = (double)pair_counts.random / (double)pair_counts.examples;
    CHECK(random > 0.4 && random < 0.6);
    CHECK(pair_counts.full > pair_counts.examples / 2);

    /* The bytes do not depend on the number of workers. */
    o = make_prepare_options("text.txt", "one_worker");
    o.workers = 1;
    CHECK_OK(prepare_mlm(&o, &one_worker_report));
    CHECK_EQUAL(one_worker_report.train_shards, report.train_shards);
    for (int i = 0; i < report.train_shards; i++) {
        char name[2][64];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            snprintf(name[k], sizeof name[k], "%s/train-%05d-of-%05d.h5",
                     k ? "one_worker" : "pairs", i, report.train_shards);
        }
        char *a = folder_read(folder_file(name[0]), &bytes[0]);
        char *b = folder_read(folder_file(name[1]), &bytes[1]);
        CHECK(bytes[0] == bytes[1] && memcmp(a, b, bytes[0]) == 0);
        free(a);
        free(b);
    }

    o = make_prepare_options("text.txt", "random_split");
    o.shuffle_split = true;
    o.split_seed = 5;
    o.short_fraction = 1.0;
    CHECK_OK(prepare_mlm(&o, &report));
    check_splits(o.output, &pair_counts, 4);
    CHECK(pair_counts.full < pair_counts.examples / 2);
}

/* One document is split into sentences after periods. Its end is the validation set. */
static void test_single_document(void)
{
    struct prepare_options o = make_prepare_options("one.txt", "single");
    struct prepare_report report;
    CHECK_OK(prepare_mlm(&o, &report));
    CHECK_EQUAL(report.sentences, DOCUMENTS * SENTENCES);
    CHECK(report.train_tokens > 5 * report.validation_tokens && report.validation_tokens > 0);
    o.sentence_rule = PREPARE_SENTENCE_LINES; /* the text has one line */
    o.validation_fraction = 0.0;
    CHECK_OK(prepare_mlm(&o, &report));
    CHECK_EQUAL(report.sentences, 1);
    o.validation_fraction = 0.1;
    CHECK_FAILS(prepare_mlm(&o, &report), STATUS_DATA, "one sentence");
    o.sequence_tokens = 7;
    CHECK_FAILS(prepare_mlm(&o, &report), STATUS_USAGE, "7 tokens");
    o.sequence_tokens = T;
    o.shard_tokens = T - 1;
    o.sentence_rule = PREPARE_SENTENCE_PUNCTUATION;
    CHECK_FAILS(prepare_mlm(&o, &report), STATUS_USAGE, "does not fit into a shard");
    CHECK(!file_exists(folder_file("single/.unfinished")));
    folder_write(folder_file("blank.txt"), "\n \n", 3);
    o = make_prepare_options("blank.txt", "blank");
    CHECK_FAILS(prepare_mlm(&o, &report), STATUS_DATA, "no sentences");
    folder_write(folder_file("ids.bin"), "1234", 4);
    o = make_prepare_options("ids.bin", "blank");
    CHECK_FAILS(prepare_mlm(&o, &report), STATUS_DATA, "not sentences");
}

/* ---- batches ---- */

static struct loader_options make_pair_options(const char *glob)
{
    int64_t vocab_size = tokenizer_vocab_size(tokenizer);
    struct loader_options o =
        make_loader_options(folder_file(glob), EXAMPLE_SENTENCE_PAIRS, T, vocab_size);
    o.tokenizer_sha256 = tokenizer_sha256(tokenizer);
    o.masking = (struct masking){0.15, MAX_PREDICTIONS, false, MASK, vocab_size, token_kinds};
    return o;
}

struct sample { /* an example as a batch contains it */
    int64_t tokens, predictions;
    int32_t ids[T], segments[T], next_sentence, positions[MAX_PREDICTIONS], labels[MAX_PREDICTIONS];
};

static void read_sample(const struct batch *b, int64_t index, struct sample *out)
{
    *out = (struct sample){.next_sentence = b->sentence_pairs.next_sentence[index]};
    int32_t first = b->cu_rows[index], end = b->cu_rows[index + 1];
    out->tokens = end - first;
    CHECK(out->tokens > 0 && out->tokens <= T && out->tokens <= b->longest);
    for (int64_t m = 0; m < b->outputs.count; m++) {
        CHECK(m == 0 || b->outputs.rows[m] > b->outputs.rows[m - 1]);
        bool none = b->outputs.targets[m] == BATCH_IGNORED; /* the batch has no prediction */
        CHECK(!none || (b->outputs.count == 1 && b->outputs.rows[m] == 0));
        if (b->outputs.rows[m] >= first && b->outputs.rows[m] < end && !none) {
            CHECK(out->predictions < MAX_PREDICTIONS);
            out->positions[out->predictions] = b->outputs.rows[m] - first;
            out->labels[out->predictions++] = b->outputs.targets[m];
        }
    }
    int64_t targets = 0;
    for (int32_t row = first; row < end; row++) {
        out->ids[row - first] = b->inputs[row];
        out->segments[row - first] = b->token_type_ids[row];
        CHECK_EQUAL(b->positions[row], row - first);
        bool target = b->targets[row] != BATCH_IGNORED;
        CHECK(!target || b->targets[row] == out->labels[targets]);
        targets += target;
    }
    CHECK_EQUAL(targets, out->predictions);
}

/* Reads the samples of one rank for `steps` steps into list, at the index of their number. */
static void read_rank(struct loader_options o, int64_t steps, struct sample *list)
{
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    for (int64_t step = 0; step < steps; step++) {
        bool last = false, end = false;
        int64_t rows = 0, masked = 0, examples = 0;
        struct batch b = {0};
        while (!last) {
            CHECK_OK(loader_next(l, &b, &last, &end));
            CHECK(!end && b.sequences <= o.micro_sequences && b.tokens == T);
            CHECK(b.rows == b.cu_rows[b.sequences] && b.segments == b.sequences);
            for (int64_t i = 0; i < b.sequences; i++) {
                read_sample(&b, i, list + b.samples[i] - o.first_sample);
                masked += list[b.samples[i] - o.first_sample].predictions;
            }
            CHECK_EQUAL(b.first_row, rows);
            rows += b.rows;
            examples += b.sequences;
        }
        if (o.count_global_batch) { /* every batch has the totals of the rank */
            CHECK(b.rank_counts.rows == rows && b.rank_counts.outputs == masked &&
                  b.rank_counts.examples == examples);
        }
    }
    CHECK_OK(loader_close(&l));
}

static void test_ranks(void)
{
    enum { STEPS = 40, G = 5 };
    static struct sample reference[STEPS * G], list[STEPS * G];
    struct loader_options o = make_pair_options("pairs/train-*.h5");
    read_rank(o, STEPS, reference);
    o.count_global_batch = true;
    for (int ranks = 2; ranks <= 6; ranks += 2) {
        memset(list, 0, sizeof list);
        for (int rank = 0; rank < ranks; rank++) {
            o.rank = rank;
            o.ranks = ranks;
            o.micro_sequences = ranks - 1;
            read_rank(o, STEPS, list);
        }
        CHECK(memcmp(list, reference, sizeof list) == 0);
    }
    o = make_pair_options("pairs/train-*.h5");
    for (int cursor = 1; cursor < STEPS; cursor += 13) { /* resume */
        o.first_sample = cursor * G;
        memset(list, 0, sizeof list);
        read_rank(o, 1, list);
        CHECK(memcmp(list, reference + cursor * G, G * sizeof *list) == 0);
    }
    for (int i = 0; i < STEPS * G; i++) { /* labels restore the original tokens */
        struct sample *s = &reference[i];
        CHECK(s->predictions > 0);
        for (int64_t k = 0; k < s->predictions; k++) {
            s->ids[s->positions[k]] = s->labels[k];
        }
        int64_t first = 0;
        while (first < s->tokens && s->segments[first] == 0) {
            first++;
        }
        struct pair_counts pair_counts = {0};
        check_example(&pair_counts, s->ids, s->tokens, first, s->next_sentence == 1);
    }
}

/* In the next epoch the same example has other masked tokens. */
static void test_epochs(void)
{
    struct loader_options o = make_pair_options("pairs/validation-*.h5");
    struct loader *l;
    CHECK_OK(loader_open(&o, &l));
    int64_t samples = loader_samples(l);
    CHECK_OK(loader_close(&l));
    o.shuffle = false;
    o.global_sequences = samples;
    struct sample *list = calloc((size_t)samples * 2, sizeof *list);
    CHECK(list != NULL);
    read_rank(o, 1, list);
    o.shuffle = true; /* continues into a second epoch, in another order */
    read_rank(o, 2, list);
    int64_t same = 0, found = 0;
    for (int64_t i = 0; i < samples; i++) {
        for (int64_t j = samples; j < 2 * samples; j++) {
            struct sample a = list[i], b = list[j];
            bool same_mask = a.predictions == b.predictions &&
                             memcmp(a.positions, b.positions, sizeof a.positions) == 0;
            for (int64_t k = 0; k < a.predictions; k++) {
                a.ids[a.positions[k]] = a.labels[k];
            }
            for (int64_t k = 0; k < b.predictions; k++) {
                b.ids[b.positions[k]] = b.labels[k];
            }
            if (memcmp(a.ids, b.ids, sizeof a.ids) == 0) {
                found++;
                same += same_mask;
            }
        }
    }
    CHECK(found >= samples && same < samples / 5);
    free(list);
}

static void test_refused(void)
{
    struct loader_options o = make_pair_options("pairs/train-*.h5");
    struct loader *l;
    o.kind = EXAMPLE_TEXT;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "'sentence_pairs'");
    o.kind = EXAMPLE_SENTENCE_PAIRS;
    o.sequence_tokens = T - 8;
    o.shuffle = false;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "--sequence-length");
    o = make_pair_options("pairs/train-*.h5");
    o.masking.max_predictions = 0;
    CHECK_FAILS(loader_open(&o, &l), STATUS_RECIPE, "masking");
    struct prepare_options p = make_prepare_options("text.txt", "plain");
    struct prepare_report report;
    CHECK_OK(prepare_clm(&p, &report));
    o = make_pair_options("plain/train-*.h5");
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "'text'");
}

static void test_damage(void)
{
    char *good = folder_file("pairs/validation-00000-of-00001.h5"), *bad = folder_file("bad.h5");
    size_t bytes = 0;
    char *data = folder_read(good, &bytes);
    struct shard *s;
    for (int i = 0; i < 2; i++) {
        folder_write(bad, data, bytes);
        hid_t file = H5Fopen(bad, H5F_ACC_RDWR, H5P_DEFAULT);
        CHECK(file >= 0);
        if (i == 0) { /* another value with a correct checksum */
            hid_t set = H5Dopen2(file, "next_sentence", H5P_DEFAULT);
            uint8_t values[4096];
            CHECK(H5Dread(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
            values[0] ^= 1;
            CHECK(H5Dwrite(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
            H5Dclose(set);
        } else {
            CHECK(H5Ldelete(file, "first_segment", H5P_DEFAULT) >= 0);
        }
        H5Fclose(file);
        if (i == 0) {
            CHECK_OK(shard_open(bad, &s));
            CHECK_FAILS(shard_verify(s), STATUS_DATA, "next_sentence");
            CHECK_OK(shard_close(&s));
        } else {
            CHECK_FAILS(shard_open(bad, &s), STATUS_DATA, "first_segment");
        }
    }
    free(data);
}

/* ---- NVIDIA's shards ---- */

enum { N = 300, P = 6 };

static struct { /* as stored in the file */
    int32_t ids[N][T], positions[N][P], labels[N][P];
    int8_t mask[N][T], segments[N][T], next[N];
} nvidia;

static struct sample nvidia_samples[N];

static void make_nvidia(void)
{
    memset(&nvidia, 0, sizeof nvidia);
    for (uint64_t i = 0; i < N; i++) {
        struct sample *s = &nvidia_samples[i];
        s->tokens = 10 + (int64_t)random_below(5, i, T - 9);
        s->next_sentence = nvidia.next[i] = (int8_t)(i % 2);
        s->predictions = (int64_t)(i % (P + 1)); /* 0 to P */
        for (int64_t t = 0; t < s->tokens; t++) {
            s->ids[t] = nvidia.ids[i][t] = 5 + (int32_t)((i * T + (uint64_t)t) % 5000);
            s->segments[t] = nvidia.segments[i][t] = t > s->tokens / 2;
            nvidia.mask[i][t] = 1;
        }
        for (int64_t p = 0; p < s->predictions; p++) {
            s->positions[p] = nvidia.positions[i][p] = 1 + (int32_t)p + (int32_t)(i % 3);
            s->labels[p] = nvidia.labels[i][p] = 100 + (int32_t)p;
        }
    }
}

/* Writes a dataset. gzip 0: contiguous; 1: in chunks with deflate, as h5py does with
 * compression="gzip"; 2: with the filters shuffle and deflate. */
static void write_field(hid_t file, const char *name, hid_t type, hid_t memory, hsize_t width,
                        const void *data, int gzip)
{
    hsize_t shape[2] = {N, width}, chunk[2] = {37, width > 20 ? width / 4 : width};
    int rank = width == 1 ? 1 : 2;
    hid_t space = H5Screate_simple(rank, shape, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);
    if (gzip > 0) {
        CHECK(H5Pset_chunk(properties, rank, chunk) >= 0);
        CHECK((gzip == 1 ? 0 : H5Pset_shuffle(properties)) >= 0);
        CHECK(H5Pset_deflate(properties, 4) >= 0);
    }
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(set >= 0 && H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(set);
    H5Pclose(properties);
    H5Sclose(space);
}

static void write_nvidia(const char *name, int gzip, hid_t mask_type)
{
    hid_t file = H5Fcreate(folder_file(name), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0);
    hid_t int32 = H5T_STD_I32LE, int8 = H5T_STD_I8LE;
    write_field(file, "input_ids", int32, H5T_NATIVE_INT32, T, nvidia.ids, gzip);
    write_field(file, "input_mask", mask_type, H5T_NATIVE_INT8, T, nvidia.mask, gzip);
    write_field(file, "segment_ids", int8, H5T_NATIVE_INT8, T, nvidia.segments, gzip);
    write_field(file, "masked_lm_positions", int32, H5T_NATIVE_INT32, P, nvidia.positions, gzip);
    write_field(file, "masked_lm_ids", int32, H5T_NATIVE_INT32, P, nvidia.labels, gzip);
    write_field(file, "next_sentence_labels", int8, H5T_NATIVE_INT8, 1, nvidia.next, gzip);
    H5Fclose(file);
}

static void check_nvidia(const char *name)
{
    static struct sample list[N];
    memset(list, 0, sizeof list);
    struct loader_options o = make_pair_options(name);
    o.shuffle = false;
    read_rank(o, N / 5, list);
    CHECK(memcmp(list, nvidia_samples, sizeof list) == 0);
    o.shuffle = true;
    o.tokenizer_sha256 = NULL;
    memset(list, 0, sizeof list);
    read_rank(o, N / 5, list);
    for (int i = 0; i < N; i++) { /* each example occurs; ids identify it */
        bool found = false;
        for (int k = 0; k < N && !found; k++) {
            found = nvidia_samples[k].ids[0] == list[i].ids[0] &&
                    memcmp(&nvidia_samples[k], &list[i], sizeof *list) == 0;
        }
        CHECK(found);
    }
}

/* Writes the changed data, checks that the shard is refused, and restores the data. */
static void check_bad_example(const char *reason)
{
    write_nvidia("wrong.hdf5", 1, H5T_STD_I8LE);
    struct loader_options o = make_pair_options("wrong.hdf5");
    o.shuffle = false;
    o.micro_sequences = 5; /* the first batch contains the example */
    struct loader *l = NULL;
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, reason);
    make_nvidia();
}

static void test_nvidia(void)
{
    make_nvidia();
    write_nvidia("gzip.hdf5", 1, H5T_STD_I8LE);
    check_nvidia("gzip.hdf5");
    write_nvidia("plain.hdf5", 0, H5T_STD_I8LE);
    check_nvidia("plain.hdf5");
    struct loader *l = NULL;
    struct loader_options o = make_pair_options("wrong.hdf5");
    write_nvidia("wrong.hdf5", 2, H5T_STD_I8LE);
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "uses the filter 2");
    write_nvidia("wrong.hdf5", 1, H5T_STD_I16LE);
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "/input_mask has another type");
    nvidia.ids[0][3] = 1 << 20;
    check_bad_example("/input_ids has the value 1048576 at index 3");
    nvidia.mask[1][2] = 0;
    check_bad_example("example 1: /input_mask has a 0 before the 1");
    memset(nvidia.mask[1], 0, T);
    check_bad_example("example 1 has 0 tokens");
    nvidia.segments[0][0] = 2;
    check_bad_example("/segment_ids has the value 2");
    nvidia.positions[1][0] = T;
    check_bad_example("/masked_lm_positions has the value 48");
    nvidia.positions[2][1] = nvidia.positions[2][0];
    check_bad_example("does not increase");
    nvidia.labels[1][0] = -1;
    check_bad_example("/masked_lm_ids has the value -1");
    nvidia.next[0] = 2;
    check_bad_example("/next_sentence_labels has the value 2");
    hid_t file = H5Fopen(folder_file("wrong.hdf5"), H5F_ACC_RDWR, H5P_DEFAULT);
    CHECK(file >= 0 && H5Ldelete(file, "masked_lm_ids", H5P_DEFAULT) >= 0);
    H5Fclose(file);
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "no dataset /masked_lm_ids");
    write_nvidia("wrong.hdf5", 1, H5T_STD_I8LE);
    o = make_pair_options("wrong.hdf5");
    o.sequence_tokens = 8; /* all examples have at least 10 tokens */
    CHECK_FAILS(loader_open(&o, &l), STATUS_DATA, "the sequence length");
}

int main(void)
{
    folder_make();
    test_masking(false);
    test_masking(true);
    write_texts();
    test_prepare();
    test_single_document();
    test_ranks();
    test_epochs();
    test_refused();
    test_damage();
    test_nvidia();
    free(token_kinds);
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
