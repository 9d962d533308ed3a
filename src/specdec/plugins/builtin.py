"""The strategies that come with specdec, registered through the hook that every plugin uses."""

from __future__ import annotations

from typing import Any

from specdec.core.config import Role, TargetConfig
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.strategy import Strategy

__all__ = ["hf_target", "specdec_strategies"]

_DRAFTERS = (
    ("none", "NoDraft", "Drafts nothing: plain decoding through the same loop."),
    ("prompt-lookup", "PromptLookup", "Copies what followed the last few tokens where they stood before."),
    ("draft-model", "DraftModel", "Samples a chain from a smaller model with the same tokenizer."),
    ("merge", "Merge", "Puts the guesses of several drafters into one tree, more nodes for those that earn them."),
    ("first", "First", "Asks several drafters in order; in each row the first that has a guess drafts."),
    ("medusa", "Medusa", "Guesses several tokens at once with trained heads, on a static tree."),
    ("eagle", "Eagle", "Guesses a chain with a trained head that runs along the target's features."),
    ("eagle2", "Eagle2", "Grows a tree with the head of eagle where that is confident."),
    ("eagle3", "Eagle3", "Grows a tree, or a chain, with a trained head over states of several layers."),
    ("jacobi", "Jacobi", "Refines a block of guesses by what the last pass said of every position."),
    ("lookahead", "Lookahead", "Tries n-grams that a window of Jacobi iterations, or the text, has produced."),
    ("self-skip", "SelfSkip", "Leaves out layers of the target itself, and runs over its cache."),
    ("token-recycling", "TokenRecycling", "Drafts a tree of what the target last found probable after each token."),
)
_VERIFIERS = (
    ("token", "Token", "Keeps or replaces sampled tokens one at a time: the textbook rule."),
    ("block", "Block", "Judges a sampled chain as a whole; never keeps fewer tokens than the textbook rule."),
    ("traversal", "Traversal", "Judges a sampled tree as a whole, from its leaves up; on a chain it is block."),
    ("walk", "Walk", "Draws the target's own token and follows it while it is in the draft."),
    ("greedy", "Greedy", "Follows the target's most probable token; the fast path at temperature 0."),
    ("typical", "Typical", "Keeps what the target finds probable enough; approximate, and declared so."),
    ("smc", "SMC", "Weighs particles instead of rejecting tokens; the target's law in the limit of many."),
)
_SCHEDULERS = (
    ("fixed", "Fixed", "The same depth every round."),
    ("adaptive", "Adaptive", "Depth from measured costs and measured acceptance, under a time ledger."),
)


def _shipped(role: Role, name: str, attribute: str, summary: str) -> Strategy:
    module = f"specdec.{role}s.{name.replace('-', '_')}"
    return Strategy(
        role=role,
        name=name,
        config=f"{module}_config:{attribute}Config",
        build=f"{module}:{attribute}.from_config",
        api=1,
        example=f"{module}:example",
        summary=summary,
    )


@hookimpl
def specdec_strategies() -> list[Strategy]:
    """Everything that specdec ships."""
    return [
        *(_shipped("drafter", *row) for row in _DRAFTERS),
        *(_shipped("verifier", *row) for row in _VERIFIERS),
        *(_shipped("scheduler", *row) for row in _SCHEDULERS),
        Strategy(
            role="target",
            name="hf",
            config="specdec.core.config:TargetConfig",
            build="specdec.plugins.builtin:hf_target",
            api=1,
            example="specdec.testing.tiny:target",
            summary="A Hugging Face causal LM, run through its public forward.",
        ),
    ]


def hf_target(config: TargetConfig) -> Any:
    """Load the model that `config` names; the result is what `Decoder` takes as its target."""
    # Imported here because this module stays free of torch.
    from specdec.targets.load import load_model

    model, _ = load_model(
        config.model,
        dtype=config.dtype,
        trust_remote_code=config.trust_remote_code,
        revision=config.revision,
    )
    return model
