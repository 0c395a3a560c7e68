/* The command `train` on hardware that changes one bit of the weights of one rank.
 *
 *   flipping_trainer RECIPE.yaml [section.key=value ...]
 *
 *   FLIP_RANK     rank of the world; unset: no bit changes
 *   FLIP_STEP     number of the step, from 0
 *   FLIP_BEFORE   step: before the step; check: before the comparison of the replicas after it
 *   FLIP_TENSOR   index of the tensor; negative: from the end
 *
 * The linker replaces loop_run, step_train and replica_check_run by these functions (--wrap). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cli/command.h"
#include "trainer/train/loop.h"

status __real_loop_run(struct job *job);
status __wrap_loop_run(struct job *job);
status __real_step_train(struct step *s, int64_t step, double learning_rate,
                         const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                         struct step_result *out);
status __wrap_step_train(struct step *s, int64_t step, double learning_rate,
                         const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                         struct step_result *out);
status __real_replica_check_run(struct replica_check *check);
status __wrap_replica_check_run(struct replica_check *check);

static struct job *running;
static int64_t current_step;

static long read_number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : -1;
}

/* Inverts the lowest bit of the second byte of the second element, in f32 or, after ZeRO has
 * released the f32 weights, in the bf16 copy. */
static void flip_bit(const char *moment)
{
    const char *expected = getenv("FLIP_BEFORE");
    if (expected == NULL || strcmp(expected, moment) != 0 ||
        comm_rank(running->world) != read_number("FLIP_RANK") ||
        current_step != read_number("FLIP_STEP")) {
        return;
    }
    const struct model *m = running->session.model;
    int count = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    long index = read_number("FLIP_TENSOR");
    const struct model_parameter *p = &parameters[index < 0 ? count + index : index];
    char *bytes = model_weights(m) != NULL ? (char *)(model_weights(m) + p->first + 1)
                                           : (char *)(model_bf16_weights(m) + p->first + 1);
    bytes[1] = (char)(bytes[1] ^ 1);
    fprintf(stderr, "flipped a bit of %s\n", p->name);
}

status __wrap_loop_run(struct job *job)
{
    running = job;
    return __real_loop_run(job);
}

status __wrap_step_train(struct step *s, int64_t step, double learning_rate,
                         const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                         struct step_result *out)
{
    current_step = step;
    flip_bit("step");
    return __real_step_train(s, step, learning_rate, votes, pending_error, has_next_step, out);
}

status __wrap_replica_check_run(struct replica_check *check)
{
    flip_bit("check");
    return __real_replica_check_run(check);
}

int main(int argc, char **argv)
{
    status result = command_train(argc, argv);
    status_print();
    return (int)result;
}
