#include "tests/kernels/attention_model.h"

#include "kernels/cpu/cpu.h"

void attention_model_use(struct kernels *k)
{
    k->table.attention_forward = CPU(attention_forward);
    k->table.attention_backward = CPU(attention_backward);
}
