/* A model of the instructions of AMX for bf16, for processors without AMX.
 *
 * Source    the operations of LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE and TDPBF16PS
 *           in the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2
 * Errors    The model aborts the process if an access has no configuration or has a size that the
 *           configuration does not permit. The processor raises an exception in these cases */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_MODEL_ROWS = 16, TILE_MODEL_ROW_BYTES = 64, TILE_MODEL_TILES = 8 };

struct tile_model {
    uint8_t palette, rows[TILE_MODEL_TILES];
    uint16_t row_bytes[TILE_MODEL_TILES];
    uint8_t data[TILE_MODEL_TILES][TILE_MODEL_ROWS][TILE_MODEL_ROW_BYTES];
};

/* The tile registers of a thread. */
_Thread_local struct tile_model tile_model __attribute__((weak));

static inline void tile_model_require(int is_valid, const char *what)
{
    if (!is_valid) {
        fprintf(stderr, "tile_model: %s\n", what);
        abort();
    }
}

static inline void tile_model_configure(const void *configuration)
{
    enum { ROW_BYTES_AT = 16, ROWS_AT = 48 };
    struct tile_model *m = &tile_model;
    const uint8_t *bytes = configuration;
    memset(m, 0, sizeof *m);
    m->palette = bytes[0];
    tile_model_require(m->palette == 1 && bytes[1] == 0, "only palette 1 and start row 0 exist");
    for (int i = 2; i < ROW_BYTES_AT; i++) {
        tile_model_require(bytes[i] == 0, "a reserved byte is not zero");
    }
    memcpy(m->row_bytes, bytes + ROW_BYTES_AT, sizeof m->row_bytes);
    memcpy(m->rows, bytes + ROWS_AT, sizeof m->rows);
    for (int i = 0; i < TILE_MODEL_TILES; i++) {
        tile_model_require(m->rows[i] <= TILE_MODEL_ROWS &&
                               m->row_bytes[i] <= TILE_MODEL_ROW_BYTES &&
                               (m->rows[i] == 0) == (m->row_bytes[i] == 0),
                           "invalid size of a tile");
    }
    for (int i = 0; i < TILE_MODEL_TILES; i++) {
        uint8_t unused[2];
        memcpy(unused, bytes + ROW_BYTES_AT + sizeof m->row_bytes + 2 * (size_t)i, 2);
        tile_model_require(unused[0] == 0 && unused[1] == 0, "a reserved tile has a size");
        tile_model_require(bytes[ROWS_AT + TILE_MODEL_TILES + i] == 0, "a reserved tile has rows");
    }
}

static inline struct tile_model *tile_model_use(int tile)
{
    struct tile_model *m = &tile_model;
    tile_model_require(m->palette == 1, "the tiles are not configured");
    tile_model_require(tile >= 0 && tile < TILE_MODEL_TILES && m->rows[tile] > 0,
                       "the tile has no size");
    return m;
}

static inline void tile_model_zero(int tile)
{
    struct tile_model *m = tile_model_use(tile);
    memset(m->data[tile], 0, sizeof m->data[tile]);
}

static inline void tile_model_load(int tile, const void *memory, int64_t stride)
{
    struct tile_model *m = tile_model_use(tile);
    memset(m->data[tile], 0, sizeof m->data[tile]);
    for (int i = 0; i < m->rows[tile]; i++) {
        memcpy(m->data[tile][i], (const char *)memory + i * stride, m->row_bytes[tile]);
    }
}

static inline void tile_model_store(int tile, void *memory, int64_t stride)
{
    struct tile_model *m = tile_model_use(tile);
    for (int i = 0; i < m->rows[tile]; i++) {
        memcpy((char *)memory + i * stride, m->data[tile][i], m->row_bytes[tile]);
    }
}

/* Numbers below 2^-126 are zero, both as operands and as results. */
static inline float tile_model_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* Returns element 2 `pair` + `odd` of a row of bf16. */
static inline float tile_model_element(const uint8_t *row, int pair, int odd)
{
    uint16_t half;
    memcpy(&half, row + 4 * pair + 2 * odd, sizeof half);
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return tile_model_flush(value);
}

/* TDPBF16PS: the products of even and of odd elements have separate sums, which are added to the
 * output at the end. */
static inline void tile_model_multiply(int to, int a, int b)
{
    struct tile_model *m = tile_model_use(to);
    int pairs = tile_model_use(a)->row_bytes[a] / 4, columns = m->row_bytes[to] / 4;
    tile_model_require(m->rows[to] == m->rows[a] && tile_model_use(b)->rows[b] == pairs &&
                           m->row_bytes[to] == m->row_bytes[b] && to != a && to != b && a != b,
                       "the sizes of the operands do not match");
    for (int i = 0; i < m->rows[to]; i++) {
        for (int j = 0; j < columns; j++) {
            float sums[2] = {0, 0}, old;
            for (int k = 0; k < pairs; k++) {
                for (int odd = 0; odd < 2; odd++) {
                    float x = tile_model_element(m->data[a][i], k, odd);
                    float y = tile_model_element(m->data[b][k], j, odd);
                    sums[odd] = tile_model_flush(fmaf(x, y, sums[odd]));
                }
            }
            memcpy(&old, m->data[to][i] + 4 * j, sizeof old);
            old = tile_model_flush(tile_model_flush(old) + tile_model_flush(sums[0] + sums[1]));
            memcpy(m->data[to][i] + 4 * j, &old, sizeof old);
        }
    }
}

static inline void tile_model_release(void)
{
    memset(&tile_model, 0, sizeof tile_model);
}

#define TILE_IS_AVAILABLE() __builtin_cpu_supports("avx512bf16")
#define TILE_CONFIGURE(configuration) tile_model_configure(configuration)
#define TILE_RELEASE() tile_model_release()
#define TILE_FENCE() ((void)0)
#define TILE_ZERO(tile) tile_model_zero(tile)
#define TILE_LOAD(tile, memory, stride) tile_model_load(tile, memory, stride)
#define TILE_LOAD_ONCE(tile, memory, stride) tile_model_load(tile, memory, stride)
#define TILE_STORE(tile, memory, stride) tile_model_store(tile, memory, stride)
#define TILE_MULTIPLY(to, a, b) tile_model_multiply(to, a, b)
