"""The losses of draft heads, over a frozen LM head that is never multiplied out for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["feature_loss", "token_loss"]

CHUNK = 512  # rows at a time: few enough for the cache, enough that the LM head is not read too often


def token_loss(
    states: Sequence[Tensor],
    rows: Tensor,
    weights: Sequence[Tensor],
    *,
    teacher: Tensor | None = None,
    labels: Tensor | None = None,
    bias: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Weighted sums of the cross entropy of several predictions of the same tokens: `[len(states)]` float32.

    states: what the LM head is applied to, each `[tokens, hidden]`; prediction s of token i is `states[s][i]`.
    rows: the LM head, `[vocabulary, hidden]`, frozen or trained; bias: `[vocabulary]`, frozen. weights: `[tokens]`
    each. Either teacher: the target's own states for these tokens, `[tokens, hidden]`, whose law over `rows` is the
    label, or labels: `[tokens]` ids of rows.

    The law of the teacher is made once for all predictions, and each prediction's gradient as soon as its logits
    are there (softmax minus label, times `rows`), so that no logits outlive their chunk.
    """
    if (teacher is None) == (labels is None):
        raise ValueError("token_loss needs a teacher or labels, and not both")
    return _TokenLoss.apply(rows, bias, teacher, labels, chunk, len(states), *states, *weights)


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Any, teacher: Any, labels: Any, chunk: int, count: int, *given: Tensor):  # type: ignore[override]
        states, weights = given[:count], given[count:]
        half = rows.dtype
        if torch.is_autocast_enabled(rows.device.type):
            half = torch.get_autocast_dtype(rows.device.type)
        head = rows.to(half)
        own = () if bias is None else (bias.to(half),)

        def logits(x: Tensor) -> Tensor:
            return torch.addmm(*own, x.to(half), head.t()) if own else x.to(half) @ head.t()

        total = rows.new_zeros(count, dtype=torch.float32)
        back = [torch.empty(x.shape, dtype=half, device=x.device) for x in states]
        learns = ctx.needs_input_grad[0]
        # One gradient of the LM head a prediction: the losses may be weighted differently afterwards.
        of_rows = [torch.zeros(rows.shape, dtype=torch.float32, device=rows.device) for _ in states] if learns else []
        with torch.autocast(rows.device.type, enabled=False):
            for start in range(0, len(states[0]), chunk):
                part = slice(start, start + chunk)
                law = None if teacher is None else torch.softmax(logits(teacher[part]), -1)  # [chunk, vocabulary]
                for number, (state, weight) in enumerate(zip(states, weights, strict=True)):
                    z = logits(state[part])
                    top, where = z.max(-1, keepdim=True)
                    soft = torch.softmax(z, -1)
                    # log of the sum of exponentials, by way of the likeliest token: no copy of z in float32.
                    log_sum = top.float() - soft.gather(-1, where).float().log()
                    if law is not None:
                        meant = torch.linalg.vecdot(law, z)[:, None].float()
                        grad = soft.sub_(law)
                    else:
                        label = labels[part, None]
                        meant = z.gather(-1, label).float()
                        grad = soft.scatter_add_(-1, label, torch.full_like(label, -1, dtype=half))
                    weight = weight[part, None].float()
                    total[number] += ((log_sum - meant) * weight).sum()
                    grad *= weight.to(half)
                    torch.mm(grad, head, out=back[number][part])
                    if learns:
                        of_rows[number] += grad.t() @ state[part].to(half)
        ctx.save_for_backward(*back, *of_rows)
        ctx.count, ctx.kinds, ctx.row_kind = count, [x.dtype for x in states], rows.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        back, of_rows = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        states = [(g * x.to(g.dtype)).to(kind) for g, x, kind in zip(back, grad, ctx.kinds, strict=True)]
        rows = sum(g * x for g, x in zip(of_rows, grad, strict=True)).to(ctx.row_kind) if of_rows else None
        return rows, None, None, None, None, None, *states, *([None] * ctx.count)


def feature_loss(predicted: Tensor, features: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over tokens of SmoothL1, averaged over the hidden size (EAGLE, arXiv 2401.15077, section 4.2).

    predicted, features: `[tokens, hidden]`; weights: `[tokens]`.
    """
    each = F.smooth_l1_loss(predicted.float(), features.float(), reduction="none").mean(-1)
    return (each * weights).sum()
