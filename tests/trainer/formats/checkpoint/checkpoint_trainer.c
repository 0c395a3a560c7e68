/* Trains a few tensors by a fixed rule, without a model, and saves and resumes them with the real
 * checkpoint code on any number of ranks. test_checkpoint_faults.c runs it.
 *
 *   checkpoint_trainer RUN_DIR STEPS EVERY KEEP async|sync
 *
 * Prints one line "final step S hash H resumed R". H must not depend on where a run was killed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "comm/comm.h"
#include "trainer/formats/checkpoint/checkpoint.h"

enum { TENSORS = 4, COPIES = 3 };

static const struct {
    const char *name;
    int64_t rows, columns;
    bool transposed;
} shapes[TENSORS] = {{"transformer.wte.weight", 97, 32, false},
                     {"transformer.h.0.attn.c_attn.weight", 288, 96, true},
                     {"transformer.h.0.attn.c_attn.bias", 1, 288, false},
                     {"transformer.ln_f.weight", 1, 33, false}};
static const char *const prefixes[COPIES] = {"", "exp_avg/", "exp_avg_sq/"};

struct state {
    struct checkpoint_tensor tensors[COPIES][TENSORS];
    struct checkpoint_tensor_set sets[2];
    struct checkpoint_tensor moments[2 * TENSORS];
    char names[COPIES][TENSORS][64];
};

static void make_tensor(struct state *s, int copy, int i)
{
    struct checkpoint_tensor *t = &s->tensors[copy][i];
    bool vector = shapes[i].rows == 1;
    snprintf(s->names[copy][i], sizeof s->names[copy][i], "%s%s", prefixes[copy], shapes[i].name);
    *t = (struct checkpoint_tensor){.name = s->names[copy][i],
                                    .dimensions = vector ? 1 : 2,
                                    .rows = shapes[i].rows,
                                    .columns = shapes[i].columns,
                                    .transposed = shapes[i].transposed};
    bool transposed = shapes[i].transposed;
    t->global_shape[0] = vector || transposed ? shapes[i].columns : shapes[i].rows;
    t->global_shape[1] = vector ? 1 : transposed ? shapes[i].rows : shapes[i].columns;
    t->data = calloc((size_t)(t->rows * t->columns), sizeof(float));
    for (int64_t e = 0; t->data != NULL && copy == 0 && e < t->rows * t->columns; e++) {
        ((float *)t->data)[e] = (float)(e % 97) / 97.0f;
    }
}

static void make_state(struct state *s)
{
    for (int copy = 0; copy < COPIES; copy++) {
        for (int i = 0; i < TENSORS; i++) {
            make_tensor(s, copy, i);
            if (copy > 0) {
                s->moments[(copy - 1) * TENSORS + i] = s->tensors[copy][i];
            }
        }
    }
    s->sets[0] = (struct checkpoint_tensor_set){"model", s->tensors[0], TENSORS};
    s->sets[1] = (struct checkpoint_tensor_set){"optimizer", s->moments, 2 * TENSORS};
}

static void update_tensors(struct state *s, int64_t step)
{
    for (int i = 0; i < TENSORS; i++) {
        float *x = s->tensors[0][i].data, *m = s->tensors[1][i].data, *v = s->tensors[2][i].data;
        for (int64_t e = 0; e < shapes[i].rows * shapes[i].columns; e++) {
            float g = x[e] * 0.5f + (float)((e * 31 + step * 17) % 1009) / 1009.0f - 0.6f;
            m[e] = 0.9f * m[e] + 0.1f * g;
            v[e] = 0.99f * v[e] + 0.01f * g * g;
            x[e] -= 0.01f * m[e];
        }
    }
}

static status hash_state(const struct state *s, char text[HASH_TEXT_BYTES])
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    for (int copy = 0; copy < COPIES; copy++) {
        for (int i = 0; i < TENSORS; i++) {
            const struct checkpoint_tensor *t = &s->tensors[copy][i];
            TRY(hash_update(hash, t->data, (size_t)(t->rows * t->columns) * sizeof(float)));
        }
    }
    return hash_finish(&hash, text);
}

static status publish_checkpoint(struct checkpoint *c, struct comm *world)
{
    int64_t step;
    TRY(checkpoint_publish(c, &step));
    if (step >= 0 && comm_rank(world) == 0) {
        fprintf(stderr, "saved step %lld\n", (long long)step);
    }
    return STATUS_OK;
}

/* A small version of the real training loop: publishes as soon as all ranks have written. */
static status train_steps(struct state *s, struct checkpoint *c, struct comm *world, int64_t from,
                          int64_t steps, int64_t every)
{
    for (int64_t step = from + 1; step <= steps; step++) {
        update_tensors(s, step);
        double written = checkpoint_is_written(c);
        TRY(comm_sum_doubles(world, &written, 1));
        if ((int)written == comm_size(world)) {
            TRY(publish_checkpoint(c, world));
        }
        if (step % every == 0) {
            TRY(publish_checkpoint(c, world));
            struct checkpoint_state state = {step, step * 8, step * 64, (double)step * 0.1};
            TRY(checkpoint_save(c, &state, s->sets, 2, NULL));
        }
    }
    return publish_checkpoint(c, world);
}

static status run_job(struct comm *world, char **arguments)
{
    struct state s = {0};
    make_state(&s);
    struct checkpoint_options options = {.run_dir = arguments[1],
                                         .tokenizer_dir = getenv("CHECKPOINT_TOKENIZER"),
                                         .recipe_text = "objective: clm\n",
                                         .data_fingerprint = "none",
                                         .keep = strtoll(arguments[4], NULL, 10),
                                         .async = strcmp(arguments[5], "async") == 0,
                                         .world = world,
                                         .replica_group = world};
    struct checkpoint *c = NULL;
    struct checkpoint_info found = {0};
    TRY(checkpoint_open(&options, &c));
    status result = checkpoint_reserve(c, s.sets, 2);
    if (result == STATUS_OK) {
        result = checkpoint_find(c, NULL, &found);
    }
    if (result == STATUS_OK && found.found) {
        result = checkpoint_load(world, found.folder, s.sets, 2);
    }
    if (result == STATUS_OK) {
        result = train_steps(&s, c, world, found.state.step, strtoll(arguments[2], NULL, 10),
                             strtoll(arguments[3], NULL, 10));
    }
    free(found.recipe_text);
    KEEP_FIRST(result, checkpoint_close(&c));
    char text[HASH_TEXT_BYTES] = "";
    if (result == STATUS_OK && comm_rank(world) == 0) {
        result = hash_state(&s, text);
        printf("final step %s hash %s resumed %lld\n", arguments[2], text,
               (long long)found.state.step);
    }
    for (int i = 0; i < COPIES * TENSORS; i++) {
        free(s.tensors[i / TENSORS][i % TENSORS].data);
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
    status result = run_job(world, argv);
    status_print();
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}
