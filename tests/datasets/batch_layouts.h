/* Tests that the examples of batches do not depend on the layout: ranks and micro-batches. */
#pragma once

#include "tests/check.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/loader_options.h"

enum { LAYOUT_SAMPLES = 36, LAYOUT_GLOBAL = 6, LAYOUT_TOKENS = 40, LAYOUT_TEXT_BYTES = 1024 };

struct layout_test {
    struct loader_options options;                      /* of one rank */
    void (*set_options)(struct loader_options *layout); /* sets further options of a layout */
    /* checks a batch and writes its example i as text, which is equal at all layouts */
    void (*describe)(const struct batch *b, int64_t i, char *out, size_t bytes);
};

/* layout_options - return the options of one rank that reads pairs/train-*.h5. */
static inline struct loader_options layout_options(enum example_kind kind, int64_t vocab_size)
{
    struct loader_options o =
        make_loader_options(folder_file("pairs/train-*.h5"), kind, LAYOUT_TOKENS, vocab_size);
    o.global_sequences = LAYOUT_GLOBAL;
    return o;
}

/* Reads the examples of all ranks, from number `first` on, as texts by number. */
static inline void read_layout(const struct layout_test *t, int ranks, int64_t micro, int64_t first,
                               char (*out)[LAYOUT_TEXT_BYTES])
{
    for (int rank = 0; rank < ranks; rank++) {
        struct loader *l;
        struct loader_options o = t->options;
        o.rank = rank;
        o.ranks = ranks;
        o.micro_sequences = micro;
        o.first_sample = first;
        o.limit_samples = LAYOUT_SAMPLES;
        t->set_options(&o);
        CHECK_OK(loader_open(&o, &l));
        for (bool end = false; !end;) {
            struct batch b;
            bool last;
            CHECK_OK(loader_next(l, &b, &last, &end));
            for (int64_t i = 0; i < b.sequences && !end; i++) {
                t->describe(&b, i, out[b.samples[i]], LAYOUT_TEXT_BYTES);
            }
        }
        CHECK_OK(loader_close(&l));
    }
}

/* Checks that all layouts have the same examples, also after a resume. */
static inline void check_layouts(const struct layout_test *t)
{
    static char one_rank[LAYOUT_SAMPLES][LAYOUT_TEXT_BYTES],
        other[LAYOUT_SAMPLES][LAYOUT_TEXT_BYTES];
    read_layout(t, 1, 3, 0, one_rank);
    CHECK(one_rank[LAYOUT_SAMPLES - 1][0] != '\0');
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int64_t micro = 1; micro <= 4; micro += 3) {
            memset(other, 0, sizeof other);
            read_layout(t, ranks, micro, 0, other);
            CHECK(memcmp(one_rank, other, sizeof one_rank) == 0);
        }
    }
    memset(other + 2 * LAYOUT_GLOBAL, 0, sizeof other - 2 * LAYOUT_GLOBAL * sizeof *other);
    read_layout(t, 2, 2, 2 * LAYOUT_GLOBAL, other);
    CHECK(memcmp(one_rank, other, sizeof one_rank) == 0);
}
