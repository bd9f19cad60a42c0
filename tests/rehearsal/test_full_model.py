"""`attncheck smoke --full-model LAUNCH`: the user's own model, whole, with documents of its own tokenizer's words."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.rehearsal.ending import judge_end
from attncheck.rehearsal.execution import Execution
from attncheck.rehearsal.worker import own_model, vocabulary
from attncheck.rehearsal.worker.padding import choose_filler
from attncheck.rehearsal.worker.records import ModelCall, RankRecord
from attncheck.smoke.worker.models.architectures import Unbuildable
from tests.conftest import Run
from tests.rehearsal import own_models
from tests.rehearsal.own_models import PACKED, POSITIONS, Case, change_json, describe_files
from tests.rehearsal.staging import SCRIPT, ForkServer, list_failures, make_materials, rehearse
from tests.rehearsal.test_command import make_environment

LAUNCH = (
    "python train.py --model_name_or_path {0} --data_path x.jsonl --per_device_train_batch_size 8 --learning_rate 1e-5 "
    "--gradient_accumulation_steps 4 --max_length 2048 --max_steps 1000 --output_dir out"
)


CASES = (
    Case(""),
    Case("", PACKED),
    Case("", f"{POSITIONS} --bf16"),
    Case("", PACKED, ranks=2),
    Case("", "--answers_only --loss hidden_labels"),
    Case("positions_run_on", POSITIONS, "ATN432", r"attend to earlier documents in the row"),
    Case("shifted_twice", "", "ATN433", r"labels are shifted twice"),
    Case("mean_of_rows", "", "ATN433", r"the mean over each row's target tokens"),
    Case("labels_shifted", "", "ATN431", r"labels are shifted before"),
    Case("padding_labelled", "", "ATN431", r"labels are on padding"),
    Case("truncated", "", "ATN431", r"documents are truncated"),
    Case("halves_swapped", "", "ATN431", r"documents are mixed"),
    Case("layer_detached", "", "ATN434", r"no gradient reaches"),
    Case("padding_seen", "", "ATN432", r"tokens attend to padding"),
    Case("nan", "", "ATN436", r"the loss is NaN at step 3"),
    Case("never_steps", "", "ATN436", r"no optimiser took a step"),
)
BY_DAY = ((POSITIONS, "positions_run_on"), ("", "shifted_twice"), ("", "mean_of_rows"), (PACKED, ""), ("", "nan"))
MARKED = [
    pytest.param(
        case,
        id=f"{case.fault or 'clean'} {case.options} {case.ranks}",
        marks=[pytest.mark.nightly] * ((case.options, case.fault) not in BY_DAY or case.ranks > 1),
    )
    for case in CASES
]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a user's own model, whose tokenizer pads with the token that ends documents."""
    return own_models.save_model(tmp_path_factory.mktemp("models") / "own", attention_dropout=0.1)


