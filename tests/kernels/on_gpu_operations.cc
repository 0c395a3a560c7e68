/* The operations of a context on a GPU for operands in host memory (operand_copies.h): the table
 * of such a context. */
#include "tests/kernels/operand_copies.h"

extern "C" {
#include "kernels/cuda/cuda.h"
#include "tests/check.h"
#include "tests/kernels/on_gpu.h"
}

/* ---- operations of which all operands are tensors ---- */

static void add_operand(operand_copies &copies, struct tensor &t)
{
    copies.add(t);
}

static void add_operand(operand_copies &copies, struct bias_gradient &dbias)
{
    copies.add(dbias.sums);
}

template <typename T> static void add_operand(operand_copies &, const T &)
{
    static_assert(!std::is_pointer_v<T>, "an operation with arrays needs a specialization below");
}

template <auto OPERATION> struct with_copies;
template <typename... A, status (*OPERATION)(struct kernels *, A...)>
struct with_copies<OPERATION> {
    static status call(struct kernels *k, A... arguments)
    {
        operand_copies copies(k->device, k->stream);
        (add_operand(copies, arguments), ...);
        return copies.run([&] { return OPERATION(k, arguments...); });
    }
};

/* ---- operations with arrays, of the lengths that kernels.h states ---- */

template <> struct with_copies<cuda_rotary_apply> {
    static status call(struct kernels *k, struct tensor x, struct tensor table,
                       const int32_t *positions, int64_t head_width, bool inverse)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(x);
        copies.add(table);
        copies.add(positions, x.rows);
        return copies.run(
            [&] { return cuda_rotary_apply(k, x, table, positions, head_width, inverse); });
    }
};

template <> struct with_copies<cuda_embedding_forward> {
    static status call(struct kernels *k, struct tensor y, const int32_t *tokens,
                       const int32_t *positions, struct tensor token_table, int64_t first_token,
                       struct tensor position_table, struct dropout dropout)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(y);
        copies.add(tokens, y.rows);
        copies.add(positions, y.rows);
        copies.add(token_table);
        copies.add(position_table);
        return copies.run([&] {
            return cuda_embedding_forward(k, y, tokens, positions, token_table, first_token,
                                          position_table, dropout);
        });
    }
};

template <> struct with_copies<cuda_embedding_backward> {
    static status call(struct kernels *k, struct tensor d_token_table, int64_t first_token,
                       struct tensor d_position_table, struct tensor dy, const int32_t *tokens,
                       const int32_t *positions, struct dropout dropout)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(d_token_table);
        copies.add(d_position_table);
        copies.add(dy);
        copies.add(tokens, dy.rows);
        copies.add(positions, dy.rows);
        return copies.run([&] {
            return cuda_embedding_backward(k, d_token_table, first_token, d_position_table, dy,
                                           tokens, positions, dropout);
        });
    }
};

template <> struct with_copies<cuda_op_gather_rows> {
    static status call(struct kernels *k, struct tensor y, struct tensor x, const int32_t *rows)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(y);
        copies.add(x);
        copies.add(rows, y.rows);
        return copies.run([&] { return cuda_op_gather_rows(k, y, x, rows); });
    }
};

template <> struct with_copies<cuda_op_scatter_rows> {
    static status call(struct kernels *k, struct tensor dx, struct tensor dy, const int32_t *rows,
                       bool overwrite)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(dx);
        copies.add(dy);
        copies.add(rows, dy.rows);
        return copies.run([&] { return cuda_op_scatter_rows(k, dx, dy, rows, overwrite); });
    }
};

static void add_offsets(operand_copies &copies, struct attention &a)
{
    copies.add(a.cu_q, a.sequences + 1);
    copies.add(a.cu_k, a.sequences + 1);
    copies.add(a.shared_prefix_offsets, 2 * a.sequences);
    copies.add(a.bias.table);
    copies.add(a.bias.gradient);
}

