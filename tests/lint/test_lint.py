"""`attncheck lint` as a user meets it: commands, scripts, files, standard input, what is corrected and written."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.errors import BadUsage, Unanswered
from attncheck.core.facts import Known
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Snapshot
from attncheck.lint import launches as launching
from attncheck.lint import run
from tests import snapshots as s
from tests.conftest import Run
from tests.lint import launches

ON = ("--target", "h100x8,torch=2.11,transformers=5.15.0,flash-attn=2.8.3,ring-flash-attn=0.1.8,driver=580")
SFT = """\
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
    path.write_text(SFT.format(model=model))
    return path


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def judged(text: str, snapshot: Snapshot | None = None, **fields: Any) -> Report:
    source = Source("run.sh", text, "shell")
    here = snapshot or launches.make_environments()["h200"]
    return run.run(here, run.Request((source,), **fields), launches.read_model, launches.read_no_file)


def test_a_script_is_judged_and_corrected_and_never_run(attncheck: Run, script: Path) -> None:
    done = attncheck("lint", "run.sh", *ON, "--format", "json")
    report = document(done)
    assert done.returncode == 1 and done.stderr == ""
    assert {f["code"] for f in report["findings"] if f["severity"] == "error"} == {"ATN452", "ATN570", "ATN572"}
    by_code = {f["code"]: f for f in report["findings"]}
    assert by_code["ATN570"]["fixes"][0]["text"] == "--ds.attn_implementation flash_attention_2"
    assert by_code["ATN572"]["fixes"][0]["text"] == "--ds.ring_attn_head_stride 4"
    assert all(by_code[code]["fixes"][0]["proven"] for code in ("ATN570", "ATN572"))
    assert by_code["ATN572"]["locations"] == [{"source": "run.sh", "line": 12, "column": 4}]
    said = report["lint"]["launches"][0]
    changed = [line for line in said["diff"].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-   --ds.ring_attn_head_stride 8 \\",
        "-   --ds.attn_implementation flash_attention_3 \\",
        "+   --ds.ring_attn_head_stride 4 \\",
        "+   --ds.attn_implementation flash_attention_2 \\",
    ]
    assert "--ds.attn_implementation flash_attention_2 --data.dataset data.jsonl" in said["command"]
    assert not (script.parent / "ran").exists()


def test_the_text_ends_with_the_diff_and_one_command(attncheck: Run, script: Path) -> None:
    done = attncheck("lint", "run.sh", *ON)
    assert done.returncode == 1 and "\x1b" not in done.stdout
    assert "corrected run.sh:" in done.stdout and "\n+   --ds.ring_attn_head_stride 4 \\\n" in done.stdout
    pasted = done.stdout.partition("to paste:\n")[2].splitlines()[0]
    again = attncheck("lint", *ON, "--", *pasted.split())
    assert again.returncode == 0, again.stdout
    assert "corrected" not in again.stdout


def test_harmless_edits_are_written_and_the_rest_is_left(attncheck: Run, script: Path) -> None:
    before = script.read_text()
    done = attncheck("lint", "run.sh", *ON, "--write")
    assert "wrote run.sh" in done.stderr
    wanted = before.replace("stride 8", "stride 4").replace("flash_attention_3", "flash_attention_2")
    assert script.read_text() == wanted
    assert attncheck("lint", "run.sh", *ON).returncode == 0


def test_what_would_change_the_training_is_shown_and_not_written(attncheck: Run, script: Path) -> None:
    text = script.read_text().replace("flash_attention_3", "flash_attention_2").replace("stride 8", "stride 4")
    script.write_text(text.replace("--ds.ring_attn_size 2", "--ds.ring_attn_size 3"))
    done = attncheck("lint", "run.sh", *ON, "--write")
    assert "+   --ds.ring_attn_size 2 \\" in done.stdout
    assert "--ds.ring_attn_size 3" in script.read_text()
    assert "wrote" not in done.stderr


def test_a_yaml_file_keeps_its_comments_and_layout(attncheck: Run, tmp_path: Path) -> None:
    text = "# mine\nbase_model: NousResearch/Llama\nsequence_len:   2048   # long\nflash_attention: true\n\nlora_r: 2\n"
    (tmp_path / "a.yaml").write_text(text)
    done = attncheck("lint", "a.yaml", "--framework-version", "0.19.0", *ON, "--format", "json")
    assert {f["code"] for f in document(done)["findings"]} & {"ATN440", "ATN442"}
    attncheck("lint", "a.yaml", "--framework-version", "0.19.0", *ON, "--write")
    after = (tmp_path / "a.yaml").read_text()
    assert after.startswith("# mine\nbase_model: NousResearch/Llama\nsequence_len:   2048   # long\n")


