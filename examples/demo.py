"""Prompt lookup on tasks that copy: watch accepted tokens arrive, then compare with plain `generate`.

    python examples/demo.py
    python examples/demo.py --model some/hub-id --dtype float32 --max-new-tokens 200

Each task streams its text with accepted draft tokens marked, then runs plain `generate` on the same input and
prints whether the tokens are the same, tokens per pass, both speeds and their ratio. Where the tokens differ,
the near-tie report says by how little. Exits with 1 if they differ by more than rounding explains.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specdec import Decoder, load_model
from specdec.drafters import PromptLookup

ACCEPTED = "bold green underline"

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
    parser = argparse.ArgumentParser(description="Prompt lookup against plain generate on tasks that copy.")
    parser.add_argument("--model", default="smollm2-135m", help="hub id, folder, .gguf file or alias")
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
    decoder = Decoder(model, drafter=PromptLookup())
    threads = f", {torch.get_num_threads()} threads" if model.device.type == "cpu" else ""
    console.print(f"{options.dtype} on {model.device.type}{threads}; greedy, drafter: prompt lookup")
    legend = Text("")
    for piece, accepted in (("accepted draft tokens", True), ("  the model's own tokens", False)):
        legend.append_text(marked(piece, accepted, console))
    console.print(legend)

    faults = 0
    for title, turns in TASKS.items():
        console.rule(title)
        console.print(turns[-1], style="dim", markup=False)
        console.print()
        inputs = encode(tokenizer, turns, model.device)
        faults += not run_task(model, tokenizer, decoder, inputs, options, console)
    return 1 if faults else 0


def run_task(
    model: torch.nn.Module,
    tokenizer: object,
    decoder: Decoder,
    inputs: dict[str, torch.Tensor],
    options: argparse.Namespace,
    console: Console,
) -> bool:
    """Stream, compare and time one task; False if the tokens differ by more than a near-tie."""
    settings = {"max_new_tokens": options.max_new_tokens, "do_sample": False}
    for piece, accepted in stream(tokenizer, decoder, inputs, settings):
        console.print(marked(piece, accepted, console), end="", soft_wrap=True)
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
    table.add_row("prompt lookup", f"{speeds[0]:.1f} tokens/s")
    table.add_row("plain generate", f"{speeds[1]:.1f} tokens/s")
    table.add_row("ratio", f"{speeds[0] / speeds[1]:.2f} (medians of {options.repeats} interleaved runs)")
    console.print(table)
    return within


def marked(piece: str, accepted: bool, console: Console) -> Text:
    """The piece, marked if it was drafted and accepted: by colour, or by signs where there is none."""
    if not accepted:
        return Text(piece)
    return Text(piece, style=ACCEPTED) if console.color_system else Text(f"«{piece}»")


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
) -> Iterator[tuple[str, bool]]:
    """Yield the text in pieces, each with whether its tokens were drafted and accepted."""
    ids: list[int] = []
    shown = ""
    for event in decoder.stream(**inputs, **settings):
        for row in event.rows:
            for tokens, accepted in ((row.tokens[: row.accepted], True), (row.tokens[row.accepted :], False)):
                ids.extend(tokens)
                text = tokenizer.decode(ids, skip_special_tokens=True)
                # A character can take several tokens; until the last one it decodes to a replacement mark.
                if not text.endswith("\ufffd") and text != shown:
                    yield text[len(shown) :], accepted
                    shown = text


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
    for owner, token in (("prompt lookup", mine), ("plain generate", theirs)):
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
