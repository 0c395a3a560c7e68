/* A trainer with nothing in it but its state: a few tensors that change by a fixed rule each step, saved
 * and resumed through the real checkpoints, on any number of ranks. The fault sweep runs it.
 *
 *   checkpoint_trainer RUN_DIR STEPS EVERY KEEP async|sync
 *
 * It prints one line "final step S hash H resumed R": H must not depend on where a run was killed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "comm/comm.h"
#include "trainer/checkpoint/checkpoint.h"

enum { TENSORS = 4, COPIES = 3 };

static const struct {
    const char *name;
    int64_t rows, columns;
    bool transposed;
} shapes[TENSORS] = {{"transformer.wte.weight", 97, 32, false},
                     {"transformer.h.0.attn.c_attn.weight", 288, 96, true},
                     {"transformer.h.0.attn.c_attn.bias", 1, 288, false},
                     {"transformer.ln_f.weight", 1, 33, false}};
static const char *const copies[COPIES] = {"", "exp_avg/", "exp_avg_sq/"};

struct world {
    struct checkpoint_tensor tensors[COPIES][TENSORS];
    struct checkpoint_tensor_set families[2];
    struct checkpoint_tensor moments[2 * TENSORS];
    char names[COPIES][TENSORS][64];
};

static void make_tensor(struct world *w, int copy, int i)
{
    struct checkpoint_tensor *t = &w->tensors[copy][i];
    bool vector = shapes[i].rows == 1;
    snprintf(w->names[copy][i], sizeof w->names[copy][i], "%s%s", copies[copy], shapes[i].name);
    *t = (struct checkpoint_tensor){.name = w->names[copy][i],
                                    .dimensions = vector ? 1 : 2,
                                    .rows = shapes[i].rows,
                                    .columns = shapes[i].columns,
                                    .transposed = shapes[i].transposed};
    bool turned = shapes[i].transposed;
    t->global_shape[0] = vector || turned ? shapes[i].columns : shapes[i].rows;
    t->global_shape[1] = vector ? 1 : turned ? shapes[i].rows : shapes[i].columns;
    t->data = calloc((size_t)(t->rows * t->columns), sizeof(float));
    for (int64_t e = 0; t->data != NULL && copy == 0 && e < t->rows * t->columns; e++) {
        t->data[e] = (float)(e % 97) / 97.0f;
    }
}

static void make_world(struct world *w)
{
    for (int copy = 0; copy < COPIES; copy++) {
        for (int i = 0; i < TENSORS; i++) {
            make_tensor(w, copy, i);
            if (copy > 0) {
                w->moments[(copy - 1) * TENSORS + i] = w->tensors[copy][i];
            }
        }
    }
    w->families[0] = (struct checkpoint_tensor_set){"model", w->tensors[0], TENSORS};
    w->families[1] = (struct checkpoint_tensor_set){"optimizer", w->moments, 2 * TENSORS};
}

static void train(struct world *w, int64_t step)
{
    for (int i = 0; i < TENSORS; i++) {
        float *x = w->tensors[0][i].data, *m = w->tensors[1][i].data, *v = w->tensors[2][i].data;
        for (int64_t e = 0; e < shapes[i].rows * shapes[i].columns; e++) {
            float g = x[e] * 0.5f + (float)((e * 31 + step * 17) % 1009) / 1009.0f - 0.6f;
            m[e] = 0.9f * m[e] + 0.1f * g;
            v[e] = 0.99f * v[e] + 0.01f * g * g;
            x[e] -= 0.01f * m[e];
        }
    }
}

static status digest(const struct world *w, char text[HASH_TEXT_BYTES])
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    for (int copy = 0; copy < COPIES; copy++) {
        for (int i = 0; i < TENSORS; i++) {
            const struct checkpoint_tensor *t = &w->tensors[copy][i];
            TRY(hash_update(hash, t->data, (size_t)(t->rows * t->columns) * sizeof(float)));
        }
    }
    return hash_finish(&hash, text);
}

static status publish(struct checkpoint *c, struct comm *world)
{
    int64_t step;
    TRY(checkpoint_publish(c, &step));
    if (step >= 0 && comm_rank(world) == 0) {
        fprintf(stderr, "saved step %lld\n", (long long)step);
    }
    return STATUS_OK;
}

/* The loop of the real trainer in small: publish as soon as all ranks have written. */
static status loop(struct world *w, struct checkpoint *c, struct comm *world, int64_t from,
                   int64_t steps, int64_t every)
{
    for (int64_t step = from + 1; step <= steps; step++) {
        train(w, step);
        double written = checkpoint_is_written(c);
        TRY(comm_sum_doubles(world, &written, 1));
        if ((int)written == comm_size(world)) {
            TRY(publish(c, world));
        }
        if (step % every == 0) {
            TRY(publish(c, world));
            struct checkpoint_state state = {step, step * 8, step * 64, (double)step * 0.1};
            TRY(checkpoint_save(c, &state, w->families, 2, NULL));
        }
    }
    return publish(c, world);
}

static status run(struct comm *world, char **arguments)
{
    struct world w = {0};
    make_world(&w);
    struct checkpoint_options options = {.run_dir = arguments[1],
                                         .tokenizer_dir = getenv("CHECKPOINT_TOKENIZER"),
                                         .recipe_text = "objective: clm\n",
                                         .data_fingerprint = "none",
                                         .keep = strtoll(arguments[4], NULL, 10),
                                         .async = strcmp(arguments[5], "async") == 0,
                                         .world = world,
                                         .replicas = world};
    struct checkpoint *c = NULL;
    struct checkpoint_info found = {0};
    TRY(checkpoint_open(&options, &c));
    status result = checkpoint_reserve(c, w.families, 2);
    if (result == STATUS_OK) {
        result = checkpoint_find(c, NULL, &found);
    }
    if (result == STATUS_OK && found.found) {
        result = checkpoint_load(world, found.folder, w.families, 2);
    }
    if (result == STATUS_OK) {
        result = loop(&w, c, world, found.state.step, strtoll(arguments[2], NULL, 10),
                      strtoll(arguments[3], NULL, 10));
    }
    free(found.recipe_text);
    KEEP_FIRST(result, checkpoint_close(&c));
    char text[HASH_TEXT_BYTES] = "";
    if (result == STATUS_OK && comm_rank(world) == 0) {
        result = digest(&w, text);
        printf("final step %s hash %s resumed %lld\n", arguments[2], text,
               (long long)found.state.step);
    }
    for (int i = 0; i < COPIES * TENSORS; i++) {
        free(w.tensors[i / TENSORS][i % TENSORS].data);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct comm *world = NULL;
    if (argc != 6 || comm_world_create(&argc, &argv, &world) != STATUS_OK) {
        fprintf(stderr, "usage: checkpoint_trainer RUN_DIR STEPS EVERY KEEP async|sync\n");
        return STATUS_USAGE;
    }
    log_quiet(comm_rank(world) != 0);
    status result = run(world, argv);
    status_print();
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}
