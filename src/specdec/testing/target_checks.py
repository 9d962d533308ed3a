"""What every target must keep: the logits of plain decoding, whatever was drafted, and its model as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.forest import Forest
from specdec.core.interfaces import TargetSession
from specdec.core.sampling import Sampling
from specdec.core.state import Outcome, Row, Scores
from specdec.testing.subject import Subject
from specdec.testing.trial import Failure, NotApplicable, Trial, applies

__all__ = ["TARGET", "Driver"]

PROMPTS = ((1, 0, 2, 1), (2,), (0, 2))
CHAIN, TREE = (-1, 0, 1, 2), (-1, -1, 0, 0, 1, 3)
FEATURES = ("final", "embed", "layer:0", "layer:1")
# Relative to the spread of the logits; wide and narrow passes may differ in the last bits.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}


class Driver:
    """A target's session, driven as the engine does it, with the acceptance that a check wants."""

    def __init__(self, target: Any, prompts: Sequence[Sequence[int]], needs: Needs | None = None) -> None:
        self.target = target
        self.rows = [
            Row(index, list(prompt), Sampling(), len(prompt) + 40, group=index) for index, prompt in enumerate(prompts)
        ]
        self.session = target.begin(self.rows, needs or Needs())
        if not isinstance(self.session, TargetSession):
            raise Failure(f"begin() returned {type(self.session).__name__}; expected a TargetSession")
        self.prompt_scores = _checked(self.session.prefill(), "prefill()", len(prompts), 1, target.vocab_size)

    def start(self, first: int = 1) -> None:
        """Commit one token to every row, as the prompt's round does."""
        drafts = [Draft.empty()] * len(self.rows)
        self.finish(drafts, [()] * len(self.rows), first, self.prompt_scores)

    def score(self, drafts: Sequence[Draft]) -> Scores:
        """One pass over anchors and drafts."""
        live = [row for row in self.rows if not row.done]
        forest = Forest.pack(live, drafts, self.target.device)
        return _checked(self.session.score(forest), "score()", len(live), forest.width, self.target.vocab_size)

    def finish(
        self,
        drafts: Sequence[Draft],
        paths: Sequence[Sequence[int]],
        bonus: int,
        scores: Scores,
        done: Sequence[int] = (),
    ) -> None:
        """Accept these paths (nodes of the pass, anchor excluded), add a bonus token, and commit."""
        live = [row for row in self.rows if not row.done]
        outcomes = []
        for place, (row, draft, path) in enumerate(zip(live, drafts, paths, strict=True)):
            tokens = (*(int(draft.tokens[node - 1]) for node in path), bonus)
            for token in tokens:
                row.tokens.commit(token)  # type: ignore[attr-defined]
            row.rounds += 1
            row.done = row.index in done
            drafted = tuple(int(token) for token in draft.tokens)
            outcomes.append(Outcome(row, draft, drafted, tuple(path), tokens, scores, place))
        self.session.commit(outcomes, [row for row in live if not row.done])


def _checked(scores: Any, method: str, rows: int, width: int, vocab: int) -> Scores:
    if not isinstance(scores, Scores):
        raise Failure(f"{method} returned {type(scores).__name__}; expected Scores")
    if tuple(scores.logits.shape) != (rows, width, vocab):
        raise Failure(f"{method} returned logits {list(scores.logits.shape)}; expected [{rows}, {width}, {vocab}]")
    return scores


def draft_of(target: Any, parents: Sequence[int], shift: int = 0) -> Draft:
    """A POINT forest of this shape; siblings hold different tokens."""
    tokens: list[int] = []
    children: dict[int, int] = {}
    for node, parent in enumerate(parents):
        place = children.get(parent, 0)
        children[parent] = place + 1
        base = tokens[parent] if parent >= 0 else shift
        tokens.append((base + place + shift + (node == 0)) % target.vocab_size)
    return Draft.point(tokens, parents)


@torch.inference_mode()
def plain(target: Any, prefix: Sequence[int]) -> Tensor:
    """`[vocab]` logits after `prefix`, from the pass over it as a prompt."""
    return Driver(target, [prefix]).prompt_scores.logits[0, 0]


