"""What a user's own code does to rows, tokens, schedules and losses: each fault with its legal neighbour."""

from __future__ import annotations

import ast
import functools
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attncheck.rehearsal import judged_run
from attncheck.rehearsal.columns import OWN_COLLATOR, _iter_columns
from attncheck.rehearsal.watcher import batches, losses, script_code
from attncheck.rehearsal.watcher.describe import _is_untied
from attncheck.rehearsal.watcher.modules import ModuleWatch
from attncheck.rehearsal.watcher.stand_ins import _choose_folder
from attncheck.rehearsal.worker.checks import batch, learning, update
from attncheck.rehearsal.worker.checks.batch import _find_misplaced_headers
from attncheck.rehearsal.worker.checks.learning import _find_alike
from attncheck.rehearsal.worker.checks.update import (
    _find_decayed_norms,
    _find_idle,
    _find_other_classes,
    _find_schedule,
    _find_untrained_tokens,
)
from attncheck.rehearsal.worker.materials import make_documents
from attncheck.rehearsal.worker.segments import DocumentIndex, read_documents
from attncheck.rehearsal.worker.step import FirstStep

INDEX = DocumentIndex(read_documents(make_documents(200, 3)))


def test_words_that_a_script_repeats_are_one_documents() -> None:
    """A question may be repeated in its answer; a document that was whole begins again as another piece."""
    words = INDEX.words[5]
    half = len(words) // 2

    def find(row: list[int]) -> list[tuple[int, int]]:
        return [(own.document, own.words) for own in INDEX.find_segments(row, (), None)]

    assert find([1, *words[:half], 1, *words, 2]) == [(5, half + len(words))]
    assert find([1, *words, 2, 1, *words, 2]) == [(5, len(words))] * 2


def test_fields_are_read_in_a_loop_over_their_names() -> None:
    text = (
        'for row in rows:\n    texts = [row["prompt"] + row[key] for key in ("chosen", "rejected")]\n    row[other]\n'
    )
    assert list(_iter_columns(ast.parse(text))) == ["prompt", "chosen", "rejected"]


@pytest.mark.parametrize(
    ("text", "chooses"),
    [
        ('return {"input_ids": ids, "labels": labels}', True),
        ('row["labels"] = labels', True),
        ('{"prompt": a, "completion": b}', True),
        ('print(row["labels"])', False),
    ],
)
def test_a_script_that_writes_labels_chooses_its_targets(text: str, chooses: bool) -> None:
    assert bool(OWN_COLLATOR.search(text)) == chooses


def test_a_folder_of_a_model_is_replaced_unless_the_launch_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "stage" / "data" / "train.jsonl"
    rows.parent.mkdir(parents=True)
    rows.touch()
    monkeypatch.setenv("ATTNCHECK_ROWS", str(rows))
    monkeypatch.setenv("ATTNCHECK_MODEL", "small")

    def make(name: str, file: str, seconds: float, *others: str) -> str:
        (tmp_path / name).mkdir()
        for own in (file, *others):
            (tmp_path / name / own).touch()
            os.utime(tmp_path / name / own, (seconds, seconds))
        return str(tmp_path / name)

    before = rows.stat().st_mtime - 60
    assert _choose_folder(make("model", "config.json", before)) == "small"
    for kept in (
        make("written", "config.json", before + 120),
        make("adapter", "adapter_config.json", before),
        make("code", "config.json", before, "modeling_own.py"),
        make("stage/model", "config.json", before),
    ):
        assert _choose_folder(kept) == kept


def make_evidence(**fields: Any) -> Any:
    return SimpleNamespace(step=SimpleNamespace(objective=SimpleNamespace(preference=None)), **fields)


@pytest.mark.parametrize(
    ("loss", "moved", "is_told"), [(math.log(2), 1.0, True), (math.log(2), 0.0, False), (1.0, 1.0, False)]
)
def test_a_preference_that_stays_even_has_a_reference_that_trains(loss: float, moved: float, is_told: bool) -> None:
    weights = [{"head": torch.full((2,), number * moved)} for number in range(2)]
    taken = [SimpleNamespace(weights=own, code={"ungraded": ["train.py:7"]}) for own in weights]
    texts = list(_find_alike(make_evidence(taken=taken), [loss] * 8))
    assert bool(texts) == is_told and all("train.py:7 calls them without gradients" in text for text in texts)


