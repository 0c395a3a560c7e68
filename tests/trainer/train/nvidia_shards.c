/* Writes shards in the format of NVIDIA's BERT examples, as h5py does.
 *
 *   nvidia_shards FOLDER
 *
 * Writes train-0.hdf5 and train-1.hdf5 (gzip), and validation.hdf5 and unmasked.hdf5 (not
 * compressed). A text is [CLS] A [SEP] B [SEP] with 10 to 32 tokens of a vocabulary of 64. A token
 * has nearly always the same successor. The masks are part of the file: up to 5 tokens are [MASK],
 * id 4, but none in unmasked.hdf5. */
#include <hdf5.h>

#include "base/random.h"
#include "tests/check.h"

enum { N = 20, T = 32, P = 5, VOCABULARY = 64, MASK = 4 };

struct columns {
    int32_t ids[N][T], positions[N][P], labels[N][P];
    int8_t mask[N][T], segments[N][T], next[N];
};

static void make_text(struct columns *x, int i, uint64_t seed, int predictions)
{
    uint64_t key = random_key(seed, RANDOM_PAIRS, (uint64_t)i, 0), drawn = 0;
    int tokens = 10 + (int)random_below(key, drawn++, T - 9), middle = tokens / 2;
    int32_t token = 5 + (int32_t)random_below(key, drawn++, VOCABULARY - 5);
    for (int t = 0; t < tokens; t++) {
        token = random_below(key, drawn++, 10) == 0
                    ? 5 + (int32_t)random_below(key, drawn++, VOCABULARY - 5)
                    : 5 + (token * 7 + 3) % (VOCABULARY - 5);
        x->ids[i][t] = t == 0 ? 2 : t == middle || t == tokens - 1 ? 3 : token;
        x->segments[i][t] = t > middle;
        x->mask[i][t] = 1;
    }
    x->next[i] = (int8_t)(i % 2);
    for (int p = 0; p < predictions; p++) {
        int at = 1 + p;
        at += at >= middle;
        x->positions[i][p] = at;
        x->labels[i][p] = x->ids[i][at];
        x->ids[i][at] = MASK;
    }
}

static void write_dataset(hid_t file, const char *name, hid_t type, hid_t memory, hsize_t width,
                          const void *data, bool gzip)
{
    hsize_t shape[2] = {N, width}, chunk[2] = {7, width};
    hid_t space = H5Screate_simple(width > 1 ? 2 : 1, shape, NULL);
    hid_t options = H5Pcreate(H5P_DATASET_CREATE);
    if (gzip) {
        CHECK(H5Pset_chunk(options, width > 1 ? 2 : 1, chunk) >= 0);
        CHECK(H5Pset_deflate(options, 4) >= 0);
    }
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, options, H5P_DEFAULT);
    CHECK(d >= 0 && H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(d);
    H5Pclose(options);
    H5Sclose(space);
}

static void write_shard(const char *folder, const char *name, uint64_t seed, bool gzip, bool masked)
{
    static struct columns x;
    char path[1024];
    memset(&x, 0, sizeof x);
    for (int i = 0; i < N; i++) {
        make_text(&x, i, seed, masked ? 1 + i % P : 0);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t i32 = H5T_STD_I32LE, i8 = H5T_STD_I8LE;
    CHECK(f >= 0);
    write_dataset(f, "input_ids", i32, H5T_NATIVE_INT32, T, x.ids, gzip);
    write_dataset(f, "input_mask", i8, H5T_NATIVE_INT8, T, x.mask, gzip);
    write_dataset(f, "segment_ids", i8, H5T_NATIVE_INT8, T, x.segments, gzip);
    write_dataset(f, "masked_lm_positions", i32, H5T_NATIVE_INT32, P, x.positions, gzip);
    write_dataset(f, "masked_lm_ids", i32, H5T_NATIVE_INT32, P, x.labels, gzip);
    write_dataset(f, "next_sentence_labels", i8, H5T_NATIVE_INT8, 1, x.next, gzip);
    H5Fclose(f);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    write_shard(argv[1], "train-0.hdf5", 1, true, true);
    write_shard(argv[1], "train-1.hdf5", 2, true, true);
    write_shard(argv[1], "validation.hdf5", 3, false, true);
    write_shard(argv[1], "unmasked.hdf5", 4, false, false);
    return 0;
}