template <> struct with_copies<cuda_attention_forward> {
    static status call(struct kernels *k, struct tensor o, struct tensor lse, struct tensor q,
                       struct tensor keys, struct tensor values, const struct attention *settings)
    {
        struct attention a = *settings;
        operand_copies copies(k->device, k->stream);
        for (struct tensor *t : {&o, &lse, &q, &keys, &values}) {
            copies.add(*t);
        }
        add_offsets(copies, a);
        return copies.run([&] { return cuda_attention_forward(k, o, lse, q, keys, values, &a); });
    }
};

template <> struct with_copies<cuda_attention_backward> {
    static status call(struct kernels *k, struct tensor dq, struct tensor dkeys,
                       struct tensor dvalues, struct tensor d_o, struct tensor q,
                       struct tensor keys, struct tensor values, struct tensor o, struct tensor lse,
                       const struct attention *settings)
    {
        struct attention a = *settings;
        operand_copies copies(k->device, k->stream);
        for (struct tensor *t : {&dq, &dkeys, &dvalues, &d_o, &q, &keys, &values, &o, &lse}) {
            copies.add(*t);
        }
        add_offsets(copies, a);
        return copies.run([&] {
            return cuda_attention_backward(k, dq, dkeys, dvalues, d_o, q, keys, values, o, lse, &a);
        });
    }
};

/* The all-gather of a test, which expects host memory. */
struct host_gather {
    struct kernels *k;
    struct vocabulary_shard shard;
};

/* Calls it with copies of the device memory of the operation. */
static status gather_with_copies(void *context, void *all, const void *own, size_t bytes)
{
    const auto *g = static_cast<const struct host_gather *>(context);
    size_t all_bytes = static_cast<size_t>(g->shard.count) * bytes;
    std::vector<char> host_own(bytes), host_all(all_bytes);
    TRY(device_read(g->k->device, g->k->stream, host_own.data(), own, bytes));
    TRY(g->shard.all_gather(g->shard.context, host_all.data(), host_own.data(), bytes));
    return device_write(g->k->device, g->k->stream, all, host_all.data(), all_bytes);
}

template <> struct with_copies<cuda_classifier_run> {
    static status call(struct kernels *k, float *losses, int32_t *argmax, struct tensor dx,
                       struct tensor dw, struct tensor x, struct tensor w, const int32_t *targets,
                       const struct classifier *settings)
    {
        struct classifier c = *settings;
        struct host_gather gather = {k, c.vocabulary_shard};
        c.vocabulary_shard.all_gather = gather_with_copies;
        c.vocabulary_shard.context = &gather;
        operand_copies copies(k->device, k->stream);
        for (struct tensor *t : {&dx, &dw, &x, &w, &c.bias, &c.dbias}) {
            copies.add(*t);
        }
        copies.add(losses, x.rows);
        copies.add(argmax, x.rows);
        copies.add(targets, x.rows);
        copies.add(c.row_scale, x.rows);
        copies.add(c.entropies, x.rows);
        copies.add(c.mean_logits, x.rows);
        return copies.run(
            [&] { return cuda_classifier_run(k, losses, argmax, dx, dw, x, w, targets, &c); });
    }
};

/* Adds the operands that AdamW and the moments of LAMB share. */
template <typename T>
static void add_operands(operand_copies *copies, struct adamw *settings, T *&weights,
                         void *&moment1, void *&moment2, const float *&gradient, int64_t count)
{
    copies->add(settings->control, 1);
    copies->add(weights, count);
    copies->add(moment1, settings->moment_dtype, count);
    copies->add(moment2, settings->moment_dtype, count);
    copies->add(gradient, count);
}

template <> struct with_copies<cuda_adamw_update> {
    static status call(struct kernels *k, float *weights, bf16 *copy, void *moment1, void *moment2,
                       const float *gradient, int64_t count, const struct adamw *host_settings)
    {
        struct adamw settings = *host_settings;
        operand_copies copies(k->device, k->stream);
        copies.add(copy, count);
        add_operands(&copies, &settings, weights, moment1, moment2, gradient, count);
        return copies.run([&] {
            return cuda_adamw_update(k, weights, copy, moment1, moment2, gradient, count,
                                     &settings);
        });
    }
};

