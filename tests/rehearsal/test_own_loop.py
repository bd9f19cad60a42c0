"""Scripts whose training loop is their own: what is known of them is judged, and what their author may mean is not."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import COMMAND, Source
from attncheck.core.rehearsal import UNDOCUMENTED
from attncheck.core.report import Report
from attncheck.core.results.gate import Check
from attncheck.core.results.lint import launches_of
from attncheck.core.results.rehearsal import RehearsalSection, RehearsedLaunch
from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.gate.checks import CheckRunner, NothingLinted
from attncheck.gate.inputs import Inputs
from attncheck.gate.policy import Policy
from attncheck.lint import run as lint
from attncheck.lint.context import Request
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import cutting
from attncheck.rehearsal.columns import has_text_pairs, iter_first_rows, read_prefixes, read_turns, read_values
from attncheck.rehearsal.judged_run import _read_rates
from attncheck.rehearsal.reading import _find_model_folder
from attncheck.rehearsal.worker.checks import batch
from attncheck.rehearsal.worker.checks.gradients import AS_STREAM, OWN_WEIGHTS
from attncheck.rehearsal.worker.definitions import is_scaled
from attncheck.rehearsal.worker.materials import fit_rows, make_data, make_documents
from attncheck.workers.execution import ExecutionTarget
from tests.conftest import Run
from tests.rehearsal.staging import SCRIPTS, ForkServer, list_failures, make_materials, rehearse
from tests.rehearsal.test_command import make_environment
from tests.rehearsal.test_command import rehearse as rehearse_command
from tests.snapshots import laptop

LOOP = "python loop.py --model Qwen/Qwen2.5-0.5B --data data/alpaca.json --lr 2e-5 --out ckpt --accum 8 --seq-len 4096"
STAGE = "/stage"


def read(text: str) -> list[ReadLaunch]:
    return read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("not here"), lambda path: None)


def cut(text: str) -> cutting.CutLaunch:
    (launch,) = read(text)
    materials = cutting.make_materials(launch, STAGE, 30, False, 2)
    return cutting.cut_launch(launch, cutting.cut_job(launch, materials), {}, STAGE, materials)


@pytest.mark.parametrize(("name", "is_sharded"), [("conf/zero2.yml", True), ("conf/ddp.yaml", False)])
def test_a_missing_file_of_accelerate_shards_if_its_name_does(name: str, is_sharded: bool) -> None:
    """DDP replaces it, and takes parameters that a step does not use, as what it replaces does."""
    environ = cut(f"accelerate launch --config_file {name} {LOOP.removeprefix('python ')}").cut.environ
    assert ("ATTNCHECK_WITHOUT_SHARDING" in environ) == is_sharded


def test_nothing_is_evaluated_before_the_first_step() -> None:
    command = cut("trl sft --model_name_or_path m --dataset_name d --eval_strategy steps --eval_on_start True").command
    assert "sft" in command and "eval" not in command


def wrote(launch: RehearsedLaunch) -> tuple[str, ...]:
    """Return what a launch wrote outside its folder, or tried to."""
    return (*launch.isolation.written, *launch.isolation.denied)


def test_options_are_cut_by_the_names_that_scripts_share() -> None:
    command = cut(LOOP).command
    assert (
        "--model /stage/models/Qwen2.5-0.5B --data /stage/array/train.json --lr 0.005 --out /stage/job/output"
        in command
    )
    assert command.endswith("--accum 2 --seq-len 256")


def test_a_loop_may_read_its_options_from_a_file() -> None:
    keys = "model: Qwen/Qwen2.5-0.5B\ndata: rows.jsonl\ntraining:\n  lr: 5.0e-7\nout: ckpt\naccum: 8\nseed: 1\n"
    cut_keys = (
        "model: /stage/models/Qwen2.5-0.5B\ndata: /stage/data/train.jsonl\ntraining:\n  lr: 0.005\n"
        "out: /stage/job/output\naccum: 2\nseed: 1\n"
    )
    source = Source("run.sh", "python loop.py --config job.yaml", "shell")
    files = {"job.yaml": Source("job.yaml", keys, "yaml")}
    (launch,) = read_launches(laptop(), source, lambda name: Absent("not here"), files.get)
    materials = cutting.make_materials(launch, STAGE, 30, False, 2)
    job = cutting.cut_job(launch, materials)
    own = cutting.cut_launch(launch, job, {}, STAGE, materials)
    assert own.command.endswith("python loop.py --config /stage/job.yaml")
    assert own.files == {"/stage/job.yaml": cut_keys}
    assert _read_rates(launch, job) == [5e-7, 5e-3]
    files["job.yaml"] = Source("job.yaml", keys.replace("lr:", "port:"), "yaml")
    assert read_launches(laptop(), source, lambda name: Absent("not here"), files.get) == []


@pytest.mark.parametrize(
    ("written", "laid"),
    [
        ("--data rows.parquet", "--data /stage/data/train.parquet"),
        ("--data rows.jsonl", "--data /stage/data/train.jsonl"),
        ("--data mixtures/all.yaml", "--data /stage/array/train.yaml"),  # a list of data sets
        ("--data tatsu-lab/alpaca", "--data tatsu-lab/alpaca"),
        ("--train-file=rows.txt", "--train-file=/stage/data/train.jsonl"),
    ],
)
def test_data_are_laid_as_the_name_says(written: str, laid: str) -> None:
    assert laid in cut(LOOP.replace("--data data/alpaca.json", written)).command


def test_a_script_that_writes_its_settings_out_is_read_before_its_options() -> None:
    text = "from trl import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(packing=True)).train()\n"

    def read_script(path: str) -> Source | None:
        return Source(path, text, "python") if path == "loop.py" else None

    def read_command(command: str) -> ReadLaunch:
        source = Source("run.sh", command, "shell")
        [launch] = read_launches(laptop(), source, lambda name: Absent("not available here"), read_script)
        return launch

    assert read_command(LOOP).job.framework == "trl"
    plain = read_command("torchrun loop.py")
    assert plain.job.framework == "trl"
    kept = cutting.cut_job(plain, cutting.make_materials(plain, STAGE, 30, False, 2))
    assert kept.sets["max_steps"] == "30" and kept.objective.is_documented


@pytest.mark.parametrize(("field", "form"), [("question", "every"), ("", "prompt_completion")])
def test_rows_that_a_script_makes_have_the_fields_that_it_reads(
    field: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only completions are learned."""
    rows = f"rows = [{{'prompt': row['{field}']}} for row in read()]\n" if field else ""
    text = (
        "from transformers import AutoModelForCausalLM\nfrom trl import SFTConfig, SFTTrainer\n"
        f"model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n{rows}"
        "SFTTrainer(model, args=SFTConfig(output_dir='o', completion_only_loss=True)).train()\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    source = Source("run.sh", "python train.py", "shell")
    script = Source("train.py", text, "python")
    [launch] = read_launches(laptop(), source, lambda name: Absent("not here"), {"train.py": script}.get)
    assert cutting.cut_job(launch, cutting.make_materials(launch, STAGE, 30, False, 2)).form == form


def test_settings_in_a_script_have_no_place_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import argparse\nfrom transformers import AutoModelForCausalLM\nfrom trl import SFTConfig, SFTTrainer\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--model_name_or_path')\n"
        "parser.add_argument('--output_dir')\nargs = parser.parse_args()\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)\n"
        "config = SFTConfig(output_dir=args.output_dir, learning_rate=2e-5)\n"
        "SFTTrainer(model=model, args=config).train()\n"
    )
    source = Source("run.sh", "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --output_dir out", "shell")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(text)
    script = Source("train.py", text, "python")
    [launch] = read_launches(laptop(), source, lambda name: Absent("not here"), {"train.py": script}.get)
    materials = cutting.make_materials(launch, STAGE, 30, False, 2)
    own = cutting.cut_launch(launch, cutting.cut_job(launch, materials), {}, STAGE, materials)
    assert "train.py --model_name_or_path /stage/models/Qwen2.5-0.5B" in own.command


