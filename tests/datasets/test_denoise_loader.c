/* The loader corrupts each window again in each epoch. The corruption is the one of (seed, epoch,
 * index), at any layout and after a resume. */
#include "base/memory.h"
#include "datasets/loader/sample_order.h"
#include "datasets/shard/shard.h"
#include "tests/datasets/batch_layouts.h"
#include "tests/datasets/folder.h"

enum {
    WINDOWS = LAYOUT_SAMPLES / 4, /* of each of two sources: two epochs */
    EOS = 1,
    FIRST = 10, /* id of the first token of the first source */
    SENTINEL = 9999,
    VOCABULARY = 10000
};

static struct loader_options options; /* of the test that runs */

/* Writes a shard in which token i has the id first + i. */
static const char *write_shard(const char *name, int32_t first)
{
    struct shard_header header = {.vocab_size = VOCABULARY, .eos_id = EOS};
    const char *path = folder_file(name);
    struct shard_writer *w;
    memset(header.tokenizer_sha256, '0', sizeof header.tokenizer_sha256 - 1);
    CHECK_OK(shard_writer_create(path, &header, &w));
    for (int32_t id = first; id < first + (WINDOWS + 1) * LAYOUT_TOKENS; id++) {
        CHECK_OK(shard_writer_append_tokens(w, &id, 1));
    }
    CHECK_OK(shard_writer_end_document(w));
    CHECK_OK(shard_writer_close(&w));
    return path;
}

static void set_options(enum denoise_kind kind, bool shuffle)
{
    static struct loader_source sources[2];
    sources[0] = (struct loader_source){write_shard("a.h5", FIRST), 1};
    sources[1] = (struct loader_source){write_shard("b.h5", VOCABULARY / 2), 1};
    options = layout_options(EXAMPLE_TEXT, VOCABULARY);
    options.sources = sources;
    options.source_count = COUNT(sources);
    options.shuffle = shuffle;
    options.denoise = (struct denoise){.kind = kind,
                                       .density = 0.3,
                                       .mean_span = 3,
                                       .bos = -1,
                                       .eos = EOS,
                                       .mask = 2,
                                       .modes = {-1, -1, -1},
                                       .sentinel_count = 20};
    for (int i = 0; i < options.denoise.sentinel_count; i++) {
        options.denoise.sentinels[i] = SENTINEL - i;
    }
}

static struct sample_position find_position(int64_t number)
{
    static const int64_t windows[2] = {WINDOWS, WINDOWS};
    static const double weights[2] = {1, 1};
    struct sample_order order;
    CHECK_OK(sample_order_init(&order, windows, weights, 2, options.seed, options.shuffle));
    order.window_tokens = LAYOUT_TOKENS;
    return sample_order_find(&order, number);
}

/* Computes source and target of a sample from the seed, the epoch, the source of the data and the
 * index of the window alone. */
static void corrupt_sample(int64_t number, int32_t ids[4 * LAYOUT_TOKENS], int64_t *source,
                           int64_t *target)
{
    int32_t text[LAYOUT_TOKENS], scratch[4 * LAYOUT_TOKENS];
    int64_t window = denoise_window_tokens(&options.denoise, LAYOUT_TOKENS);
    struct sample_position p = find_position(number);
    CHECK_EQUAL(p.epoch, number / (2 * WINDOWS));
    for (int64_t i = 0; i < window; i++) {
        text[i] = (int32_t)((p.source == 0 ? FIRST : VOCABULARY / 2) + p.sample * LAYOUT_TOKENS +
                            p.shift + i);
    }
    uint64_t example = (uint64_t)p.source << 48 ^ (uint64_t)p.sample;
    denoise_apply(&options.denoise, denoise_key(options.seed, p.epoch, example), 0, text, window,
                  scratch, ids, source, target);
}

static void print_ids(const int32_t *ids, int64_t count, char *out, size_t bytes)
{
    size_t used = strlen(out);
    for (int64_t i = 0; i < count; i++) {
        used += (size_t)snprintf(out + used, bytes - used, " %d", ids[i]);
        CHECK(used < bytes);
    }
}

static void describe_example(const struct batch *b, int64_t i, char *out, size_t bytes)
{
    int32_t ids[4 * LAYOUT_TOKENS];
    int64_t source, target;
    const int32_t *rows = b->cu_rows + i, *source_rows = b->source.cu_rows + i;
    const int32_t *inputs = b->source.inputs + source_rows[0], *targets = b->targets + rows[0];
    corrupt_sample(b->samples[i], ids, &source, &target);
    CHECK_EQUAL(source_rows[1] - source_rows[0], source);
    CHECK_EQUAL(rows[1] - rows[0], target);
    CHECK(memcmp(inputs, ids, (size_t)source * sizeof *ids) == 0);
    CHECK(memcmp(targets, ids + source, (size_t)target * sizeof *ids) == 0);
    memset(out, 0, bytes);
    print_ids(inputs, source, out, bytes);
    print_ids(targets, target, out, bytes);
}

static void set_interleaving(struct loader_options *layout)
{
    layout->interleave_micro_batches = layout->ranks % 2 == 0 && layout->first_sample == 0;
}

/* Without shuffling, both epochs have the same windows in the same order. In the second epoch, a
 * window has another corruption; at most `equal` windows may draw the same one again. */
static void test_epochs(enum denoise_kind kind, int equal)
{
    static char examples[LAYOUT_SAMPLES][LAYOUT_TEXT_BYTES];
    int different = 0;
    set_options(kind, false);
    struct layout_test test = {options, set_interleaving, describe_example};
    read_layout(&test, 1, 3, 0, examples);
    for (int i = 0; i < 2 * WINDOWS; i++) {
        struct sample_position a = find_position(i), b = find_position(i + 2 * WINDOWS);
        CHECK(a.source == b.source && a.sample == b.sample && a.shift == 0 && b.shift == 0);
        different += strcmp(examples[i], examples[i + 2 * WINDOWS]) != 0;
    }
    CHECK(different >= 2 * WINDOWS - equal);
}

int main(void)
{
    static const struct {
        enum denoise_kind kind;
        int equal; /* three denoisers of UL2 have only one corruption of a short window */
    } cases[] = {{DENOISE_SPAN_CORRUPTION, 2}, {DENOISE_BART, 2}, {DENOISE_UL2, 8}};
    folder_make();
    for (int i = 0; i < COUNT(cases); i++) {
        test_epochs(cases[i].kind, cases[i].equal);
        set_options(cases[i].kind, true);
        check_layouts(&(struct layout_test){options, set_interleaving, describe_example});
    }
    return 0;
}