template <> struct with_copies<cuda_adamw_parts_update> {
    static status call(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                       float *moment2, const float *gradient, const struct adamw_parts *host_parts,
                       const struct adamw *host_settings)
    {
        struct adamw settings = *host_settings;
        struct adamw_parts p = *host_parts;
        operand_copies copies(k->device, k->stream);
        copies.add(settings.control, 1);
        copies.add(p.parts, p.part_count);
        copies.add(weights, p.elements);
        copies.add(copy, p.elements);
        copies.add(moment1, p.moment_elems);
        copies.add(moment2, p.moment_elems);
        copies.add(gradient, p.elements);
        return copies.run([&] {
            return cuda_adamw_parts_update(k, weights, copy, moment1, moment2, gradient, &p,
                                           &settings);
        });
    }
};

template <> struct with_copies<cuda_lamb_parts_moments> {
    static status call(struct kernels *k, double *sums, const float *weights, float *moment1,
                       float *moment2, const float *gradient, const struct adamw_parts *host_parts,
                       const struct adamw *host_settings)
    {
        struct adamw settings = *host_settings;
        struct adamw_parts p = *host_parts;
        operand_copies copies(k->device, k->stream);
        copies.add(settings.control, 1);
        copies.add(p.parts, p.part_count);
        copies.add(sums, 2 * p.part_count);
        copies.add(weights, p.elements);
        copies.add(moment1, p.moment_elems);
        copies.add(moment2, p.moment_elems);
        copies.add(gradient, p.elements);
        return copies.run([&] {
            return cuda_lamb_parts_moments(k, sums, weights, moment1, moment2, gradient, &p,
                                           &settings);
        });
    }
};

template <> struct with_copies<cuda_lamb_parts_apply> {
    static status call(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                       const float *moment2, const double *ratios,
                       const struct adamw_parts *host_parts, const struct adamw *host_settings)
    {
        struct adamw settings = *host_settings;
        struct adamw_parts p = *host_parts;
        operand_copies copies(k->device, k->stream);
        copies.add(settings.control, 1);
        copies.add(p.parts, p.part_count);
        copies.add(ratios, p.part_count);
        copies.add(weights, p.elements);
        copies.add(copy, p.elements);
        copies.add(moment1, p.moment_elems);
        copies.add(moment2, p.moment_elems);
        return copies.run([&] {
            return cuda_lamb_parts_apply(k, weights, copy, moment1, moment2, ratios, &p, &settings);
        });
    }
};

template <> struct with_copies<cuda_lamb_moments> {
    static status call(struct kernels *k, double *sums, const float *weights, void *moment1,
                       void *moment2, const float *gradient, int64_t count,
                       const struct adamw *host_settings)
    {
        struct adamw settings = *host_settings;
        operand_copies copies(k->device, k->stream);
        copies.add(settings.trust_ratio, 1);
        copies.add(sums, 2);
        add_operands(&copies, &settings, weights, moment1, moment2, gradient, count);
        return copies.run([&] {
            return cuda_lamb_moments(k, sums, weights, moment1, moment2, gradient, count,
                                     &settings);
        });
    }
};

template <> struct with_copies<cuda_lamb_apply> {
    static status call(struct kernels *k, float *weights, bf16 *copy, const void *moment1,
                       const void *moment2, int64_t count, const struct adamw *host_settings)
    {
        struct adamw settings = *host_settings;
        operand_copies copies(k->device, k->stream);
        copies.add(settings.control, 1);
        copies.add(settings.trust_ratio, 1);
        copies.add(weights, count);
        copies.add(copy, count);
        copies.add(moment1, settings.moment_dtype, count);
        copies.add(moment2, settings.moment_dtype, count);
        return copies.run(
            [&] { return cuda_lamb_apply(k, weights, copy, moment1, moment2, count, &settings); });
    }
};

