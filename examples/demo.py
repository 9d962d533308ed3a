"""Two drafters in one tree on tasks that copy: watch accepted tokens arrive, then compare with plain `generate`.

    python examples/demo.py
    python examples/demo.py --drafter prompt-lookup
    python examples/demo.py --model some/hub-id --drafter eagle3:some/head --dtype float32

By default smollm2-135m is drafted for by prompt lookup and by the EAGLE head in `checkpoints/`, merged; where there is
no such folder, and for any other model, by prompt lookup alone. `--drafter` takes what `specdec generate` takes.

Each task streams its text with accepted draft tokens marked, in a colour for each drafter that is merged, then runs
plain `generate` on the same input and prints whether the tokens are the same, tokens per pass, both speeds and their
ratio. Where the tokens differ, the near-tie report says by how little. Exits with 1 if they differ by more than
rounding explains.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specdec import Decoder, load_model
from specdec.cli.decoding import parse_drafter
from specdec.core.errors import SpecdecError
from specdec.core.state import Outcome

MODEL = "smollm2-135m"
HEAD = Path(__file__).resolve().parent.parent / "checkpoints" / MODEL / "eagle"

# One a drafter, in its place among those that are merged; the last is for tokens that several of them drafted. By
# signs where there is no colour.
STYLES = ("bold green underline", "bold cyan underline", "bold yellow underline", "bold magenta underline")
SIGNS = ("«»", "‹›", "[]", "{}")
SEVERAL = "several at once"

# Above the largest differences of margins that were measured between wide and narrow passes of the default
# model (0.38 in bfloat16, 2.3e-5 in float32). A token that changes at a larger margin is a fault.
NEAR_TIE = {torch.bfloat16: 0.5, torch.float16: 0.1, torch.float32: 1e-3}

# A small model follows an example better than an instruction, so each task begins with one.
TASKS = {
    "edit this paragraph": [
        "Correct the spelling. Change nothing else.\n\nThe cat sleeps undr the table. In the evning the cat "
        "goes out to the garden.",
        "The cat sleeps under the table. In the evening the cat goes out to the garden.",
        "Correct the spelling. Change nothing else.\n\nThe river runs threw the valley and turns the wheel "
        "of the old mill. In spring the water is high and the wheel turns fast. In summer the water is low "
        "and the wheel turns slowly or not at all. The miller keeps two geese, a dog and a very old cat, and "
        "none of them likes the noise of the wheel.",
    ],
    "extract these fields": [
        "Write these fields as JSON.\n\nName: Museum of Bells\nStreet: 3 Church Square\nCity: Bremen\n"
        "Country: Germany\nPhone: 555-0101\nEmail: bells@example.com",
        '{\n  "name": "Museum of Bells",\n  "street": "3 Church Square",\n  "city": "Bremen",\n'
        '  "country": "Germany",\n  "phone": "555-0101",\n  "email": "bells@example.com"\n}',
        "Write these fields as JSON.\n\nName: Old Mill Museum\nStreet: 14 Harbour Lane\nCity: Gothenburg\n"
        "Country: Sweden\nPhone: 555-0142\nEmail: old.mill@example.com\n"
        "Occupation: museum of wheels and grain\nMember since: 12 March 2019",
    ],
}


def main() -> int:
    """Run every task and return the exit status."""
    parser = argparse.ArgumentParser(description="A decoder against plain generate on tasks that copy.")
    parser.add_argument("--model", default=MODEL, help="hub id, folder, .gguf file or alias")
    parser.add_argument("--drafter", metavar="NAME[:ARG]", help="as of `specdec generate`")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16, float16 or float32")
    parser.add_argument("--device", help="where the model runs, for example cuda")
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each, interleaved")
    options = parser.parse_args()

    # Only status lines and the text itself are wanted here; a library would not touch this setting.
    import transformers

    transformers.logging.disable_progress_bar()
    console = Console(highlight=False)
    console.print(f"loading {options.model} ...")
    model, tokenizer = load_model(options.model, options.dtype, device=options.device)
    try:
        decoder = Decoder.from_config({"drafter": parse_drafter(options.drafter or usual(options.model))}, target=model)
    except SpecdecError as error:
        parser.error(f"--drafter {options.drafter}: {error}")
    marks = Marks(decoder, console)
    threads = f", {torch.get_num_threads()} threads" if model.device.type == "cpu" else ""
    console.print(f"{options.dtype} on {model.device.type}{threads}; greedy, drafter: {marks.title}", soft_wrap=True)
    console.print(marks.legend(), soft_wrap=True)

    faults = 0
    for title, turns in TASKS.items():
        console.rule(title)
        console.print(turns[-1], style="dim", markup=False)
        console.print()
        inputs = encode(tokenizer, turns, model.device)
        faults += not run_task(model, tokenizer, decoder, inputs, options, marks)
    return 1 if faults else 0


def run_task(
    model: torch.nn.Module,
    tokenizer: object,
    decoder: Decoder,
    inputs: dict[str, torch.Tensor],
    options: argparse.Namespace,
    marks: Marks,
) -> bool:
    """Stream, compare and time one task; False if the tokens differ by more than a near-tie."""
    console = marks.console
    settings = {"max_new_tokens": options.max_new_tokens, "do_sample": False}
    drafted: Counter[str] = Counter()
    for piece, source, tokens in stream(tokenizer, decoder, inputs, settings):
        console.print(marks.marked(piece, source), end="", soft_wrap=True)
        drafted[source] += tokens
    console.print("\n")

    start = inputs["input_ids"].shape[1]
    result = decoder.generate(**inputs, **settings, return_dict_in_generate=True)
    ours = result.sequences[0, start:].tolist()
    plain = model.generate(**inputs, **settings)[0, start:].tolist()
    same = ours == plain
    within = same or report_difference(model, tokenizer, inputs["input_ids"], ours, plain, console)

    # Interleaved, so that a busy moment of the machine hits both.
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.repeats):
        times[0].append(seconds(lambda: decoder.generate(**inputs, **settings), model.device))
        times[1].append(seconds(lambda: model.generate(**inputs, **settings), model.device))
    speeds = [len(tokens) / statistics.median(taken) for tokens, taken in zip((ours, plain), times, strict=True)]

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("tokens", f"the same {len(ours)}" if same else f"{len(ours)}, differing (see above)")
    table.add_row("tokens per pass", f"{result.stats.tokens_per_pass:.2f}")
    table.add_row("acceptance rate", f"{result.stats.acceptance_rate:.2f}")
    table.add_row("drafted by", ", ".join(f"{name} {drafted[name]}" for name in marks.names if drafted[name]) or "none")
    table.add_row("specdec", f"{speeds[0]:.1f} tokens/s")
    table.add_row("plain generate", f"{speeds[1]:.1f} tokens/s")
    table.add_row("ratio", f"{speeds[0] / speeds[1]:.2f} (medians of {options.repeats} interleaved runs)")
    console.print(table)
    return within


class Marks:
    """How tokens are shown: in the colour of the drafter they came from, or between its signs."""

    def __init__(self, decoder: Decoder, console: Console) -> None:
        parts = getattr(decoder.drafter, "drafters", ())
        own = dict.fromkeys(part.name for part in parts) if len(parts) > 1 else [decoder.drafter.name]
        self.console = console
        self.title = decoder.drafter.name + (f" of {', '.join(own)}" if parts else "")
        self.names = [*own, SEVERAL] if len(own) > 1 else list(own)

    def marked(self, piece: str, source: str) -> Text:
        """The piece as it is shown; `source` is one of `names`, or "" for what the model said itself."""
        if not source or not piece:
            return Text(piece)
        at = len(STYLES) - 1 if source == SEVERAL else min(self.names.index(source), len(STYLES) - 2)
        left, right = SIGNS[at]
        return Text(piece, style=STYLES[at]) if self.console.color_system else Text(f"{left}{piece}{right}")

    def legend(self) -> Text:
        """What the marks mean."""
        line = Text("accepted tokens by ")
        for name in self.names:
            line.append_text(self.marked(name, name)).append("  ")
        return line.append("and the model's own")


def usual(model: str) -> str:
    """The drafter for a model where none is named, as `specdec generate --drafter` would name it."""
    if model == MODEL and (HEAD / "model.safetensors").is_file():
        return f"merge:prompt-lookup,eagle2:{HEAD}"
    return "prompt-lookup"


def encode(tokenizer: object, turns: list[str], device: torch.device) -> dict[str, torch.Tensor]:
    """The conversation as model inputs: by the chat template, or as plain paragraphs where there is none."""
    if tokenizer.chat_template:
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        encoded = tokenizer("\n\n".join(turns) + "\n\n", return_tensors="pt")
    return {name: encoded[name].to(device) for name in ("input_ids", "attention_mask")}


def stream(
    tokenizer: object, decoder: Decoder, inputs: dict[str, torch.Tensor], settings: dict[str, object]
) -> Iterator[tuple[str, str, int]]:
    """Yield the text in pieces, each with who drafted it ("" if nobody did) and its number of tokens."""
    ids: list[int] = []
    shown, waiting = "", 0
    rounds = decoder.stream(**inputs, **settings)
    for event in rounds:
        (row,) = event.rows
        whose = sources(row, rounds, decoder.drafter.name)
        for source, group in groupby(zip(row.tokens, whose, strict=True), key=itemgetter(1)):
            tokens = [token for token, _ in group]
            ids.extend(tokens)
            waiting += len(tokens)
            text = tokenizer.decode(ids, skip_special_tokens=True)
            # A character can take several tokens; until the last one it decodes to a replacement mark.
            if not text.endswith("\ufffd"):
                yield text[len(shown) :], source, waiting
                shown, waiting = text, 0
    if waiting:
        yield text[len(shown) :], source, waiting


def sources(row: Outcome, rounds: Any, drafter: str) -> list[str]:
    """Who drafted each of the tokens that a round emitted: a name, `SEVERAL`, or "" for the model's own."""
    # What the session shows of the draft: nodes by drafter, where several are merged.
    merged = rounds.generation.drafting.shown(row.row).get("drafters", ())
    found = []
    for node in row.path[: row.accepted]:
        names = [name for name, nodes in merged if node in nodes]
        found.append(SEVERAL if len(names) > 1 else names[0] if names else drafter)
    return found + [""] * (len(row.tokens) - len(found))


