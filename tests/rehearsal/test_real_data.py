"""`attncheck smoke --real-data LAUNCH`: the first rows of the user's own data, told apart by the job's own borders."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.rehearsal.worker import own_data
from attncheck.rehearsal.worker.checks import documents
from attncheck.rehearsal.worker.evidence import Evidence
from attncheck.rehearsal.worker.judging import skip_what_follows
from attncheck.rehearsal.worker.layouts import Unjoinable, keep_rows_whole
from attncheck.rehearsal.worker.own_rows import UNTOLD, RowIndex, find_block_borders
from attncheck.rehearsal.worker.reading import read_precision
from attncheck.rehearsal.worker.records import ModelCall, RankRecord
from attncheck.rehearsal.worker.step import Piece
from attncheck.smoke.worker.models.architectures import Unbuildable
from tests.conftest import Run
from tests.rehearsal import own_models
from tests.rehearsal.own_models import PACKED, POSITIONS, Case, describe_files, write_data
from tests.rehearsal.staging import SCRIPT, ForkServer, list_failures, make_materials, rehearse
from tests.rehearsal.test_command import make_environment

LAUNCH = (
    "python train.py --model_name_or_path {0} --data_path {1} --per_device_train_batch_size 8 --learning_rate 1e-5 "
    "--gradient_accumulation_steps 4 --max_length 2048 --max_steps 1000 --packing --isolation positions "
    "--output_dir out"
)


CASES = {
    "packed": Case("", PACKED),
    "packed, by positions": Case("", f"{POSITIONS} --bf16"),
    "packed, two ranks": Case("", PACKED, ranks=2),
    "padded": Case(""),
    "labels not seen": Case("", "--loss hidden_labels"),
    "answers": Case("", f"{PACKED} --answers_only"),
    "the whole model": Case("", PACKED, full_model=True),
    "positions lost": Case(
        "positions_run_on", POSITIONS, "ATN432", r"attend to earlier documents in the row(.|\n)*row \d+ of"
    ),
    "mask lost": Case("mask_of_ones", PACKED, "ATN432", r"attend to earlier documents in the row"),
    "mask without documents": Case(
        "mask_without_documents", PACKED, "ATN432", r"attend to earlier documents in the row"
    ),
    "kernel": Case("kernel_not_causal", "", "ATN432", r"attention is not causal"),
    "padding seen": Case("padding_seen", "", "ATN432", r"tokens attend to padding"),
    "labels shifted": Case("labels_shifted", "", "ATN431", r"labels are shifted before"),
    "labels of another row": Case(
        "labels_of_another_row", "", "ATN431", r"labels differ from the token at their position"
    ),
    "padding labelled": Case("padding_labelled", "", "ATN431", r"labels are on padding"),
    "shifted twice": Case("shifted_twice", "", "ATN433", r"labels are shifted twice"),
    "mean of rows": Case("mean_of_rows", "", "ATN433", r"the mean over each row's target tokens"),
    "mean of batches": Case("mean_of_batches", "", "ATN433", r"the mean over each batch's target tokens"),
    "gradients": Case("layer_detached", "", "ATN434", r"no gradient reaches"),
    "rate": Case("learning_rate_zero", "", "ATN436", r"it does not learn"),
    "nan": Case("nan", "", "ATN436", r"the loss is NaN"),
}
BY_DAY = ("packed", "positions lost", "shifted twice", "mean of rows", "padding labelled")
MARKED = [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in CASES]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a user's own model."""
    return own_models.save_model(tmp_path_factory.mktemp("models") / "own")