def test_a_loop_is_known_by_its_source_and_needs_no_option_for_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that only evaluates is none."""
    command = "python loop.py --model Qwen/Qwen2.5-0.5B --data data/alpaca.json"
    text = "import transformers\nloss = model(**batch).loss\nloss.backward()\n"
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(text)
    assert "--data /stage/array/train.json" in cut(command).command
    Path("judge.py").write_text(text.replace("loss.backward()", "print(loss)"))
    assert read(command.replace("loop", "judge")) == []


def test_a_loop_whose_source_loads_its_model_needs_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is of the class that the source names; a loop around something else is none."""
    text = (
        "from transformers import AutoModelForCausalLM\nNAME = 'Qwen/Qwen2.5-0.5B'\n"
        "model = AutoModelForCausalLM.from_pretrained(NAME)\nmodel(**batch).loss.backward()\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(text)
    [launch] = read("python loop.py")
    assert (launch.job.trainer, launch.job.model) == ("loop", "Qwen/Qwen2.5-0.5B")
    for name, loader in (("gan", "make_generator"), ("unet", "UNet2DConditionModel.from_pretrained")):
        Path(f"{name}.py").write_text(text.replace("AutoModelForCausalLM.from_pretrained", loader))
        assert read(f"python {name}.py") == []


def first_rows() -> tuple[ReadLaunch, list[dict[str, Any]]]:
    launch = read("python loop.py")[0]
    return launch, list(iter_first_rows(launch, ""))


def test_conversations_have_the_turns_of_the_launchs_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the script reads nothing else of a row, and the rows are more than a question and its answer."""
    kinds = [["user", "assistant"], ["user", "assistant", "tool", "assistant"]]
    rows = [{"messages": [{"role": own, "content": "x"} for own in kind]} for kind in (*kinds, ["user"])]
    text = (
        "from transformers import AutoModelForCausalLM\nfrom datasets import load_dataset\n"
        "rows = load_dataset('json', data_files='rows.jsonl')\nmodel = AutoModelForCausalLM.from_pretrained('m')\n"
        "for row in rows:\n    model(encode(row['messages'])).loss.backward()\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(text)
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read_turns(*first_rows()) == kinds
    documents = make_documents(9, 0, kinds)
    assert {tuple(who for who, _ in own["turns"]) for own in documents} == {*map(tuple, kinds)}
    assert all(words for own in documents for _, words in own["turns"])
    Path("loop.py").write_text(text.replace("encode(", "encode(row['question'], "))
    assert read_turns(*first_rows()) == []


def test_answers_repeat_their_prompt_as_in_the_launchs_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without such rows, or if only some repeat it, the synthetic ones have it once."""
    text = (
        "from transformers import AutoModelForCausalLM\nfrom datasets import load_dataset\n"
        "rows = load_dataset('json', data_files='rows.jsonl')\nmodel = AutoModelForCausalLM.from_pretrained('m')\n"
        "for row in rows:\n    model(encode(row['chosen'])).loss.backward()\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(text)
    rows = [{"prompt": f"{n} ?", "chosen": f"{n} ? yes", "rejected": "no"} for n in range(4)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert has_text_pairs(first_rows()[1])
    prefixes = read_prefixes(first_rows()[1])
    assert prefixes == {"chosen": "prompt"}
    made = [{"prompt": "w3 ", "chosen": "w4", "rejected": "w5"}]
    (own,), _ = fit_rows(made, {"form": "every", "prefixes": prefixes})
    assert (own["prompt"], own["chosen"], own["rejected"]) == ("w3 ", "w3 w4", "w5")
    weights = [{**row, "weight": n / 2, "kind": "ab"[n % 2]} for n, row in enumerate(rows)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in weights))
    Path("loop.py").write_text(text.replace("(row['chosen'])", "(row['chosen'], row['weight'], row['kind'])"))
    values = read_values(*first_rows())
    assert values == {"weight": [0.0, 0.5, 1.0, 1.5], "kind": ["a", "b", "a", "b"]}
    rows_made, _ = fit_rows([{"text": "w3", "weight": ""}] * 5, {"form": "every", "values": {**values, "text": [1]}})
    assert [row["weight"] for row in rows_made] == [0.0, 0.5, 1.0, 1.5, 0.0] and rows_made[0]["text"] == "w3"
    _, answers = make_data(4, 0, "answers")
    labels = {"label": ["false", "true", "false"]}
    answers, _ = fit_rows(answers, {"form": "answers", "columns": ["label"], "values": labels})
    assert [row["label"] for row in answers[:4]] == ["true", "false"] * 2 and answers[0]["prompt"] == answers[1][
        "prompt"
    ]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in (*rows, {**rows[0], "chosen": "yes"})))
    assert read_prefixes(first_rows()[1]) == {}


