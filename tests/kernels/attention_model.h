/* Attention of the CPU back-end, compiled with a model of AMX (tile_model.h). */
#pragma once

#include "kernels/kernels.h"

/* attention_model_use - replace the attention of a context of the CPU. */
void attention_model_use(struct kernels *k);
