"""Training of every kind on a target that knows a sequence by heart: it helps, it resumes, it names what is wrong."""

from __future__ import annotations

import copy
import errno
import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from specdec import Decoder
from specdec.core.errors import CheckpointError, ConfigError, DataError, IncompatibleError
from specdec.drafters import DraftModel, Eagle, Eagle3, Medusa
from specdec.heads import load_head
from specdec.heads.eagle import EagleHead
from specdec.heads.medusa import MedusaHead
from specdec.heads.shards import ShardReader
from specdec.heads.training import Recipe, schedule, store_features, train
from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.data import Batches, Corpus
from specdec.heads.training.features import Features
from specdec.heads.training.losses import Teacher, feature_loss, token_loss
from specdec.heads.training.objectives import DraftObjective, MedusaObjective
from specdec.heads.training.schedule import Progress, cosine
from specdec.schedulers import Fixed
from tests.heads.memorised import PERIOD, VOCAB, Tokenizer, circle, target, write_shards

OPTIONS = {
    "medusa": {"heads": 3},
    "eagle": {},
    "eagle3": {"taps": ("layer:0", "layer:2")},
    "draft-model": {"layers": 2, "hidden_size": 32},
}
DRAFTERS = {
    "medusa": Medusa,
    "eagle": Eagle,
    "eagle3": Eagle3,
    "draft-model": lambda folder: DraftModel(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)),
}
NUMBERS = {"bf16": False, "lr": 1e-2, "batch_tokens": 160, "depth": 3, "held_out_tokens": 300, "save_every": 1.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("data"))


def run(data, out, kind="eagle", steps=8, **changes):
    numbers = {name: changes.pop(name) for name in list(changes) if name in Recipe.model_fields}
    recipe = Recipe(kind=kind, **{**NUMBERS, "steps": steps, **numbers})
    given = {"held_out": 0.25, "options": OPTIONS[kind], **changes}
    return train(given.pop("model", target()), given.pop("tokenizer", Tokenizer()), [data], out, recipe, **given)


def tokens_per_pass(drafter, start=3, new=24):
    prompt = torch.tensor([(circle() * 2)[start : start + 8]])
    decoder = Decoder(target(), drafter=drafter, scheduler=Fixed(depth=3))
    out = decoder.generate(input_ids=prompt, max_new_tokens=new, do_sample=False, return_dict_in_generate=True)
    assert out.sequences[0, 8:].tolist() == (circle() * 3)[start + 8 : start + 8 + new]
    return out.stats.tokens_per_pass


# --- each kind learns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "steps", "numbers"),
    [
        ("medusa", 80, {"lr": 3e-2}),
        ("eagle", 30, {}),
        ("eagle", 30, {"unroll": 2, "unroll_from": 0.5}),
        ("eagle3", 60, {"unroll_from": 0.3}),
        ("draft-model", 60, {}),
        ("eagle", 30, {"draft_vocab": 10, "labels": "hard", "token_weight": 1.0}),
    ],
    ids=["medusa", "eagle", "eagle unrolled", "eagle3", "draft-model", "eagle trimmed"],
)
def test_a_few_steps_raise_acceptance(kind, steps, numbers, data, tmp_path):
    report = run(data, tmp_path / "head", kind, steps, measure_every=0.01 + 1 / steps, **numbers)
    first, last = report.measured[0], report.measured[-1]
    assert report.finished and last["step"] == steps and first["step"] <= 2
    assert first["tokens_per_pass"] < 1.7 and last["tokens_per_pass"] > 2.4, (first, last)
    assert last["token_loss"] < first["token_loss"]
    assert tokens_per_pass(DRAFTERS[kind](tmp_path / "head")) > 1.7
    if kind == "medusa":
        assert load_head(tmp_path / "head").tree.depth == 3 and report.about["tree_tokens_per_pass"] > 2.4
    if "draft_vocab" in numbers:
        head = load_head(tmp_path / "head")
        assert head.vocab_size == 10 and set(head.draft_ids.tolist()) >= set(circle())
        assert report.about["draft_vocab_coverage"] == 1.0
    told = json.loads((tmp_path / "head" / "training.json").read_text())
    assert told["finished"] and told["recipe"]["kind"] == kind and told["measured"] == report.measured
    assert str(tmp_path) not in json.dumps(told)


