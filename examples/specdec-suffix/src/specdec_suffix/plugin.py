"""Hook and config of the drafter `suffix`. Imports no torch, so that listing plugins stays fast."""

from typing import Literal

from pydantic import Field
from specdec.plugins import Strategy, StrategyConfig, hookimpl


class SuffixConfig(StrategyConfig):
    """What counts as a match, how far it is followed, and which past outputs are searched too."""

    type: Literal["suffix"] = Field(default="suffix", description="Name of the strategy.")
    min_match: int = Field(default=2, ge=1, description="Fewest last tokens that must have stood in the text before.")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Most tokens drafted in a round; null: what the scheduler allows."
    )
    min_share: float = Field(
        default=0.25, ge=0, le=1, description="A token is drafted while past texts continued so in this share of cases."
    )
    share: bool = Field(default=False, description="Search past outputs of this drafter as well; implied by store.")
    store: str | None = Field(
        default=None, min_length=1, description="JSON-lines file that keeps past outputs; made if missing."
    )
    store_tokens: int = Field(default=100_000, ge=1, description="Most tokens of past outputs that are searched.")


@hookimpl
def specdec_strategies() -> list[Strategy]:
    """The drafter `suffix`."""
    config, build = "specdec_suffix.plugin:SuffixConfig", "specdec_suffix.drafter:Suffix.from_config"
    example = "specdec_suffix.drafter:example"
    summary = "Follows the longest match of the last tokens in prompt, output and past outputs."
    return [Strategy("drafter", "suffix", config, build, api=1, example=example, summary=summary)]