def same(got: Tensor, want: Tensor, what: str, example: str) -> None:
    """Fail where logits differ by more than their dtype explains; -inf must stand at the same places."""
    one, other = got.double().cpu(), want.double().cpu()
    if not torch.equal(one.isneginf(), other.isneginf()):
        raise Failure(f"{what}: other tokens are impossible than in plain decoding", example)
    one, other = one.nan_to_num(neginf=0.0), other.nan_to_num(neginf=0.0)
    spread = float(other.std(unbiased=False).clamp(min=1e-3))
    error = float((one - other).abs().max()) / spread
    limit = _TOLERANCE.get(got.dtype, 0.2)
    if not error <= limit:
        raise Failure(
            f"{what}: logits differ by {error:.3g} of their spread; {limit:g} allowed for {got.dtype}", example
        )


def _against_plain(driver: Driver, drafts: Sequence[Draft], scores: Scores, what: str) -> int:
    live = [row for row in driver.rows if not row.done]
    count = 0
    for place, (row, draft) in enumerate(zip(live, drafts, strict=True)):
        for node, path in enumerate(draft.topology.paths):
            prefix = (*row.tokens, *(int(draft.tokens[at - 1]) for at in path))
            same(
                scores.logits[place, node],
                plain(driver.target, prefix),
                what,
                f"row={row.index}\nprefix={prefix}\nnode={node - 1}\nparents={draft.parents}",
            )
            count += 1
    return count


@torch.inference_mode()
def interface(subject: Subject, trial: Trial) -> str:
    """begin() gives a session; prefill() and score() give Scores of the right shape; caps are declared."""
    target = subject.make(5)
    for name in ("trees", "batches", "rollback"):
        if not isinstance(getattr(target.caps, name, None), bool):
            raise Failure(f"caps has no {name}; expected Caps")
    driver = Driver(target, PROMPTS[:1])
    driver.start()
    driver.score([draft_of(target, CHAIN)])
    return "prefill and one pass"


@torch.inference_mode()
def chain_equals_sequential(subject: Subject, trial: Trial) -> str:
    """A chain's nodes get the logits of one-token decoding."""
    target = subject.make(5)
    count = 0
    for prompt in PROMPTS:
        driver = Driver(target, [prompt])
        driver.start()
        drafts = [draft_of(target, CHAIN)]
        count += _against_plain(driver, drafts, driver.score(drafts), "a chain and one token after another")
    return f"{count} nodes"


def _can(what: str, words: str) -> Callable[[Subject], None]:
    def condition(subject: Subject) -> None:
        caps = subject.sample.caps
        if not getattr(caps, what):
            raise NotApplicable(f"it declares that it cannot {words}: {caps.why}")

    return condition


def _delivers(subject: Subject) -> None:
    if not subject.sample.features(FEATURES):
        raise NotApplicable("it delivers no features")


def _has_model(subject: Subject) -> None:
    if not isinstance(getattr(subject.sample, "model", None), torch.nn.Module):
        raise NotApplicable("it has no model")


@applies(_can("trees", "score trees"))
@torch.inference_mode()
def tree_equals_sequential(subject: Subject, trial: Trial) -> str:
    """Every node of a tree gets the logits of its own path: siblings do not see each other."""
    target = subject.make(5)
    count = 0
    for prompt in PROMPTS:
        for parents in (TREE, (-1, -1, -1), (-1, 0, 0, 1, 2, 2)):
            driver = Driver(target, [prompt])
            driver.start()
            drafts = [draft_of(target, parents)]
            count += _against_plain(driver, drafts, driver.score(drafts), "a tree and one token after another")
    return f"{count} nodes"


def _paths(draft: Draft) -> list[tuple[int, ...]]:
    return [draft.topology.paths[node] for node in (0, len(draft), 1, max(1, len(draft) - 1))]


@applies(_can("rollback", "roll back"))
@torch.inference_mode()
def commit_equals_prefill(subject: Subject, trial: Trial) -> str:
    """After any verdict the session is as if the committed text had been its prompt."""
    target = subject.make(5)
    count = 0
    for parents in (CHAIN, TREE) if target.caps.trees else (CHAIN,):
        for prompt in PROMPTS[:2]:
            driver = Driver(target, [prompt])
            driver.start()
            for number in range(4):
                drafts = [draft_of(target, parents, number)]
                scores = driver.score(drafts)
                count += _against_plain(driver, drafts, scores, f"after {number} rounds and a fresh prompt")
                driver.finish(drafts, [_paths(drafts[0])[number]], 2, scores)
    return f"{count} nodes over 4 rounds"


