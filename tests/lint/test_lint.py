"""`attncheck lint` as a user meets it: commands, scripts, files, standard input, what is corrected and written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.queries import OFFLINE_VARIABLES
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.conftest import Run
from tests.lint import launches
from tests.own_environment import make_own_environment

TARGET_OPTIONS = (
    "--target",
    "h100x8,torch=2.11,transformers=5.15.0,flash-attn=2.8.3,flash-attn-3=none,ring-flash-attn=0.1.8,driver=580",
)
SFT_SCRIPT = """\
#!/bin/bash
# the job
set -x
touch ran  # nothing of this is run
MODEL={model}
deepspeed --num_gpus 8 --module openrlhf.cli.train_sft \\
   --model.model_name_or_path $MODEL \\
   --train.batch_size 256 \\
   --train.micro_batch_size 2 \\
   --ds.packing_samples \\
   --ds.ring_attn_size 2 \\
   --ds.ring_attn_head_stride 8 \\
   --ds.attn_implementation flash_attention_3 \\
   --data.dataset data.jsonl
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with 28 query and 4 key/value heads."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(launches.load_model_configs()["Qwen/Qwen2.5-7B"]))
    return folder


@pytest.fixture
def script(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(SFT_SCRIPT.format(model=model))
    return path


def parse_report(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def lint_text(text: str, snapshot: Snapshot | None = None, **fields: Any) -> Report:
    source = Source("run.sh", text, "shell")
    snapshot = snapshot or launches.make_environments()["h200"]
    return run.run(snapshot, Request((source,), **fields), launches.read_model, launches.read_no_file)


def test_a_script_is_judged_and_corrected_and_never_run(attncheck: Run, script: Path) -> None:
    result = attncheck("lint", "run.sh", *TARGET_OPTIONS, "--format", "json")
    report = parse_report(result)
    assert result.returncode == 1 and result.stderr == ""
    assert {f["code"] for f in report["findings"] if f["severity"] == "error"} == {"ATN452", "ATN570", "ATN572"}
    by_code = {f["code"]: f for f in report["findings"]}
    assert by_code["ATN570"]["fixes"][0]["text"] == "--ds.attn_implementation flash_attention_2"
    assert by_code["ATN572"]["fixes"][0]["text"] == "--ds.ring_attn_head_stride 4"
    assert all(by_code[code]["fixes"][0]["proven"] for code in ("ATN570", "ATN572"))
    assert by_code["ATN572"]["locations"] == [
        {"source": "run.sh", "line": 12, "column": 4, "end_line": 12, "end_column": 32}
    ]
    launch = report["lint"]["launches"][0]
    changed = [line for line in launch["diff"].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-   --ds.ring_attn_head_stride 8 \\",
        "-   --ds.attn_implementation flash_attention_3 \\",
        "+   --ds.ring_attn_head_stride 4 \\",
        "+   --ds.attn_implementation flash_attention_2 \\",
    ]
    assert "--ds.attn_implementation flash_attention_2 --data.dataset data.jsonl" in launch["command"]
    assert not (script.parent / "ran").exists()


def test_the_text_ends_with_the_diff_and_one_command(attncheck: Run, script: Path) -> None:
    result = attncheck("lint", "run.sh", *TARGET_OPTIONS)
    assert result.returncode == 1 and "\x1b" not in result.stdout
    assert "Corrected run.sh:" in result.stdout and "\n    +   --ds.ring_attn_head_stride 4 \\\n" in result.stdout
    pasted = result.stdout.partition("To paste:\n")[2].splitlines()[0]
    second = attncheck("lint", *TARGET_OPTIONS, "--", *pasted.split())
    assert second.returncode == 0, second.stdout
    assert "Corrected" not in second.stdout


def test_harmless_edits_are_written_and_the_rest_is_left(attncheck: Run, script: Path) -> None:
    before = script.read_text()
    result = attncheck("lint", "run.sh", *TARGET_OPTIONS, "--write")
    assert "wrote run.sh" in result.stderr
    expected = before.replace("stride 8", "stride 4").replace("flash_attention_3", "flash_attention_2")
    assert script.read_text() == expected
    assert attncheck("lint", "run.sh", *TARGET_OPTIONS).returncode == 0


def test_what_would_change_the_training_is_shown_and_not_written(attncheck: Run, script: Path) -> None:
    text = script.read_text().replace("flash_attention_3", "flash_attention_2").replace("stride 8", "stride 4")
    script.write_text(text.replace("--ds.ring_attn_size 2", "--ds.ring_attn_size 3"))
    result = attncheck("lint", "run.sh", *TARGET_OPTIONS, "--write")
    assert "+   --ds.ring_attn_size 2 \\" in result.stdout
    assert "--ds.ring_attn_size 3" in script.read_text()
    assert "wrote" not in result.stderr


def test_a_yaml_file_keeps_its_comments_and_layout(attncheck: Run, tmp_path: Path) -> None:
    text = "# mine\nbase_model: NousResearch/Llama\nsequence_len:   2048   # long\nflash_attention: true\n\nlora_r: 2\n"
    (tmp_path / "a.yaml").write_text(text)
    result = attncheck("lint", "a.yaml", "--framework-version", "0.19.0", *TARGET_OPTIONS, "--format", "json")
    assert {f["code"] for f in parse_report(result)["findings"]} & {"ATN440", "ATN442"}
    attncheck("lint", "a.yaml", "--framework-version", "0.19.0", *TARGET_OPTIONS, "--write")
    written = (tmp_path / "a.yaml").read_text()
    assert written.startswith("# mine\nbase_model: NousResearch/Llama\nsequence_len:   2048   # long\n")


def test_standard_input_a_command_and_files_together(attncheck: Run, script: Path) -> None:
    command = ("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=8")
    result = attncheck(
        "lint", "run.sh", "-", *TARGET_OPTIONS, "--format", "json", "--", *command, input=script.read_text()
    )
    sources = [launch["job"]["location"]["source"] for launch in parse_report(result)["lint"]["launches"]]
    assert sources == ["run.sh", "-", "command line"]
    assert attncheck("lint", "-", *TARGET_OPTIONS, input=script.read_text()).returncode == 1


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ((), 2, "give a launch script"),
        (("--",), 2, "there is no command after --"),
        (("missing.sh",), 2, "No such file"),
        (("--framework", "openrlfh", "--", "python", "x.py"), 2, "is not one of"),
        (("--framework-version", "new", "--", "python", "x.py"), 2, "is not a version"),
        (("--target", "h10", "--", "python", "x.py"), 2, "did you mean h100?"),
        (("--format", "yaml", "--", "python", "x.py"), 2, "is not one of"),
        (("--output", "sarif", "--", "python", "x.py"), 2, "--output"),
        (("--framework", "trl", "--", "echo", "hello"), 3, "starts no trl"),
        (("binary",), 2, "binary"),
        (("broken.yaml",), 2, "broken.yaml"),
    ],
)
def test_wrong_use_is_one_clear_line(
    attncheck: Run, tmp_path: Path, argv: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "broken.yaml").write_text("a: [1, 2\nb: }\n")
    result = attncheck("lint", *argv)
    assert result.returncode == code
    assert message in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""


