"""What programs take: argparse, dataclasses and structured configurations, after programs of public repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.launch import Launch, Source
from attncheck.lint.programs.modules import MAX_MODULES, Definition, External, Resolved, SourceModule, SourceTree
from attncheck.lint.programs.places import find_program
from attncheck.lint.programs.program import Entry, reach_program, read_program
from tests.lint.programs.trees import find_nothing, read_script, write_tree

# after hiyouga/EasyR1 verl/workers/actor/config.py: fields that only the program sets are in the structured
# configuration anyway, and OmegaConf takes them from the command line
FIELDS = """
    from dataclasses import dataclass, field
    from typing import ClassVar

    @dataclass
    class Actor:
        lr: float = 0.1
        per_device: int = field(default=-1, init=False)
        shared: ClassVar[int] = 0

    @dataclass
    class Config:
        actor: Actor = field(default_factory=Actor)
"""


def test_omegaconf_takes_fields_without_init(tmp_path: Path) -> None:
    script = """
        from omegaconf import OmegaConf
        from fields import Config

        cli = OmegaConf.from_cli()
        config = OmegaConf.merge(OmegaConf.structured(Config()), cli)
    """
    program = read_script(write_tree(tmp_path, {"train.py": script, "fields.py": FIELDS}))
    assert program is not None
    assert program.is_complete
    assert set(program.options) == {"actor.lr", "actor.per_device"}


def test_a_parser_of_dataclasses_leaves_out_fields_without_init(tmp_path: Path) -> None:
    script = """
        from transformers import HfArgumentParser
        from fields import Actor

        HfArgumentParser(Actor).parse_args_into_dataclasses()
    """
    program = read_script(write_tree(tmp_path, {"train.py": script, "fields.py": FIELDS}))
    assert program is not None
    assert program.is_complete
    assert set(program.options) == {"lr"}


@pytest.mark.parametrize(
    ("before", "is_complete"),
    [
        ("from transformers import Arguments", False),  # transformers' fields are unknown here
        ("from own import Arguments", True),
        ("try:\n    from own import Arguments\nexcept ImportError:\n    pass", True),
    ],
)
def test_a_class_may_have_the_name_of_its_base(tmp_path: Path, before: str, is_complete: bool) -> None:
    program = read_script(
        write_tree(
            tmp_path,
            {
                "own.py": "from dataclasses import dataclass\n@dataclass\nclass Arguments:\n    bf16: bool = False\n",
                "fields.py": f"{before}\nfrom dataclasses import dataclass\n"
                "@dataclass\nclass Arguments(Arguments):\n    pixels: int = 1\n",
                "train.py": "from transformers import HfArgumentParser\nfrom fields import Arguments\n"
                "HfArgumentParser(Arguments).parse_args_into_dataclasses()\n",
            },
        )
    )
    assert program is not None
    assert program.is_complete == is_complete, program.gaps
    assert ("bf16" in program.options) == is_complete and "pixels" in program.options
    assert not any("as a class" in gap for gap in program.gaps)


STRICT, LENIENT = True, False


@pytest.mark.parametrize(
    ("body", "is_complete"),
    [
        ("(args,) = parser.parse_args_into_dataclasses()", STRICT),
        ("(args,) = parser.parse_args_into_dataclasses(return_remaining_strings=False)", STRICT),
        # trl 0.19.1 scripts/sft.py
        ("args, _ = parser.parse_args_into_dataclasses(return_remaining_strings=True)", LENIENT),
        ("args = parser.parse_args_into_dataclasses(return_remaining_strings=keep)", LENIENT),
        ("args, _ = parser.parse_args_and_config(return_remaining_strings=True)", LENIENT),
        ("args = parser.parse_args_and_config(fail_with_unknown_args=False)", LENIENT),
        ("args = parser.parse_args_and_config()", STRICT),
        # llamafactory 0.9.3 hparams/parser.py
        (
            """(*args, rest) = parser.parse_args_into_dataclasses(return_remaining_strings=True)
            if rest and not allowed:
                raise ValueError(rest)""",
            STRICT,
        ),
        (
            """args, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)
            if rest:
                parser.error(rest)""",
            STRICT,
        ),
        (
            """args, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)
            if rest:
                print(rest)""",
            LENIENT,
        ),
        (
            """args, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)
            if args.resume:
                raise ValueError""",
            LENIENT,
        ),
    ],
)
def test_what_a_program_passes_over_is_a_gap(tmp_path: Path, body: str, is_complete: bool) -> None:
    script = f"""
        from transformers import HfArgumentParser
        from fields import Actor

        def main(keep, allowed):
            parser = HfArgumentParser(Actor)
            {body}

        main(True, False)
    """
    program = read_script(write_tree(tmp_path, {"train.py": script, "fields.py": FIELDS}))
    assert program is not None
    assert program.is_complete == is_complete


def test_a_function_is_followed_for_each_prefix_that_it_is_given(tmp_path: Path) -> None:
    script = """
        import argparse

        def add_option(parser, prefix, name="lr"):
            parser.add_argument(f"--{prefix}_{name}")

        def add_role(parser, prefix):
            add_option(parser, prefix)
            add_option(parser, prefix, name="decay")

        parser = argparse.ArgumentParser()
        add_role(parser, "actor")
        add_role(parser, prefix="critic")
    """
    program = read_script(write_tree(tmp_path, {"train.py": script}))
    assert program is not None
    assert program.is_complete
    assert set(program.options) == {"actor_lr", "actor_decay", "critic_lr", "critic_decay"}


@pytest.mark.parametrize(
    ("line", "is_complete"),
    [
        ("make_model().add_options(parser)", False),
        ("model.add_options(parser=parser)", False),
        ("elsewhere.add_options(parser)", False),
        ("chain0(parser)", False),
        ("print(parser)", True),
        ("isinstance(parser, object)", True),
    ],
)
def test_a_parser_that_is_handed_on_out_of_sight_is_a_gap(tmp_path: Path, line: str, is_complete: bool) -> None:
    chain = "".join(f"def chain{number}(parser):\n    chain{number + 1}(parser)\n" for number in range(12))
    script = f"""{chain}
