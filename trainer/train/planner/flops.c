#include "trainer/train/planner/flops.h"

#include <math.h>

#include "trainer/model/architecture.h"
#include "trainer/model/linear.h"
#include "trainer/setup/objective_spec.h"

/* ---- GEMMs ---- */

/* Returns the number of rows per token of a stack that a matrix is multiplied with.
 *
 * The MLM head processes the masked rows only, a label head one row per example. */
static double get_stack_rows(const struct recipe *r, enum model_role role)
{
    double tokens = (double)r->data.sequence_length;
    bool is_mlm = r->objective == OBJECTIVE_MLM;
    double share = fmin(r->mlm.mask_probability, (double)r->mlm.max_predictions / tokens);
    switch (role) {
    case MODEL_POSITION_TABLE:
    case MODEL_TOKEN_TYPE_TABLE:
    case MODEL_POSITION_BIAS:
        return 0;
    case MODEL_TOKEN_TABLE:
        return !r->model.tie_word_embeddings || objective_spec_head(r) != MODEL_HEAD_LM ? 0
               : is_mlm                                                                 ? share
                                                                                        : 1;
    case MODEL_TRANSFORM:
        return is_mlm ? share : 1 / tokens;
    case MODEL_DECODER:
        return is_mlm ? share : 1;
    case MODEL_POOLER:
    case MODEL_LABELS:
        return 1 / tokens; /* one row per sequence */
    default:
        return 1;
    }
}

/* Returns the index of the matrix with this adapter; of another parameter, its own index. */
static int find_matrix(const struct model_parameter *parameters, int count, int index)
{
    int in = parameters[index].role == MODEL_ADAPTER_OUT ? index - 1 : index;
    for (int i = 0; model_is_adapter(&parameters[index]) && i < count; i++) {
        if (parameters[i].adapter == in) {
            return i;
        }
    }
    return index;
}

/* Returns whether a parameter is the token table of an encoder alone, which is no output matrix. */
static bool is_source_table(const struct model_config *config, const struct model_parameter *p)
{
    return p->role == MODEL_TOKEN_TABLE && config->separate_embeddings && p->stack == 0;
}

/* Returns the number of rows per token that a matrix is multiplied with. */
static double count_rows(const struct recipe *r, const struct sample_lengths *lengths,
                         const struct model_parameter *parameters, int count, int index)
{
    const struct model_parameter *p = &parameters[find_matrix(parameters, count, index)];
    bool is_table = p->role == MODEL_TOKEN_TABLE; /* tied, the output matrix of the decoder */
    bool reads_source =
        p->role == MODEL_CROSS_KEY_VALUE || (p->stack == 0 && !is_table && p->layer >= 0);
    double tokens = lengths->source + lengths->target;
    double share =
        lengths->source > 0 ? (reads_source ? lengths->source : lengths->target) / tokens : 1;
    return share * get_stack_rows(r, p->role);
}

/* Returns whether a matrix of the first trained layer has a GEMM for the gradient of its input.
 * QKV and its adapter have one only if the norm before them is trained. */
static bool needs_input_gradient(const struct model_parameter *parameters, int count, int index)
{
    bool reads_norm = parameters[index].role == MODEL_QKV, norm_is_trained = false;
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        bool is_same_layer = p->layer == parameters[index].layer;
        reads_norm = reads_norm || (p->role == MODEL_QKV && p->adapter == index && index > 0);
        norm_is_trained =
            norm_is_trained || (is_same_layer && p->role == MODEL_NORM1 && p->trained);
    }
    return !reads_norm || norm_is_trained;
}

/* A matrix has one GEMM in the forward pass. It has one for the gradient of its input if an earlier
 * parameter is trained, and one for its own gradient if it is trained. Shared layers repeat
 * them. */
struct flops_gemms flops_count_gemms(const struct recipe *r, const struct model_config *config,
                                     const struct sample_lengths *lengths,
                                     const struct model_parameter *parameters, int count)
{
    struct flops_gemms flops = {0};
    int64_t first_trained = model_first_trained_layer(parameters, count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        double size = (double)(p->whole_rows * p->whole_columns);
        bool inner = p->layer > first_trained || p->role == MODEL_TOKEN_TABLE || /* tied output */
                     (p->layer == first_trained && needs_input_gradient(parameters, count, i));
        double use =
            p->dimensions == 2 && !is_source_table(config, p)
                ? 2 * (1 + inner + p->trained) * count_rows(r, lengths, parameters, count, i) * size
                : 0;
        flops.all += use * (double)model_parameter_uses(config, p);
        flops.fp8 += use * (double)model_fp8_uses(config, p);
    }
    return flops;
}

/* ---- attention ---- */

/* Returns the average share of a sequence's rows that a row attends to. Without a causal mask, a
 * row attends to as many later rows as earlier rows. */
static double get_visible_share(const struct model_config *config, int64_t layer, double length)
{
    bool causal = architecture_compose(config).attention.causal;
    double window = (double)model_layer_window(config, layer) / length;
    double earlier = window > 0 && window < 1 ? window * (1 - window / 2) : 0.5;
    return causal ? earlier : 2 * earlier;
}

double flops_count_attention(const struct model_config *config,
                             const struct sample_lengths *lengths, int64_t first_trained,
                             bool visible)
{
    double sum = 0, tokens = lengths->source + lengths->target;
    for (int64_t layer = 0; layer < config->layers; layer++) {
        bool has_cross = model_layer_has_cross(config, layer);
        bool is_encoder = lengths->source > 0 && !has_cross;
        double rows = is_encoder ? lengths->source : lengths->target;
        double share = visible && !is_encoder ? get_visible_share(config, layer, rows) : 1;
        double keys = share * rows + (has_cross ? lengths->source : 0);
        int passes = layer >= first_trained ? 3 : 1; /* backward costs two forward passes */
        sum += 4 * passes * (double)model_attention_width(config) * keys * (rows / tokens);
    }
    return sum;
}
