"""specdec: faster text generation with any Hugging Face causal LM, without a change in what it says.

Importing this package imports neither torch nor transformers; `Decoder` and `load_model` do when first used.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports
from specdec._version import __version__

if TYPE_CHECKING:
    from specdec.decoder import Decoder
    from specdec.targets.load import load_model

__all__ = ["Decoder", "__version__", "load_model"]

__getattr__, __dir__ = lazy_exports(__name__, {"Decoder": "specdec.decoder", "load_model": "specdec.targets.load"})


def _warn_of_namesake() -> None:
    # Another project owns the plain name on PyPI and installs into the same folder; pip does not notice.
    try:
        version = importlib.metadata.version("specdec")
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"the distribution 'specdec' {version} is installed beside 'specdec-hf'. Both put their files into "
        "the package 'specdec', so either may be damaged. Keep one: pip uninstall specdec specdec-hf, then "
        "install the one you want.",
        UserWarning,
        stacklevel=3,
    )


_warn_of_namesake()
