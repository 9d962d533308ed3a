"""Plugins: what a plugin author imports is here; `specdec.plugins.manager` loads what authors wrote.

A plugin is a light module named by an entry point of the group "specdec". It imports neither torch nor
transformers, and says in `specdec_strategies()` what it adds.
"""

from specdec.core.config import StrategyConfig
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.strategy import PLUGIN_API, Strategy

__all__ = ["PLUGIN_API", "Strategy", "StrategyConfig", "hookimpl"]