def test_files_that_start_nothing_are_a_note_or_passed_over(attncheck: Run, script: Path) -> None:
    (script.parent / "other.yaml").write_text("services:\n  web: 1\n")
    report = parse_report(attncheck("lint", "run.sh", "other.yaml", *TARGET_OPTIONS, "--format", "json"))
    assert [f["subject"] for f in report["findings"] if f["code"] == "ATN454"] == ["other.yaml"]
    assert report["lint"]["not_linted"] == ["other.yaml"]
    quiet = attncheck("lint", "other.yaml", "--skip-unknown", *TARGET_OPTIONS)
    assert quiet.returncode == 0 and "other.yaml" not in quiet.stdout


SWIFT = "model: m\nrlhf_type: grpo\ntrain_type: lora\noutput_dir: o\nbeta: 0.1\ndataset: d\n"


@pytest.mark.parametrize(
    ("text", "is_linted"),
    [
        (SWIFT + "framework: ms-swift\nadapter: a\n", False),
        (SWIFT + "adapter: a\n", True),  # one wrong key is a fault of the user's
        (SWIFT, True),
        (SWIFT + "adapter: a\nmax_lengths: 8\n", True),  # misspelled
    ],
)
def test_a_file_with_many_keys_that_no_release_knows_is_another_programs(
    attncheck: Run, tmp_path: Path, text: str, is_linted: bool
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    report = parse_report(attncheck("lint", "c.yaml", *TARGET_OPTIONS, "--format", "json"))
    assert bool(report["lint"]["launches"]) == is_linted
    notes = [finding for finding in report["findings"] if finding["code"] == "ATN454"]
    assert [("adapter, framework" in note["evidence"][0]) for note in notes] == [True] * (not is_linted)
    asked = parse_report(attncheck("lint", "c.yaml", "--framework", "ms-swift", *TARGET_OPTIONS, "--format", "json"))
    assert asked["lint"]["launches"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("DATA=<your path>\ntorchrun mine.py --data $DATA\n", ["ATN441", "ATN454"]),
        ("DATA=path\ntorchrun mine.py --data $DATA\n", ["ATN454"]),
        ("DATA=<your path>\necho $DATA\n", ["ATN454"]),  # no launch
    ],
)
def test_what_bash_refuses_is_an_error_of_a_launch_of_any_program(
    attncheck: Run, tmp_path: Path, text: str, codes: list[str]
) -> None:
    (tmp_path / "run.sh").write_text(text)
    report = parse_report(attncheck("lint", "run.sh", *TARGET_OPTIONS, "--format", "json"))
    assert [finding["code"] for finding in report["findings"]] == codes
    assert report["exit_code"] == (1 if "ATN441" in codes else 0)


