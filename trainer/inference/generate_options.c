#include "trainer/inference/generate_options.h"

struct generate_options generate_options_default(void)
{
    return (struct generate_options){
        .sampler = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        .num_beams = 1,
        .num_samples = 1,
        .length_penalty = 1,
        .decoder_start = -1,
        .use_cache = true,
    };
}
