/* The command `train` on hardware that changes one value of one rank.
 *
 *   flipping_trainer RECIPE.yaml [section.key=value ...]
 *
 *   FLIP_RANK     rank of the world; unset: no value changes
 *   FLIP_STEP     number of the step, from 0
 *   FLIP_BEFORE   step: a weight before the step; check: a weight before the comparison of the
 *                 replicas after it; norm: a reduced gradient becomes NaN before the gradient norm
 *                 is computed; spike: the rank finds a spike in the step
 *   FLIP_TENSOR   index of the tensor; negative: from the end
 *   FLIP_NAN      set: the weight becomes NaN; unset: one bit of it is inverted
 *   FLIP_STOP     number of the step, from 0, in which each rank receives SIGUSR1, once, after its
 *                 last micro-batch; the ranks agree on the stop in the next step
 *   FLIP_HASH     set: prints a hash of the weights and the moments after the run, with f32 weights
 *
 * The linker replaces loop_run, step_train, bucket_finish, replica_check_run, spike_observe and
 * decision_wait by these functions (--wrap). */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cli/command.h"
#include "trainer/optimizer/decision.h"
#include "trainer/train/loop.h"

status __real_loop_run(struct job *job);
status __wrap_loop_run(struct job *job);
status __real_step_train(struct step *s, int64_t step, double learning_rate,
                         const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                         struct step_result *out);
status __wrap_step_train(struct step *s, int64_t step, double learning_rate,
                         const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                         struct step_result *out);
status __real_bucket_finish(struct bucket_set *set);
status __wrap_bucket_finish(struct bucket_set *set);
status __real_replica_check_run(struct replica_check *check);
status __wrap_replica_check_run(struct replica_check *check);
struct spike_score __real_spike_observe(struct checkpoint_spikes *spikes, double loss,
                                        double gradient_norm, double predictions);
struct spike_score __wrap_spike_observe(struct checkpoint_spikes *spikes, double loss,
                                        double gradient_norm, double predictions);
status __real_decision_wait(struct decision *d, int64_t number, struct decision_result *out,
                            struct decision_time *time);
status __wrap_decision_wait(struct decision *d, int64_t number, struct decision_result *out,
                            struct decision_time *time);

static struct job *running;
static int64_t current_step;

static long read_number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : -1;
}

/* Each fault occurs once, also if a rollback repeats the step. */
static bool is_due_in(const char *moment, int64_t step)
{
    static bool done;
    const char *expected = getenv("FLIP_BEFORE");
    bool due = !done && running != NULL && expected != NULL && strcmp(expected, moment) == 0 &&
               comm_rank(running->world) == read_number("FLIP_RANK") &&
               step == read_number("FLIP_STEP");
    done = done || due;
    return due;
}

static bool is_due(const char *moment)
{
    return is_due_in(moment, current_step);
}

static status write_bytes(void *to, const void *bytes, size_t count)
{
    const struct session *s = &running->session;
    return device_write(s->device, kernels_stream(s->kernels), to, bytes, count);
}

/* Changes the second element, in f32 or, after ZeRO has released the f32 weights, in the bf16 copy:
 * inverts the lowest bit of its second byte. */
static status change_weight(void)
{
    const struct session *s = &running->session;
    unsigned char bytes[sizeof(float)];
    TRY(sharded_optimizer_wait_all(running->optimizer)); /* a gather would replace the value */
    const struct model *m = running->session.model;
    int count = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    long index = read_number("FLIP_TENSOR");
    const struct model_parameter *p = &parameters[index < 0 ? count + index : index];
    bool has_f32 = model_weights(m) != NULL;
    size_t size = has_f32 ? sizeof(float) : sizeof(bf16);
    void *element = has_f32 ? (void *)(model_weights(m) + p->first + 1)
                            : (void *)(model_bf16_weights(m) + p->first + 1);
    TRY(device_read(s->device, kernels_stream(s->kernels), bytes, element, size));
    bytes[1] ^= 1;
    if (getenv("FLIP_NAN") != NULL) {
        memset(bytes, 0xff, size);
    }
    TRY(write_bytes(element, bytes, size));
    fprintf(stderr, "flipped a bit of %s\n", p->name);
    /* GEMMs read the bf16 copy */
    bool has_both = has_f32 && model_bf16_weights(m) != NULL && getenv("FLIP_NAN") != NULL;
    return has_both ? write_bytes(model_bf16_weights(m) + p->first + 1, bytes, sizeof(bf16))
                    : STATUS_OK;
}