@pytest.mark.parametrize("argv", [("other.yaml",), ("other.yaml", "--select", "ATN1"), ("--", "echo", "hello")])
def test_what_starts_no_known_trainer_is_not_linted_and_no_failure(
    attncheck: Run, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    (tmp_path / "other.yaml").write_text("services:\n  web: 1\n")
    result = attncheck("lint", *TARGET_OPTIONS, *argv)
    assert (result.returncode, result.stderr) == (0, "")
    name = "other.yaml" if "other.yaml" in argv else "command line"
    assert result.stdout.startswith("nothing was linted: ")
    assert f"\n-       {name}  not linted: no known trainer was recognised\n" in result.stdout


def test_a_fix_that_is_not_kept_is_not_called_proven() -> None:
    text = "deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --ds.packing_samples --ds.attn_implementation sdpa"
    report = lint_text(text + " --model.model_name_or_path Qwen/Qwen2.5-7B")
    finding = next(f for f in report.findings if f.code == "ATN442")
    assert any(fix.proven for fix in finding.fixes) == (launches_of(report)[0].diff != "")


GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
}


@pytest.mark.parametrize(
    ("requested", "code"), [("flash_attention_2", "ATN313"), ("sdpa", "ATN307"), ("flex_attention", "")]
)
def test_each_fix_is_tried_by_itself_and_proven(
    attncheck: Run, tmp_path: Path, requested: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """eager would store the scores of 64 heads, so it is not offered; sdpa takes no sinks, in any release."""
    for variable in OFFLINE_VARIABLES:  # offline, the kernel of the Hub is missing first
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "config.json").write_text(json.dumps(GPT_OSS))
    target = "sm_121,gpus=1,torch=2.10,transformers=5.5.0,trl=1.0.0,flash-attn=none,kernels=0.12.3"
    launch = ["accelerate", "launch", "--num_processes", "1", "-m", "trl.scripts.sft", "--max_length", "2048", "--bf16"]
    options = ["--model_name_or_path", str(tmp_path), "--dataset_name", "d", "--attn_implementation", requested]
    result = attncheck("lint", "--format", "json", "--target", target, "--", *launch, "True", *options)
    found = [finding for finding in json.loads(result.stdout)["findings"] if finding["severity"] != "note"]
    fixes = [(f["code"], fix["text"], bool(fix["proven"])) for f in found for fix in f["fixes"]]
    assert fixes == ([(code, "--attn_implementation flex_attention", True)] if code else [])


