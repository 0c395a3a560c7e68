/* The stacks of blocks, and where the parameters of a role are in the list of parameters. */
#include "trainer/model/model_impl.h"

bool model_is_norm(const struct model_parameter *p)
{
    switch (p->role) {
    case MODEL_NORM1:
    case MODEL_NORM2:
    case MODEL_ATTENTION_NORM:
    case MODEL_FEED_FORWARD_NORM:
    case MODEL_QUERY_NORM:
    case MODEL_KEY_NORM:
    case MODEL_TRANSFORM_NORM:
    case MODEL_CROSS_NORM:
        return true;
    default:
        return false;
    }
}

/* Finds the first parameter of each role, weight and bias, in the layers from `first` on. */
static void find_param_indices(const struct model *m, int64_t first,
                               struct param_index out[MODEL_ROLES])
{
    for (int i = 0; i < MODEL_ROLES; i++) {
        out[i] = (struct param_index){-1, -1};
    }
    for (int i = m->parameter_count - 1; i >= 0 && m->parameters[i].layer >= first; i--) {
        const struct model_parameter *p = &m->parameters[i];
        bool weight = p->dimensions == 2 || (model_is_norm(p) && p->init_value > 0);
        *(weight ? &out[p->role].weight : &out[p->role].bias) = i;
    }
}

void model_describe_stacks(struct model *m)
{
    find_param_indices(m, -1, m->param_index);
    struct activations *a = &m->activations;
    int64_t encoder = architecture_has_decoder(m->architecture) ? m->config.encoder_layers : 0;
    struct stack *s = m->stacks;
    if (encoder > 0) {
        *s++ = (struct stack){.end = encoder,
                              .last = &a->encoder_last,
                              .norm = &a->encoder_norm,
                              .statistics = &a->encoder_statistics};
    }
    *s++ = (struct stack){.first = encoder,
                          .end = m->config.layers,
                          .last = &a->last,
                          .norm = &a->final_norm,
                          .statistics = &a->final_statistics};
    m->stack_count = (int)(s - m->stacks);
    for (s = m->stacks; s < m->stacks + m->stack_count; s++) {
        find_param_indices(m, s->first > 0 ? s->first : -1, s->param_index);
        for (int i = 0; i < m->parameter_count; i++) {
            s->layer_parameters += m->parameters[i].layer == s->first;
        }
    }
}

/* Returns the indices of a role in a block of a stack, which is counted from 0. */
static struct param_index find_in_stack(const struct model *m, const struct stack *stack,
                                        int64_t layer, enum model_role role)
{
    const struct param_index *base = &stack->param_index[role];
    if (base->weight < 0) {
        return (struct param_index){-1, -1};
    }
    if (role == MODEL_NORM1 && !architecture_has_first_norm(m->architecture)) {
        bool branch = m->architecture->norm.placement == PLACEMENT_BRANCH;
        /* the first layer with NORM1 */
        int64_t first = branch ? stack->end - stack->first : 1;
        if (layer < first) {
            return (struct param_index){-1, -1};
        }
        layer -= first;
    }
    int more = (int)layer * stack->layer_parameters;
    return (struct param_index){base->weight + more, base->bias < 0 ? -1 : base->bias + more};
}

struct param_index model_param_index(const struct model *m, int64_t layer, enum model_role role)
{
    const struct stack *stack = &m->stacks[layer < m->stacks[0].end ? 0 : m->stack_count - 1];
    return find_in_stack(m, stack, layer - stack->first, role);
}

struct param_index model_end_norm(const struct model *m, const struct stack *stack)
{
    return find_in_stack(m, stack, stack->end - stack->first, MODEL_NORM1);
}
