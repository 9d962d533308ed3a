"""What the drafters with an EAGLE head share: the head, what it needs of the target, and whether it fits."""

from __future__ import annotations

import copy
import os
from typing import Any, ClassVar, TypeVar

from specdec.core.contracts import Needs
from specdec.core.draft import Kind
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.state import Context
from specdec.drafters.eagle_config import HeadDrafterConfig
from specdec.drafters.head_session import HeadSession
from specdec.heads.base import Head, facts_of
from specdec.heads.decoder import DecoderHead
from specdec.heads.formats.published import Published
from specdec.heads.load import loaded_head, open_head

_Self = TypeVar("_Self", bound="HeadDrafter")


class HeadDrafter(Drafter):
    """Drafts with a head that runs along the text beside the target, fed with the target's own states.

    head: the trained head, or the folder or hub id that holds it. Options are those of the config. Raises ConfigError
    where a `revision` is given for a head that is loaded already.
    """

    kind: ClassVar[str]  # of the head
    config_class: ClassVar[type[HeadDrafterConfig]]

    def __init__(
        self, head: DecoderHead | str | os.PathLike[str], *, config: HeadDrafterConfig | None = None, **options: Any
    ) -> None:
        found: DecoderHead | Any
        if isinstance(head, Head):
            found = loaded_head(head, options.get("revision"))
        else:
            found = open_head(head, config.revision if config else options.get("revision"), self.kind)
        if found.kind != self.kind:
            raise TypeError(f"drafter '{self.name}' takes a head of kind '{self.kind}', found one of '{found.kind}'")
        self._head: DecoderHead | None = None
        self._published: Published | None = None
        if isinstance(found, Published):
            self._published, where = found, found.where
        else:
            assert isinstance(found, DecoderHead)
            where = found.where or found.config.target or "-"
            self._take(found)
        self._config = config or self.config_class(checkpoint=where, **options)
        self.branching = self.top_k > 1  # type: ignore[misc]
        if self.sampled:  # a greedy target gets the likeliest tokens all the same
            drawn = Kind.NO_REPLACE if self.branching else Kind.IID
            self.emits = frozenset({drawn, Kind.POINT})  # type: ignore[misc]

    def _take(self, head: DecoderHead) -> None:
        self._head = head
        shared = [("embed_tokens", head.config.own_embed), ("lm_head", head.config.own_lm_head)]
        self.needs = Needs(head.features, tuple(name for name, own in shared if not own))  # type: ignore[misc]

    @property
    def head(self) -> DecoderHead:
        """The head; raises RuntimeError where its files leave open what only a target says, and there is none yet."""
        if self._head is None:
            raise RuntimeError(f"drafter '{self.name}' has no head yet: compose it with a target, Decoder(target, ...)")
        return self._head

    def for_target(self, target: Target) -> Drafter:
        if self._head is not None or self._published is None:
            return self
        met = copy.copy(self)
        head = self._published.head(facts_of(target))
        assert isinstance(head, DecoderHead)
        met._take(head)
        return met

    @property
    def config(self) -> HeadDrafterConfig:
        return self._config

    @property
    def top_k(self) -> int:
        """Nodes that are expanded at each depth, and children of each; 1 where chains are drafted."""
        return 1

    @property
    def sampled(self) -> bool:
        """Whether drafts for a target that samples are drawn from the head's law: chains always are."""
        return self.top_k == 1

    @property
    def nodes(self) -> int:
        """Most nodes of a draft."""
        return self._config.depth

    @classmethod
    def from_config(cls: type[_Self], config: HeadDrafterConfig) -> _Self:
        return cls(config.checkpoint, config=config)

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        if self._head is None:
            return self.for_target(target).problems(target, tokenizer)
        return self.head.fit_problems(facts_of(target)) + self.head.config.tokenizer_problems(tokenizer)

    def begin(self, context: Context) -> DraftSession:
        return HeadSession(self.head, context, self._config.depth, self.nodes, self.top_k, self.sampled)
