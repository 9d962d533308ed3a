"""Write what the documentation takes from the code: tables of options, and figures.

    python scripts/write_docs.py            # write what is not current
    python scripts/write_docs.py --check    # say what is not current, and exit with status 1

A table stands between `<!-- options: WHAT -->` and `<!-- end of options -->`; WHAT is `role/name` of a strategy,
`decoder` or `recipe`. Figures are in docs/figures; `scripts/docs_figures.py` draws them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pydantic import BaseModel

from docs_figures import figures
from specdec.cli.show import options_of
from specdec.core.config import DecoderConfig
from specdec.heads.training.recipe import Recipe
from specdec.plugins.manager import PluginManager

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TABLE = re.compile(r"(<!-- options: (\S+) -->\n)(.*?)(<!-- end of options -->)", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+")
SLACK = 0.25  # pixels by which a figure may differ: sums are rounded in another order on another machine


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit status."""
    check = arguments == ["--check"]
    if arguments and not check:
        sys.exit(__doc__)
    stale = {path: text for path, text in {**tables(), **drawn()}.items() if not same(path, text)}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)} {'is not current' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print("write them: python scripts/write_docs.py")
    return int(check and bool(stale))


def tables() -> dict[Path, str]:
    """Every page with tables of options, as it should be."""
    registry = PluginManager().registry
    configs: dict[str, type[BaseModel]] = {"decoder": DecoderConfig, "recipe": Recipe}
    configs |= {strategy.key: strategy.load_config() for strategy in registry}
    found = {}
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if unknown := [name for _, name, _, _ in TABLE.findall(text) if name not in configs]:
            sys.exit(f"{path}: there are no options of {', '.join(unknown)}")
        if TABLE.search(text):
            found[path] = TABLE.sub(lambda part: f"{part[1]}{table(configs[part[2]])}{part[4]}", text)
    return found


def table(config: type[BaseModel]) -> str:
    """The options of a config as a Markdown table."""
    options = options_of(config)
    if not options:
        return "\nIt has no options.\n\n"
    lines = ["", "| option | values | default | |", "|---|---|---|---|"]
    for option in options:
        default = "required" if option["required"] else f"`{json.dumps(option['default'])}`"
        cells = (f"`{option['name']}`", option["type"], default, option["description"])
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n\n"


def drawn() -> dict[Path, str]:
    """Every figure, as it should be."""
    return {DOCS / "figures" / name: text for name, text in figures().items()}


def same(path: Path, text: str) -> bool:
    """Whether the file holds that text, up to the last digits of a figure's coordinates."""
    if not path.is_file():
        return False
    held = path.read_text(encoding="utf-8")
    if held == text or path.suffix != ".svg":
        return held == text
    if NUMBER.sub("0", held) != NUMBER.sub("0", text):
        return False
    pairs = zip(NUMBER.findall(held), NUMBER.findall(text), strict=True)
    return all(abs(float(one) - float(other)) <= SLACK for one, other in pairs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
