"""A configuration file alone: the command of its tree that names it is rehearsed, with the user's own program."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.reading import Request, read_launches_of
from tests.snapshots import laptop

PROGRAM = """
from trl import ModelConfig, SFTConfig, SFTTrainer, ScriptArguments, TrlParser
script, training, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(model.model_name_or_path, args=training, train_dataset=[]).train()
"""
CONFIG = """model_name_or_path: Qwen/Qwen2.5-1.5B
dataset_name: a/b
per_device_train_batch_size: 2
max_length: 512
packing: true
output_dir: out
"""
COMMAND = "accelerate launch --num_processes=2 src/{program}.py --config {path}\n"
README = """
Train it:

```bash
accelerate launch --num_processes=2 \\
    src/sft.py --config recipes/a.yaml
```
"""


def read(files: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> ReadLaunch:
    """Return the launch of recipes/a.yaml, given alone, in a tree of these files."""
    (launch,) = read_tree(files, "recipes/a.yaml", folder, monkeypatch)
    return launch


def read_tree(files: dict[str, str], path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[ReadLaunch]:
    """Return the launches of one of these files, in their tree."""
    tree = {"recipes/a.yaml": CONFIG, "recipes/b.yaml": CONFIG + "seed: 1\n", "src/sft.py": PROGRAM} | files
    for name, text in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    kinds = {".yaml": "yaml", ".sh": "shell", ".py": "python"}

    def read_file(name: str) -> Source | None:
        kind = kinds.get(Path(name).suffix, "shell")
        return Source(name, Path(name).read_text(), kind) if Path(name).is_file() else None  # type: ignore[arg-type]

    request = Request((), lambda name: Absent("not cached"), lambda source: read_file)
    return read_launches_of(laptop(), request, Source(path, tree[path], kinds.get(Path(path).suffix, "shell")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"README.md": README}, "README.md:6:"),
        ({"run.sh": COMMAND.format(program="sft", path="recipes/a.yaml")}, "run.sh:1:"),
        ({"run.sh": COMMAND.format(program="sft", path="/data/me/tree/recipes/a.yaml")}, "run.sh:1:"),
        ({"README.md": README.replace("a.yaml", "b.yaml")}, "README.md:6:"),  # the one program of its folder
        # the nearest one, and scripts before Markdown
        (
            {
                "README.md": README,
                "run.sh": COMMAND.format(program="sft", path="recipes/a.yaml"),
                "recipes/run.sh": "cd ..\n" + COMMAND.format(program="sft", path="recipes/a.yaml"),
            },
            "recipes/run.sh:2:",
        ),
    ],
)
def test_the_command_that_names_the_file_starts_the_users_program(
    files: dict[str, str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = read(files, tmp_path, monkeypatch)
    assert str(launch.job.location).startswith(place)
    assert launch.recognised.launch.words[0].text == "src/sft.py"
    is_of_others = "a.yaml" not in "".join(files.values())
    assert is_of_others == bool(launch.origin)
    named = {setting.name: setting.value for setting in launch.job.settings}
    assert (launch.job.framework, named["max_length"]) == ("trl", "512")


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("sft a 2", {"max_length": "512"}),
        ("gone a 2", {}),
    ],
)
def test_a_script_whose_arguments_name_its_program_is_started_as_its_readme_says(
    words: str, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them it is no launch. Shortened from the training script of open-r1's forks."""
    script = "accelerate launch --num_processes $3 src/$1.py --config recipes/$2.yaml\n"
    usage = README.replace("accelerate launch --num_processes=2 \\\n    src/sft.py --config recipes/a.yaml", "{}")
    files = {"jobs/train.slurm": script, "README.md": usage.format(f"sbatch jobs/train.slurm {words}")}
    launches = read_tree(files, "jobs/train.slurm", tmp_path, monkeypatch)
    read = {own.name: own.value for launch in launches for own in launch.job.settings}
    assert {name: read.get(name) for name in settings} == settings and bool(launches) == bool(settings)
    for launch in launches:
        assert str(launch.job.location).startswith("jobs/train.slurm:1:")
        assert launch.origin == "it needs arguments: started as in README.md"


@pytest.mark.parametrize(
    "files",
    [
        {},
        # two programs get the others of its folder
        {
            "README.md": README.replace("a.yaml", "b.yaml"),
            "src/dpo.py": PROGRAM.replace("SFT", "DPO"),
            "run.sh": COMMAND.format(program="dpo", path="recipes/b.yaml"),
        },
        {"README.md": README.replace("recipes/a.yaml", "configs/b.yaml")},  # of another folder
        {"README.md": README.replace("```", "")},  # no command
        {"run.sh": COMMAND.format(program="gone", path="recipes/a.yaml")},
        {"run.sh": COMMAND.format(program="sft", path="recipes/a.yaml.old")},
        {"run.sh": "cat recipes/a.yaml\n"},
    ],
)
def test_otherwise_the_file_is_rehearsed_alone(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = read(files, tmp_path, monkeypatch)
    assert launch.job.location.source == "recipes/a.yaml" and not launch.recognised.launch.words


@pytest.mark.parametrize(
    ("comments", "program"),
    [
        ("# accelerate launch\n# --num_processes=2 src/sft.py\n# --config recipes/a.yaml\n# > out.log\n", "src/sft.py"),
        ("# Usage:\n# accelerate launch src/sft.py \\\n#   --config recipes/a.yaml\n", "src/sft.py"),
        ("# accelerate launch src/sft.py --config recipes/b.yaml\n", "src/sft.py"),  # another of its folder
        ("# accelerate launch src/none.py --config recipes/a.yaml\n", ""),
        ("# see src/sft.py --config recipes/a.yaml\n", ""),
    ],
)
def test_a_file_is_started_as_its_own_comments_say(
    comments: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = read(
        {"recipes/a.yaml": comments + CONFIG, "recipes/b.yaml": "a: 1\n"}, tmp_path, monkeypatch
    ).recognised.launch
    assert [word.text for word in launch.words[:1]] == [program] * bool(program)