@pytest.fixture(scope="module")
def make_stage(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Return what returns the materials of the user's data, with a small model or their own; each is made once."""
    data, stages = write_data(tmp_path_factory.mktemp("data") / "train.jsonl"), dict[bool, Path]()

    def make(full_model: bool) -> Path:
        if full_model not in stages:
            folder = tmp_path_factory.mktemp("stage")
            stages[full_model] = make_materials(folder, 0, str(own), full_model=full_model, real_data=str(data))
        return stages[full_model]

    return make


@pytest.mark.parametrize("name", MARKED)
def test_the_judge_works_on_rows_of_its_own(
    name: str, server: ForkServer, make_stage: Callable[[bool], Path], tmp_path: Path
) -> None:
    case = CASES[name]
    stage = make_stage(case.full_model)
    results = rehearse(
        *(server, stage, tmp_path / "watch", case.options, case.fault, case.ranks),
        full_model=case.full_model,
        real_data=True,
    )
    failures = list_failures(results)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    notes = "\n".join(note for result in results.values() for note in result.notes)
    if not case.code:
        assert {answer for answer, _ in answers.values()} == {"pass"}, answers
        assert "whether labels are placed correctly" in notes and "entropy of your data" in notes
        assert ("isolation not judged" in notes) == (PACKED not in case.options)
        return
    assert case.code in failures, answers
    assert re.search(case.pattern, failures[case.code]), failures[case.code]


@pytest.mark.nightly
def test_rows_that_go_in_twice_are_a_warning(
    server: ForkServer, make_stage: Callable[[bool], Path], tmp_path: Path
) -> None:
    results = rehearse(server, make_stage(False), tmp_path / "watch", "", "doubled", real_data=True)
    assert judge_result(results["batch"]) == "warn"
    assert re.search(r"\d+ rows of the data were used more than once", deciding_reason(results["batch"]))


@pytest.mark.nightly
def test_a_launch_is_rehearsed_on_its_own_data_and_leaves_them_alone(
    attncheck: Run, own: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    write_data(tmp_path / "own.jsonl")
    before = describe_files(own), describe_files(tmp_path)
    process = attncheck(
        *("smoke", "--device", "cpu", "--real-data", "--format", "json", "--no-fix", "--"),
        *LAUNCH.format(own, "own.jsonl").split(),
        timeout=300,
        env=make_environment(tmp_path_factory, PLANTED_FAULT="positions_run_on"),
    )
    report = json.loads(process.stdout)
    [finding], [launch] = report["findings"], report["rehearsal"]["launches"]
    assert process.returncode == 1 and finding["code"] == "ATN432"
    assert any("follows another data row" in line for line in finding["evidence"])
    assert launch["real_data"] and "the data are the first 400 rows of own.jsonl" in launch["remarks"]
    assert (describe_files(own), describe_files(tmp_path)) == before


def write_gap(folder: Path) -> None:
    (folder / "train.jsonl").write_text('{"text": "a"}\nno json\n')


def write_arrow(folder: Path) -> None:
    (folder / "data.arrow").touch()


@pytest.mark.parametrize(
    ("spoil", "data", "message"),
    [
        pytest.param(
            write_gap,
            "missing.jsonl",
            "missing.jsonl is neither a local file or folder nor in the",
            marks=pytest.mark.nightly,
        ),
        (write_gap, "train.jsonl", "train.jsonl cannot be read: Expecting value"),
        pytest.param(
            write_arrow,
            ".",
            "has no file of type .jsonl, .json, .parquet, .csv, .tsv, .txt, but .arrow, .py;",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            write_arrow,
            "data.arrow",
            "data.arrow: --real-data takes files of type .jsonl",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_data_that_cannot_be_taken_are_one_line(
    spoil: Callable[[Path], Any], data: str, message: str, attncheck: Run, own: Path, tmp_path: Path
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    spoil(tmp_path)
    process = attncheck("smoke", "--device", "cpu", "--real-data", "--", *LAUNCH.format(own, data).split())
    assert process.returncode == 3 and process.stdout == ""
    assert len(process.stderr.splitlines()) == 1 and message in process.stderr, process.stderr


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("llama",), 2, "--real-data is for a launch's rehearsal: name a launch"),
        pytest.param(
            ("--", *LAUNCH.format("no/such", "own.jsonl").split()),
            3,
            "nor in the Hugging Face cache; --real-data uses the model's tokenizer",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_cannot_be_rehearsed_on_its_data_is_one_line(
    argv: tuple[str, ...], status: int, message: str, attncheck: Run, tmp_path: Path
) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    write_data(tmp_path / "own.jsonl", 5)
    process = attncheck("smoke", "--device", "cpu", "--real-data", *argv)
    assert process.returncode == status and process.stdout == ""
    assert len(process.stderr.splitlines()) == 1 and message in process.stderr, process.stderr


ROWS = [{"text": f"row {number}", "n": number} for number in range(own_data.MAX_ROWS + 100)]


def write_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS))


def write_object(path: Path) -> None:
    path.write_text(json.dumps({"version": 1, "data": ROWS}))


def write_lines(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, ROWS)))


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ("text", "n"), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(ROWS)


def write_text(path: Path) -> None:
    path.write_text("".join(f"{row['text']}\n" for row in ROWS))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.json", write_json),
        ("a.json", write_object),
        ("a.json", write_lines),
        ("a.jsonl", write_lines),
        ("a.csv", write_csv),
        ("a.tsv", write_csv),
        ("a.txt", write_text),
    ],
)
def test_the_first_rows_are_taken_in_the_files_own_form(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    write(tmp_path / name)
    rows = own_data.lay_data(str(tmp_path / name), tmp_path / "target")
    again = own_data.lay_data(str(tmp_path / "target" / name), tmp_path)
    assert len(rows) == own_data.MAX_ROWS and rows == again  # what is cut is read as the same rows
    assert [next(own_data.iter_texts(row)).strip() for row in rows] == [row["text"] for row in ROWS[: len(rows)]]


def test_a_folder_is_cut_split_by_split(tmp_path: Path) -> None:
    source, target = tmp_path / "own", tmp_path / "target"
    (source / "data").mkdir(parents=True)
    target.mkdir()
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"):
        write_lines(source / "data" / name)
    (source / "README.md").write_text("configs")
    assert len(own_data.lay_data(str(source), target)) == 2 * own_data.MAX_ROWS
    assert {path.name for path in target.rglob("*") if path.is_file()} == {"train-0.jsonl", "test-0.jsonl", "README.md"}


def test_data_in_the_cache_are_found_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "datasets--some--data"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert own_data.find_data("some/data") == repository / "snapshots" / "abc"
    with pytest.raises(Unbuildable, match=r"other/data is neither .* --real-data"):
        own_data.find_data("other/data")


FIRST, SECOND, SHARED = list(range(100, 130)), list(range(200, 230)), list(range(300, 330))
END, HEAD = 1, [7, 8, 9]  # the token that ends a document, and the markup before its text
INDEX = RowIndex([[FIRST, SHARED], [SECOND], [SHARED]], END)


def describe(row: list[int], *borders: int) -> list[tuple[int, int, int, bool]]:
    segments = INDEX.find_segments(row, borders, 0)
    return [(segment.document, segment.start, segment.stop, segment.inferred) for segment in segments]


def test_documents_are_told_by_the_jobs_borders_and_by_their_text() -> None:
    row = [*HEAD, *FIRST, END, *HEAD, *SECOND, END, 0, 0]
    assert describe(row, 34) == [(0, 0, 34, False), (1, 34, 68, False)]
    assert describe(row) == [(0, 0, 34, False), (1, 34, 68, True)]  # no border is given: the same one is inferred
    assert describe([*FIRST[10:], END, *SECOND], 21) == [(0, 0, 21, False), (1, 21, 51, False)]
    assert describe([*FIRST[10:], END, *SECOND]) == [(0, 0, 21, False), (1, 21, 51, True)]  # after what ends the first


def test_text_that_several_rows_have_tells_nothing() -> None:
    row = [*HEAD, *FIRST, *SHARED, END]
    assert describe(row) == [(0, 0, len(row), False)]
    assert describe([*HEAD, *SHARED, END]) == [(INDEX.unknown, 0, 34, False)]
    assert INDEX.name_document(0) == "row 1 of the data" and INDEX.name_document(INDEX.unknown) == "a document"


def test_a_few_tokens_of_another_row_are_no_proof() -> None:
    row = [*HEAD, *FIRST, *SECOND[:14], END]  # seven runs of eight tokens
    assert describe(row) == [(0, 0, len(row), False)]


def test_what_pads_is_no_document() -> None:
    assert describe([*HEAD, *FIRST, END, 5, 5, 5, 5], 34) == [(0, 0, 34, False)]


def test_what_nothing_tells_is_not_judged() -> None:
    """Two rows of the data without a border, whose tokens see what no hypothesis says: no proof, and no error."""
    row = [*HEAD, *FIRST, END, *HEAD, *SECOND, END]
    call = ModelCall(0, 0, {"input_ids": torch.tensor([row])}, {}, torch.ones(1, len(row), 2), {})
    pieces = [
        Piece(call, 0, segment, tuple(row[segment.start : segment.stop]), torch.ones(len(row), dtype=torch.bool))
        for segment in INDEX.find_segments(row, (), None)
    ]
    truths = {piece.tokens: torch.ones(len(piece.tokens), 2) * (1 + piece.segment.inferred) for piece in pieces}
    rank = SimpleNamespace(calls=(call,), modules=(), patches=())
    evidence: Any = SimpleNamespace(
        judged_pieces=pieces,
        hidden_limit=1e-4,
        shares_rows=True,
        deviations=(),
        truth=SimpleNamespace(memory=None),
        step=SimpleNamespace(index=INDEX, ranks=(rank,), pieces=pieces, calls=(call,)),
        describe=lambda piece: SimpleNamespace(hidden=truths[piece.tokens]),
    )
    evidence._torn = vars(Evidence)["_torn"].func(evidence)
    evidence.hidden_errors = vars(Evidence)["hidden_errors"].func(evidence)
    result = documents.run(evidence)
    assert (result.outcome, result.reason) == ("skipped", UNTOLD)
    assert any("row 2 of the data follows another data row" in note for note in result.notes)
    assert skip_what_follows(CheckResult("loss", violations=("x",)), ["documents"]).outcome == "skipped"


@pytest.mark.parametrize("packages", [(), ("deepspeed",)])
def test_rows_over_several_ranks_are_refused(packages: tuple[str, ...]) -> None:
    layers = ({"operators": ("c10d.alltoall_base_.default",)},)
    ranks = [RankRecord(rank, 2, (), (), {}, (), {}, layers, packages, ()) for rank in range(2)]
    if packages:  # what communicates may be ZeRO-3's, of weights
        assert keep_rows_whole(ranks).size == 1
        return
    with pytest.raises(Unjoinable, match="reassembled with synthetic words, so remove --real-data"):
        keep_rows_whole(ranks)


@pytest.mark.parametrize("is_boolean", [True, False])
def test_a_mask_of_blocks_has_borders(is_boolean: bool) -> None:
    numbers = torch.tensor([0, 0, 0, 1, 1])
    visible = ((numbers[:, None] == numbers) & torch.ones(5, 5, dtype=torch.bool).tril())[None, None]
    mask = visible if is_boolean else torch.zeros(1, 1, 5, 5).masked_fill(~visible, -1e9)
    assert find_block_borders({"attention_mask": mask}, 0, 5) == [3]
    assert find_block_borders({"attention_mask": torch.ones(1, 5)}, 0, 5) == []


def test_calls_without_tokens_are_a_reason() -> None:
    with pytest.raises(ValueError, match="the model gets no input_ids"):
        read_precision(())