def test_labels_on_turns_that_the_model_does_not_write_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that leaves out nothing, or all but the last answer, is the author's choice."""

    def find(*learned: str, first: bool = False, speaker: str = "user") -> int:
        turns = ["user", "assistant", "tool", "assistant", "user", "assistant"]
        seen = [(who, who in learned and (first or n > 0)) for n, who in enumerate(turns) for _ in range(4)]
        monkeypatch.setattr(batch, "_list_learned", lambda _: [seen] * 2)
        evidence: Any = None
        return len(list(batch._find_learned_speakers(evidence, {speaker})))

    assert find("assistant", "user") == find("assistant", "tool", speaker="tool") == 1
    assert find("assistant") == find("assistant", "tool") == find("assistant", "user", first=True) == 0


def test_the_first_folder_of_a_model_is_the_launchs_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys\n")
    Path("own").mkdir()
    Path("own", "config.json").write_text("{}")
    (launch,) = read("python train.py data own --lr 1e-4 --data rows.jsonl")
    assert _find_model_folder(launch) == "own"
    (launch,) = read("python train.py data own --lr 1e-4 --model Qwen/Qwen2.5-0.5B")
    assert _find_model_folder(launch) == ""


@pytest.mark.parametrize(
    ("gone", "name"), [("--data data/alpaca.json ", "data"), ("--model Qwen/Qwen2.5-0.5B ", "model")]
)
def test_what_no_option_names_is_the_rehearsals_own(gone: str, name: str) -> None:
    launch = cut(LOOP.replace(gone, ""))
    assert any(remark.startswith(f"no option names the {name}: ") for remark in launch.cut.remarks)
    assert launch.cut.environ["ATTNCHECK_MODEL"] == "/stage/model"