template <> struct with_copies<cuda_op_round_weights> {
    static status call(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                       const struct rounding *rounding)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(copy, count);
        copies.add(weights, count);
        return copies.run([&] { return cuda_op_round_weights(k, copy, weights, count, rounding); });
    }
};

template <> struct with_copies<cuda_op_sum_of_squares> {
    static status call(struct kernels *k, double *out, const float *x, int64_t count)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(out, 1);
        copies.add(x, count);
        return copies.run([&] { return cuda_op_sum_of_squares(k, out, x, count); });
    }
};

template <> struct with_copies<cuda_control_gradient_squares> {
    static status call(struct kernels *k, double *out, struct not_finite *found, const float *x,
                       const struct gradient_parts *host_parts)
    {
        struct gradient_parts p = *host_parts;
        const struct gradient_part *last = p.parts + p.count - 1;
        operand_copies copies(k->device, k->stream);
        copies.add(p.parts, p.count);
        copies.add(out, p.count);
        copies.add(found, 1);
        copies.add(x, last->offset + last->count);
        return copies.run([&] { return cuda_control_gradient_squares(k, out, found, x, &p); });
    }
};

template <> struct with_copies<cuda_control_sum_exact> {
    static status call(struct kernels *k, double *out, const double *x, int64_t count)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(out, 1);
        copies.add(x, count);
        return copies.run([&] { return cuda_control_sum_exact(k, out, x, count); });
    }
};

template <> struct with_copies<cuda_control_sum_rows> {
    static status call(struct kernels *k, double *out, const double *x, const double *y,
                       int64_t rows, int64_t columns)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(out, columns);
        copies.add(x, rows * columns);
        copies.add(y, rows * columns);
        return copies.run([&] { return cuda_control_sum_rows(k, out, x, y, rows, columns); });
    }
};

template <> struct with_copies<cuda_control_sum_segments> {
    static status call(struct kernels *k, double *out, const double *x, const int32_t *first,
                       const int32_t *counts, int64_t segments, int64_t columns)
    {
        int64_t rows = 0;
        for (int64_t i = 0; i < segments; i++) {
            rows = first[i] + counts[i] > rows ? first[i] + counts[i] : rows;
        }
        operand_copies copies(k->device, k->stream);
        copies.add(out, segments * columns);
        copies.add(x, rows * columns);
        copies.add(first, segments);
        copies.add(counts, segments);
        return copies.run(
            [&] { return cuda_control_sum_segments(k, out, x, first, counts, segments, columns); });
    }
};

template <> struct with_copies<cuda_control_trust_ratios> {
    static status call(struct kernels *k, double *ratios, const double *squares,
                       const int32_t *tensors, int64_t count)
    {
        int64_t last = 0;
        for (int64_t i = 0; i < count; i++) {
            last = tensors[i] > last ? tensors[i] : last;
        }
        operand_copies copies(k->device, k->stream);
        copies.add(ratios, count);
        copies.add(squares, 2 * (last + 1));
        copies.add(tensors, count);
        return copies.run(
            [&] { return cuda_control_trust_ratios(k, ratios, squares, tensors, count); });
    }
};

template <> struct with_copies<cuda_spike_score_run> {
    static status call(struct kernels *k, struct update_control *control, struct spike_state *state,
                       const struct spike_inputs *inputs)
    {
        struct spike_inputs in = *inputs;
        int64_t sums = 0;
        for (int i = 0; i < in.terms; i++) {
            sums = std::max<int64_t>(sums, std::max(in.sum[i], in.count[i]) + 1);
        }
        operand_copies copies(k->device, k->stream);
        copies.add(control, 1);
        copies.add(state, 1);
        copies.add(in.sums, sums);
        copies.add(in.predictions, 1);
        copies.add(in.squares, 1);
        return copies.run([&] { return cuda_spike_score_run(k, control, state, &in); });
    }
};