def test_standard_input_a_command_and_files_together(attncheck: Run, script: Path) -> None:
    command = ("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=8")
    done = attncheck("lint", "run.sh", "-", *ON, "--format", "json", "--", *command, input=script.read_text())
    sources = [said["job"]["location"]["source"] for said in document(done)["lint"]["launches"]]
    assert sources == ["run.sh", "-", "command line"]
    assert attncheck("lint", "-", *ON, input=script.read_text()).returncode == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "give a launch script"),
        (("--",), 2, "nothing stands after --"),
        (("missing.sh",), 2, "No such file"),
        (("--framework", "openrlfh", "--", "python", "x.py"), 2, "is not one of"),
        (("--framework-version", "new", "--", "python", "x.py"), 2, "is no version"),
        (("--target", "h10", "--", "python", "x.py"), 2, "did you mean h100?"),
        (("--format", "yaml", "--", "python", "x.py"), 2, "is not one of"),
        (("--output", "sarif", "--", "python", "x.py"), 2, "--output"),
        (("--", "echo", "hello"), 3, "starts no training that attncheck knows"),
        (("binary",), 2, "binary"),
        (("broken.yaml",), 2, "broken.yaml"),
    ],
)
def test_wrong_use_is_one_clear_line(
    attncheck: Run, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "broken.yaml").write_text("a: [1, 2\nb: }\n")
    done = attncheck("lint", *words)
    assert done.returncode == code
    assert says in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_files_that_start_nothing_are_a_note_or_passed_over(attncheck: Run, script: Path) -> None:
    (script.parent / "other.yaml").write_text("services:\n  web: 1\n")
    report = document(attncheck("lint", "run.sh", "other.yaml", *ON, "--format", "json"))
    assert [f["subject"] for f in report["findings"] if f["code"] == "ATN454"] == ["other.yaml"]
    quiet = attncheck("lint", "other.yaml", "--skip-unknown", *ON)
    assert quiet.returncode == 0


def test_a_fix_that_is_not_kept_is_not_called_proven() -> None:
    text = "deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --ds.packing_samples --ds.attn_implementation sdpa"
    report = judged(text + " --model.model_name_or_path Qwen/Qwen2.5-7B")
    finding = next(f for f in report.findings if f.code == "ATN442")
    assert any(fix.proven for fix in finding.fixes) == (launches_of(report)[0].diff != "")


def test_on_old_gpus_the_way_out_is_whole() -> None:
    text = "deepspeed --module openrlhf.cli.train_sft --ds.packing_samples --ds.param_dtype bf16 --train.batch_size 64"
    report = judged(text + " --model.model_name_or_path Qwen/Qwen2.5-7B", launches.make_environments()["v100x8"])
    command = launches_of(report)[0].command
    assert "--ds.attn_implementation sdpa" in command and "--ds.packing_samples" not in command
    again = judged(command, launches.make_environments()["v100x8"])
    assert not {"ATN206", "ATN442"} & {f.code for f in again.findings}


def test_the_models_own_numbers_count_and_their_absence_is_said() -> None:
    text = "deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --ds.packing_samples --model.model_name_or_path {}"
    hybrid = judged(text.format("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert "ATN444" in {f.code for f in hybrid.findings}
    unknown = judged(text.format("nobody/nothing"))
    note = next(f for f in unknown.findings if f.code == "ATN448")
    assert any("nobody/nothing is not in the cache" in line for line in note.evidence)
    hidden = judged(text.format("$MODEL"))
    assert any("without running it" in line for f in hidden.findings for line in f.evidence)


def test_several_launches_of_a_script_are_judged_each() -> None:
    line = "deepspeed --num_gpus {} --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B\n"
    report = judged(line.format(1) + line.format(4) + line.format(8))
    assert len(launches_of(report)) == 3
    assert sorted(f.locations[0].line for f in report.findings if f.code == "ATN447") == [2, 3]


def test_rules_of_what_a_launch_does_not_use_are_silent() -> None:
    here = s.without_packages(launches.make_environments()["h200"], "ring-flash-attn", "liger-kernel")
    text = "deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B"
    assert not [f for f in judged(text, here).findings if f.code in ("ATN130", "ATN508", "ATN409")]
    ringed = judged(text + " --ds.packing_samples --ds.ring_attn_size 1", here)
    assert not [f for f in ringed.findings if "ring-flash-attn" in f.message]


def test_select_and_ignore_hold(attncheck: Run, script: Path) -> None:
    only = document(attncheck("lint", "run.sh", *ON, "--select", "ATN572", "--format", "json"))
    assert {f["code"] for f in only["findings"]} == {"ATN572"}
    assert only["lint"]["launches"][0]["diff"].count("\n-   --") == 1
    none = attncheck("lint", "run.sh", *ON, "--ignore", "ATN57,ATN452")
    assert none.returncode == 0


def test_documents_for_ci_name_the_line(attncheck: Run, script: Path) -> None:
    done = attncheck(
        "lint", "run.sh", *ON, "--output", "sarif=a.sarif", "--output", "junit=a.xml", "--format", "github"
    )
    assert done.stdout.startswith("::error file=run.sh,line=")
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
    command = [sys.executable, "-c", code, "lint", str(script), *ON]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr


def test_a_file_that_changed_meanwhile_is_not_written(script: Path) -> None:
    source = launching.read_source(str(script))
    here = replace(launches.make_environments()["h200"], model=Known(s.QWEN2_MODEL))
    report = run.run(here, run.Request((source,)), launches.read_model, launches.read_no_file)
    script.write_text(script.read_text() + "# one more line\n")
    with pytest.raises(BadUsage, match="changed since it was read"):
        list(run.write(report, lambda name: source))


def test_a_framework_may_be_named(tmp_path: Path) -> None:
    source = Source("a.yaml", "model_name_or_path: x\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\n", "yaml")
    here = launches.make_environments()["h200"]
    read = run.run(here, run.Request((source,), framework="llamafactory"), launches.read_model, launches.read_no_file)
    assert launches_of(read)[0].job.framework == "llamafactory"
    with pytest.raises(Unanswered):
        run.run(here, run.Request((source,), framework="openrlhf"), launches.read_model, launches.read_no_file)