def test_the_fix_of_one_finding_carries_its_proof(attncheck: Run) -> None:
    target = "h100x8,torch=2.8,transformers=4.56.2,flash-attn=none,trl="
    launch = ["accelerate", "launch", "--num_processes", "8", "-m", "trl.scripts.sft", "--model_name_or_path", "m"]
    options = ["--dataset_name", "d", "--attn_implementation", "flash_attention_3", "--packing", "True"]
    reports = [
        json.loads(attncheck("lint", "--format", "json", "--target", target + trl, "--", *launch, *options).stdout)
        for trl in ("0.21.0", "0.23.1")
    ]
    [finding], fixed = ([f for f in report["findings"] if f["code"] == "ATN444"] for report in reports)
    assert finding["fixes"][0]["installs"] == ["trl>=0.23.1,<1"] and finding["fixes"][0]["proven"] and not fixed


def test_on_old_gpus_the_way_out_is_whole() -> None:
    text = "deepspeed --module openrlhf.cli.train_sft --ds.packing_samples --ds.param_dtype bf16 --train.batch_size 64"
    report = lint_text(text + " --model.model_name_or_path Qwen/Qwen2.5-7B", launches.make_environments()["v100x8"])
    command = launches_of(report)[0].command
    assert "--ds.attn_implementation sdpa" in command and "--ds.packing_samples" not in command
    second = lint_text(command, launches.make_environments()["v100x8"])
    assert not {"ATN206", "ATN442"} & {f.code for f in second.findings}


