/* Activations and gated units in double precision. */
#include <math.h>

#include "tests/kernels/oracle.h"

static const double pi = 3.14159265358979323846;

/* gelu(x) = x Phi(x), where Phi is the normal distribution function or its approximation
 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks, Gimpel 2016). */
double oracle_activation(double x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_GELU_ERF:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    case ACTIVATION_TANH:
        return tanh(x);
    case ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    case ACTIVATION_RELU2:
        return x < 0 ? 0 : x * x;
    case ACTIVATION_SILU:
        return x / (1.0 + exp(-x));
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

double oracle_activation_derivative(double x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH: {
        double t = tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x));
        double inner = sqrt(2.0 / pi) * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
    }
    case ACTIVATION_GELU_ERF:
        return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2.0 * pi);
    case ACTIVATION_TANH:
        return 1.0 - tanh(x) * tanh(x);
    case ACTIVATION_RELU:
        return x > 0 ? 1 : 0;
    case ACTIVATION_RELU2:
        return x > 0 ? 2 * x : 0;
    case ACTIVATION_SILU: {
        double s = 1.0 / (1.0 + exp(-x));
        return s * (1.0 + x * (1.0 - s));
    }
    case ACTIVATION_NONE:
        break;
    }
    return 1.0;
}

void oracle_gated_forward(struct tensor y, struct tensor gate_up, enum activation act)
{
    for (int64_t i = 0; i < y.rows * y.columns; i++) {
        int64_t n = i / y.columns, c = i % y.columns;
        double x = oracle_get(gate_up, n, c);
        double gate = act == ACTIVATION_NONE ? x / (1 + exp(-x)) : oracle_activation(x, act);
        oracle_set(y, n, c, gate * oracle_get(gate_up, n, y.columns + c));
    }
}

void oracle_gated_backward(struct tensor d_gate_up, struct tensor dy, struct tensor gate_up,
                           enum activation act)
{
    for (int64_t i = 0; i < dy.rows * dy.columns; i++) {
        int64_t n = i / dy.columns, c = i % dy.columns, up = dy.columns + c;
        double x = oracle_get(gate_up, n, c), d = oracle_get(dy, n, c), s = 1 / (1 + exp(-x));
        bool silu = act == ACTIVATION_NONE;
        double gate = silu ? x * s : oracle_activation(x, act);
        double derivative = silu ? s + x * s * (1 - s) : oracle_activation_derivative(x, act);
        oracle_set(d_gate_up, n, c, d * oracle_get(gate_up, n, up) * derivative);
        oracle_set(d_gate_up, n, up, d * gate);
    }
}