@applies(_can("batches", "score batches"))
@torch.inference_mode()
def ragged_batch(subject: Subject, trial: Trial) -> str:
    """Rows of different length, draft and acceptance get the logits that each gets alone; rows may finish."""
    target = subject.make(5)
    driver = Driver(target, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        same(driver.prompt_scores.logits[row, 0], plain(target, prompt), "a prompt in a batch", f"prompt={prompt}")
    driver.start()
    count = 0
    shapes = [CHAIN, CHAIN[:1], TREE if target.caps.trees else CHAIN[:3]]
    for number in range(4):
        live = [row for row in driver.rows if not row.done]
        drafts = [draft_of(target, shapes[(row.index + number) % 3], number) for row in live]
        if number == 2:
            drafts[0] = Draft.empty()
        scores = driver.score(drafts)
        count += _against_plain(driver, drafts, scores, f"a ragged batch after {number} rounds")
        paths = [draft.topology.paths[(len(draft), 0, 1)[(at + number) % 3] if len(draft) else 0]
                 for at, draft in enumerate(drafts)]  # fmt: skip
        driver.finish(drafts, paths, 3, scores, done=(1,) if number == 1 else ())
    return f"{count} nodes in batches of 3 rows, one of which finishes"


@applies(_delivers)
@torch.inference_mode()
def features(subject: Subject, trial: Trial) -> str:
    """Features of the prompt and of every node are those of a plain pass over the node's path."""
    target = subject.make(5)
    names = target.features(FEATURES)
    needs = Needs(features=tuple(names))
    driver = Driver(target, PROMPTS[:2] if target.caps.batches else PROMPTS[:1], needs)
    driver.start()
    drafts = [draft_of(target, TREE if target.caps.trees else CHAIN, row) for row in range(len(driver.rows))]
    scores = driver.score(drafts)
    count = 0
    for place, (row, draft) in enumerate(zip(driver.rows, drafts, strict=True)):
        for node, path in enumerate(draft.topology.paths):
            prefix = (*row.tokens, *(int(draft.tokens[at - 1]) for at in path))
            alone = Driver(target, [prefix], needs).prompt_scores
            for name in names:
                if name not in scores.features or name not in alone.features:
                    raise Failure(f"features() promises {name!r}, but the scores do not carry it")
                got, want = scores.features[name][place][node], alone.features[name][0][-1]
                same(got, want, f"feature {name!r}", f"prefix={prefix}\nnode={node - 1}")
                count += 1
    return f"{count} features: {', '.join(names)}"


@applies(_has_model)
@torch.inference_mode()
def nothing_changed(subject: Subject, trial: Trial) -> str:
    """Weights, configs, mode and hooks of the model are as before, also after a generation that broke off."""
    target = subject.make(5)
    model = target.model
    before = _facts(model)
    names = tuple(target.features(FEATURES))
    for needs in (Needs(), Needs(features=names)):
        driver = Driver(target, PROMPTS[:1], needs)
        driver.start()
        drafts = [draft_of(target, CHAIN)]
        driver.finish(drafts, [(1,)], 2, driver.score(drafts))
        driver.score([draft_of(target, CHAIN, 1)])
    with suppress(Exception):  # an id that no model knows: what matters is what is left behind
        Driver(target, [(10**6,)])
    after = _facts(model)
    for name, value in before.items():
        if after[name] != value:
            raise Failure(f"the model's {name} changed", f"before={value}\nafter={after[name]}")
    return "weights, configs, training mode and hooks"


def _bits(value: Tensor) -> str:
    """A digest of a tensor's content; where it is stored may change."""
    flat = value.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def _facts(model: Any) -> dict[str, Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    facts: dict[str, Any] = {
        "weights": {name: _bits(value) for name, value in model.state_dict().items()},
        "training mode": [module.training for module in model.modules()],
        "hooks": [[len(getattr(module, hook)) for hook in hooks] for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
    }
    for name in ("config", "generation_config"):
        value = getattr(model, name, None)
        facts[name] = None if value is None else value.to_dict()
    return facts


TARGET: dict[str, Callable[[Subject, Trial], str]] = {
    "interface": interface,
    "chain-equals-sequential": chain_equals_sequential,
    "tree-equals-sequential": tree_equals_sequential,
    "commit-equals-prefill": commit_equals_prefill,
    "ragged-batch-equals-singles": ragged_batch,
    "features": features,
    "nothing-changed": nothing_changed,
}
