"""Models in bfloat16, where a wide pass rounds otherwise than a narrow one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from tests.frontdoor.models import llama


@lru_cache
def tiny(dtype: str = "bfloat16", seed: int = 0) -> Any:
    """A random Llama of that dtype; nobody may change it."""
    return llama(seed).to(getattr(torch, dtype))


@lru_cache
def smollm2() -> Any:
    """SmolLM2-135M in bfloat16 and its tokenizer, where it is installed; else the test is skipped."""
    from specdec import load_model
    from specdec.core.errors import SpecdecError

    try:
        return load_model("smollm2-135m", dtype="bfloat16")
    except (SpecdecError, ImportError, OSError) as error:
        return pytest.skip(f"SmolLM2 is not installed: {error}")
