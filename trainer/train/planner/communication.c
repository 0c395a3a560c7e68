/* [N, C] is reduced in f32 twice per layer in forward and twice in backward. It is also reduced
 * once after the embedding and once for the gradient of the hidden states. Each reduction is a
 * reduce-scatter and, without sequence parallelism, an all-gather in the same type. With sequence
 * parallelism, rows are gathered in the GEMM type. A layer has six gathers: two for the matrices
 * that read the residual stream, two for the gradients of these matrices, and two for the gradients
 * of both projections. Two further gathers are for the head and for the gradient of the
 * embedding. The gradients of the norms are then reduced for every micro-batch. The gradients of QK
 * norms are reduced in both cases. QK norms over all heads reduce two sums of each row instead, in
 * forward and in backward. The loss takes 24 bytes per row.
 *
 * A layer of a decoder with cross-attention has a third matrix that reads the stream, and a third
 * projection. The encoder's output is gathered once, and its gradient is reduced once. */
#include "trainer/train/planner/communication.h"

#include "comm/partition.h"

/* Rows [., C] that a tensor-parallel group exchanges per sample. */
struct exchanged_rows {
    double reduced;
    double gathered; /* with sequence parallelism */
};

/* Returns the layers of a stack that backward computes again. */
static double count_recomputed(const struct recipe *r, double layers)
{
    return r->train.activation_checkpointing == RECOMPUTE_FULL ? layers : 0;
}

/* Counts the rows of a model with one stack of blocks. */
static struct exchanged_rows count_block_rows(const struct recipe *r,
                                              const struct model_config *config)
{
    double rows = (double)derive_sample_rows(r), layers = (double)config->layers;
    double again = count_recomputed(r, layers - 1);
    double embedding_share = (double)model_embedding_width(config) / (double)config->width;
    return (struct exchanged_rows){
        .reduced = rows * (4 * layers + again + 1 + embedding_share),
        .gathered = rows * (6 * layers + 2 * again + 2),
    };
}

/* Counts the rows of an encoder-decoder. */
static struct exchanged_rows count_stack_rows(const struct recipe *r,
                                              const struct model_config *config,
                                              const struct sample_lengths *lengths)
{
    double encoder = (double)config->encoder_layers;
    double decoder = (double)(config->layers - config->encoder_layers);
    double source = lengths->source, target = lengths->target;
    double encoder_again = count_recomputed(r, encoder);
    double decoder_again = count_recomputed(r, decoder - 1);
    return (struct exchanged_rows){
        .reduced = source * (4 * encoder + encoder_again + 2) +
                   target * (6 * decoder + 2 * decoder_again + 2),
        .gathered = source * (6 * encoder + 2 * encoder_again + 2) +
                    target * (9 * decoder + 3 * decoder_again + 2),
    };
}

/* Returns the elements of the norms of the stream and of the branches, for each use. */
static double count_norm_elements(const struct model_config *config,
                                  const struct model_parameter *parameters, int count)
{
    int64_t elements = 0;
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        bool is_other = p->role == MODEL_QUERY_NORM || p->role == MODEL_KEY_NORM ||
                        p->role == MODEL_TRANSFORM_NORM;
        elements +=
            model_is_norm(p) && !is_other ? p->columns * model_parameter_uses(config, p) : 0;
    }
    return (double)elements;
}

/* Returns the bytes of the sums of QK norms. `rows` counts the rows of all micro-batches. */
static double count_qk_norm_bytes(const struct recipe *r, const struct model_config *config,
                                  double rows, const struct plan *plan)
{
    double layers = (double)config->layers;
    if (!model_has_qk_norm(config)) {
        return 0;
    }
    return model_has_joint_qk_norm(config)
               ? 8 * 2 * rows * (2 * layers + count_recomputed(r, layers - 1))
               : 8 * 2 * (double)model_head_width(config) * layers * (double)plan->micro_steps;
}

double communication_tensor_bytes(const struct recipe *recipe, const struct model_config *config,
                                  const struct sample_lengths *lengths,
                                  const struct model_parameter *parameters, int count,
                                  const struct plan *plan)
{
    double samples = (double)partition_shard(recipe->batch.global_size, 1, plan->data, 0).count;
    bool has_source = lengths->source > 0;
    double rows = samples * (has_source ? lengths->target : (double)derive_sample_rows(recipe));
    struct exchanged_rows exchanged =
        has_source ? count_stack_rows(recipe, config, lengths) : count_block_rows(recipe, config);
    double row_elements = samples * (double)config->width;
    double sum = 4 * row_elements * exchanged.reduced;
    if (recipe->parallel.sequence) {
        double type_bytes = recipe->train.precision != PRECISION_FP32 ? 2 : 4;
        sum += type_bytes * row_elements * exchanged.gathered +
               8 * count_norm_elements(config, parameters, count) * (double)plan->micro_steps;
    } else {
        sum *= 2;
    }
    sum += count_qk_norm_bytes(recipe, config, rows, plan);
    double other_share = (plan->tensor - 1) / (double)plan->tensor;
    return plan->tensor > 1 ? sum * other_share + 24 * rows : 0;
}