import argparse
import elsewhere
def chain12(parser):
    parser.add_argument("--deep")
model = make_model()
parser = argparse.ArgumentParser()
parser.add_argument("--lr")
{line}
"""
    program = read_script(write_tree(tmp_path, {"train.py": script}))
    assert program is not None
    assert program.is_complete == is_complete


SCRIPT_WITH_HELPER = """
    import argparse
    import wandb

    wandb.init()
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr")
    parser.parse_args()
"""
HELPER = """
    import click

    def init():
        click.echo("ready")
"""


def test_installed_helpers_are_not_followed(tmp_path: Path) -> None:
    site = write_tree(tmp_path / "lib/site-packages", {"wandb/__init__.py": HELPER})
    folder = write_tree(tmp_path / "work", {"train.py": SCRIPT_WITH_HELPER})
    tree = SourceTree((folder, site), folder)
    program = read_program(reach_program(Entry(str(folder / "train.py")), tree), find_nothing)
    assert program is not None
    assert program.is_complete
    assert list(tree.modules) == [folder / "train.py"]


def test_a_module_of_the_repository_with_a_helpers_name_is_followed(tmp_path: Path) -> None:
    helper = "def init():\n    parser.parse_known_args()\n"
    program = read_script(write_tree(tmp_path, {"train.py": SCRIPT_WITH_HELPER, "wandb.py": helper}))
    assert program is not None
    assert "parse_known_args" in program.gaps[0]


def test_an_installed_dataclass_is_read_where_it_is_installed(tmp_path: Path) -> None:
    script = """
        from transformers import HfArgumentParser, TrainingArguments

        HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    """
    arguments = """
        from dataclasses import dataclass

        @dataclass
        class TrainingArguments:
            output_dir: str = ""
    """
    package = {"transformers/__init__.py": "from .training_args import *", "transformers/training_args.py": arguments}
    site = write_tree(tmp_path / "lib/site-packages", package)
    program = read_script(write_tree(tmp_path / "work", {"train.py": script}), more_folders=[site])
    assert program is not None
    assert program.is_complete
    assert set(program.options) == {"output_dir"}


def test_only_what_the_program_reaches_is_read(tmp_path: Path) -> None:
    others = {f"part{number}.py": "import train\n" for number in range(300)}
    files = {**others, "train.py": SCRIPT_WITH_HELPER + "    import part1\n    part1.run()\n"}
    folder = write_tree(tmp_path, files)
    tree = SourceTree((folder,), folder)
    assert read_program(reach_program(Entry(str(folder / "train.py")), tree), find_nothing) is not None
    assert len(tree.modules) == 2 < MAX_MODULES


def test_a_name_that_many_modules_seek_from_each_other_is_visited_once_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stars = "".join(f"from part{number} import *\n" for number in range(12))
    again = "".join(f"def f{number}():\n    from . import gone\n    return gone\n" for number in range(12))
    files = {f"part{number}.py": stars for number in range(12)}
    files |= {"part11.py": stars + "class Last:\n    pass\n", "score/__init__.py": again}
    tree = SourceTree((write_tree(tmp_path, files),), tmp_path)
    seek, sought = SourceTree._resolve_bindings, []

    def count(self: SourceTree, module: SourceModule, name: str) -> Resolved:
        sought.append((module.name, name))
        return seek(self, module, name)

    monkeypatch.setattr(SourceTree, "_resolve_bindings", count)
    score = tree.find_module("score")
    assert score is not None and isinstance(tree.resolve_name(score, "gone"), External)
    found = tree.find_definition("part0.Last")
    assert isinstance(found, Definition) and found.module.name == "part11"
    assert tree.find_definition("part0.Gone") is None
    assert len(sought) == 1 + 12 + 12 and not tree.visited


def test_a_program_of_more_modules_than_are_read_has_a_gap(tmp_path: Path) -> None:
    files = {
        f"part{number}.py": f"import part{number + 1}\n\ndef run():\n    part{number + 1}.run()\n"
        for number in range(20)
    }
    imports = "".join(f"import part{number}\npart{number}.run()\n" for number in range(20))
    folder = write_tree(tmp_path, {**files, "train.py": imports})
    tree = SourceTree((folder,), folder, {tmp_path / f"{number}.py": None for number in range(MAX_MODULES - 5)})
    (folder / "train.py").write_text(imports + "import argparse\nargparse.ArgumentParser().add_argument('--lr')\n")
    program = read_program(reach_program(Entry(str(folder / "train.py")), tree), find_nothing)
    assert program is not None
    assert not program.is_complete


@pytest.mark.parametrize(
    "name", ["x" * 5000 + ".y", "a" * 300 + ".py", "a." * 2000 + "b", "..", ".", "a..b", ".py", "/.py", "a/.py", ".a"]
)
def test_a_target_that_cannot_be_is_not_found(tmp_path: Path, name: str) -> None:
    launch = Launch(Source(str(tmp_path / "run.sh"), ""), words=())
    assert find_program(launch, Entry(name), (tmp_path,)) is None


def test_an_import_that_cannot_be_is_no_error(tmp_path: Path) -> None:
    script = f"from {'a' * 3000} import run\nrun()\nimport argparse\nparser = argparse.ArgumentParser()\n"
    program = read_script(write_tree(tmp_path, {"train.py": script + 'parser.add_argument("--lr")\n'}))
    assert program is not None
    assert set(program.options) == {"lr"}


def test_a_module_outside_the_program_s_folder_is_shown_relative_to_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = SourceTree((tmp_path / "src",), tmp_path / "scripts")
    assert tree.show_path(tmp_path / "src/train.py") == "src/train.py"
    assert tree.show_path(Path("/other/train.py")) == "/other/train.py"


@pytest.mark.parametrize(
    ("choice", "is_complete", "names"),
    [
        (
            "if kind == 'a':\n    chosen = A\nelif kind == 'b':\n    chosen = B\nelse:\n    raise ValueError",
            True,
            "a b",
        ),
        ("chosen = A\nif kind:\n    chosen = B", True, "a b"),
        ("chosen = A\nchosen = B", True, "b"),
        ("if kind:\n    chosen = A\nelse:\n    chosen = A", True, "a"),
        ("if kind:\n    chosen = A\nelse:\n    chosen = make()", False, "a"),
    ],
)
def test_a_parser_takes_what_any_branch_gives_it(tmp_path: Path, choice: str, is_complete: bool, names: str) -> None:
    script = (
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n"
        "@dataclass\nclass A:\n    a: int = 0\n@dataclass\nclass B:\n    b: int = 0\n"
        f"kind = input()\n{choice}\nHfArgumentParser(chosen).parse_args_into_dataclasses()\n"
    )
    program = read_script(write_tree(tmp_path, {"train.py": script}))
    assert program is not None and program.is_complete is is_complete
    assert " ".join(sorted(program.options)) == names


@pytest.mark.parametrize(("other", "is_complete"), [("--a", True), ("--b", False)])
def test_an_option_that_branches_name_differently_is_a_gap(tmp_path: Path, other: str, is_complete: bool) -> None:
    script = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--x')\nname = '--a'\n"
        f"if input():\n    name = '{other}'\nparser.add_argument(name)\nparser.parse_args()\n"
    )
    program = read_script(write_tree(tmp_path, {"train.py": script}))
    assert program is not None and program.is_complete is is_complete
