/* Creates the sharded optimizer of a session, and lists its tensors for checkpoints. */
#include "trainer/train/step/sharded_optimizer.h"

#include "trainer/setup/derive.h"

status sharded_optimizer_create_from_session(struct session *s, int64_t micro_batches,
                                             struct sharded_optimizer **out)
{
    const struct recipe *r = &s->recipe;
    int64_t all = derive_all_micro_batches(r), maximum = micro_batches * comm_size(s->mesh.data);
    struct sharded_optimizer_options options = {
        .mesh = &s->mesh,
        .kernels = s->kernels,
        .model = s->model,
        .optimizer =
            {
                .beta1 = r->optimizer.beta1,
                .beta2 = r->optimizer.beta2,
                .epsilon = r->optimizer.epsilon,
                .weight_decay = r->optimizer.weight_decay,
                .max_grad_norm = r->optimizer.max_grad_norm,
                .kind = r->optimizer.name == RECIPE_LAMB ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW,
                .trust_all = r->optimizer.nvlamb,
                .stochastic_rounding = r->optimizer.stochastic_rounding,
                .moment_dtype = derive_moment_dtype(r),
                .seed = (uint64_t)r->seed,
            },
        .zero_stage = (int)r->parallel.zero_stage,
        .bucket_elems = derive_bucket_elems(r),
        .micro_batches = micro_batches,
        .bf16_transport = r->parallel.reduce_dtype == PRECISION_BF16,
        .reproducible_micro_batches = !r->parallel.reproducible ? 0
                                      : all < maximum           ? all
                                                                : maximum,
    };
    return sharded_optimizer_create(&options, out);
}

status sharded_optimizer_weights_state(const struct session *s,
                                       const struct sharded_optimizer *sharded,
                                       struct state_dict *out)
{
    if (sharded_optimizer_weights(sharded) == NULL) {
        return state_dict_create_session_weights(s, NULL, NULL, out);
    }
    struct state_dict_ranges shard = {.sharded = true};
    shard.ranges = sharded_optimizer_weight_ranges(sharded, &shard.count);
    return state_dict_create_session_weights(s, &shard, sharded_optimizer_weights(sharded), out);
}

status sharded_optimizer_moments_state(const struct session *s,
                                       const struct sharded_optimizer *sharded,
                                       struct state_dict *out)
{
    const struct optimizer *o = sharded_optimizer_inner(sharded);
    struct state_dict_ranges shard = {.sharded = sharded_optimizer_is_sharded(sharded)};
    shard.ranges = optimizer_ranges(o, &shard.count);
    return state_dict_create_session_moments(s, &shard, optimizer_moment_dtype(o),
                                             optimizer_moment1(o), optimizer_moment2(o), out);
}