def give(loss: Any, make: Any) -> list[str]:
    """Return what is noted of a loss whose input is made from logits."""
    logits = torch.randn(6, 5, requires_grad=True)
    loss(make(logits), torch.randint(5, (6,)) if "kl_div" not in str(loss) else logits.detach().softmax(-1))
    return script_code.CODE.pop("probabilities", [])


def test_probabilities_are_given_to_no_loss_of_logits_or_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    functional = torch.nn.functional
    monkeypatch.setattr(script_code, "CODE", {})
    monkeypatch.setattr(losses, "CODE", script_code.CODE)
    original, watch = functional.cross_entropy, losses.LossWatch()
    softmax, log_softmax = (functools.partial(own, dim=-1) for own in (functional.softmax, functional.log_softmax))
    for loss, right in (
        (functional.cross_entropy, lambda logits: logits), (functional.kl_div, log_softmax),
        (torch.nn.CrossEntropyLoss(), log_softmax), (functional.nll_loss, log_softmax),
    ):  # fmt: skip
        (text,) = give(loss, softmax)
        assert "test_own_code.py:" in text and not give(loss, right)
        assert not give(loss, lambda logits: softmax(logits).detach())  # of a metric
    watch.stop()
    assert functional.cross_entropy is original and not give(functional.cross_entropy, softmax)


@pytest.mark.parametrize(
    ("others", "scale", "outcome"),
    [(["LlamaForCausalLM"], 0.1, "skipped"), ([], 0.02, "skipped"), ([], 0.1, "ok"), ([], None, "ok")],
)
def test_a_loss_with_an_unknown_part_of_a_reference_need_not_fall(
    others: list[str], scale: float | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As KTO's: its gradients are a tenth of a mean's, and its value depends on the reference."""
    monkeypatch.setattr(learning, "explain_loss", lambda _: SimpleNamespace(factor=0.1, scale=scale))
    monkeypatch.setattr(learning, "_explain_slowness", lambda *_: "")
    steps = [SimpleNamespace(losses=[[0.5 + number / 500]], rows=[[1, 2]], rate=1e-3) for number in range(30)]
    objective = SimpleNamespace(policy=None, preference=None, is_documented=False)
    index = SimpleNamespace(is_own=False)
    evidence: Any = SimpleNamespace(
        step=SimpleNamespace(objective=objective, index=index), steps=steps, others=others, is_own_script=False,
        full_model=False, taken=[], unstepped=0,
    )  # fmt: skip
    result = learning.run(evidence)
    assert result.outcome == outcome and bool(result.violations) == (outcome == "ok")


@pytest.mark.parametrize(
    ("drawn", "pieces", "repeated"),
    [
        ([*range(12)] * 3, 4, 0),  # epochs of a few rows
        ([number // 2 for number in range(24)], 4, 12),  # each row twice
        ([*range(4)] * 6, 4, 4),  # the first batch again and again
        ([*range(12), 3, 3, 3, *range(12, 24)], 4, 1),
    ],
)
def test_epochs_of_a_few_rows_repeat_none(drawn: list[int], pieces: int, repeated: int) -> None:
    evidence: Any = SimpleNamespace(step=SimpleNamespace(pieces=[None] * pieces))
    assert len(batch._list_repeated(evidence, drawn)) == repeated


@pytest.mark.parametrize(("counted", "start", "labels"), [([1, 1, 0], 0, 3), ([0, 1, 0], 0, 1), ([1, 1, 0], 4, 2)])
def test_labels_that_a_trainer_takes_away_count_each_row_s_first(counted: list[int], start: int, labels: int) -> None:
    """As `compute_loss_func`'s, which are no inputs of the model: `num_items_in_batch` counts the first token too."""
    piece = SimpleNamespace(
        call=SimpleNamespace(rank=0), segment=SimpleNamespace(start=start),
        shift_labels=lambda _: (None, torch.tensor(counted, dtype=torch.bool)),
    )  # fmt: skip
    step: Any = SimpleNamespace(calls=[piece.call], pieces=[piece], labels_enter=False)
    assert FirstStep.count_labels(step) == {0: labels}


def test_a_hook_that_draws_noise_is_not_judged() -> None:
    def add_noise(module: Any, inputs: Any, output: Any) -> Any:
        return output + torch.empty_like(output).uniform_(-1, 1)

    def scale(module: Any, inputs: Any, output: Any) -> Any:
        return output * 2

    watched, outcomes = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), []
    for hook in (add_noise, scale):
        handle = watched[0].register_forward_hook(hook)
        watch = ModuleWatch(watched)
        watched(torch.ones(1, 2))
        watch.stop()
        handle.remove()
        step = SimpleNamespace(ranks=[SimpleNamespace(modules=watch.modules)], calls=[])
        evidence: Any = SimpleNamespace(step=step)
        outcomes.append([batch.describe_noise(evidence, check) for check in ("documents", "batch")])
    assert "add_noise" in outcomes[0][0] and outcomes[0][1] == "" == outcomes[1][0]