def test_what_is_counted_is_what_a_decoder_accepts(data, tmp_path):
    # A head halfway, so that drafts are accepted at every length; a shift between training and drafting would show.
    run(data, tmp_path / "head", steps=10)
    head = load_head(tmp_path / "head").float()
    head.bind(target().get_input_embeddings(), target().get_output_embeddings())
    objective = DraftObjective.of(head, Recipe(kind="eagle", steps=1))
    seen, right = set(), [0, 0]
    for start in range(0, PERIOD, 4):
        ids = torch.tensor([(circle() * 3)[start : start + 8 + 24]])
        answer = torch.zeros_like(ids, dtype=torch.bool)
        answer[:, 8:] = True
        states = Features(target(), ("final",))({"input_ids": ids})
        count = Acceptance(depth=3)
        with torch.no_grad():
            count.add(objective.hits(ids, answer, states, 3), [((8, 32),)])
        wanted = (count.emitted + 1) / (count.passes + 1)  # a decoder counts the pass over the prompt
        assert tokens_per_pass(Eagle(tmp_path / "head"), start) == pytest.approx(wanted)
        seen.add(wanted)
        shifted = Acceptance(depth=3)
        with torch.no_grad():
            shifted.add(objective.hits(ids, answer, {"final": states["final"].roll(1, 1)}, 3), [((8, 32),)])
        right = [right[0] + count.right[0], right[1] + shifted.right[0]]
    assert len(seen) > 2 and max(seen) > 1.2
    assert right[1] < 0.9 * right[0]  # with the features of the token before


def test_a_trained_head_can_be_begun_with(data, tmp_path):
    first = run(data, tmp_path / "first", steps=15, draft_vocab=12)
    more = run(data, tmp_path / "more", steps=2, lr=1e-4, start=str(tmp_path / "first"))
    assert more.measured[-1]["token_loss"] < 1.2 * first.measured[-1]["token_loss"]
    assert load_head(tmp_path / "more").draft_ids.tolist() == load_head(tmp_path / "first").draft_ids.tolist()
    with pytest.raises(ConfigError, match="keeps its own draft vocabulary"):
        run(data, tmp_path / "x", draft_vocab=12, start=str(tmp_path / "first"))


# --- what the loss is made of ----------------------------------------------------------------------------


def batch_of(data):
    corpus = Corpus(ShardReader(data), 0.25, 64)
    batches = Batches(corpus.train, 160, 0)
    item = batches[1]
    return item, batches.spans(1), Features(target(), ("final", "layer:0", "layer:2"))(item)


def test_eagle_learns_answers_only_one_token_ahead(data):
    item, spans, states = batch_of(data)
    torch.manual_seed(0)
    head = EagleHead.for_target(target())
    objective = DraftObjective.of(head, Recipe(kind="eagle", steps=1, noise=0.0))
    found = objective(item["input_ids"], item["answer"], states)
    tokens, features = torch.zeros(()), torch.zeros(())
    count, rows = 0, target().get_output_embeddings().weight
    for row, answers in enumerate(spans):
        length = int(item["places"][row, 2])
        ids, final = item["input_ids"][row, :length], states["final"][row, :length]
        out = head(ids[None, 1:], final[None, :-1])[0]  # out[t], of token t + 1 and feature t, stands for feature t + 1
        for start, end in answers:
            for place in range(start, end):
                law, guess = (final[place - 1] @ rows.t()).softmax(-1), (out[place - 2] @ rows.t()).log_softmax(-1)
                tokens = tokens - law @ guess
                features = features + feature_loss(out[place - 2, None], final[place - 1, None], torch.ones(1))
                count += 1
    assert count == int(item["answer"].sum())
    assert torch.allclose(found["loss"], (features + 0.1 * tokens) / count, atol=1e-5)
    assert torch.allclose(found["token_loss"], tokens / count, atol=1e-4)


