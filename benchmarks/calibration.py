"""How often drafts are right, by depth and rank, and whether a drafter's confidences are what they say.

Every prompt is decoded by every drafter at a fixed depth and number of nodes. Each node of each draft is then known to
have been accepted or not, and with it the chance that the drafter gave it. Nothing is timed, so the machine may be
busy. Drafters that give no confidences are counted by depth and rank only.

    python benchmarks/calibration.py PROMPTS.jsonl --drafter medusa:FOLDER --drafter '{"type": "eagle2", ...}'
        [--per-task 4] [--tokens 96] [--depth 6] [--nodes 32] [--temperature 0.7] [--out results.json] [--plot plot.png]

PROMPTS.jsonl: one object a line with "task" and "turns" (the first turn is used). The plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from smollm2 import prompts_of  # beside this script

from specdec import Decoder, load_model
from specdec.analysis.calibration import Calibration, Places, judged_nodes
from specdec.cli.decoding import parse_drafter
from specdec.core.config import load_config
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.plugins.manager import discover
from specdec.schedulers import Fixed


@dataclass
class Record:
    """What was seen of one drafter's drafts.

    paths: confidence in a node's whole path against its acceptance, all nodes. steps: confidence in a node given its
    parent, of the nodes whose parent the text came to.
    """

    places: Places = field(default_factory=Places)
    paths: Calibration = field(default_factory=Calibration)
    steps: Calibration = field(default_factory=Calibration)
    emitted: int = 0
    passes: int = 0

    @property
    def tokens_per_pass(self) -> float:
        return self.emitted / max(1, self.passes)

    def add(self, outcome: Outcome, confidences: Sequence[float] | None) -> None:
        nodes = judged_nodes(outcome.draft.parents, outcome.path, confidences)
        self.places.add(nodes)
        for node in nodes:
            if node.confidence is not None and node.share is not None:
                self.paths.add(node.confidence, node.accepted)
                if node.open:
                    self.steps.add(node.share, node.accepted)

    def figures(self) -> dict[str, object]:
        found = {"tokens_per_pass": round(self.tokens_per_pass, 3), **self.places.figures()}
        if self.paths.total:
            found |= {"of_paths": self.paths.figures(), "of_tokens_given_their_path": self.steps.figures()}
        return found


class Watched(Drafter):
    """A drafter whose drafts are entered in records."""

    def __init__(self, drafter: Drafter, records: Sequence[Record]) -> None:
        self.drafter, self.records = drafter, records
        self.name, self.emits, self.branching = drafter.name, drafter.emits, drafter.branching
        self.drafts, self.needs = drafter.drafts, drafter.needs

    def problems(self, target, tokenizer=None):
        return self.drafter.problems(target, tokenizer)

    def begin(self, context: Context) -> DraftSession:
        return _Session(self.drafter.begin(context), self)


class _Session(DraftSession):
    def __init__(self, session: DraftSession, watched: Watched) -> None:
        self.session, self.watched = session, watched
        self.sure: dict[int, list[float] | None] = {}

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if len(outcome.draft) and outcome.tokens:
                for record in self.watched.records:
                    record.add(outcome, self.sure.get(outcome.row.index))
        self.session.observe(outcomes)

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng):
        # Free drafts: where nodes have no price, a drafter knows what they are worth and leaves none out.
        drafts = self.session.propose(rows, [replace(budget, cost=_free, rate=0.0) for budget in budgets], rng)
        for row in rows:
            found = self.session.confidences(row)
            self.sure[row.index] = None if found is None else found.double().tolist()
        return drafts


def _free(nodes: int) -> float:
    return 0.0


def measure(
    model: Any,
    drafter: Drafter,
    prompts: Sequence[tuple[str, torch.Tensor]],
    *,
    tokens: int,
    depth: int,
    nodes: int,
    temperature: float = 0.0,
    pad: int | None = None,
    done=lambda: None,
) -> dict[str, Record]:
    """Records by task, and "overall", of decoding these prompts with a drafter."""
    found: dict[str, Record] = defaultdict(Record)
    sampling = {"do_sample": True, "temperature": temperature, "seed": 0} if temperature else {"do_sample": False}
    for task, ids in prompts:
        parts = (found["overall"], found[task])
        out = Decoder(model, Watched(drafter, parts), scheduler=Fixed(depth, nodes)).generate(
            ids, max_new_tokens=tokens, return_dict_in_generate=True, pad_token_id=pad, **sampling
        )
        for record in parts:
            record.emitted += out.stats.emitted
            record.passes += out.stats.target_passes
        done()
    return dict(found)


def drafter_of(text: str) -> tuple[dict[str, Any], Drafter]:
    """The config that NAME[:ARG], or JSON, stands for, and its drafter."""
    given = json.loads(text) if text.startswith("{") else parse_drafter(text)
    return given, discover().create("drafter", load_config({"drafter": given}).drafter)


def plot(records: dict[str, Record], file: Path) -> None:
    """Accepted share against confidence, of whole paths and of single tokens, and accepted share by depth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (paths, steps, depths) = pyplot.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    for name, record in records.items():
        for axes, made in ((paths, record.paths), (steps, record.steps)):
            if points := made.points():
                label = f"{name} (error {made.error:.3f}, {made.total} nodes)"
                axes.plot([p[0] for p in points], [p[1] for p in points], label=label)
                most = max(p[2] for p in points)
                sizes = [8 + 90 * (p[2] / most) ** 0.5 for p in points]
                axes.scatter([p[0] for p in points], [p[1] for p in points], s=sizes, alpha=0.5)
        reached = [kept / max(1, record.places.drafts) for kept in record.places.reached]
        depths.plot(
            range(1, len(reached) + 1), reached, marker="o", label=f"{name} ({record.tokens_per_pass:.2f} a pass)"
        )
    for axes, title in ((paths, "confidence in a node's path"), (steps, "confidence in a token, its path being right")):
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", linewidth=1)
        axes.set(xlabel=title, ylabel="accepted share", xlim=(0, 1), ylim=(0, 1))
    depths.set(xlabel="depth", ylabel="share of drafts accepted so deep", ylim=(0, None))
    depths.xaxis.get_major_locator().set_params(integer=True)
    for axes in (paths, steps, depths):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--drafter", action="append", required=True, help="NAME[:ARG] or a config as JSON; repeatable")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'specdec-hf[plots]'")

    model, tokenizer = load_model(options.model, dtype=options.dtype)
    prompts = prompts_of(options.prompts, options.per_task, tokenizer)
    records: dict[str, dict[str, Record]] = {}
    with Progress() as progress:
        for text in options.drafter:
            _, drafter = drafter_of(text)
            work = progress.add_task(drafter.name, total=len(prompts))
            name = drafter.name if drafter.name not in records else f"{drafter.name} {len(records) + 1}"
            records[name] = measure(
                model, drafter, prompts, tokens=options.tokens, depth=options.depth, nodes=options.nodes,
                temperature=options.temperature, pad=tokenizer.eos_token_id,
                done=lambda work=work: progress.advance(work),
            )  # fmt: skip
    table = Table("drafter", "tokens a pass", "accepted by depth", "error, paths", "error, tokens", "bias, tokens")
    for name, by_task in records.items():
        one = by_task["overall"]
        depths = " ".join(f"{share:.2f}" for share in one.places.figures()["accepted_by_depth"])
        known = [f"{one.paths.error:.3f}", f"{one.steps.error:.3f}", f"{one.steps.bias:+.3f}"]
        table.add_row(name, f"{one.tokens_per_pass:.2f}", depths, *(known if one.paths.total else ["-"] * 3))
    Console(width=160).print(table)
    if options.out:
        facts = {
            "model": options.model, "dtype": options.dtype, "prompts": len(prompts), "tokens": options.tokens,
            "depth": options.depth, "nodes": options.nodes, "temperature": options.temperature,
            "torch": torch.__version__, "transformers": transformers.__version__,
            "drafters": {
                name: {task: record.figures() for task, record in by_task.items()} for name, by_task in records.items()
            },
        }  # fmt: skip
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    if options.plot:
        plot({name: by_task["overall"] for name, by_task in records.items()}, options.plot)


if __name__ == "__main__":
    main()