@pytest.mark.parametrize(("is_documented", "is_told"), [(True, True), (False, False)])
def test_a_loss_that_is_not_known_has_no_floor(
    is_documented: bool, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ASFT's in LLaMA-Factory, which may end far below a mean's; a documented mean may not."""
    monkeypatch.setattr(learning, "explain_loss", lambda _: None)
    monkeypatch.setattr(learning, "_explain_slowness", lambda *_: "")
    monkeypatch.setattr(learning, "_floor", lambda _: 1.1)
    monkeypatch.setattr(learning, "find_outside_changes", lambda _: ())
    steps = [SimpleNamespace(losses=[[5.0 / (number + 1)]], rows=[[1, 2]], rate=1e-3) for number in range(30)]
    objective = SimpleNamespace(policy=None, preference=None, is_documented=is_documented)
    evidence: Any = SimpleNamespace(
        step=SimpleNamespace(objective=objective, index=SimpleNamespace(is_own=False)), steps=steps, others=[],
        is_own_script=False, full_model=False, taken=[], unstepped=0,
    )  # fmt: skip
    told = [text for text in learning.run(evidence).violations if "entropy" in text]
    assert bool(told) == is_told


@pytest.mark.parametrize(
    ("trainable", "is_told"),
    [
        (["layers.0.q_proj.lora_A.default.weight"], True),
        (["embed_tokens.token_adapter.trainable_tokens_delta"], False),
        (["embed_tokens.weight"], False),
    ],
)
def test_tokens_that_a_launch_adds_are_trained(trainable: list[str], is_told: bool) -> None:
    record = SimpleNamespace(weights={"embed_tokens.weight": torch.zeros(12, 2)}, trainable=trainable, code={})
    ids = torch.tensor([[1, 10, 11]])
    call = SimpleNamespace(input_ids=ids, tensors={"attention_mask": torch.tensor([[1, 1, 0]])})
    evidence: Any = SimpleNamespace(tokens=10, step=SimpleNamespace(ranks=[record], calls=[call]))
    assert bool(list(_find_untrained_tokens(evidence))) == is_told
    evidence.tokens = 11  # padding
    assert not list(_find_untrained_tokens(evidence))
    evidence.tokens = 0  # rows of the model's own vocabulary are free
    assert not list(_find_untrained_tokens(evidence))
    record.code = {"added": ["10"], "adds": ["train.py:7"]}
    assert bool(list(_find_untrained_tokens(evidence))) == is_told


def test_tokens_that_a_script_adds_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers that released tokenizers have, and padding, are none."""

    class Tokenizer:
        def __init__(self) -> None:
            self.numbers = {"a": 0, "b": 7}  # with a gap

        def get_vocab(self) -> dict[str, int]:
            return {**self.numbers}

        get_added_vocab = get_vocab

        def add_tokens(self, texts: list[str]) -> int:
            self.numbers |= {text: number for number, text in enumerate(texts, max(self.numbers.values()) + 1)}
            return len(texts)

        def add_special_tokens(self, texts: dict[str, list[str]]) -> int:
            return self.add_tokens(texts["additional_special_tokens"])

    monkeypatch.setattr(script_code, "CODE", {})
    script_code.watch_added_tokens(Tokenizer)
    tokenizer = Tokenizer()
    assert tokenizer.add_tokens(["<pad>", "<|im_end|>"]) == 2 and "added" not in script_code.CODE
    assert tokenizer.add_special_tokens({"additional_special_tokens": ["<fact>", "</fact>"]}) == 2
    assert script_code.CODE["added"] == ["10", "11"] and script_code.CODE["adds"][0].startswith("test_own_code.py:")


@pytest.mark.parametrize(("ranks", "faults"), [((2, 2), 1), ((1, 2), 0), ((2, 1), 0)])
def test_rows_are_split_across_ranks_once(ranks: tuple[int, int], faults: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: dict[str, list[str]] = {}
    monkeypatch.setattr(batches, "CODE", noted)
    rows: Any = range(8)
    sampler: Any = torch.utils.data.DistributedSampler(rows, num_replicas=ranks[0], rank=0)
    shard = type("BatchSamplerShard", (), {"num_processes": ranks[1]})()  # accelerate is not installed here
    batches._note_shards([shard, torch.utils.data.BatchSampler(sampler, 2, False), sampler])
    assert len(noted) == faults


@pytest.mark.parametrize(
    ("autocast", "factor", "warnings"),
    [("torch.float16", 1.0, 1), ("torch.float16", 65536.0, 0), ("torch.bfloat16", 1.0, 0), ("", 1.0, 0)],
)
def test_float16_needs_a_scaled_loss(
    autocast: str, factor: float, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "explain_loss", lambda _: SimpleNamespace(factor=factor))
    calls = [SimpleNamespace(description={"autocast": autocast})]
    evidence: Any = SimpleNamespace(step=SimpleNamespace(calls=calls))
    assert len(list(update._find_unscaled(evidence))) == warnings


@pytest.mark.parametrize(("last", "loss", "faults"), [(0.0, 2.0, 1), (1.0, 2.0, 0), (0.0, 0.0, 0)])
def test_parameters_that_never_get_a_gradient(last: float, loss: float, faults: int) -> None:
    """Such as two low-rank matrices that both begin at zero; rewards that are all alike have no loss either."""
    records = [
        SimpleNamespace(gradients={"down": torch.full((2,), value)}, trainable=("down",), frozen=("up",), unkept=0)
        for value in (0.0, last)
    ]
    for record in records:
        record.losses = (loss,)
    evidence: Any = SimpleNamespace(taken=records)
    assert len(list(_find_idle(evidence))) == faults


@pytest.mark.parametrize(
    ("headed", "role", "tokens", "warnings"),
    [
        (False, "user", (1, 5, 7, 2), 1),
        (False, "user", (1, 5, 9, 7, 2), 0),  # the script writes the header itself
        (False, "assistant", (1, 5, 7, 2), 0),
        (True, "user", (1, 5, 7, 2), 0),
        (True, "assistant", (1, 5, 9, 7, 2, 9), 1),
        (True, "assistant", (1, 5, 9, 7, 2, 9, 2), 1),  # its framework adds an end
        (True, "assistant", (1, 5, 9, 7, 2), 0),  # only to find a length
    ],
)
def test_a_header_that_is_missing_or_behind_an_answer(
    headed: bool, role: str, tokens: tuple[int, ...], warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tokenizer:
        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [9] * len(text.split())}

        def apply_chat_template(self, turns: Any, tokenize: bool = True, add_generation_prompt: bool = False) -> str:
            return "question" + " <|assistant|>" * add_generation_prompt

    monkeypatch.setattr(script_code, "CODE", {})
    script_code.watch_prompts(Tokenizer)
    Tokenizer().apply_chat_template([{"role": role, "content": "x"}], add_generation_prompt=headed)
    record, piece = SimpleNamespace(code=script_code.CODE), SimpleNamespace(tokens=tokens)
    index = SimpleNamespace(vocabulary=SimpleNamespace(is_word={5, 7}.__contains__))
    evidence: Any = SimpleNamespace(taken=[record], judged_pieces=[piece], step=SimpleNamespace(index=index))
    assert len(list(_find_misplaced_headers(evidence))) == warnings


@pytest.mark.parametrize(
    ("planned", "epochs", "faults", "warnings"),
    [(112, 0.0, 1, 0), (450, 0.0, 0, 0), (77, 0.0, 0, 1), (450, 4.0, 1, 0), (1800, 4.0, 0, 0), (337, 3.0, 1, 0)],
)
def test_a_schedule_is_made_for_batches_or_for_steps(planned: int, epochs: float, faults: int, warnings: int) -> None:
    """The steps of as many epochs as the accumulation are the batches of one: the launch's epochs say which."""
    step = SimpleNamespace(schedule=("train.py:9",) * 4, planned=planned)
    record = SimpleNamespace(code={"batches": ["450"]})
    evidence: Any = SimpleNamespace(steps=[step] * 3, taken=[record] * 3, epochs=(), batches=4, trained_epochs=epochs)
    assert tuple(map(len, _find_schedule(evidence))) == (faults, warnings)


@pytest.mark.parametrize(
    ("planned", "epochs", "warnings"),
    [(336, 3.0, 0), (340, 3.0, 0), (10000, 3.0, 0), (1350, 3.0, 1), (112, 3.0, 1), (1350, 0.0, 0), (0, 3.0, 0)],
)
def test_a_schedule_is_as_long_as_the_training(planned: int, epochs: float, warnings: int) -> None:
    """Such as one made for batches, which steps with the optimiser; without a number of epochs nothing is known."""
    step = SimpleNamespace(schedule=("train.py:9",), planned=planned)
    record = SimpleNamespace(code={"batches": ["450"]})
    evidence: Any = SimpleNamespace(steps=[step] * 3, taken=[record] * 3, epochs=(), batches=4, trained_epochs=epochs)
    assert len(list(update._find_other_length(evidence))) == warnings


def test_a_tie_that_code_breaks_is_seen() -> None:
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
    )
    assert not _is_untied(model)
    model.resize_token_embeddings(40)
    assert not _is_untied(model)
    model.set_input_embeddings(torch.nn.Embedding(48, 8))
    assert _is_untied(model)
    model.config.tie_word_embeddings = False
    assert not _is_untied(model)


@pytest.mark.parametrize(
    ("texts", "is_found"),
    [(("bias", "LayerNorm.weight"), True), (("bias", "layernorm"), False), (("bias",), False), (("LayerNorm",), False)],
)
def test_a_pattern_that_no_name_contains_lets_norms_decay(
    texts: tuple[str, ...], is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"no_decay = {list(texts)}\n")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
    monkeypatch.setattr(script_code, "CODE", {})
    names = ["q_proj.weight", "q_proj.bias", "input_layernorm.weight"]
    for _ in range(2):
        script_code.note_patterns(names)
    groups = [
        {
            "parameters": [own for own in names if any(t in own for t in texts) is kept],
            "options": {"weight_decay": rate},
        }
        for kept, rate in ((False, 0.1), (True, 0.0))
    ]
    record: Any = SimpleNamespace(code=script_code.CODE, updates=[{"groups": groups}])
    assert len([*_find_decayed_norms(record)]) == is_found


@pytest.mark.parametrize(("words", "epochs"), [("--epochs 4", 4.0), ("--epochs=4 --max_steps 9", 0.0), ("", 0.0)])
def test_the_epochs_of_a_loop_are_those_of_its_option(words: str, epochs: float) -> None:
    launch = SimpleNamespace(words=[SimpleNamespace(text=word) for word in words.split()])
    job = SimpleNamespace(trainer="loop", settings=())
    read: Any = SimpleNamespace(job=job, recognised=SimpleNamespace(launch=launch))
    assert judged_run._read_epochs(read) == epochs


@pytest.mark.parametrize(("texts", "count"), [(("[('a', 0)]", "[('a', 0)]"), 0), (("[('a', 0)]", "[('a', 1)]"), 1)])
def test_ranks_number_classes_alike(texts: tuple[str, str], count: int) -> None:
    ranks: Any = [SimpleNamespace(code={"classes": [text]}) for text in texts]
    assert len(list(_find_other_classes(ranks))) == count
