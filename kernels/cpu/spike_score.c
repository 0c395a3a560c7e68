/* The scores of a training step. This file is compiled once, so that its results do not depend on
 * the instruction set. */
#include "kernels/cpu/cpu.h"
#include "kernels/spike_terms.h"

status cpu_spike_score_run(struct kernels *k, struct update_control *control,
                           struct spike_state *state, const struct spike_inputs *in)
{
    (void)k;
    control->skip = spike_score_decide(state, in);
    return STATUS_OK;
}
