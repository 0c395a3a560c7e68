/* The table of one instruction set. This file is compiled once for each instruction set (cpu.h). */
#include "base/memory.h"
#include "kernels/cpu/cpu.h"

static size_t scratch_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    cpu_scratch *sizes[] = {
        CPU(attention_scratch), CPU(classifier_scratch), CPU(embedding_scratch),
        CPU(fp8_scratch),       CPU(norm_scratch),       CPU(column_sums_scratch),
    };
    size_t largest = 0;
    for (int i = 0; i < COUNT(sizes); i++) {
        size_t bytes = sizes[i](dtype, threads, limits);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

#define VARIANT_TEXT_(name) #name
#define VARIANT_TEXT(name) VARIANT_TEXT_(name)

const struct cpu_variant CPU(variant) = {
    .name = VARIANT_TEXT(CPU_VARIANT),
    .scratch_bytes = scratch_bytes,
#ifdef __AMX_BF16__
    .uses_amx = true,
#endif
    .table =
        {
            .linear_forward = CPU(linear_forward),
            .linear_backward_input = CPU(linear_backward_input),
            .linear_backward_weight = CPU(linear_backward_weight),
            .linear_add = CPU(linear_add),
            .fp8_linear_forward = CPU(fp8_linear_forward),
            .fp8_linear_backward_input = CPU(fp8_linear_backward_input),
            .fp8_linear_backward_weight = CPU(fp8_linear_backward_weight),
            .fp8_update_scales = CPU(fp8_update_scales),
            .activation_forward = CPU(activation_forward),
            .op_scale = CPU(op_scale),
            .op_softcap = CPU(op_softcap),
            .activation_backward = CPU(activation_backward),
            .swiglu_forward = CPU(swiglu_forward),
            .swiglu_backward = CPU(swiglu_backward),
            .geglu_forward = CPU(geglu_forward),
            .geglu_backward = CPU(geglu_backward),
            .rotary_apply = CPU(rotary_apply),
            .embedding_forward = CPU(embedding_forward),
            .embedding_backward = CPU(embedding_backward),
            .dropout_apply = CPU(dropout_apply),
            .op_gather_rows = CPU(op_gather_rows),
            .op_scatter_rows = CPU(op_scatter_rows),
            .residual_norm_forward = CPU(residual_norm_forward),
            .residual_norm_backward = CPU(residual_norm_backward),
            .split_norm_forward_sums = CPU(split_norm_forward_sums),
            .split_norm_forward = CPU(split_norm_forward),
            .split_norm_backward_sums = CPU(split_norm_backward_sums),
            .split_norm_backward = CPU(split_norm_backward),
            .attention_forward = CPU(attention_forward),
            .attention_backward = CPU(attention_backward),
            .classifier_run = CPU(classifier_run),
            .classifier_logits = CPU(classifier_logits),
            .adamw_update = CPU(adamw_update),
            .adamw_parts_update = CPU(adamw_parts_update),
            .lamb_parts_moments = CPU(lamb_parts_moments),
            .lamb_parts_apply = CPU(lamb_parts_apply),
            .lamb_moments = CPU(lamb_moments),
            .lamb_apply = CPU(lamb_apply),
            .op_round_weights = CPU(op_round_weights),
            .op_sum_of_squares = CPU(op_sum_of_squares),
            .control_gradient_squares = CPU(control_gradient_squares),
            .control_sum_exact = cpu_control_sum_exact,
            .control_sum_rows = cpu_control_sum_rows,
            .control_sum_segments = cpu_control_sum_segments,
            .control_trust_ratios = cpu_control_trust_ratios,
            .control_decide_update = cpu_control_decide_update,
            .spike_score_run = cpu_spike_score_run,
            .op_loss_stats = CPU(op_loss_stats),
            .head_loss_run = cpu_head_loss_run,
            .preference_loss_run = cpu_preference_loss_run,
            .preference_batch_store = cpu_preference_batch_store,
            .preference_batch_run = cpu_preference_batch_run,
            .contrastive_loss_pool = cpu_contrastive_loss_pool,
            .contrastive_loss_run = cpu_contrastive_loss_run,
            .contrastive_loss_sum = cpu_contrastive_loss_sum,
            .contrastive_loss_backward = cpu_contrastive_loss_backward,
            .op_add = CPU(op_add),
            .op_cast = CPU(op_cast),
            .roofline = roofline_measure,
        },
};
