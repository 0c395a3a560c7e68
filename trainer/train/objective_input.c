#include "trainer/train/objective_input.h"

struct model_input views_input(const struct batch *placed)
{
    return (struct model_input){
        .rows = placed->rows,
        .tokens = placed->inputs,
        .positions = placed->positions,
        .segments = placed->segments,
        .cu_rows = placed->cu_rows,
        .branches = placed->branches,
        .longest = placed->tokens * (placed->branches != NULL ? ANSWERS : 1),
        .segment_ids = placed->segment_ids,
        .output_rows = placed->masked_rows,
        .outputs = placed->masked,
    };
}

void views_add_model(struct objective_views *views, struct model *m, const struct batch *placed,
                     const struct model_input *input, struct tensor hidden, float *const *gradients)
{
    struct model_labels labels = model_labels_of(m, input, gradients);
    views->placed = placed;
    views->hidden = hidden;
    views->head = model_head(m);
    views->head_bias = model_head_bias(m);
    views->vocabulary = model_config_of(m)->vocabulary;
    views->parts = model_head_parts(m);
    views->fresh = input->fresh;
    views->pooled = labels.hidden;
    views->labels = labels.weight;
    views->labels_bias = labels.bias;
    views->pooled_gradient = labels.hidden_gradient;
    views->labels_gradient = labels.weight_gradient;
    views->labels_bias_gradient = labels.bias_gradient;
    if (gradients != NULL) {
        views->hidden_gradient = tensor_rows(model_hidden_gradient(m), 0, hidden.rows);
        views->head_gradient = model_head_gradient(m, gradients);
        views->head_bias_gradient = model_head_bias_gradient(m, gradients);
    }
}
