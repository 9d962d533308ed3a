"""The losses of draft heads, over an LM head that is never multiplied out for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Teacher", "feature_loss", "token_loss"]

CHUNK = 512  # rows at a time: few enough for the cache, enough that the LM head is not read too often


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """The target's law of some tokens, as what it is made of: softmax(rows states + bias).

    states: `[tokens, hidden]`. rows: the target's LM head, cut as the predictions are, `[vocabulary, hidden]`.
    bias: `[vocabulary]` or None.
    """

    states: Tensor
    rows: Tensor
    bias: Tensor | None = None


def token_loss(
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    label: Teacher | Tensor,
    rows: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> Tensor:
    """Weighted sums of the cross entropy of several predictions of the same tokens: `[len(states)]` float32.

    states: what the LM head is applied to, each `[tokens, hidden]`: prediction s of token i is made of `states[s][i]`.
    weights: `[tokens]` each. label: the target's law, or ids `[tokens]` of rows. rows: the LM head, `[vocabulary,
    hidden]`, frozen or trained. bias: `[vocabulary]`, frozen.

    The teacher's law is made once for all predictions, and each prediction's gradient as soon as its logits are
    there (softmax minus label, times `rows`), so that no logits outlive their chunk.
    """
    return _TokenLoss.apply(rows, bias, label, chunk, len(states), *states, *weights)


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Any, label: Any, chunk: int, count: int, *given: Tensor) -> Tensor:
        states, weights = given[:count], given[count:]
        device = rows.device.type
        half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
        head = rows.to(half)
        total = rows.new_zeros(count, dtype=torch.float32)
        back = [torch.empty(state.shape, dtype=half, device=state.device) for state in states]
        # One gradient of the LM head a prediction: the sums may be weighted differently afterwards.
        learns = ctx.needs_input_grad[0]
        of_rows = [torch.zeros_like(rows, dtype=torch.float32) for _ in states] if learns else []
        with torch.autocast(device, enabled=False):
            for start in range(0, len(states[0]), chunk):
                part = slice(start, start + chunk)
                law: Any = None
                ids: Any = None
                if isinstance(label, Teacher):
                    law = _logits(label.states[part], label.rows.to(half), label.bias).softmax(
                        -1
                    )  # [chunk, vocabulary]
                else:
                    ids = label[part, None]
                for number, (state, weight) in enumerate(zip(states, weights, strict=True)):
                    z = _logits(state[part], head, bias)
                    top, where = z.max(-1, keepdim=True)
                    soft = z.softmax(-1)
                    # The log of the sum of exponentials, by way of the likeliest token: no copy of z in float32.
                    log_sum = top.float() - soft.gather(-1, where).float().log()
                    if law is not None:
                        meant = torch.linalg.vecdot(law, z)[:, None].float()
                        grad = soft.sub_(law)
                    else:
                        meant = z.gather(-1, ids).float()
                        grad = soft.scatter_add_(-1, ids, torch.full_like(ids, -1, dtype=half))
                    share = weight[part, None].float()
                    total[number] += ((log_sum - meant) * share).sum()
                    back[number][part] = (grad @ head) * share.to(half)
                    if learns:
                        of_rows[number] += (grad * share.to(half)).t() @ state[part].to(half)
        ctx.save_for_backward(*back, *of_rows)
        ctx.count, ctx.kinds = count, [state.dtype for state in states]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        back, of_rows = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        states = [(g * x.to(g.dtype)).to(kind) for g, x, kind in zip(back, grad, ctx.kinds, strict=True)]
        rows = torch.stack([g * x for g, x in zip(of_rows, grad, strict=True)]).sum(0) if of_rows else None
        return rows, None, None, None, None, *states, *([None] * ctx.count)


def _logits(states: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(states.to(rows.dtype), rows, None if bias is None else bias.to(rows.dtype))


def feature_loss(predicted: Tensor, features: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over tokens of SmoothL1, averaged over the hidden size (EAGLE, arXiv 2401.15077, section 4.2).

    predicted, features: `[tokens, hidden]`; weights: `[tokens]`.
    """
    each = F.smooth_l1_loss(predicted.float(), features.float(), reduction="none").mean(-1)
    return (each * weights).sum()