@torch.inference_mode()
def report_difference(
    model: torch.nn.Module,
    tokenizer: object,
    prompt: torch.Tensor,
    ours: list[int],
    plain: list[int],
    console: Console,
) -> bool:
    """Print the logits of both tokens at the first difference; whether rounding explains it (a near-tie)."""
    position = next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), None)
    if position is None:
        console.print(f"one text ends early: {len(ours)} and {len(plain)} tokens, the same up to there")
        return False
    # One pass over prompt and our text: what the model says there, given the text that was really written.
    text = torch.tensor([ours], device=prompt.device)
    logits = model(input_ids=torch.cat([prompt, text], dim=1)).logits[0].float()
    at = logits[prompt.shape[1] + position - 1]
    mine, theirs = ours[position], plain[position]
    margin = abs(at[mine] - at[theirs]).item()
    limit = NEAR_TIE.get(model.dtype, 0.5)
    within = margin <= limit and max(at[mine], at[theirs]) >= at.max() - limit
    console.print(f"first difference at new token {position + 1}; logits in one pass over prompt and text:")
    for owner, token in (("specdec", mine), ("plain generate", theirs)):
        console.print(f"  {owner:15}{tokenizer.decode([token])!r:>14}  {at[token].item():.4f}", markup=False)
    kind = f"a near-tie: passes of different widths round differently in {model.dtype}".replace("torch.", "")
    console.print(f"  margin {margin:.4f}: {kind if within else 'too large for a near-tie, this is a fault'}")
    return within


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Wall-clock time of one call, all of its work on the device included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
