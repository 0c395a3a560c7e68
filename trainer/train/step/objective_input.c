#include "trainer/train/step/objective_input.h"

struct model_input objective_input_model(const struct batch *device_batch)
{
    const int32_t *shared_prefix_offsets =
        device_batch->kind == BATCH_PREFERENCE_PAIRS
            ? device_batch->preference_pairs.shared_prefix_offsets
            : NULL;
    const struct batch_source *source = &device_batch->source;
    bool has_source = device_batch->kind == BATCH_SEQ2SEQ;
    return (struct model_input){
        .source = has_source ? (struct model_source){.rows = source->rows,
                                                     .tokens = source->inputs,
                                                     .positions = source->positions,
                                                     .cu_rows = source->cu_rows,
                                                     .longest = device_batch->tokens,
                                                     .first_row = source->first_row}
                             : (struct model_source){0},
        .rows = device_batch->rows,
        .tokens = device_batch->inputs,
        .positions = device_batch->positions,
        .segments = device_batch->segments,
        .cu_rows = device_batch->cu_rows,
        .shared_prefix_offsets = shared_prefix_offsets,
        .longest = device_batch->tokens * (shared_prefix_offsets != NULL ? RESPONSES : 1),
        .token_type_ids = device_batch->token_type_ids,
        .output_rows = device_batch->outputs.rows,
        .outputs = device_batch->outputs.count,
    };
}

void objective_input_fill(struct objective_input *in, struct model *m,
                          const struct batch *device_batch, const struct model_input *input,
                          struct tensor hidden, float *const *gradients)
{
    struct model_label_head labels = model_get_label_head(m, input, gradients);
    in->device_batch = device_batch;
    in->first_micro_batch = input->first_micro_batch;
    in->hidden = (struct objective_hidden){.value = hidden};
    in->lm_head = (struct objective_lm_head){
        .weight = model_lm_head(m),
        .classifier = model_classifier(m, BATCH_IGNORED),
    };
    in->label_head = (struct objective_label_head){
        .weight = labels.weight,
        .weight_gradient = labels.weight_gradient,
        .bias = labels.bias,
        .bias_gradient = labels.bias_gradient,
        .pooled = labels.hidden,
        .pooled_gradient = labels.hidden_gradient,
    };
    if (gradients != NULL) {
        in->hidden.gradient = tensor_rows(model_hidden_gradient(m), 0, hidden.rows);
        in->lm_head.weight_gradient = model_lm_head_gradient(m, gradients);
        in->lm_head.bias_gradient = model_lm_head_bias_gradient(m, gradients);
    }
}
