"""LSTMs of fastrnns in PyTorch's array code, for ``torch.jit.script``.

The compiler evaluates annotations, so this module does not import ``annotations`` from
``__future__``.
"""

import torch
from torch import Tensor

State = tuple[Tensor, Tensor]


def cell(gates: Tensor, c: Tensor) -> State:
    """Compute h and c of one step from the gates before their activations, [B, 4*H]."""
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def plain(
    x: Tensor, hx: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, State]:
    """Run a layer with all products in each step."""
    h, c = hx[0][0], hx[1][0]
    ys: list[Tensor] = []
    for x_t in x.unbind(0):
        h, c = cell(x_t @ w_ih.t() + b_ih + h @ w_hh.t() + b_hh, c)
        ys.append(h)
    return torch.stack(ys), (h.unsqueeze(0), c.unsqueeze(0))


def recurrent(gx: Tensor, hx: State, w_hh: Tensor, bias: Tensor) -> tuple[Tensor, State]:
    """Run the steps, given the input's products ``gx`` [T, B, 4*H] without ``bias`` [4*H]."""
    h, c = hx[0][0], hx[1][0]
    ys: list[Tensor] = []
    for gx_t in gx.unbind(0):
        h, c = cell(gx_t + h @ w_hh.t() + bias, c)
        ys.append(h)
    return torch.stack(ys), (h.unsqueeze(0), c.unsqueeze(0))


def premultiplied(
    x: Tensor, hx: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, State]:
    """Run a layer that multiplies the input for all steps at once."""
    return recurrent(torch.matmul(x, w_ih.t()), hx, w_hh, b_ih + b_hh)


def premultiplied_bias(
    x: Tensor, hx: State, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, State]:
    """Run a layer that multiplies the input and adds its bias for all steps at once."""
    return recurrent(torch.matmul(x, w_ih.t()) + b_ih, hx, w_hh, b_hh)


def simple(
    x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> State:
    """Return the last state only; states are [B, H]."""
    for x_t in x.unbind(0):
        h, c = cell(x_t @ w_ih.t() + b_ih + h @ w_hh.t() + b_hh, c)
    return h, c


def multilayer(
    x: Tensor, hx: State, weights: list[Tensor], dropout: float, training: bool
) -> tuple[Tensor, State]:
    """Run layers of four weight arrays each, with dropout between layers in training."""
    hs: list[Tensor] = []
    cs: list[Tensor] = []
    y = x
    for layer in range(hx[0].size(0)):
        if layer > 0 and dropout > 0.0:
            y = torch.dropout(y, dropout, training)
        states = (hx[0][layer : layer + 1], hx[1][layer : layer + 1])
        w_ih, w_hh = weights[4 * layer], weights[4 * layer + 1]
        b_ih, b_hh = weights[4 * layer + 2], weights[4 * layer + 3]
        y, (h, c) = plain(y, states, w_ih, w_hh, b_ih, b_hh)
        hs.append(h)
        cs.append(c)
    return y, (torch.cat(hs), torch.cat(cs))


def layer_norm(x: Tensor, hx: State, weights: list[Tensor], eps: float) -> tuple[Tensor, State]:
    """Run a layer with normalisation; ``weights`` as in `dnnffi.bench.layer_norm.Weights`."""
    w_ih, w_hh = weights[0], weights[1]
    w_i, b_i, w_h, b_h = weights[2], weights[3], weights[4], weights[5]
    w_c, b_c = weights[6], weights[7]
    rows, hidden = w_hh.size(0), w_hh.size(1)
    h, c = hx[0][0], hx[1][0]
    ys: list[Tensor] = []
    for x_t in x.unbind(0):
        gx = torch.layer_norm(x_t @ w_ih.t(), [rows], w_i, b_i, eps)
        gh = torch.layer_norm(h @ w_hh.t(), [rows], w_h, b_h, eps)
        i, f, g, o = (gx + gh).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        c = torch.layer_norm(c, [hidden], w_c, b_c, eps)
        h = torch.sigmoid(o) * torch.tanh(c)
        ys.append(h)
    return torch.stack(ys), (h.unsqueeze(0), c.unsqueeze(0))


def variable_length(
    x: Tensor, hx: State, lengths: list[int], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, State]:
    """Run row after row over its own length, as fastrnns does; results are padded with zeros."""
    ys: list[Tensor] = []
    hs: list[Tensor] = []
    cs: list[Tensor] = []
    for row in range(len(lengths)):
        one = (hx[0][:, row : row + 1], hx[1][:, row : row + 1])
        x_row = x[: lengths[row], row : row + 1]
        y, (h, c) = plain(x_row, one, w_ih, w_hh, b_ih, b_hh)
        ys.append(y.squeeze(1))
        hs.append(h)
        cs.append(c)
    return torch.nn.utils.rnn.pad_sequence(ys), (torch.cat(hs, 1), torch.cat(cs, 1))
