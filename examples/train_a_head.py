"""Train a draft head for a model on the model's own answers, and decode with it.

    python examples/train_a_head.py                        # smollm2-135m
    python examples/train_a_head.py MODEL --tokens 300000 --minutes 10 --out my-head
    python examples/train_a_head.py --tiny                 # a random model of two layers, in seconds

Three steps, each of which is a command too (`specdec distill`, `specdec train`, `specdec generate`): the model answers
prompts and its token ids are kept; an EAGLE head learns to say what the model will say next; a decoder drafts with it.
Stopped by Ctrl-C, the same call goes on where it was. More data and time make a better head; one that was never trained
costs speed and nothing else.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specdec import Decoder, load_model
from specdec.drafters import Eagle2
from specdec.heads.base import public_name
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.distill import Distiller
from specdec.heads.distill import Progress as Made
from specdec.heads.shards import ShardWriter
from specdec.heads.template_prompts import MIX, TemplatePrompts
from specdec.heads.training import Recipe, train
from specdec.heads.training.bar import Bar

PROMPT = "Explain in a few sentences how a sundial tells the time."


def main(
    name: str = "smollm2-135m", out: str = "head", tokens: int = 40_000, minutes: float = 3.0, tiny: bool = False
) -> None:
    console = Console()
    model, tokenizer = tiny_pair() if tiny else load_model(name)
    recipe = Recipe(kind="eagle", steps=20, batch_tokens=256) if tiny else Recipe(kind="eagle", minutes=minutes)
    data, head = Path(out) / "data", Path(out) / "eagle"
    try:
        if tiny:
            answers(model, tokenizer, data, 400, console, longest=24, slots=8)
        else:
            answers(model, tokenizer, data, tokens, console)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same call goes on from here") from None

    if finished(head):
        console.print(f"{head} holds a finished head; remove it to train another one", soft_wrap=True)
    else:
        begun = any((head / "checkpoints").glob("checkpoint-*"))
        bar = Bar(console, "train")
        report = train(model, tokenizer, [data], head, recipe, resume=begun, callbacks=[bar], say=console.print)
        if not report.finished:
            raise SystemExit("stopped; the same call goes on from here")

    decoder = Decoder(model, drafter=Eagle2(head))
    inputs = encode(tokenizer, PROMPT, model.device)
    found = decoder.generate(**inputs, max_new_tokens=96, do_sample=False, return_dict_in_generate=True)
    text = tokenizer.decode(found.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    console.print(text, markup=False, highlight=False)
    console.print(f"{found.stats.tokens_per_pass:.2f} tokens a pass; {found.guarantee}", highlight=False)


def answers(
    model: Any, tokenizer: Any, folder: Path, tokens: int, console: Console, longest: int = 192, slots: int = 32
) -> None:
    """Shards with so many tokens of the model's own answers; what is there already is not made again."""
    chats = getattr(tokenizer, "chat_template", None) is not None
    # Without a chat template there is no mark after which the model would write a user's turn.
    mix = {task: share for task, share in MIX.items() if chats or task != "self"}
    recipe = TemplatePrompts(seed=0, greedy_share=0.5, limits=(longest, longest * 3 // 4), mix=mix, first=60)
    about = {
        "model": public_name(model),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "vocab_size": model.config.get_text_config(decoder=True).vocab_size,
        "settings": {"prompts": "templates", "seed": 0},
    }
    writer = ShardWriter(folder, about)
    held = sum(entry["answer_tokens"] for entry in writer.index["shards"])
    # Many dialogues run in one pass by an attention of its own, which is put into this copy only.
    maker = Distiller.of(copy.deepcopy(model), tokenizer, recipe, writer, slots=slots)
    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("answers"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), rate)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=tokens, completed=held, rate="")

        def tell(made: Made) -> None:
            speed = f"{made.answer_tokens / max(made.seconds, 1e-9):.0f} tokens/s"
            bar.update(task, completed=held + made.answer_tokens, rate=speed)

        maker.run(tokens=tokens, report=tell)


def finished(head: Path) -> bool:
    """Whether a run in this folder came to its end."""
    report = head / "training.json"
    return report.is_file() and json.loads(report.read_text(encoding="utf-8"))["finished"]


def encode(tokenizer: Any, text: str, device: torch.device) -> dict[str, torch.Tensor]:
    """The prompt as model inputs, in the chat template if there is one."""
    if getattr(tokenizer, "chat_template", None):
        turns = [{"role": "user", "content": text}]
        encoded = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        encoded = tokenizer(text, return_tensors="pt")
    return {key: encoded[key].to(device) for key in ("input_ids", "attention_mask")}


def tiny_pair() -> tuple[Any, Any]:
    """A random Llama of two layers and a tokenizer of bytes: their text means nothing, and every step is the same."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = Tokenizer(BPE({word: index for index, word in enumerate(alphabet)}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(alphabet), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.2, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="hub id, folder, .gguf file or alias")
    parser.add_argument("--out", default="head", help="folder of the data and the head")
    parser.add_argument("--tokens", type=int, default=40_000, help="tokens of answers to write")
    parser.add_argument("--minutes", type=float, default=3.0, help="time of training")
    parser.add_argument("--tiny", action="store_true", help="a random model, a few steps")
    given = parser.parse_args()
    main(given.model, given.out, given.tokens, given.minutes, given.tiny)
