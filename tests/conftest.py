"""What every test shares: one torch thread, no model hub, Hypothesis profiles, no CUDA tests without CUDA."""

from __future__ import annotations

import os

# Set before anything imports huggingface_hub: a test that reaches for a hub must fail, not wait.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

# The models here are tiny: threads cost more than they bring, and one thread gives the same bits every run.
torch.set_num_threads(1)

_SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_DATA)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking can take minutes where one example enumerates a whole law; CI only has to say red or green.
    phases=[Phase.explicit, Phase.generate],
    print_blob=True,
    suppress_health_check=_SLOW_DATA,
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `cuda` where torch sees no CUDA device; refuse names that differ from run to run."""
    if unstable := [item.nodeid for item in items if " object at 0x" in item.nodeid]:
        # Workers that collect in parallel must agree on names, and nobody can ask for such a test again.
        raise pytest.UsageError(f"give these tests ids of their own: {unstable[:3]}")
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