@pytest.mark.parametrize(
    "text",
    [
        "python tokenize_rows.py --model Qwen/Qwen2.5-0.5B --data data.json --out rows",
        "python serve.py --model Qwen/Qwen2.5-0.5B --max_length 4096",
        "./train --model x --data y --lr 1e-5 --out z",
    ],
)
def test_what_does_not_train_is_left_alone(text: str) -> None:
    assert read(text) == []


def test_a_trainer_that_is_known_is_rehearsed_alone() -> None:
    (launch,) = read(f"{LOOP}\ntrl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --output_dir out\n")
    assert launch.recognised.framework.name == "trl"


@pytest.mark.parametrize(
    ("parser", "framework"),
    [
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()",
            "script",
        ),
        ("from trl import SFTConfig, TrlParser\nTrlParser((SFTConfig,)).parse_args_and_config()", "trl"),
    ],
)
def test_a_script_may_have_the_name_of_a_trainers(
    parser: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sft.py` is TRL's example, and what many call their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sft.py").write_text(parser)
    options = "--model_name_or_path x --dataset_name y --learning_rate 2e-5 --output_dir out"
    (launch,) = read(f"accelerate launch sft.py {options}")
    assert launch.recognised.framework.name == framework


def test_lint_says_nothing_of_a_loop() -> None:
    request = Request((Source("run.sh", LOOP, "shell"),), skip_unknown=True)
    report = lint.run(laptop(), request, lambda name: Absent("not available here"), lambda path: None)
    assert not report.findings and not launches_of(report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_materials(tmp_path_factory.mktemp("materials"))


PACKED = "--packing"
MEANS = ("", "mean_of_batches", "mean_of_rows", "mean_of_documents")
FACTORS = ("not_divided_by_accumulation", "sum", "times_seven")
END_TO_END = ("cache", "", "positions", "shift")
FOUND = {
    "": (),
    "cache": ("ATN432", "attend to earlier documents in the row"),
    "positions": ("ATN432", "attend to earlier documents in the row"),
    "shift": ("ATN433", "the loss does not predict the next token: the loss is"),
}


@pytest.mark.parametrize(
    "fault", [name if name in ("mean_of_rows",) else pytest.param(name, marks=pytest.mark.nightly) for name in MEANS]
)
def test_any_mean_may_be_meant(fault: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    results = rehearse(server, folder, tmp_path / "watch", PACKED, fault, objective=UNDOCUMENTED)
    assert list_failures(results) == {}
    assert {name: judge_result(results[name]) for name in ("loss", "gradients")} == {
        "loss": "pass",
        "gradients": "pass",
    }


@pytest.mark.parametrize(
    "fault", [name if name in ("times_seven",) else pytest.param(name, marks=pytest.mark.nightly) for name in FACTORS]
)
def test_a_factor_is_told_and_not_judged(fault: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    results = rehearse(server, folder, tmp_path / "watch", PACKED, fault, objective=UNDOCUMENTED)
    assert list_failures(results) == {} and judge_result(results["loss"]) == "warn", results["loss"]
    assert judge_result(results["gradients"]) == "pass"


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "count"), [("divided_by_ranks", 1), ("times_seven", 0)])
def test_a_loss_that_is_divided_by_the_ranks_is_named(
    fault: str, count: int, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    result = rehearse(server, folder, tmp_path / "watch", "", fault, 2, objective=UNDOCUMENTED)["loss"]
    assert judge_result(result) == "warn" and result.warnings[0].count("one over the number of ranks") == count


@pytest.mark.parametrize(("fault", "codes"), [("", []), ("steps_around_the_scaler", ["ATN433"])])
def test_a_step_with_scaled_gradients_is_an_error(
    fault: str, codes: list[str], server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    results = rehearse(server, folder, tmp_path / "watch", "--reduction scaler", fault, objective=UNDOCUMENTED)
    assert list(list_failures(results)) == codes
    assert not codes or "not scaler.step(optimizer)" in results["loss"].violations[0]


def test_a_number_of_tokens_is_no_scalers_factor() -> None:
    """A sum over rows of 256 tokens is near a power of two times their mean; a GradScaler begins with 2**16."""
    assert is_scaled(2.0**16) and is_scaled(2.0**15) and not any(map(is_scaled, (0.0, 1.0, 1023.0, 2048.0, 1 / 1024)))


@pytest.mark.nightly
def test_another_loss_is_not_judged(server: ForkServer, folder: Path, tmp_path: Path) -> None:
    results = rehearse(server, folder, tmp_path / "watch", PACKED, "another_loss", objective=UNDOCUMENTED)
    assert {"loss": "skipped", "gradients": "skipped", "documents": "pass"}.items() <= {
        name: judge_result(result) for name, result in results.items()
    }.items()


@pytest.mark.nightly
def test_weights_of_rows_may_be_meant(server: ForkServer, folder: Path, tmp_path: Path) -> None:
    results = rehearse(server, folder, tmp_path / "watch", "", "rows_weighted", objective=UNDOCUMENTED)
    assert list_failures(results) == {} and results["gradients"].reason == OWN_WEIGHTS


@pytest.mark.parametrize("is_mean", [True, False])
def test_the_value_of_a_loss_proves_nothing_if_pairs_are_compared(
    is_mean: bool, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    objective = replace(UNDOCUMENTED, is_mean=is_mean)
    results = rehearse(server, folder, tmp_path / "watch", PACKED, "value_by_chance", objective=objective)
    verdicts = {name: judge_result(results[name]) for name in ("loss", "gradients")}
    unjudged = {"loss": "skipped", "gradients": "skipped"}
    assert verdicts == ({"loss": "pass", "gradients": "fail"} if is_mean else unjudged)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "check", "pattern"),
    [
        ("one_stream", "documents", "cut from one stream"),
        ("mean_of_positions", "loss", "divided by all its positions"),
        ("head_alone_trained", "update", "1 of 21 parameters are trained, without an adapter"),
    ],
)
def test_what_its_author_may_mean_is_a_warning(
    fault: str, check: str, pattern: str, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    results = rehearse(server, folder, tmp_path / "watch", "", fault, objective=UNDOCUMENTED)
    assert list_failures(results) == {}
    assert judge_result(results[check]) == "warn" and pattern in deciding_reason(results[check])


@pytest.mark.nightly
@pytest.mark.parametrize("makes_rows", [True, False])
def test_a_trainer_whose_script_cuts_a_stream_is_right(
    makes_rows: bool, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    """As transformers' run_clm.py does: its loss is documented, its rows are the author's. TRL documents rows too."""
    results = rehearse(server, folder, tmp_path / "watch", "", "one_stream", makes_rows=makes_rows)
    assert judge_result(results["documents"]) == ("warn" if makes_rows else "fail")


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["one_stream", "one_stream_with_few_parameters"])
def test_gradients_of_a_stream_in_half_precision_are_not_those_of_its_documents(
    fault: str, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    """The loss is nearly that of isolated documents."""
    results = rehearse(server, folder, tmp_path / "watch", "--bf16", fault, objective=UNDOCUMENTED)
    assert list_failures(results) == {} and judge_result(results["loss"]) == "pass"
    assert judge_result(results["documents"]) == "warn" and results["gradients"].reason == AS_STREAM


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "options", "code"),
    [
        ("shifted_twice", PACKED, "ATN433"),
        ("not_shifted", PACKED, "ATN433"),
        ("mask_of_ones", PACKED, "ATN432"),
        ("positions_doubled", PACKED, "ATN432"),
        ("labels_shifted", PACKED, "ATN431"),
        ("layer_detached", PACKED, "ATN434"),
        ("gradients_zeroed_between_batches", PACKED, "ATN434"),
    ],
)
def test_what_no_author_means_is_named(
    fault: str, options: str, code: str, server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    results = rehearse(server, folder, tmp_path / "watch", options, fault, objective=UNDOCUMENTED)
    assert code in list_failures(results), {name: result.reason for name, result in results.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", END_TO_END)
def test_a_loop_is_rehearsed_as_it_is_started(
    fault: str, attncheck: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, marker: str
) -> None:
    """Packed documents that run on are named; what the loop saves goes if nothing of the user's is."""
    shutil.copy(SCRIPTS / "loop.py", tmp_path)
    (tmp_path / "run.sh").write_text(LOOP)
    environment = make_environment(tmp_path_factory, PLANTED_FAULT=fault, ON_CUDA="1")
    status, report = rehearse_command(attncheck, environment, "run.sh")
    launch = report["rehearsal"]["launches"][0]
    assert any(remark.startswith("what the script places on CUDA") for remark in launch["remarks"])
    assert (launch["framework"], launch["trainer"], launch["ranks"]) == ("script", "loop", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop.py", "run.sh"]
    assert [finding["code"] for finding in report["findings"]] == list(FOUND[fault][:1])
    assert status == (1 if fault else 0) and launch["steps"] >= 30
    if fault:
        finding = report["findings"][0]
        assert FOUND[fault][1] in finding["message"]
        fixes = [fix["text"] for fix in finding["fixes"] if fix["proven"]]
        assert fixes == (["model.config.use_cache = False"] if fault == "cache" else [])
        assert report["rehearsal"]["corrected"] == []  # the launch is right: a line of the script is to be changed


@pytest.mark.parametrize(("checks", "is_run"), [(("rehearsal",), True), ((), False)])
def test_a_gate_starts_a_loop_only_where_it_is_asked_to(
    checks: tuple[Check, ...], is_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trainer that lint knows all that it does is known; a level alone starts no other program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w').close()")
    policy = Policy(checks=checks, level=0 if checks else 3)
    source = Source(COMMAND, LOOP, "shell")
    target = ExecutionTarget(sys.executable, "cpu", 60.0)
    runner = CheckRunner(policy, target, lambda text: None, (source,), Inputs((source,)))
    reports: list[Report] = []
    with contextlib.suppress(NothingLinted):
        reports += runner.run("rehearsal", math.inf)
    sections = [report.section(RehearsalSection) for report in reports]
    written = [path for section in sections if section for launch in section.launches for path in wrote(launch)]
    assert (str(tmp_path / "started") in written) == is_run and not (tmp_path / "started").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        ("", set()),
        ("mean_of_ranks", set()),
        ("mean_of_groups", set()),
        ("ranks_apart", {"ATN434"}),
        ("same_rows_on_every_rank", {"ATN431"}),
    ],
)
def test_two_ranks_of_a_loop(fault: str, codes: set[str], server: ForkServer, folder: Path, tmp_path: Path) -> None:
    results = rehearse(server, folder, tmp_path / "watch", PACKED, fault, 2, UNDOCUMENTED)
    assert set(list_failures(results)) == codes, {name: result.violations for name, result in results.items()}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "fault", "codes"),
    [("plain", "", []), ("plain", "shift", ["ATN431"]), ("turns", "", []), ("turns", "first", ["ATN431"])],
)
def test_a_loop_with_everything_in_its_source_is_rehearsed(
    script: str, fault: str, codes: list[str], attncheck: Run, tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory, marker: str,
) -> None:  # fmt: skip
    """Its rows are replaced, also if they exist; conversations keep their turns."""
    shutil.copy(SCRIPTS / f"{script}.py", tmp_path)
    (tmp_path / "run.sh").write_text(f"python {script}.py\n")
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "tool", "assistant", "user", "assistant")]
    if script == "turns":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "rows.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    environment = make_environment(tmp_path_factory, PLANTED_FAULT=fault)
    status, report = rehearse_command(attncheck, environment, "--no-fix", "run.sh")
    launch = report["rehearsal"]["launches"][0]
    assert (launch["trainer"], launch["model"], status) == ("loop", "qwen2", 1 if fault else 0)
    assert [finding["code"] for finding in report["findings"]] == codes
