"""The keys that Hydra composes, as hydra-core 1.3 itself composes them for the same files."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.core.job import Job
from attncheck.core.launch import Source, SourceLocation, Word
from attncheck.core.program import Program
from attncheck.core.records import replace
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.launches import find_launches
from attncheck.lint.missing_files import _find_missing_groups
from attncheck.lint.programs.hydra_configs import read_config_options
from attncheck.lint.programs.hydra_overrides import describe_unparsed, find_refused_overrides
from attncheck.lint.proof import _find_misplaced, settle_names
from attncheck.lint.release import ChosenRelease
from attncheck.lint.sources import read_source
from tests.lint.hydra_composing import compose_jobs
from tests.lint.programs.trees import read_script, write_tree

MAIN = """
    import hydra

    @hydra.main(config_path="config", config_name="main", version_base=None)
    def main(config):
        pass

    if __name__ == "__main__":
        main()
"""
# after verl 0.9.1 trainer/config/ppo_trainer.yaml: an engine chosen once, files named after it
ENGINES = {
    "train.py": MAIN,
    "config/main.yaml": """
        defaults:
          - engine: dp
          - actor@worker.actor: ${engine}_actor
          - _self_
        steps: 1
    """,
    "config/engine/dp.yaml": "kind: dp",
    "config/engine/megatron.yaml": "kind: megatron",
    "config/actor/dp_actor.yaml": "defaults: [optim: adam]\nfsdp_size: 1",
    "config/actor/megatron_actor.yaml": "pipeline_size: 1",
    "config/actor/optim/adam.yaml": "lr: 0.1",
    "config/actor/optim/sgd.yaml": "momentum: 0.9",
    "config/extra/logging.yaml": "level: 1",
}


def compose(folder: Path, *overrides: str) -> Program:
    program = read_script(folder, config=("", "", *overrides))
    assert program is not None
    return program


def test_a_reference_takes_the_option_of_the_defaults_list(tmp_path: Path) -> None:
    program = compose(write_tree(tmp_path, ENGINES))
    assert program.is_complete
    assert set(program.options) == {"engine.kind", "worker.actor.fsdp_size", "worker.actor.optim.lr", "steps"}


@pytest.mark.parametrize(
    ("override", "present", "absent"),
    [
        ("engine=megatron", "worker.actor.pipeline_size", "worker.actor.fsdp_size"),
        ("actor@worker.actor=megatron_actor", "worker.actor.pipeline_size", "worker.actor.fsdp_size"),
        ("actor/optim@worker.actor.optim=sgd", "worker.actor.optim.momentum", "worker.actor.optim.lr"),
        ("+extra=logging", "extra.level", "level"),
        ("+extra@worker.log=logging", "worker.log.level", "extra.level"),
        ("steps=2", "worker.actor.fsdp_size", "worker.actor.pipeline_size"),
        ("+steps.more=2", "worker.actor.fsdp_size", "steps.more"),
    ],
)
def test_the_command_chooses_files(tmp_path: Path, override: str, present: str, absent: str) -> None:
    program = compose(write_tree(tmp_path, ENGINES), override)
    assert program.is_complete
    assert present in program.options
    assert absent not in program.options


@pytest.mark.parametrize(
    "override", ["engine=$ENGINE", "engine=other", "+extra=${name}", "hydra.searchpath=[file:///elsewhere]"]
)
def test_a_choice_that_cannot_be_read_is_a_gap(tmp_path: Path, override: str) -> None:
    assert not compose(write_tree(tmp_path, ENGINES), override).is_complete


def test_packages_and_folders_of_files(tmp_path: Path) -> None:
    files = {
        "train.py": MAIN,
        "config/main.yaml": """
            defaults:
              - parts/base
              - parts/other@_global_
              - model: [small, large]
              - headed: moved
              - headed@kept: moved
              - deep: top
        """,
        "config/parts/base.yaml": "a: 1",
        "config/parts/other.yaml": "b: 1",
        "config/model/small.yaml": "c: 1",
        "config/model/large.yaml": "d: 1",
        "config/headed/moved.yaml": "# @package root.here\ne: 1",
        "config/deep/top.yaml": "defaults:\n  - inner: x\n  - /model@model: small\n  - beside@_here_\nf: 1",
        "config/deep/inner/x.yaml": "g: 1",
        "config/deep/beside.yaml": "h: 1",
    }
    program = compose(write_tree(tmp_path, files))
    assert program.gaps == ()
    assert set(program.options) == {
        *("parts.a", "b", "model.c", "model.d", "root.here.e", "kept.e"),
        *("deep.f", "deep.inner.g", "deep.model.c", "deep.h"),
    }


@pytest.mark.parametrize(
    ("path", "keys"),
    [('"config"', {"a"}), ("FOLDER", {"a"}), ("None", {"wrong"}), ("os.environ['CONFIG']", None), ("f(FOLDER)", None)],
)
def test_a_configuration_path_that_only_running_tells_is_not_guessed(
    tmp_path: Path, path: str, keys: set[str] | None
) -> None:
    main = MAIN.replace('"config"', path).replace("import hydra", 'import hydra, os\n    FOLDER = "config"')
    program = read_script(write_tree(tmp_path, {"train.py": main, "config/main.yaml": "a: 1", "main.yaml": "wrong: 1"}))
    assert (set(program.options) if program else None) == keys


def test_the_words_of_a_command_are_read() -> None:
    source = Source("run.sh", "")
    texts = ["train.py", "--config-name=other", "-cd", "more", "a=1", "+b=2", "--config-path", "there"]
    words = [Word(text, (0, 0), source.location(0)) for text in texts]
    assert read_config_options(words) == ("there", "other", "hydra.searchpath=[more]", "a=1", "+b=2")


def test_paths_that_cannot_be_are_no_error(tmp_path: Path) -> None:
    search_path = 'hydra:\n  searchpath: ["file://a\\0b", "pkg://x\\0.y"]\n'
    text = f'defaults:\n  - "a\\0b": "c\\0"\n{search_path}a: 1\n'
    folder = write_tree(tmp_path, {"train.py": MAIN, "config/main.yaml": text})
    assert not compose(folder, "x" * 4000 + "=1", "+" + "y" * 4000 + "=1", "x\0=1").is_complete
    for config in (("x" * 4000, ""), ("", "y" * 4000), ("\0", ""), ("", "\0")):
        assert read_script(folder, config=config) is None


def test_a_group_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = "".join(f"  - actor@x{number}: null\n" for number in range(50))
    folder = write_tree(tmp_path, {**ENGINES, "config/main.yaml": f"defaults:\n{items}"})
    listed: list[Path] = []
    glob = Path.glob

    def count(self: Path, pattern: str) -> object:
        listed.append(self)
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", count)
    assert len(compose(folder).groups) == 50
    assert len(listed) == 1


OVERRIDES = [
    *("steps=2", "+steps=2", "++steps=2", "~steps", "~steps=1", "other=1", "+other=1", "++other=1", "~other"),
    *("table.a=2", "table.b=2", "+table.b=2", "table={a: 2}", "+table={b: 2}", "+table=2", "~table", "+table.a=2"),
    *("nothing=1", "+nothing=1", "++nothing=1", "~nothing", "missing=1", "+missing=1", "+items=[3]", "items=[3]"),
    *("empty.x=1", "+empty.x=1", "++a.b.c=1", "+steps.inner=1", "kind=x", "+kind=x"),
]
BY = "key null_key table again text selected defaulted null_default null_selected missing_selected table.a table.b"
OVERRIDES += [f"+by.{name}=2" for name in BY.split()]
PAIRS = [["+a=1", "a=2"], ["+a=1", "+a=2"], ["~steps", "steps=2"], ["~steps", "+steps=2"], ["++a.b=1", "a.b=2"]]
PAIRS += [["~table", "table.a=1"], ["+a={b: 1}", "a.b=2"], ["nothing=1", "+nothing=2"], ["steps=null", "+steps=2"]]
PAIRS += [["nothing=1", "+by.null_key=2"], ["steps=null", "+by.key=2"], ["nothing=${steps}", "+nothing=1"]]
FLAT = {
    "train.py": MAIN,
    "config/main.yaml": """
        steps: 1
        table: {a: 1}
        nothing: null
        missing: ???
        items: [1, 2]
        empty: {}
        kind: a
        by:
          key: ${steps}
          null_key: ${nothing}
          table: ${table}
          again: ${.key}
          text: n-${steps}
          selected: ${oc.select:steps,null}
          defaulted: ${oc.select:none,3}
          null_default: ${oc.select:none,null}
          null_selected: ${oc.select:nothing,3}
          missing_selected: ${oc.select:missing,3}
    """,
}


@pytest.mark.parametrize("overrides", [*([override] for override in OVERRIDES), *PAIRS], ids=" ".join)
def test_overrides_are_refused_as_hydra_refuses_them(tmp_path: Path, overrides: list[str]) -> None:
    program = compose(write_tree(tmp_path, FLAT))
    words = [Word(text, (0, 0), Source("x", "").location(0)) for text in overrides]
    [composed] = compose_jobs([(str(tmp_path / "config"), "main", overrides)])
    refused = [override.name for override in find_refused_overrides(program, words)]
    assert bool(refused) == isinstance(composed, str), (refused, composed)


REFUSED = [
    "a.b=~/x",
    "+a.b=[~/x]",
    "a.b=/lr=1e-6/x",
    "a.b=<x>",
    "a.b=a#b",
    "a.b=x&y",
    "a.b=路径",
    "a.b=8npu}",
    "a.b=[1,2",
    "a.b=f(x",
]
TAKEN = [
    "a.b='~/x'",
    'a.b="x=1"',
    "a.b=['a=1',2]",
    "a.b=x\\=1",
    "a.b=${oc.env:A,'~/b'}",
    "a.b=[1,2]",
    "a.b=x-y@z:1",
    "a.b=",
]


def test_characters_of_a_value_are_refused_as_hydra_refuses_them() -> None:
    parser = importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    refused = []
    for text in (*REFUSED, *TAKEN, *(f"a.b=x{character}y" for character in map(chr, range(32, 127)))):
        try:
            parser.parse_override(text)
        except Exception:  # of Hydra's grammar
            refused.append(text)
    texts = (*REFUSED, *TAKEN, *refused)
    found = [text for text in texts if describe_unparsed(Word(text, (0, len(text)), SourceLocation("x")))]
    assert set(found) <= set(refused) and {*REFUSED, "a.b=x;y"} <= set(found)
    open_ends = (Word("a=~/x", (0, 5), SourceLocation("x")), Word("a.b=~$X", (0, 7), SourceLocation("x"), known=False))
    assert not any(map(describe_unparsed, open_ends))


@pytest.mark.parametrize(
    ("path", "launcher", "count"),
    [
        ("~/d", "", 1), ("$HOME/d", "", 0), ("~/d", "ray job submit -- ", 0), ("$D", "D=~/d\n", 0),
        ("$D/x", "D=${E:-~/d}\n", 0), ("$D", "D='/<path>'\n", 1), ("$D", "D='model path'\n", 1),
        ('"$D"', "D='model path'\n", 0), ("$D", "D='p --config-name q'\n", 0), ("$D", "D='p ~data.x'\n", 0),
    ],
)  # fmt: skip
def test_an_override_that_hydra_cannot_parse_is_refused(tmp_path: Path, path: str, launcher: str, count: int) -> None:
    command = f"{launcher}python3 -m verl.trainer.main_ppo data.train_files={path} data.val_files={path}\n"
    [launch] = find_launches(Source(str(tmp_path / "run.sh"), command), make_file_reader(()))
    job = Job("verl", "0.5.0", "ppo")
    settled = settle_names(job, launch, ("verl.",), ChosenRelease("0.5.0", is_known=True))
    assert len([problem for problem in settled.problems if "OverrideParse" in problem.message]) == count


@pytest.mark.parametrize(
    ("options", "is_unread"),
    [
        ("--config-name=other", False),
        ("--config-name other.yaml --config-path config", False),
        ("--config-path=config --config-name=missing", True),
        ("--config-name=missing", True),
    ],
)
def test_a_configuration_next_to_the_module_is_not_missing(tmp_path: Path, options: str, is_unread: bool) -> None:
    files = {"verl/trainer/main_ppo.py": "", "verl/trainer/config/other.yaml": "a: 1\n", ".git/HEAD": ""}
    write_tree(tmp_path, {**files, "examples/run.sh": f"python3 -m verl.trainer.main_ppo {options} a=2\n"})
    source = read_source(str(tmp_path / "examples/run.sh"))
    [launch] = find_launches(source, make_file_reader((source,)))
    assert any("could not be read" in note for note in launch.notes) is is_unread


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [("conf", True), ("../conf", False), ("FOLDER/conf", False), ("$PWD/conf", False), ('"$(pwd)"/conf', False)],
)
def test_a_configuration_s_folder_is_relative_to_the_program(
    tmp_path: Path, path: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"src/train.py": MAIN, "conf/main.yaml": "steps: 1", ".git/HEAD": "", "src/config/main.yaml": "steps: 2"}
    folder = write_tree(tmp_path, files)
    monkeypatch.chdir(folder)
    options = f"--config-path {path.replace('FOLDER', str(folder))} --config-name main steps=3"
    command = ["bash", "-c", f"{sys.executable} src/train.py {options}"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (ended.returncode != 0) is is_refused and ("config directory not found" in ended.stderr) is is_refused
    (folder / "run.sh").write_text(f"ROOT=$(pwd)\npython src/train.py {options}\n")  # which is not used
    (launch,) = find_launches(read_source("run.sh"), make_file_reader(()))
    program = read_script(Path(), "src/train.py", config=read_config_options(launch.words))
    assert program is not None
    assert len(list(_find_misplaced(launch, program))) == is_refused


@pytest.mark.parametrize(
    ("overrides", "line", "missing"),
    [
        ("engine=megatron steps=gone", "", []),
        ("engine=gone", "", ["engine/gone"]),
        ("+extra=gone", "", ["extra/gone"]),
        ("engine=dp,gone", "", []),  # a sweep
        ("engine=$ENGINE", "", []),
        ("engine=gone hydra.searchpath=[file:///data]", "", []),
        ("local=gone", "", []),  # git ignores it
        ("engine=gone", "from hydra.core.config_store import ConfigStore", []),
    ],
)
def test_a_file_of_a_group_that_no_folder_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str, line: str, missing: list[str]
) -> None:
    main = MAIN.replace("import hydra", f"import hydra\n    {line}", 1)
    more = {
        "config/local/a.yaml": "",
        "config/main.yaml": "defaults: [{local: a}, {engine: dp}]",
        ".gitignore": "local/\n/engine",
    }
    write_tree(
        tmp_path, {**ENGINES, **more, "train.py": main, "run.sh": f"python train.py {overrides}\n", ".git/HEAD": ""}
    )
    monkeypatch.chdir(tmp_path)
    [launch] = find_launches(read_source("run.sh"), make_file_reader(()))
    launch = replace(launch, program=read_script(Path(), config=read_config_options(launch.words)))
    assert [problem.message.partition(":")[0] for problem in _find_missing_groups(launch)] == missing