def test_the_models_own_numbers_count_and_their_absence_is_said() -> None:
    text = "deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --ds.packing_samples --model.model_name_or_path {}"
    hybrid_report = lint_text(text.format("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert "ATN444" in {f.code for f in hybrid_report.findings}
    unknown = lint_text(text.format("nobody/nothing"))
    note = next(f for f in unknown.findings if f.code == "ATN448")
    assert any("nobody/nothing is not in the cache" in line for line in note.evidence)
    hidden = lint_text(text.format("$MODEL"))
    assert any("known before it runs" in line for f in hidden.findings for line in f.evidence)


def test_several_launches_of_a_script_are_judged_each() -> None:
    line = "deepspeed --num_gpus {} --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B\n"
    report = lint_text(line.format(1) + line.format(4) + line.format(8))
    assert len(launches_of(report)) == 3
    assert sorted(f.locations[0].line for f in report.findings if f.code == "ATN447") == [2, 3]


def test_rules_of_what_a_launch_does_not_use_are_silent() -> None:
    snapshot = s.without_packages(launches.make_environments()["h200"], "ring-flash-attn", "liger-kernel")
    text = "deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B"
    assert not [f for f in lint_text(text, snapshot).findings if f.code in ("ATN130", "ATN508", "ATN409")]
    ring_report = lint_text(text + " --ds.packing_samples --ds.ring_attn_size 1", snapshot)
    assert not [f for f in ring_report.findings if "ring-flash-attn" in f.message]


def test_select_and_ignore_hold(attncheck: Run, script: Path) -> None:
    selected = parse_report(attncheck("lint", "run.sh", *TARGET_OPTIONS, "--select", "ATN572", "--format", "json"))
    assert {f["code"] for f in selected["findings"]} == {"ATN572"}
    assert selected["lint"]["launches"][0]["diff"].count("\n-   --") == 1
    ignored = attncheck("lint", "run.sh", *TARGET_OPTIONS, "--ignore", "ATN57,ATN452")
    assert ignored.returncode == 0


def test_documents_for_ci_name_the_line(attncheck: Run, script: Path) -> None:
    result = attncheck(
        "lint", "run.sh", *TARGET_OPTIONS, "--output", "sarif=a.sarif", "--output", "junit=a.xml", "--format", "github"
    )
    assert result.stdout.startswith("::error file=run.sh,line=")
    results = json.loads((script.parent / "a.sarif").read_text())["runs"][0]["results"]
    regions = {r["ruleId"]: r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in results}
    assert regions["ATN572"] == 12 and regions["ATN570"] == 13
    assert "ATN572" in (script.parent / "a.xml").read_text()


def test_nothing_heavy_is_imported(script: Path) -> None:
    code = (
        "import sys\nfrom attncheck.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'rich', 'yaml', 'ruamel'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [sys.executable, "-c", code, "lint", str(script), *TARGET_OPTIONS]
    result = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert result.returncode == 0, result.stderr


def test_a_file_that_changed_meanwhile_is_not_written(script: Path) -> None:
    source = read_source(str(script))
    snapshot = replace(launches.make_environments()["h200"], model=Known(s.QWEN2_MODEL))
    report = run.run(snapshot, Request((source,)), launches.read_model, launches.read_no_file)
    script.write_text(script.read_text() + "# one more line\n")
    with pytest.raises(BadUsage, match="changed since it was read"):
        list(run.write_safe_edits(report, lambda name: source))


def test_a_framework_may_be_named(tmp_path: Path) -> None:
    source = Source("a.yaml", "model_name_or_path: x\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\n", "yaml")
    snapshot = launches.make_environments()["h200"]
    report = run.run(snapshot, Request((source,), framework="llamafactory"), launches.read_model, launches.read_no_file)
    assert launches_of(report)[0].job.framework == "llamafactory"
    with pytest.raises(Unanswered):
        run.run(snapshot, Request((source,), framework="openrlhf"), launches.read_model, launches.read_no_file)


def test_in_an_environment_of_its_own_lint_judges_what_the_launch_proves(tmp_path: Path) -> None:
    """As pre-commit and pipx make it: no package is called missing, and one note for two launches says why."""
    programs = make_own_environment(tmp_path / "own")
    launch = "torchrun --nproc-per-node 8 -m openrlhf.cli.train_sft --model.model_name_or_path x --data.dataset y\n"
    flash = launch.replace("\n", " --ds.attn_implementation flash_attention_2\n")
    (tmp_path / "train.sh").write_text(flash + flash.replace("train_sft", "train_dpo"), encoding="utf-8")

    # Started in an active environment, it would examine that one: see attncheck/doctor/probes/interpreter.py.
    environ = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    environ["PATH"] = str(programs)

    def run(*options: str) -> tuple[int, Counter[str]]:
        words = [str(programs / "attncheck"), "lint", "train.sh", *options, "--format", "json"]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        return done.returncode, Counter(finding["code"] for finding in parse_report(done)["findings"])

    assert run() == (0, Counter({"ATN448": 2, "ATN905": 1}))
    assert run("--target", "h100x8") == (0, Counter({"ATN448": 2, "ATN905": 1}))
    code, found = run("--target", "h100x8,torch=2.9,openrlhf=0.11.2,flash-attn=none")
    assert code == 1 and found["ATN452"] == 2, "what is named as missing is missing"
    code, found = run("--python", str(programs / "python"))
    assert code == 1 and found["ATN452"] == 2, "an environment that the user names is the job's"