template <> struct with_copies<cuda_control_decide_update> {
    static status call(struct kernels *k, struct update_control *control,
                       const struct update_sums *settings)
    {
        struct update_sums sums = *settings;
        operand_copies copies(k->device, k->stream);
        copies.add(control, 1);
        copies.add(sums.loss, 1);
        copies.add(sums.count, 1);
        copies.add(sums.squares, 1);
        return copies.run([&] { return cuda_control_decide_update(k, control, &sums); });
    }
};

template <> struct with_copies<cuda_op_loss_stats> {
    static status call(struct kernels *k, double *out, const struct loss_rows *settings,
                       int64_t rows)
    {
        struct loss_rows t = *settings;
        operand_copies copies(k->device, k->stream);
        copies.add(out, 2 + (t.argmax != nullptr) + (t.entropies != nullptr));
        copies.add(t.losses, rows);
        copies.add(t.targets, rows);
        copies.add(t.argmax, rows);
        copies.add(t.entropies, rows);
        return copies.run([&] { return cuda_op_loss_stats(k, out, &t, rows); });
    }
};

template <> struct with_copies<cuda_fp8_update_scales> {
    static status call(struct kernels *k, struct tensor scales, struct tensor history,
                       struct tensor maxima, int64_t row, const struct update_control *control)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(scales);
        copies.add(history);
        copies.add(maxima);
        copies.add(control, 1);
        return copies.run(
            [&] { return cuda_fp8_update_scales(k, scales, history, maxima, row, control); });
    }
};

template <> struct with_copies<cuda_head_loss_run> {
    static status call(struct kernels *k, double *out, struct tensor gradients,
                       struct tensor outputs, const struct head_loss *settings)
    {
        struct head_loss h = *settings;
        bool by_columns = h.kind == HEAD_LOSS_COLUMNS;
        operand_copies copies(k->device, k->stream);
        copies.add(out, HEAD_LOSS_SUMS);
        copies.add(gradients);
        copies.add(outputs);
        copies.add(h.example_rows, h.examples + 1);
        copies.add(h.labels, h.examples * (by_columns ? outputs.columns : 1));
        copies.add(h.targets, h.examples);
        return copies.run([&] { return cuda_head_loss_run(k, out, gradients, outputs, &h); });
    }
};

template <> struct with_copies<cuda_preference_loss_run> {
    static status call(struct kernels *k, double *sums, float *row_scales, double *logps,
                       const struct preference_rows *rows,
                       const struct preference_settings *settings)
    {
        struct preference_rows r = *rows;
        operand_copies copies(k->device, k->stream);
        copies.add(sums, PREFERENCE_SUMS);
        copies.add(row_scales, r.rows);
        copies.add(logps, RESPONSES * r.pairs);
        copies.add(r.first, RESPONSES * r.pairs + 1);
        copies.add(r.losses, r.rows);
        copies.add(r.entropies, r.rows);
        copies.add(r.mean_logits, r.rows);
        copies.add(r.argmax, r.rows);
        copies.add(r.targets, r.rows);
        copies.add(r.reference, RESPONSES * r.pairs);
        copies.add(r.gradients, r.gradient_count);
        return copies.run(
            [&] { return cuda_preference_loss_run(k, sums, row_scales, logps, &r, settings); });
    }
};

static void add_batch(operand_copies &copies, struct preference_batch &b)
{
    copies.add(b.pairs, b.size);
    copies.add(b.gradients, b.size);
    copies.add(b.ranked, PREFERENCE_RANKED * b.size);
}

template <> struct with_copies<cuda_preference_batch_store> {
    static status call(struct kernels *k, const struct preference_batch *batch, const double *logps,
                       const struct preference_rows *rows, int64_t first)
    {
        struct preference_batch b = *batch;
        struct preference_rows r = *rows;
        operand_copies copies(k->device, k->stream);
        add_batch(copies, b);
        copies.add(logps, RESPONSES * r.pairs);
        copies.add(r.first, RESPONSES * r.pairs + 1);
        copies.add(r.reference, RESPONSES * r.pairs);
        return copies.run([&] { return cuda_preference_batch_store(k, &b, logps, &r, first); });
    }
};

