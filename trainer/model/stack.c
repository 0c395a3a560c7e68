/* The stacks of blocks, and where the parameters of a role are in the list of parameters. */
#include "trainer/model/model_impl.h"

bool model_is_norm(const struct model_parameter *p)
{
    switch (p->role) {
    case MODEL_EMBEDDING_NORM:
    case MODEL_NORM1:
    case MODEL_NORM2:
    case MODEL_ATTENTION_NORM:
    case MODEL_FEED_FORWARD_NORM:
    case MODEL_QUERY_NORM:
    case MODEL_KEY_NORM:
    case MODEL_TRANSFORM_NORM:
    case MODEL_CROSS_NORM:
    case MODEL_CROSS_OUTPUT_NORM:
        return true;
    default:
        return false;
    }
}

/* Returns the index of a norm without weight and bias. */
static struct param_index make_constant_norm(void)
{
    return (struct param_index){PARAM_CONSTANT_NORM, PARAM_NONE};
}

/* Returns whether an architecture has norms of this role, other than the norm of the transform and
 * the norms of the queries and keys. */
static bool has_norm(const struct architecture *a, enum model_role role)
{
    switch (role) {
    case MODEL_EMBEDDING_NORM:
        return architecture_has_embedding_norm(a);
    case MODEL_NORM1:
    case MODEL_NORM2:
        return architecture_has_input_norms(a) || architecture_is_post_norm(a);
    case MODEL_ATTENTION_NORM:
    case MODEL_FEED_FORWARD_NORM:
        return architecture_has_branch_norms(a);
    case MODEL_CROSS_NORM:
        return architecture_has_decoder(a);
    case MODEL_CROSS_OUTPUT_NORM:
        return architecture_has_decoder(a) && architecture_has_branch_norms(a);
    default:
        return false;
    }
}

/* Adds a parameter to an index. */
static void set_index(struct param_index *index, const struct model_parameter *p, int i)
{
    bool weight = p->dimensions == 2 || (model_is_norm(p) && p->init_value > 0);
    *(weight ? &index->weight : &index->bias) = i;
}

/* Finds the first parameter of each role, weight and bias, in a stack; -1: in all stacks. */
static void find_param_indices(const struct model *m, int stack,
                               struct param_index out[MODEL_ROLES])
{
    for (int i = 0; i < MODEL_ROLES; i++) {
        out[i] = (struct param_index){PARAM_NONE, PARAM_NONE};
    }
    for (int i = m->parameter_count - 1; i >= 0; i--) {
        const struct model_parameter *p = &m->parameters[i];
        if (stack < 0 || p->stack == stack) {
            set_index(&out[p->role], p, i);
        }
    }
    for (int i = 0; i < MODEL_ROLES && m->architecture->norm.no_weight; i++) {
        bool exists = i == MODEL_TRANSFORM_NORM ? out[MODEL_TRANSFORM].weight >= 0
                                                : has_norm(m->architecture, (enum model_role)i);
        out[i] = exists ? make_constant_norm() : out[i];
    }
}

/* Finds the parameters of a stack. */
static void describe_stack(const struct model *m, int number, struct stack *s)
{
    find_param_indices(m, number, s->param_index);
    s->end_norm = m->architecture->norm.no_weight ? make_constant_norm()
                                                  : (struct param_index){PARAM_NONE, PARAM_NONE};
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        /* the norm of the embedding can take the place of the first norm1 */
        bool is_first_norm1 = p->role == MODEL_EMBEDDING_NORM &&
                              architecture_has_input_norms(m->architecture) &&
                              !m->architecture->embedding.extra_norm;
        bool is_first_block = p->stack == number && (p->layer == s->first || is_first_norm1);
        s->layer_parameters += is_first_block && !m->architecture->shared_layers;
        if (p->stack == number && p->role == MODEL_NORM1) {
            set_index(&s->end_norm, p, i);
        }
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
    for (int i = 0; i < m->stack_count; i++) {
        m->stacks[i].block = &m->architecture->blocks[i];
        describe_stack(m, i, &m->stacks[i]);
    }
}

struct param_index model_param_index(const struct model *m, int64_t layer, enum model_role role)
{
    const struct stack *stack = &m->stacks[layer < m->stacks[0].end ? 0 : m->stack_count - 1];
    int64_t block = layer - stack->first;
    bool continues = architecture_continues_norm1(m->architecture, true);
    if (role == MODEL_NORM1 && !continues && !architecture_has_input_norms(m->architecture)) {
        return (struct param_index){PARAM_NONE, PARAM_NONE};
    }
    if (role == MODEL_NORM1 && continues) {
        role = block == 0 ? MODEL_EMBEDDING_NORM : MODEL_NORM1;
        block = block == 0 ? 0 : block - 1;
    }
    const struct param_index *base = &stack->param_index[role];
    int more = (int)block * stack->layer_parameters;
    return (struct param_index){base->weight < 0 ? base->weight : base->weight + more,
                                base->bias < 0 ? base->bias : base->bias + more};
}
