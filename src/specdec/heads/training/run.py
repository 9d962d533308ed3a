"""Train a head for a target on its own answers: what `specdec train` calls."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specdec._version import __version__
from specdec.core.errors import CheckpointError, ConfigError, DataError
from specdec.heads.base import facts_of, public_name
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.measure import plant
from specdec.heads.shards import ShardReader
from specdec.heads.training.data import Batches, Corpus, fingerprint
from specdec.heads.training.disk import named
from specdec.heads.training.features import Features, FeatureStore, mark_of
from specdec.heads.training.making import Trainee, reads
from specdec.heads.training.recipe import Recipe
from specdec.heads.training.schedule import Progress
from specdec.heads.training.vocabulary import Vocabulary

__all__ = ["Report", "store_features", "train"]

HELD_OUT = 0.03  # share of prompts that no head is trained on
REPORT = "training.json"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did, as `training.json` beside the head says it, too.

    finished: false where it was stopped; its checkpoint is then the place to go on from. measured: held-out figures,
    one entry a measurement, the last one of the head as it was saved.
    """

    finished: bool
    steps: int
    seconds: float
    measured: list[dict[str, float]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


def train(
    model: nn.Module,
    tokenizer: Any,
    data: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    recipe: Recipe,
    *,
    name: str = "",
    options: Mapping[str, Any] | None = None,
    start: str | None = None,
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    held_out: float = HELD_OUT,
    callbacks: Sequence[Any] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Train a head of `recipe.kind` for `model` on the shards in `data`; the newest whole state is always in `out`.

    name: the target's in the saved config, by default the hub id it was loaded under. options: fields of the head's
    config, such as `{"heads": 5}`. start: a trained head to begin with. store: folder of features that several runs
    share; without it they are computed batch by batch. resume: go on from the last checkpoint in `out`. held_out:
    share of the prompts to measure on. callbacks: further callbacks of the transformers Trainer.

    Raises DataError for data that is broken, empty or of another tokenizer; CheckpointError for checkpoints and
    features of another run, and for a full disk; ConfigError for options that do not fit. An earlier save in `out`
    stays whole whatever happens.
    """
    trainer_module = _trainer()
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, expected a folder for the head and its checkpoints: choose another one")
    checkpoints = out / "checkpoints"
    found = trainer_module.last_checkpoint(checkpoints)
    if found is not None and not resume:
        raise CheckpointError(
            f"{out} holds checkpoints of an earlier run: go on with it by --resume, or choose another folder"
        )
    if found is None and resume:
        raise CheckpointError(f"there is nothing to resume: {checkpoints} has no whole checkpoint. Leave --resume out")
    corpus, about = _data(model, tokenizer, data, recipe, held_out, found)
    ids = None
    if start is not None and recipe.draft_vocab is not None:
        raise ConfigError("a head that is begun with keeps its own draft vocabulary: leave draft_vocab out with start")
    if recipe.draft_vocab is not None:
        vocabulary = Vocabulary(corpus.train, recipe.draft_vocab, facts_of(model).vocab_size)
        ids = vocabulary.ids
        about["draft_vocab_coverage"] = round(vocabulary.coverage, 4)
    batches = Batches(corpus.train, recipe.batch_tokens, recipe.seed)
    measured = Batches(corpus.measured(recipe.held_out_tokens), recipe.batch_tokens, recipe.seed)
    if not len(batches):
        raise DataError(f"{os.fspath(data[0])}: no answer of two tokens or more is left to train on")

    options = dict(options or {})
    names = reads(recipe.kind, model, options, start)
    source: Any = Features(model, names)
    if store is not None:
        source = _filled(store, source, corpus, model, say)
    first = source(batches[0])["final"][batches[0]["answer"]]
    scale = first.float().pow(2).mean().sqrt().item()
    trainee = Trainee(model, tokenizer, recipe, name=name, options=options, start=start, scale=scale, draft_ids=ids)
    objective = trainee.objective
    about["head"] = trainee.digest
    if found is not None and found[1].get("head", trainee.digest) != trainee.digest:
        raise CheckpointError(
            f"the run in {out} cannot be resumed, its head was begun with other options or another start: repeat the "
            "command that began it with --resume, or choose another folder"
        )
    if store is not None:
        source.names = objective.features

    args = _arguments(recipe, checkpoints, model)
    steps = _steps(recipe, math.ceil(len(batches) / args.world_size))
    args.max_steps = steps or 10**9
    spent = found[1]["spent"] if found is not None else 0.0
    progress = Progress(steps, None if recipe.minutes is None else 60 * recipe.minutes, spent)
    conductor = trainer_module.Conductor(recipe, progress, about, lambda state: trainee.save(out, state))
    if found is not None:
        conductor.history = found[1]["measured"]
    with named(out, "the head"):  # it makes its folder at once
        trainer = trainer_module.HeadTrainer(
            objective, source, recipe, progress, args, batches, measured, [conductor, *callbacks]
        )
    conductor.watch(trainer)
    tokens = sum(text.answer_tokens for text in batches.texts)
    say(
        f"{len(batches.texts)} dialogues, {tokens} tokens of answers, {len(batches)} batches; "
        f"{sum(p.numel() for p in objective.parameters())} weights"
    )
    before = list(checkpoints.glob("checkpoint-*"))
    try:
        with named(out, "a checkpoint"), conductor.interruptible(say):
            trainer.train(resume_from_checkpoint=None if found is None else str(found[0]))
            trainer.accelerator.wait_for_everyone()  # the first process writes for all
    finally:
        if args.should_save:
            trainer_module.drop_unfinished(checkpoints, before)
    if recipe.kind == "medusa" and args.should_save and not conductor.stopped:
        tree = plant(model, out, [(text.ids.tolist(), text.spans) for text in corpus.measured(recipe.held_out_tokens)])
        if tree is not None and tree.values is not None:
            about["tree_tokens_per_pass"] = round(1 + sum(tree.values), 3)
            say(f"the best tree of {len(tree)} nodes is worth {1 + sum(tree.values):.3f} tokens a pass")
    report = Report(
        finished=not conductor.stopped,
        steps=trainer.state.global_step,
        seconds=round(progress.spent, 1),
        measured=conductor.history,
        about={
            **{key: value for key, value in about.items() if key != "shards"},
            "specdec": __version__,
            "shards": len(corpus.shards),
            "target": name or public_name(model),
            "recipe": recipe.model_dump(mode="json"),
            "options": options,
            "dialogues": len(batches.texts),
            "answer_tokens": tokens,
            "feature_rms": round(scale, 4),
        },
    )
    if args.should_save:
        _write(out, report)
    return report


def store_features(
    model: nn.Module,
    tokenizer: Any,
    data: Sequence[str | os.PathLike[str]],
    store: str | os.PathLike[str],
    recipe: Recipe,
    *,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Compute into `store` what training with this recipe would read, for shards that are not there yet.

    Returns the number of tokens in all shards. Raises as `train` does.
    """
    corpus, _ = _data(model, tokenizer, data, recipe, HELD_OUT, None)
    _filled(store, Features(model, reads(recipe.kind, model, options or {})), corpus, model, say)
    return sum(len(text.ids) for shard in corpus.shards for text in shard)


def _data(
    model: nn.Module, tokenizer: Any, data: Sequence[Any], recipe: Recipe, share: float, found: Any
) -> tuple[Corpus, dict[str, Any]]:
    """The texts, and what a resumed run must find again."""
    vocab = facts_of(model).vocab_size
    reader = ShardReader(*data, tokenizer=None if tokenizer is None else tokenizer_fingerprint(tokenizer))
    if reader.vocab_size > vocab:
        raise DataError(
            f"{os.fspath(data[0])}: the data has ids of a vocabulary of {reader.vocab_size}, but the target's LM head "
            f"has {vocab} rows. Make data with `specdec distill` for this model"
        )
    # Data may still be growing; a resumed run reads the shards that it was begun with.
    corpus = Corpus(reader, share, recipe.max_length, None if found is None else found[1].get("shards"))
    about = {
        "kind": recipe.kind,
        "numbers": recipe.digest(),
        "target_weights": mark_of(model),
        "shards": list(corpus.marks),
        "data": fingerprint(corpus.train),
    }
    if found is not None:
        what = {
            "kind": "kind of head",
            "numbers": "recipe",
            "target_weights": "target",
            "data": "data",
        }
        if differ := [
            f"{text}: {found[1].get(key)}, now {about[key]}"
            for key, text in what.items()
            if found[1].get(key) != about[key]
        ]:
            raise CheckpointError(
                f"the run in {found[0].parent.parent} cannot be resumed, it was begun with another "
                + "; ".join(differ)
                + ". Repeat the command that began it with --resume, or choose another folder"
            )
    return corpus, about


def _filled(
    store: Any, features: Features, corpus: Corpus, model: nn.Module, say: Callable[[str], None]
) -> FeatureStore:
    from accelerate import PartialState

    state = PartialState()
    kept = FeatureStore(store, features.names, mark_of(model), corpus)
    total, done, told = sum(len(text.ids) for shard in corpus.shards for text in shard), 0, 0.0

    def tell(tokens: int) -> None:
        nonlocal done, told
        done += tokens
        if done / total >= told + 0.05 or done == total:
            told = done / total
            say(f"features: {done} of {total} tokens")

    kept.fill(features, tell, turn=(state.process_index, state.num_processes))
    state.wait_for_everyone()
    kept.check()
    return kept


def _steps(recipe: Recipe, epoch: int) -> int | None:
    """Steps after which the recipe's limits on steps and epochs end the run; None where only time ends it."""
    limits = [] if recipe.steps is None else [recipe.steps]
    if recipe.epochs is not None:
        limits.append(max(1, math.ceil(recipe.epochs * epoch)))
    return min(limits, default=None)


def _arguments(recipe: Recipe, folder: Path, model: nn.Module) -> Any:
    from transformers import TrainingArguments

    device = next(model.parameters()).device
    if device.type == "cuda" and torch.cuda.device_count() > 1 and "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            f"{torch.cuda.device_count()} GPUs are visible: begin with `torchrun --nproc-per-node N` or `accelerate "
            "launch` to use several of them, or with CUDA_VISIBLE_DEVICES=0 to use one"
        )
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=1,
        learning_rate=recipe.lr,
        weight_decay=recipe.weight_decay,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        max_grad_norm=recipe.clip,
        optim="adamw_torch",
        bf16=recipe.bf16,
        use_cpu=device.type == "cpu",
        seed=recipe.seed,
        data_seed=recipe.seed,
        logging_steps=20,
        save_strategy="no",
        eval_strategy="no",
        save_total_limit=2,
        report_to="none",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=device.type == "cuda",
    )


def _trainer() -> Any:
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "training needs accelerate, which is not installed: pip install 'specdec-hf[train]'"
        ) from error
    from specdec.heads.training import trainer

    return trainer


def _write(out: Path, report: Report) -> None:
    text = json.dumps(
        {"finished": report.finished, "steps": report.steps, "seconds": report.seconds, **report.about,
         "measured": report.measured},
        indent=1,
    )  # fmt: skip
    with named(out, REPORT):
        part = out / f".{REPORT}.{os.getpid()}.tmp"
        try:
            part.write_text(text + "\n", encoding="utf-8")
            os.replace(part, out / REPORT)
        finally:
            part.unlink(missing_ok=True)
