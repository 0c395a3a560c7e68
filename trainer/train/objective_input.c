#include "trainer/train/objective_input.h"

struct model_input objective_input_model(const struct batch *device_batch)
{
    return (struct model_input){
        .rows = device_batch->rows,
        .tokens = device_batch->inputs,
        .positions = device_batch->positions,
        .segments = device_batch->segments,
        .cu_rows = device_batch->cu_rows,
        .shared_prefix_offsets = device_batch->shared_prefix_offsets,
        .longest =
            device_batch->tokens * (device_batch->shared_prefix_offsets != NULL ? RESPONSES : 1),
        .segment_ids = device_batch->segment_ids,
        .output_rows = device_batch->masked_rows,
        .outputs = device_batch->masked,
    };
}

void objective_input_fill(struct objective_input *in, struct model *m,
                          const struct batch *device_batch, const struct model_input *input,
                          struct tensor hidden, float *const *gradients)
{
    struct model_label_head labels = model_get_label_head(m, input, gradients);
    in->device_batch = device_batch;
    in->hidden = hidden;
    in->head = model_lm_head(m);
    in->head_bias = model_lm_head_bias(m);
    in->vocabulary = model_get_config(m)->vocabulary;
    in->vocabulary_shard = model_lm_head_shard(m);
    in->first_micro_batch = input->first_micro_batch;
    in->pooled = labels.hidden;
    in->label_weight = labels.weight;
    in->label_bias = labels.bias;
    in->pooled_gradient = labels.hidden_gradient;
    in->label_weight_gradient = labels.weight_gradient;
    in->label_bias_gradient = labels.bias_gradient;
    if (gradients != NULL) {
        in->hidden_gradient = tensor_rows(model_hidden_gradient(m), 0, hidden.rows);
        in->head_gradient = model_lm_head_gradient(m, gradients);
        in->head_bias_gradient = model_lm_head_bias_gradient(m, gradients);
    }
}