static status hash_range(const void *data, size_t bytes, uint64_t *hash)
{
    const struct session *s = &running->session;
    unsigned char *copy = malloc(bytes);
    REQUIRE(copy != NULL, STATUS_INTERNAL, "out of memory for a copy of the weights");
    status result = device_read(s->device, kernels_stream(s->kernels), copy, data, bytes);
    for (size_t i = 0; i < bytes && result == STATUS_OK; i++) {
        *hash = (*hash ^ copy[i]) * UINT64_C(0x100000001b3);
    }
    free(copy);
    return result;
}

/* An error of the run stays the pending one. */
static status print_hash(void)
{
    const struct optimizer *o = sharded_optimizer_inner(running->optimizer);
    const struct model *m = running->session.model;
    size_t moments = (size_t)optimizer_elems(o) * dtype_bytes(optimizer_moment_dtype(o));
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    TRY(hash_range(model_weights(m), (size_t)model_elems(m) * sizeof(float), &hash));
    TRY(hash_range(optimizer_moment1(o), moments, &hash));
    TRY(hash_range(optimizer_moment2(o), moments, &hash));
    fprintf(stderr, "hash %016" PRIx64 "\n", hash);
    return STATUS_OK;
}

status __wrap_loop_run(struct job *job)
{
    running = job;
    status result = __real_loop_run(job);
    if (getenv("FLIP_HASH") != NULL && model_weights(job->session.model) != NULL) {
        KEEP_FIRST(result, print_hash());
    }
    return result;
}

status __wrap_step_train(struct step *s, int64_t step, double learning_rate,
                         const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                         struct step_result *out)
{
    current_step = step;
    if (is_due("step")) {
        TRY(change_weight());
    }
    return __real_step_train(s, step, learning_rate, votes, pending_error, has_next_step, out);
}

status __wrap_replica_check_run(struct replica_check *check)
{
    if (is_due("check")) {
        TRY(change_weight());
    }
    return __real_replica_check_run(check);
}

status __wrap_bucket_finish(struct bucket_set *set)
{
    static bool stopped;
    if (!stopped && current_step == read_number("FLIP_STOP")) {
        stopped = true;
        raise(SIGUSR1);
    }
    status result = __real_bucket_finish(set);
    if (is_due("norm")) {
        const float value = NAN;
        fprintf(stderr, "changed a gradient\n");
        TRY(write_bytes(bucket_reduced_gradient(set, 0, bucket_shard(set, 0).first), &value,
                        sizeof value));
    }
    return result;
}

static void find_spike(struct spike_score *score)
{
    fprintf(stderr, "changed a decision\n");
    score->is_spike = true;
}

status __wrap_decision_wait(struct decision *d, int64_t number, struct decision_result *out,
                            struct decision_time *time)
{
    status result = __real_decision_wait(d, number, out, time);
    if (is_due_in("spike", number)) {
        find_spike(&out->spikes.score);
    }
    return result;
}

struct spike_score __wrap_spike_observe(struct checkpoint_spikes *spikes, double loss,
                                        double gradient_norm, double predictions)
{
    struct spike_score score = __real_spike_observe(spikes, loss, gradient_norm, predictions);
    if (is_due("spike")) {
        find_spike(&score);
    }
    return score;
}

int main(int argc, char **argv)
{
#ifdef BIREME_CUDA
    cuda_register();
#endif
    status result = command_train(argc, argv);
    status_print();
    return (int)result;
}