@pytest.fixture(scope="module")
def stage(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the materials made of it."""
    return make_materials(tmp_path_factory.mktemp("stage"), model=str(own), full_model=True)


@pytest.mark.parametrize("case", MARKED)
def test_the_judge_works_with_a_model_of_its_own(case: Case, server: ForkServer, stage: Path, tmp_path: Path) -> None:
    results = rehearse(
        server, stage, tmp_path / "watch", case.options, case.fault, case.ranks, steps=10, full_model=True
    )
    failures = list_failures(results)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    if not case.code:
        assert {answer for answer, _ in answers.values()} == {"pass"}, answers
        assert "not judged: whether it learns" in results["learning"].notes[0]
        return
    assert case.code in failures, answers
    assert re.search(case.pattern, failures[case.code]), failures[case.code]


def test_the_copy_is_changed_and_the_own_model_is_not(own: Path, tmp_path: Path) -> None:
    (own / "checkpoint-10").mkdir(exist_ok=True)
    (own / "checkpoint-10" / "optimizer.pt").touch()
    before = describe_files(own)
    folder = make_materials(tmp_path, model=str(own), full_model=True) / "model"
    assert describe_files(own) == before
    assert json.loads((folder / "config.json").read_text())["attention_dropout"] == 0.0
    assert "Assistant" in json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    linked = [path.name for path in folder.iterdir() if path.is_symlink()]
    assert not (folder / "checkpoint-10").exists()
    assert linked == ["model.safetensors"] and (folder / linked[0]).samefile(own / linked[0])


@pytest.mark.nightly
def test_a_clean_launch_gives_no_finding_and_leaves_the_model_alone(
    attncheck: Run, own: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    before = describe_files(own), describe_files(tmp_path)
    launch = f"{LAUNCH.format(own)} --packing"
    process = attncheck(
        *("smoke", "--device", "cpu", "--full-model", "--format", "json", "--", *launch.split()),
        timeout=300,
        env=make_environment(tmp_path_factory),
    )
    report = json.loads(process.stdout)
    [rehearsed] = report["rehearsal"]["launches"]
    assert (process.returncode, report["findings"]) == (0, []), report["findings"]
    assert rehearsed["full_model"] and 10 <= rehearsed["steps"] < 15  # a loop of one's own is ended after its steps
    assert "learning_rate" not in rehearsed["diff"].replace("--learning_rate 1e-5", "")
    assert any("attention_dropout 0.1" in remark for remark in rehearsed["remarks"])
    assert (describe_files(own), describe_files(tmp_path)) == before


def empty(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def quantise(folder: Path) -> None:
    change_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})


def enlarge(folder: Path) -> None:
    change_json(folder / "config.json", hidden_size=65536, intermediate_size=262144, num_hidden_layers=100)


def lose_a_part(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))


def spoil_tokenizer(folder: Path) -> None:
    own_models.make_tokenizer(("qu", "xy")).save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "pattern"),
    [
        (empty, r"does not hold the weights of .*; --full-model downloads nothing: name the model's folder"),
        (lose_a_part, r"does not hold the weights .*model-00002-of-00002\.safetensors is missing"),
        (quantise, r"are quantised, so there is no float32 reference"),
        (enlarge, r"float32 reference of .*billion parameters\) needs [\d.]+ GiB of memory, and [\d.]+ are free"),
        (spoil_tokenizer, r"its tokenizer has \d+ words of one token each; documents need 32"),
        (lambda folder: change_json(folder / "config.json", model_type="no_such"), r"transformers cannot read"),
        (lambda folder: change_json(folder / "tokenizer_config.json", eos_token=None), r"has no eos_token"),
    ],
)
def test_a_model_that_cannot_be_judged_is_refused(
    spoil: Callable[[Path], Any], pattern: str, own: Path, tmp_path: Path
) -> None:
    shutil.copytree(own, tmp_path / "own")
    spoil(tmp_path / "own")
    with pytest.raises(AssertionError, match=pattern):  # of the answer that `make_materials` asks for
        make_materials(tmp_path / "stage", model=str(tmp_path / "own"), full_model=True)


def test_a_model_in_the_cache_is_found_by_its_name(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--some--model"
    shutil.copytree(own, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert own_model.find_folder("some/model") == repository / "snapshots" / "abc"
    with pytest.raises(Unbuildable, match=r"some/other is neither .* --full-model"):
        own_model.find_folder("some/other")


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("llama",), 2, "--full-model applies to a launch's rehearsal; use --full to train a MODEL's real weights"),
        (
            ("--", *LAUNCH.format("no/such").split()),
            3,
            "no/such is neither a local folder nor in the Hugging Face cache; --full-model downloads nothing",
        ),
    ],
)
def test_what_cannot_be_rehearsed_whole_is_one_line(
    attncheck: Run, tmp_path: Path, argv: tuple[str, ...], status: int, message: str
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache")}
    process = attncheck("smoke", "--device", "cpu", "--full-model", *argv, env=environment)
    assert process.returncode == status and process.stdout == ""
    assert len(process.stderr.splitlines()) == 1 and message in process.stderr, process.stderr


@pytest.mark.parametrize("status", [-9, 137])
def test_a_launch_that_is_killed_is_said_to_be(status: int) -> None:
    result = judge_end(Execution(status, 2, ("Loading weights: 100%",), 3.0), "")
    assert result.violations == (f"it was killed after 2 steps (status {status}), probably because memory ran out",)


def test_words_are_one_token_wherever_they_stand(own: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(own)
    words = vocabulary.find_vocabulary(tokenizer)
    numbers = [5, 5, 34, 3, 17]
    for text in (words.write(numbers), f" {words.write(numbers)}", f"User:\n{words.write(numbers)}\n"):
        assert words.read(vocabulary.encode(tokenizer, text)) == numbers
    assert not words.is_word(tokenizer.eos_token_id)


def test_words_of_the_chat_template_are_none_of_the_documents() -> None:
    tokenizer = own_models.make_tokenizer(template="river {{ messages[0]['content'] }} stone ")
    assert not {"river", "stone"} & set(vocabulary.find_vocabulary(tokenizer).texts)


def test_a_vocabulary_is_what_was_saved(own: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    words = vocabulary.find_vocabulary(AutoTokenizer.from_pretrained(own))
    words.save(tmp_path)
    assert vocabulary.load_vocabulary(tmp_path) == words
    assert vocabulary.load_vocabulary(tmp_path / "other") is vocabulary.MADE


@pytest.mark.parametrize(
    ("masked", "padding", "expected"),
    [
        (True, 9, 9),  # a token of padding alone
        (True, 1, 0),  # it ends documents too: one that is nowhere
        (False, 9, 0),  # without a mask it may be a document's
        (True, None, 0),
    ],
)
def test_padding_is_a_token_that_no_document_has(masked: bool, padding: int | None, expected: int) -> None:
    ids = torch.tensor([[3, 4, 1, 9], [3, 5, 6, 1]])
    tensors = {"input_ids": ids, **({"attention_mask": (ids != 9).long()} if masked else {})}
    call = ModelCall(0, 0, tensors, {}, None, {})
    record = RankRecord(0, 1, (call,), (), {}, (), {}, (), (), ())
    assert choose_filler([record], padding) == expected
