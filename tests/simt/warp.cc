/* Warp operations, by the tables of the PTX manual: shuffles, votes, mma.m16n8k16, ldmatrix. */
#include <algorithm>

#include "tests/simt/block.h"

namespace simt
{
bank_counts banks;

/* ---- shuffles and votes ---- */

struct shuffle_slot {
    void *value;
    size_t bytes;
    int source;
    unsigned char before[16];
};

/* Copies a value. Most have four bytes, and a copy of a known size is one instruction. */
static void copy_value(void *to, const void *from, size_t bytes)
{
    if (bytes == 4) {
        memcpy(to, from, 4);
    } else {
        memcpy(to, from, bytes);
    }
}

static void compute_shuffle(void *const *slots, uint32_t mask)
{
    for (int i = 0; i < WARP; i++) {
        if ((mask >> i & 1) != 0) {
            auto *s = static_cast<shuffle_slot *>(slots[i]);
            copy_value(s->before, s->value, s->bytes);
        }
    }
    for (int i = 0; i < WARP; i++) {
        if ((mask >> i & 1) != 0) {
            auto *s = static_cast<shuffle_slot *>(slots[i]);
            if ((mask >> s->source & 1) == 0) {
                fail("a shuffle reads lane %d, which mask %08x excludes", s->source, mask);
            }
            copy_value(s->value, static_cast<shuffle_slot *>(slots[s->source])->before, s->bytes);
        }
    }
}

void shuffle(uint32_t mask, void *value, size_t bytes, int source, site here)
{
    shuffle_slot slot = {value, bytes, source, {}};
    sync_warp(mask, "a shuffle", &slot, compute_shuffle, false, here);
}

struct vote_slot {
    bool vote;
    uint32_t result;
};

static void compute_vote(void *const *slots, uint32_t mask)
{
    uint32_t result = 0;
    for (int i = 0; i < WARP; i++) {
        if ((mask >> i & 1) != 0 && static_cast<vote_slot *>(slots[i])->vote) {
            result |= uint32_t{1} << i;
        }
    }
    for (int i = 0; i < WARP; i++) {
        if ((mask >> i & 1) != 0) {
            static_cast<vote_slot *>(slots[i])->result = result;
        }
    }
}

uint32_t ballot(uint32_t mask, bool vote, site here)
{
    vote_slot slot = {vote, 0};
    sync_warp(mask, "__ballot_sync", &slot, compute_vote, false, here);
    return slot.result;
}

/* ---- mma ---- */

struct mma_slot {
    float *d;
    const uint32_t *a, *b;
};

static float get_half(uint32_t pair, int which)
{
    return gpu_from_bits(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

static void compute_mma(void *const *slots, uint32_t mask)
{
    if (mask != ~0u) {
        fail("mma.sync without all 32 lanes of a warp");
    }
    float a[16][16], b[16][8];
    for (int lane = 0; lane < WARP; lane++) {
        auto *s = static_cast<const mma_slot *>(slots[lane]);
        int g = lane / 4, q = lane % 4;
        for (int half = 0; half < 2; half++) {
            int k = 2 * q + half;
            for (int r = 0; r < 4; r++) {
                a[g + 8 * (r & 1)][k + 8 * (r >> 1)] = get_half(s->a[r], half);
            }
            for (int r = 0; r < 2; r++) {
                b[k + 8 * r][g] = get_half(s->b[r], half);
            }
        }
    }
    float d[16][8] = {};
    for (int i = 0; i < 16; i++) {
        for (int k = 0; k < 16; k++) {
            for (int j = 0; j < 8; j++) {
                d[i][j] += a[i][k] * b[k][j];
            }
        }
    }
    for (int lane = 0; lane < WARP; lane++) {
        auto *s = static_cast<const mma_slot *>(slots[lane]);
        int g = lane / 4, q = lane % 4;
        for (int e = 0; e < 4; e++) {
            s->d[e] += d[g + 8 * (e >> 1)][2 * q + (e & 1)];
        }
    }
}

void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, site here)
{
    mma_slot slot = {d, a, b};
    sync_warp(~0u, "mma.sync", &slot, compute_mma, false, here);
}

/* ---- ldmatrix ---- */

/* Counts bank conflicts. A phase reads eight rows of 16 bytes; its cycles are the largest number of
 * rows in the same group of banks. */
static void count_banks(void *const *slots, int matrix)
{
    int in_group[8] = {};
    for (int r = 0; r < 8; r++) {
        auto *rows = static_cast<const matrix_rows *>(slots[8 * matrix + r]);
        in_group[reinterpret_cast<uintptr_t>(rows->address) / 16 % 8]++;
    }
    banks.phases++;
    banks.extra += static_cast<uint64_t>(*std::max_element(in_group, in_group + 8) - 1);
}

static uint16_t get_element(void *const *slots, int matrix, int row, int column)
{
    auto *rows = static_cast<const matrix_rows *>(slots[8 * matrix + row]);
    return static_cast<uint16_t>(rows->row[column / 2] >> (16 * (column % 2)));
}

static void compute_load_matrix(void *const *slots, uint32_t mask)
{
    if (mask != ~0u) {
        fail("ldmatrix without all 32 lanes of a warp");
    }
    for (int matrix = 0; matrix < 4; matrix++) {
        count_banks(slots, matrix);
        for (int lane = 0; lane < WARP; lane++) {
            auto *mine = static_cast<matrix_rows *>(slots[lane]);
            int g = lane / 4, k = lane % 4 * 2;
            uint32_t low = mine->transposed ? get_element(slots, matrix, k, g)
                                            : get_element(slots, matrix, g, k);
            uint32_t high = mine->transposed ? get_element(slots, matrix, k + 1, g)
                                             : get_element(slots, matrix, g, k + 1);
            mine->out[matrix] = low | high << 16;
        }
    }
}

void load_matrix(matrix_rows &rows, site here)
{
    sync_warp(~0u, rows.transposed ? "ldmatrix.trans" : "ldmatrix", &rows, compute_load_matrix,
              false, here);
}
} // namespace simt
