#include "cell.h"

#include <math.h>
#include <string.h>

static double sigmoid(double a)
{
    double e = exp(-fabs(a));
    return (a < 0 ? e : 1) / (1 + e);
}

/* The cell as a step reads it, after clipping, and whether clipping changed it. */
struct clipped {
    double c;
    bool is_other;
};

static struct clipped clip(const struct cudnnRNNStruct *rnn, double c)
{
    if (rnn->clip_mode == CUDNN_RNN_CLIP_NONE) return (struct clipped){c, false};
    bool nan_is_low = isnan(c) && rnn->clip_nan == CUDNN_NOT_PROPAGATE_NAN;
    if (c < rnn->clip_lower || nan_is_low) return (struct clipped){rnn->clip_lower, true};
    if (c > rnn->clip_upper) return (struct clipped){rnn->clip_upper, true};
    return (struct clipped){c, false};
}

/* c = sigmoid(f) c + sigmoid(i) tanh(g);  output = sigmoid(o) tanh(c). The cell is clipped where
   it is read, not where it is kept. */
static void lstm_forward(
    const struct problem *p, const double *gx, const double *gh, double *c, struct slot *slot,
    double *output)
{
    size_t H = p->hidden;
    for (size_t j = 0; j < H; j++) {
        double i = sigmoid(gx[j] + gh[j]), f = sigmoid(gx[H + j] + gh[H + j]);
        double g = tanh(gx[2 * H + j] + gh[2 * H + j]);
        double o = sigmoid(gx[3 * H + j] + gh[3 * H + j]);
        struct clipped before = clip(p->rnn, c[j]);
        c[j] = f * before.c + i * g;
        struct clipped after = clip(p->rnn, c[j]);
        double tanh_c = tanh(after.c);
        output[j] = o * tanh_c;
        slot->gates[j] = i;
        slot->gates[H + j] = f;
        slot->gates[2 * H + j] = g;
        slot->gates[3 * H + j] = o;
        slot->c_before[j] = before.c;
        slot->tanh_c[j] = tanh_c;
        slot->clipped_before[j] = before.is_other;
        slot->clipped[j] = after.is_other;
    }
}

static void lstm_backward(size_t H, struct slot *slot, const double *d_output, double *dc)
{
    for (size_t j = 0; j < H; j++) {
        double *at_i = &slot->gates[j], *at_f = at_i + H, *at_g = at_f + H, *at_o = at_g + H;
        double i = *at_i, f = *at_f, g = *at_g, o = *at_o, tanh_c = slot->tanh_c[j];
        if (slot->clipped[j] == 0) dc[j] += d_output[j] * o * (1 - tanh_c * tanh_c);
        *at_i = dc[j] * g * i * (1 - i);
        *at_f = dc[j] * slot->c_before[j] * f * (1 - f);
        *at_g = dc[j] * i * (1 - g * g);
        *at_o = d_output[j] * tanh_c * o * (1 - o);
        dc[j] = slot->clipped_before[j] == 0 ? dc[j] * f : 0;
    }
}

/* r z = sigmoid(gx + gh);  n = tanh(gx + r gh);  output = (1 - z) n + z h */
static void gru_forward(
    const struct problem *p, const double *gx, const double *gh, struct slot *slot, double *output)
{
    size_t H = p->hidden;
    for (size_t j = 0; j < H; j++) {
        double r = sigmoid(gx[j] + gh[j]), z = sigmoid(gx[H + j] + gh[H + j]);
        double n = tanh(gx[2 * H + j] + r * gh[2 * H + j]);
        slot->gates[j] = r;
        slot->gates[H + j] = z;
        slot->gates[2 * H + j] = n;
        slot->gates[3 * H + j] = gh[2 * H + j];
        output[j] = (1 - z) * n + z * slot->h_before[j];
    }
}

static void gru_backward(
    size_t H, struct slot *slot, const double *d_output, double *d_direct)
{
    for (size_t j = 0; j < H; j++) {
        double *at_r = &slot->gates[j], *at_z = at_r + H, *at_n = at_z + H, *at_gh = at_n + H;
        double r = *at_r, z = *at_z, n = *at_n, gh = *at_gh;
        double dn = d_output[j] * (1 - z) * (1 - n * n);
        *at_r = dn * gh * r * (1 - r);
        *at_z = d_output[j] * (slot->h_before[j] - n) * z * (1 - z);
        *at_n = dn;
        *at_gh = dn * r;
        d_direct[j] = d_output[j] * z;
    }
}

/* output = tanh(gx + gh), or relu(gx + gh) */
static void elman_forward(
    const struct problem *p, const double *gx, const double *gh, struct slot *slot, double *output)
{
    for (size_t j = 0; j < p->hidden; j++) {
        double a = gx[j] + gh[j];
        /* Not fmax: NaN stays NaN. */
        output[j] = p->mode == CUDNN_RNN_TANH ? tanh(a) : a < 0 ? 0 : a;
        slot->gates[j] = output[j];
    }
}

static void elman_backward(const struct problem *p, struct slot *slot, const double *d_output)
{
    for (size_t j = 0; j < p->hidden; j++) {
        double h = slot->gates[j];
        if (p->mode == CUDNN_RNN_TANH)
            slot->gates[j] = d_output[j] * (1 - h * h);
        else
            slot->gates[j] = h <= 0 ? 0 : d_output[j];
    }
}

void cell_forward(
    const struct problem *p, const double *gx, const double *gh, double *c, struct slot *slot,
    double *output)
{
    switch (p->mode) {
    case CUDNN_LSTM: lstm_forward(p, gx, gh, c, slot, output); break;
    case CUDNN_GRU: gru_forward(p, gx, gh, slot, output); break;
    default: elman_forward(p, gx, gh, slot, output); break;
    }
}

void cell_backward(
    const struct problem *p, struct slot *slot, const double *d_output, double *dc,
    double *d_direct)
{
    memset(d_direct, 0, p->hidden * sizeof *d_direct);
    switch (p->mode) {
    case CUDNN_LSTM: lstm_backward(p->hidden, slot, d_output, dc); break;
    case CUDNN_GRU: gru_backward(p->hidden, slot, d_output, d_direct); break;
    default: elman_backward(p, slot, d_output); break;
    }
}

void gate_gradients(
    const struct problem *p, const struct slot *slot, double *d_gx, double *d_gh)
{
    size_t H = p->hidden, bytes = p->gates * H * sizeof(double);
    memcpy(d_gx, slot->gates, bytes);
    memcpy(d_gh, slot->gates, bytes);
    /* R h + b of n went through r. */
    if (p->mode == CUDNN_GRU) memcpy(d_gh + 2 * H, slot->gates + 3 * H, H * sizeof(double));
}