def test_medusa_heads_look_further_ahead_and_weigh_less(data):
    item, spans, states = batch_of(data)
    head = MedusaHead.for_target(target(), heads=3)
    torch.manual_seed(0)
    head.bias.data.normal_()
    objective = MedusaObjective.of(head, Recipe(kind="medusa", steps=1, labels="hard", head_decay=0.8))
    found = objective(item["input_ids"], item["answer"], states)["loss"]
    wanted, count = torch.zeros(3), 0
    for row, answers in enumerate(spans):
        out = head.logits(head(states["final"][row])).log_softmax(-1)  # [n, heads, vocabulary]
        for start, end in answers:
            for place in range(start, end):
                token = item["input_ids"][row, place]
                wanted = wanted - torch.stack([out[place - 2 - k, k, token] for k in range(3)])
                count += 1
    weights = torch.tensor([1, 0.8, 0.64])
    assert torch.allclose(found, (wanted * weights).sum() / weights.sum() / count, atol=1e-5)


def test_medusa_heads_are_measured_a_few_states_at_a_time(data, monkeypatch):
    item, _, states = batch_of(data)
    torch.manual_seed(0)
    head = MedusaHead.for_target(target(), heads=3)
    head.bias.data.normal_()
    objective = MedusaObjective.of(head, Recipe(kind="medusa", steps=1))
    whole = objective.hits(item["input_ids"], item["answer"], states, 3)
    sizes, guesses = [], head.guesses
    monkeypatch.setattr("specdec.heads.training.objectives.CHUNK", 4)
    monkeypatch.setattr(head, "guesses", lambda part, count: sizes.append(len(part)) or guesses(part, count))
    assert torch.equal(objective.hits(item["input_ids"], item["answer"], states, 3), whole)
    assert len(sizes) > 1 and max(sizes) == 4
    said = guesses(states["final"], 1)[..., 0]  # [rows, n, heads]
    for number in range(3):
        right = torch.zeros_like(item["answer"])
        right[:, 2 + number :] = said[:, : -2 - number, number] == item["input_ids"][:, 2 + number :]
        # The place of a hit is that of the token before the draft's own first.
        wanted = torch.zeros_like(right)
        wanted[:, 1 : -1 - number] = (right & item["answer"])[:, 2 + number :]
        assert torch.equal(whole[number], wanted)


def test_tokens_outside_the_draft_vocabulary_are_not_learnt(data):
    item, _, states = batch_of(data)
    ids = torch.arange(VOCAB - 5)  # the last five tokens of the alphabet are left out
    torch.manual_seed(0)
    head = EagleHead.for_target(target(), draft_ids=ids)
    recipe = Recipe(kind="eagle", steps=1, noise=0.0, feature_weight=0.0)
    found = DraftObjective.of(head, recipe)(item["input_ids"], item["answer"], states)["loss"]
    known = item["answer"] & (item["input_ids"] < VOCAB - 5)
    rows, at = known.nonzero(as_tuple=True)
    out = head(item["input_ids"][:, 1:], states["final"][:, :-1])[rows, at - 2]
    weight = torch.full((len(rows),), 1 / int(item["answer"].sum()))
    cut = target().get_output_embeddings().weight[ids]
    wanted = token_loss([out], [weight], Teacher(states["final"][rows, at - 1], cut), cut)[0]
    assert 0 < len(rows) < int(item["answer"].sum()) and torch.allclose(found, wanted, atol=1e-5)


