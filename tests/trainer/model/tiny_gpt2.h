/* The configuration of a tiny GPT-2, for struct model_config. */
#pragma once

#define TINY_GPT2                                                                                  \
    .architecture = "gpt2", .layers = 2, .width = 24, .heads = 12, .rope_theta = 1e4, .inner = 60, \
    .positions = 7, .vocabulary = 65, .activation = ACTIVATION_GELU_TANH, .norm_epsilon = 1e-5f,   \
    .initializer_range = 0.02f
