"""Medusa: K heads that guess the tokens after the next one from one state of the target, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.sampling import top
from specdec.heads.base import Head, target_fields
from specdec.heads.medusa_config import MedusaHeadConfig
from specdec.heads.trees import StaticTree, read_tree

_TREE = "tree.json"


class MedusaHead(Head):
    """K stacks of residual blocks on the target's last state, each read by an LM head; fresh, all equal the target's.

    At position t, where the target's LM head guesses token t + 1, head k (from 0) guesses token t + 2 + k:
    z becomes z + SiLU(W z + b), once a block, and the LM head reads the last z. W and b begin at zero.

    The LM head is the target's own, borrowed, unless `config.own_lm_head`. Either may be cut to a draft vocabulary.

    tree: the static tree that was searched for these weights, kept as `tree.json` beside them.

    Source: Cai et al., arXiv 2401.10774, section 2.1.1.
    """

    kind = "medusa"
    config_class = MedusaHeadConfig
    config: MedusaHeadConfig

    def __init__(self, config: MedusaHeadConfig, draft_ids: Sequence[int] | Tensor | None = None) -> None:
        super().__init__(config, draft_ids)
        size = config.target_hidden_size
        self.weight = nn.Parameter(torch.zeros(config.blocks, config.heads, size, size))  # [..., out, in]
        self.bias = nn.Parameter(torch.zeros(config.blocks, config.heads, size))
        self.lm_head: nn.Parameter | None = None
        self.lm_head_bias: nn.Parameter | None = None
        if config.own_lm_head:
            self.lm_head = nn.Parameter(torch.zeros(config.heads, self.vocab_size, size))
            if config.lm_head_bias:
                self.lm_head_bias = nn.Parameter(torch.zeros(config.heads, self.vocab_size))
        self.tree: StaticTree | None = None

    @classmethod
    def for_target(
        cls,
        model: nn.Module,
        *,
        heads: int = 4,
        blocks: int = 1,
        own_lm_head: bool = False,
        draft_ids: Sequence[int] | Tensor | None = None,
        name: str = "",
        tokenizer: str | None = None,
    ) -> MedusaHead:
        """A fresh head for a transformers model, bound to it, in its dtype and on its device.

        draft_ids: target ids of a trimmed draft vocabulary. name: that of the model, if not the one it was loaded
        under. tokenizer: its fingerprint.
        """
        lm_head: Any = model.get_output_embeddings()  # type: ignore[operator]
        bias: Any = getattr(lm_head, "bias", None)
        head = cls(
            MedusaHeadConfig(
                **target_fields(model, name),
                draft_vocab_size=None if draft_ids is None else len(draft_ids),
                tokenizer=tokenizer,
                heads=heads,
                blocks=blocks,
                own_lm_head=own_lm_head,
                lm_head_bias=own_lm_head and bias is not None,
            ),
            draft_ids,
        ).to(device=lm_head.weight.device, dtype=lm_head.weight.dtype)
        head.bind(model.get_input_embeddings(), lm_head)  # type: ignore[operator]
        with torch.no_grad():
            if head.lm_head is not None:
                head.lm_head.copy_(head._cut(lm_head.weight))
            if head.lm_head_bias is not None:
                head.lm_head_bias.copy_(head._cut(bias))
        return head

    def _cut(self, rows: Tensor) -> Tensor:
        return rows if self.draft_ids is None else rows[self.draft_ids]

    def forward(self, states: Tensor) -> Tensor:
        """`[..., d]` states of the target to `[..., heads, d]` states for `logits`."""
        flat = states.reshape(-1, states.shape[-1]).to(self.weight.dtype)
        z = flat.expand(self.config.heads, *flat.shape)  # [heads, n, d]
        for weight, bias in zip(self.weight, self.bias, strict=True):
            z = z + nn.functional.silu(torch.baddbmm(bias[:, None], z, weight.transpose(1, 2)))
        return z.transpose(0, 1).reshape(*states.shape[:-1], *z.shape[:1], z.shape[-1])

    def logits(self, states: Tensor) -> Tensor:
        """`[..., heads, d]` of `forward` to `[..., heads, vocab_size]`."""
        if self.lm_head is None:
            return super().logits(states)
        flat = states.reshape(-1, *states.shape[-2:]).transpose(0, 1).to(self.lm_head.dtype)  # [heads, n, d]
        rows = self.lm_head.transpose(1, 2)
        if self.lm_head_bias is None:
            out = torch.bmm(flat, rows)
        else:
            out = torch.baddbmm(self.lm_head_bias[:, None], flat, rows)
        return out.transpose(0, 1).reshape(*states.shape[:-1], -1)

    def guesses(self, states: Tensor, count: int) -> Tensor:
        """`[..., d]` to target ids `[..., heads, up to count]`, the likeliest first; NaN costs acceptance only."""
        scores = self.logits(self(states))
        scores = torch.nan_to_num(scores, nan=torch.finfo(scores.dtype).min)
        return self.to_target(top(scores, count))

    aside = (_TREE,)

    def side_files(self) -> dict[str, str]:
        return {} if self.tree is None else {_TREE: self.tree.to_json()}

    def read_side_files(self, folder: Path) -> None:
        if (folder / _TREE).is_file():
            self.tree = read_tree(folder / _TREE)