def test_batches_hold_every_text_once_and_mark_its_answers(data):
    corpus = Corpus(ShardReader(data), 0.25, 20)
    prompts = [
        {tuple(text.ids[: text.spans[0][0]].tolist()) for text in part} for part in (corpus.train, corpus.held_out)
    ]
    assert all(prompts) and not prompts[0] & prompts[1]
    batches = Batches(corpus.train, 100, 3)
    places = []
    for item in batches:
        ids, answer = item["input_ids"], item["answer"]
        assert ids.numel() <= 100 and ids.shape[1] <= 20
        for row, (shard, number, length) in enumerate(item["places"].tolist()):
            text = corpus.shards[shard][number]
            assert ids[row, :length].tolist() == text.ids.tolist() and not ids[row, length:].any()
            (start, end) = text.spans[0]
            assert answer[row].nonzero()[:, 0].tolist() == list(range(start, end))
            places.append((shard, number))
    assert sorted(places) == sorted(text.place for text in corpus.train)
    again, other = Batches(corpus.train, 100, 3), Batches(corpus.train, 100, 4)
    assert all(torch.equal(a["places"], b["places"]) for a, b in zip(batches, again, strict=True))
    assert [b["places"].tolist() for b in batches] != [b["places"].tolist() for b in other]


def test_rounds_are_walked_as_a_decoder_walks_them():
    count = Acceptance(depth=2)
    # Anchors 2 to 6 of an answer at 2..8; the first guess is right under 2, 3 and 5, the second under 2 and 5.
    hits = torch.zeros(2, 1, 9, dtype=torch.bool)
    hits[0, 0, [2, 3, 5]] = True
    hits[1, 0, [2, 5, 6]] = True  # under 6 after a miss: not counted
    count.add(hits, [((2, 8),)])
    # 2 -> 3 tokens, 5 -> the two that are left.
    assert (count.emitted, count.passes) == (5, 2)
    assert (count.drafts, count.right) == ([5, 3], [3, 2])
    assert count.figures() == {"tokens_per_pass": 2.5, "agree_1": 0.6, "agree_2": 0.6667, "reach_2": 0.4}


def test_the_learning_rate_follows_steps_or_time():
    progress = Progress(steps=100, seconds=10.0)
    factor = cosine(progress, warmup=0.1, end=0.1)
    assert [round(factor(step), 3) for step in (0, 5, 10, 55, 100, 120)] == [0.05, 0.5, 1.0, 0.55, 0.1, 0.1]
    progress.spent = 5.5
    assert round(factor(5), 3) == 0.55 and progress.of(5) == 0.55


# --- stopping and going on -------------------------------------------------------------------------------