template <> struct with_copies<cuda_preference_batch_run> {
    static status call(struct kernels *k, const struct preference_batch *batch, int64_t count,
                       const struct preference_settings *settings)
    {
        struct preference_batch b = *batch;
        operand_copies copies(k->device, k->stream);
        add_batch(copies, b);
        return copies.run([&] { return cuda_preference_batch_run(k, &b, count, settings); });
    }
};

static void add_pairs(operand_copies &copies, struct contrastive_pairs &b)
{
    copies.add(b.units, TEXTS_PER_PAIR * b.size * b.width);
    copies.add(b.lengths, TEXTS_PER_PAIR * b.size);
    copies.add(b.gradients, TEXTS_PER_PAIR * b.size * b.width);
    copies.add(b.results, CONTRASTIVE_RESULTS * b.size);
    copies.add(b.scores, b.score_rows * b.size);
}

template <> struct with_copies<cuda_contrastive_loss_pool> {
    static status call(struct kernels *k, const struct contrastive_pairs *batch, struct tensor rows,
                       const struct contrastive_texts *settings)
    {
        struct contrastive_pairs b = *batch;
        struct contrastive_texts texts = *settings;
        operand_copies copies(k->device, k->stream);
        add_pairs(copies, b);
        copies.add(rows);
        copies.add(texts.cu_rows, TEXTS_PER_PAIR * texts.pairs + 1);
        return copies.run([&] { return cuda_contrastive_loss_pool(k, &b, rows, &texts); });
    }
};

template <> struct with_copies<cuda_contrastive_loss_run> {
    static status call(struct kernels *k, const struct contrastive_pairs *batch, int64_t count)
    {
        struct contrastive_pairs b = *batch;
        operand_copies copies(k->device, k->stream);
        add_pairs(copies, b);
        return copies.run([&] { return cuda_contrastive_loss_run(k, &b, count); });
    }
};

template <> struct with_copies<cuda_contrastive_loss_sum> {
    static status call(struct kernels *k, double *sums, const struct contrastive_pairs *batch,
                       int64_t first, int64_t count)
    {
        struct contrastive_pairs b = *batch;
        operand_copies copies(k->device, k->stream);
        copies.add(sums, CONTRASTIVE_SUMS);
        add_pairs(copies, b);
        return copies.run([&] { return cuda_contrastive_loss_sum(k, sums, &b, first, count); });
    }
};

template <> struct with_copies<cuda_contrastive_loss_backward> {
    static status call(struct kernels *k, struct tensor gradients,
                       const struct contrastive_pairs *batch,
                       const struct contrastive_texts *settings)
    {
        struct contrastive_pairs b = *batch;
        struct contrastive_texts texts = *settings;
        operand_copies copies(k->device, k->stream);
        copies.add(gradients);
        add_pairs(copies, b);
        copies.add(texts.cu_rows, TEXTS_PER_PAIR * texts.pairs + 1);
        return copies.run([&] { return cuda_contrastive_loss_backward(k, gradients, &b, &texts); });
    }
};

template <> struct with_copies<cuda_op_add> {
    static status call(struct kernels *k, float *to, const float *from, int64_t count)
    {
        operand_copies copies(k->device, k->stream);
        copies.add(to, count);
        copies.add(from, count);
        return copies.run([&] { return cuda_op_add(k, to, from, count); });
    }
};

extern "C" struct kernels *on_gpu_context(struct device *dev, enum dtype dtype,
                                          const struct kernels_limits *limits)
{
    const int64_t classifier_rows = 256; /* several chunks of logits in small tests */
    auto *k = static_cast<struct kernels *>(calloc(1, sizeof(struct kernels)));
    CHECK(k != nullptr);
    k->device = dev;
    k->dtype = dtype;
    k->limits = *limits;
    CHECK_OK(cuda_create(k, classifier_rows));
#define ON_GPU_COPIES(name) k->table.name = with_copies<cuda_##name>::call;
    KERNELS_OPERATIONS(ON_GPU_COPIES)
#undef ON_GPU_COPIES
    return k;
}