class At(TrainerCallback):
    """Does something after a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            self.act()


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("kind", ["eagle", "draft-model"])
def test_a_stopped_run_goes_on_to_the_same_weights(kind, data, tmp_path):
    # More steps than an epoch has; noise and the order of batches have to be the same, too.
    whole = run(data, tmp_path / "whole", kind, steps=9)
    part = run(data, tmp_path / "part", kind, steps=9, callbacks=[At(4, interrupt)])
    assert (part.finished, part.steps) == (False, 5) and part.measured == whole.measured[:2]
    assert (tmp_path / "part" / "config.json").is_file()  # what there is can be used
    rest = run(data, tmp_path / "part", kind, steps=9, resume=True)
    assert rest.finished and rest.steps == 9 and rest.measured == whole.measured
    for folder in ("part", "whole"):
        assert sorted(p.name for p in (tmp_path / folder).iterdir() if p.name.startswith(".")) == []
    one, other = (
        load_file(tmp_path / folder / "checkpoints" / "checkpoint-9" / "model.safetensors")
        for folder in ("whole", "part")
    )
    assert one and all(torch.equal(one[name], other[name]) for name in one)


def test_a_half_written_checkpoint_is_left_out(data, tmp_path):
    run(data, tmp_path, steps=6, save_every=0.4)
    newest = tmp_path / "checkpoints" / "checkpoint-6"
    shutil.rmtree(newest)
    shutil.copytree(tmp_path / "checkpoints" / "checkpoint-5", newest)
    (newest / "specdec.json").unlink()
    (newest / "optimizer.pt").write_bytes(b"half")
    report = run(data, tmp_path, steps=6, save_every=0.4, resume=True)
    assert report.finished and report.steps == 6


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("safetensors.torch.save_file", OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        ("safetensors.torch.save_file", SafetensorError("I/O error: File too large (os error 27)"), "File too large"),
        ("torch.save", OSError(errno.EFBIG, "File too large"), "File too large"),
        ("torch.save", RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos"), "unexpected pos"),
    ],
    ids=["full", "limit of safetensors", "limit of torch", "torch"],
)
def test_a_full_disk_is_named_and_what_was_saved_stays(where, error, said, data, tmp_path, monkeypatch):
    run(data, tmp_path, steps=2)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(*_, **__):
        raise error

    monkeypatch.setattr(where, full)
    with pytest.raises(CheckpointError, match=rf"{re.escape(said)} .*unchanged.*--resume"):
        run(data, tmp_path, steps=4, resume=True)
    monkeypatch.undo()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-2"]
    assert run(data, tmp_path, steps=4, resume=True).steps == 4


def test_a_second_run_does_not_write_over_the_first(data, tmp_path):
    run(data, tmp_path, steps=2)
    with pytest.raises(CheckpointError, match=r"holds checkpoints of an earlier run.*--resume"):
        run(data, tmp_path, steps=2)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run(data, tmp_path / "other", steps=2, resume=True)


# --- what is wrong is named ------------------------------------------------------------------------------


def test_a_resumed_run_is_the_run_it_was(data, tmp_path):
    run(data, tmp_path, steps=2)
    other = copy.deepcopy(target())
    other.model.embed_tokens.weight.data.mul_(1.5)
    wrong = [
        ({"lr": 1e-4}, "another recipe"),
        ({"kind": "medusa"}, "another kind of head"),
        ({"model": other}, "another target"),
        ({"held_out": 0.5}, "another data"),
    ]
    for change, named in wrong:
        with pytest.raises(CheckpointError, match=named):
            run(data, tmp_path, steps=4, resume=True, **change)


def test_other_errors_than_of_writing_keep_their_type(data, tmp_path):
    def fail():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        run(data, tmp_path, steps=4, callbacks=[At(2, fail)])


def test_a_folder_that_cannot_be_made_is_named(data, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.makedirs", refuse)
    with pytest.raises(CheckpointError, match=r"the head could not be written to .*out: .*Read-only file system"):
        run(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_where_a_folder_should_be_is_named(data, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigError, match="out is a file, expected a folder"):
        run(data, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_head_for_another_model_cannot_be_begun_with(data, tmp_path):
    with torch.random.fork_rng(devices=[]):
        other = LlamaForCausalLM(LlamaConfig(**{**target().config.to_dict(), "hidden_size": 64}))
    EagleHead.for_target(other).save(tmp_path / "head")
    with pytest.raises(IncompatibleError, match=r"a hidden size of 64, but .* has 32; use a head that was trained for"):
        run(data, tmp_path / "out", start=str(tmp_path / "head"))


def test_data_of_another_tokenizer_and_broken_shards_are_named(data, tmp_path):
    with pytest.raises(DataError, match="tokenizer"):
        run(data, tmp_path / "out", tokenizer=Tokenizer("other"))
    broken = tmp_path / "broken"
    shutil.copytree(data, broken)
    shard = broken / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"shard-00001\.safetensors.*broken"):
        run(broken, tmp_path / "out")
    with pytest.raises(DataError, match="no data"):
        run(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_options_that_do_not_fit_are_named(data, tmp_path):
    with pytest.raises(ConfigError, match="draft_vocab"):
        run(data, tmp_path, draft_vocab=VOCAB + 1)
    with pytest.raises(ConfigError, match="heads"):
        run(data, tmp_path, options={"heads": 3})
    with pytest.raises(CheckpointError, match="layer:7"):
        run(data, tmp_path, "eagle3", options={"taps": ("layer:7",)})
    with pytest.raises(ConfigError, match="whole vocabulary"):
        run(data, tmp_path, "draft-model", draft_vocab=10)
    with pytest.raises(ValueError, match="needs an end"):
        Recipe(kind="eagle")
    assert not list(tmp_path.iterdir())


# --- stored features -------------------------------------------------------------------------------------


def test_stored_features_are_those_of_the_target_and_shared(data, tmp_path):
    store, recipe = tmp_path / "store", Recipe(kind="eagle3", **{**NUMBERS, "steps": 3})
    model = target()
    tokens = store_features(model, Tokenizer(), [data], store, recipe, options=OPTIONS["eagle3"])
    assert tokens == sum(len(dialogue.ids) for dialogue in ShardReader(data))
    made = {path.name: path.stat().st_mtime_ns for path in store.iterdir()}
    for kind in ("eagle3", "eagle", "medusa"):
        stored = run(data, tmp_path / "with" / kind, kind, steps=3, store=store)
        direct = run(data, tmp_path / "without" / kind, kind, steps=3)
        assert stored.measured[-1]["loss"] == pytest.approx(direct.measured[-1]["loss"], rel=0.05)
    assert {path.name: path.stat().st_mtime_ns for path in store.iterdir()} == made  # computed once

    shutil.copytree(store, tmp_path / "broken")
    file = min((tmp_path / "broken").glob("final-*"))
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"final-.*Remove it"):
        run(data, tmp_path / "x", steps=1, store=tmp_path / "broken")
    other = copy.deepcopy(model)
    other.model.embed_tokens.weight.data.mul_(1.5)
    with pytest.raises(CheckpointError, match="another model"):
        run(data, tmp_path / "x", steps=1, store=store, model=other)


def test_a_store_that_runs_out_of_space_keeps_its_finished_shards(data, tmp_path, monkeypatch):
    real, calls = safetensors.torch.save_file, []

    def once(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args, **kwargs)

    monkeypatch.setattr("safetensors.torch.save_file", once)
    recipe = Recipe(kind="eagle", **{**NUMBERS, "steps": 3})
    with pytest.raises(CheckpointError, match="the disk is full"):
        store_features(target(), Tokenizer(), [data], tmp_path, recipe)
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["final-"]  # whole, and no rest of the other


def test_what_another_trainer_left_is_no_business_of_ours(data, tmp_path):
    other = tmp_path / "checkpoints" / "checkpoint-500"
    other.mkdir(parents=True)
    (other / "optimizer.pt").write_bytes(b"somebody's")
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run(data, tmp_path, steps=2, resume=True)
    run(data, tmp_path, steps=2)
    assert (other / "optimizer.pt").read_bytes() == b"somebody's"


def test_a_run_goes_on_with_the_options_it_was_begun_with(data, tmp_path):
    run(data, tmp_path, steps=2)
    with pytest.raises(CheckpointError, match="other options or another start"):
        run(data, tmp_path, steps=4, resume=True, options={**OPTIONS["eagle"], "embed_scale": 2.0})


def test_a_head_that_is_begun_with_keeps_its_config(data, tmp_path):
    run(data, tmp_path / "first", steps=2)
    with pytest.raises(ConfigError, match="keeps its config: leave"):
        run(data, tmp_path / "second", steps=2, start=str(tmp_path / "first"), options={"embed_scale": 2.0})
    assert run(data, tmp_path / "second", steps=2, start=str(tmp_path / "first"), options={}).finished


def test_a_step_that_takes_minutes_is_time_spent(monkeypatch):
    clock = iter(range(0, 10_000, 61))
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(clock))
    progress = schedule.Progress(None, 120.0)
    for _ in range(2):
        progress.start()
        progress.stop()
    assert progress.of(2) == 1.0
