"""Conditions in a program's source that a launch's settings decide; each error has a launch that comes close."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from attncheck.core.launch import Setting, SourceLocation
from attncheck.lint.programs.conditions import find_outcomes, follow_program
from attncheck.lint.programs.interpreter import Outcome
from attncheck.lint.programs.modules import SourceTree
from attncheck.lint.programs.program import Entry, find_entry, reach_program, read_program
from attncheck.lint.programs.records import Origin
from tests.lint.programs.trees import find_nothing, read_script, write_tree

BASE = """
    from dataclasses import dataclass, field
    from enum import Enum
    import os, warnings

    class Strategy(str, Enum):
        NO = "no"
        STEPS = "steps"

    @dataclass
    class Base:
        steps: int = 0
        strategy: str = "no"
        packing: bool = False
        padding_free: bool = False
        max_length: int | None = 1024
        kind: str = "bfd"
        table: dict | None = None
        threads: int = field(default_factory=lambda: os.cpu_count())

        _WORDS = ["table"]

        def __post_init__(self):
            for name in self._WORDS:
                value = getattr(self, name)
                if isinstance(value, str) and value.startswith("{"):
                    setattr(self, name, read(value))
            self.strategy = Strategy(self.strategy)
            if self.strategy == Strategy.STEPS and self.steps == 0:
                raise ValueError(f"strategy {self.strategy} needs steps, not {self.steps}")

    @dataclass
    class Config(Base):
        _WORDS = Base._WORDS + ["kind"]

        def __post_init__(self):
            super().__post_init__()
            self._check()

        def _check(self):
            def is_on(value):
                return value is True

            if is_on(self.packing) and self.max_length is None:
                raise ValueError("packing needs max_length")
            if self.threads == 0:
                raise ValueError("no threads")
"""
TRAINER = """
    import warnings
    from config import Config

    class Trainer:
        def __init__(self, model, args: Config | None = None, collator=None, rows=None):
            if args is None:
                args = Config()
            self.padding_free = args.padding_free or (args.packing and args.kind in {"bfd", "split"})
            if collator is not None and self.padding_free:
                raise ValueError("no collator")
            if self.padding_free and args.kind == "wrapped" and args.packing:
                warnings.warn("documents are cut")
            if rows.is_vision and args.packing:
                raise ValueError("no images")
"""
SCRIPT = """
    from transformers import HfArgumentParser
    from config import Config
    from trainer import Trainer

    def main(config):
        load(config.steps)
        trainer = Trainer(make_model(), config, rows=load_rows())
        trainer.train()
        if config.kind == "late":
            raise RuntimeError("after training")

    if __name__ == "__main__":
        (config,) = HfArgumentParser(Config).parse_args_into_dataclasses()
        main(config)
"""
FILES = {"train.py": SCRIPT, "config.py": BASE, "trainer.py": TRAINER}


def write_settings(**values: str) -> dict[str, Setting]:
    return {
        name: Setting(f"--{name}", value, SourceLocation("run.sh"), (0, 0), known=value != "$1")
        for name, value in values.items()
    }


def find(folder: Path, **values: str) -> list[Outcome]:
    program = read_script(folder)
    assert program is not None
    return find_outcomes(program, write_settings(**values))


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"strategy": "steps"}, ["ValueError: strategy steps needs steps, not 0"]),
        ({"strategy": "steps", "steps": "5"}, []),
        ({"strategy": "steps", "steps": "$1"}, []),
        ({"packing": "true"}, []),
        ({"padding_free": "", "packing": "", "kind": "wrapped"}, ["documents are cut"]),
        ({"packing": "", "kind": "wrapped"}, []),
        ({"kind": "late"}, ["RuntimeError: after training"]),
    ],
)
def test_dataclasses_and_what_uses_them(tmp_path: Path, values: dict[str, str], texts: list[str]) -> None:
    assert [outcome.text for outcome in find(write_tree(tmp_path, FILES), **values)] == texts


def test_a_value_of_a_file_may_be_null(tmp_path: Path) -> None:
    program = read_script(write_tree(tmp_path, FILES))
    assert program is not None
    written = {
        name: Setting(name, value, SourceLocation("c.yaml"), (0, 0))
        for name, value in {"packing": "true", "max_length": "null"}.items()
    }
    (outcome,) = find_outcomes(program, written)
    assert (outcome.kind, outcome.text) == ("raises", "ValueError: packing needs max_length")
    assert set(outcome.names) >= {"packing", "max_length"}
    assert outcome.place.startswith("config.py:")


OVERLOADS = """
    from typing import TYPE_CHECKING, overload

    class Loader:
        def __init__(self, config):
            self.config = config
        @overload
        def load(self, path: str) -> object: ...
        def load(self, path):
            return {RESULT}

    if TYPE_CHECKING:
        @overload
        def make(config: object) -> object: ...

    def make(config):
        return {RESULT}
"""


@pytest.mark.parametrize(
    ("result", "texts"), [("read(config)", []), ("None", ["ValueError: nothing is made"])], ids=["unknown", "nothing"]
)
@pytest.mark.parametrize("call", ["make(config)", "loader.load(config)"])
def test_a_signature_is_not_the_function(tmp_path: Path, call: str, result: str, texts: list[str]) -> None:
    lines = f"loader = Loader(config)\n        model = {call}\n        "
    lines += "if model is None: raise ValueError('nothing is made')"
    script = SCRIPT.replace("import Trainer", "import Trainer\n    from making import Loader, make")
    script = script.replace("load(config.steps)", lines)
    files = {**FILES, "train.py": script, "making.py": OVERLOADS.replace("{RESULT}", result)}
    assert [outcome.text for outcome in find(write_tree(tmp_path, files))] == texts


@pytest.mark.parametrize(
    "line",
    [
        "change(config)",  # not found
        "config.packing = read_packing()",
        "if has_gpu(): config.packing = False",
        "if has_gpu(): return",
        "setattr(config, name(), False)",
        "if config.packing: sys.exit()",
        "config.packing = os.environ.get('LOGIN')",
        "for item in read(): config.packing = item",
        "try:\n            config.packing = False\n        except Exception:\n            pass",
    ],
)
def test_what_may_change_a_value_leaves_it_open(tmp_path: Path, line: str) -> None:
    script = SCRIPT.replace("load(config.steps)", f"{line}\n        if config.packing: raise ValueError('packed')")
    assert find(write_tree(tmp_path, {**FILES, "train.py": script}), packing="true") == []
    control = SCRIPT.replace("load(config.steps)", "if config.packing: raise ValueError('packed')")
    outcomes = find(write_tree(tmp_path, {**FILES, "train.py": control}), packing="true")
    assert [outcome.text for outcome in outcomes] == ["ValueError: packed"]


@pytest.mark.parametrize(
    ("rest", "is_constant"),
    [
        ("", True),
        ("def start():\n    global STATE\n    STATE = 1", False),
        ("STATE += start", False),
        ("LATER = STATE", True),
    ],
)
def test_a_module_s_name_that_may_be_bound_again_is_open(tmp_path: Path, rest: str, is_constant: bool) -> None:
    check = "if config.packing and state.STATE is None: raise ValueError('packed')"
    script = f"import state\n{dedent(SCRIPT)}".replace("load(config.steps)", check)
    files = {**FILES, "train.py": script, "state.py": f"STATE = None\n{rest}\n"}
    assert bool(find(write_tree(tmp_path, files), packing="true")) is is_constant


def test_an_error_that_is_caught_is_not_reported(tmp_path: Path) -> None:
    block = (
        "try:\n            if config.packing: raise ValueError('packed')\n        except ValueError:\n            pass"
    )
    script = SCRIPT.replace("load(config.steps)", block)
    assert find(write_tree(tmp_path, {**FILES, "train.py": script}), packing="true") == []


def test_a_table_of_the_program_s_own_is_not_the_command_line(tmp_path: Path) -> None:
    parsed = "parse_args_into_dataclasses()"
    own = 'parse_dict(json.load(open("own.json")))'
    for call, texts in {parsed: ["ValueError: strategy steps needs steps, not 0"], own: []}.items():
        script = SCRIPT.replace(parsed, call).replace("HfArgumentParser\n", "HfArgumentParser\n    import json\n", 1)
        write_tree(tmp_path, {**FILES, "train.py": script})
        assert [outcome.text for outcome in find(tmp_path, strategy="steps")] == texts


def test_argparse_and_its_checks(tmp_path: Path) -> None:
    script = """
        import argparse
        from openrlhf.utils.config import hierarchize

        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("--ds.ring_size", type=int, default=1)
            parser.add_argument("--ds.packing", action="store_true")
            args = hierarchize(parser.parse_args())
            if args.ds.ring_size > 1:
                assert args.ds.packing, "packing must be on"
            if not args.ds.packing:
                print("[Warning] not packed")
            print("Warning: always")
    """
    folder = write_tree(tmp_path, {"train.py": script})
    assert [outcome.text for outcome in find(folder, **{"ds.ring_size": "2"})] == ["AssertionError: packing must be on"]
    assert [outcome.text for outcome in find(folder)] == ["[Warning] not packed"]
    assert find(folder, **{"ds.ring_size": "2", "ds.packing": ""}) == []


MODEL = """
    from pydantic import BaseModel, field_validator, model_validator

    class Mixin:
        @model_validator(mode="before")
        @classmethod
        def check_loss(cls, data):
            if data.get("chunked") and data.get("liger") is not False:
                raise ValueError("chunked and liger")
            return data

        @model_validator(mode="before")
        @classmethod
        def set_liger(cls, data):
            if data.get("fused"):
                data["liger"] = False
            return data

    class Schema(Mixin, BaseModel):
        chunked: bool | None = None
        liger: bool | None = None
        fused: bool | None = None
        rank: int | None = None
        attention: str = "sdpa"

        @model_validator(mode="after")
        def check_attention(self):
            if self.rank and self.attention == "sdpa":
                raise ValueError("rank needs flash")
            return self

        @field_validator("attention")
        @classmethod
        def check_name(cls, value):
            if value not in ("sdpa", "flash"):
                raise ValueError(f"unknown {value}")
            return value
"""


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"chunked": "true"}, ["ValueError: chunked and liger"]),
        ({"chunked": "true", "liger": "false"}, []),
        ({"chunked": "true", "fused": "true"}, []),
        ({"rank": "2"}, ["ValueError: rank needs flash"]),
        ({"rank": "2", "attention": "flash"}, []),
        ({"attention": "flesh"}, ["ValueError: unknown flesh"]),
    ],
)
def test_validators_of_a_model(tmp_path: Path, values: dict[str, str], texts: list[str]) -> None:
    folder = write_tree(tmp_path, {"schema.py": MODEL})
    program = read_program(reach_program(Entry("schema", "Schema"), SourceTree((folder,), folder)), find_nothing)
    assert program is not None
    assert [outcome.text for outcome in find_outcomes(program, write_settings(**values))] == texts


def test_a_composed_configuration(tmp_path: Path) -> None:
    check = """
        from hydra.utils import instantiate

        def validate_config(config, use_critic):
            gpus = config.trainer.gpus * config.trainer.get("nodes", 1)
            assert config.data.batch % gpus == 0, f"{config.data.batch} rows on {gpus} GPUs"
            if use_critic:
                assert config.data.batch > 10_000
            actor = instantiate(config.actor)
    """
    actor = """
        from dataclasses import dataclass

        @dataclass
        class Actor:
            mini: int | None = None
            dynamic: bool = False

            def __post_init__(self):
                if not self.dynamic and self.mini is None:
                    raise ValueError("set mini")
    """
    main = """
        import hydra

        @hydra.main(config_path="config", config_name="ppo")
        def main(config):
            run(config)

        if __name__ == "__main__":
            main()
    """
    keys = (
        "data:\n  batch: 8\ntrainer:\n  gpus: 8\nactor:\n  _target_: verl.actor.Actor\n  mini: null\n  dynamic: false\n"
    )
    files = {"__init__.py": "", "main_ppo.py": main, "config/ppo.yaml": keys, "utils/config.py": check}
    files = {**files, "utils/__init__.py": "", "actor.py": actor}
    folder = write_tree(tmp_path, {f"verl/{name}": text for name, text in files.items()})
    program = read_program(reach_program(Entry("verl.main_ppo"), SourceTree((folder,), folder)), find_nothing)
    assert program is not None

    def check_launch(**values: str) -> list[str]:
        written = {name: Setting(name, text, SourceLocation("run.sh"), (0, 0)) for name, text in values.items()}
        return [outcome.text for outcome in find_outcomes(program, written)]

    assert check_launch(**{"data.batch": "7"}) == ["AssertionError: 7 rows on 8 GPUs"]
    assert check_launch() == ["ValueError: set mini"]
    assert check_launch(**{"actor.mini": "4"}) == []
    assert check_launch(**{"actor.dynamic": "true"}) == []


def test_a_script_that_makes_its_configuration_itself(tmp_path: Path) -> None:
    script = """
        from config import Config
        from trainer import Trainer

        settings = {SETTINGS}
        trainer = Trainer(make_model(), Config({ARGUMENTS}), rows=load_rows())
    """

    def follow(arguments: str) -> list[str]:
        text = script.replace("{SETTINGS}", "read()").replace("{ARGUMENTS}", arguments)
        folder = write_tree(tmp_path, {**FILES, "own.py": text})
        tree = SourceTree((folder,), folder)
        module = find_entry(Entry(str(folder / "own.py")), tree)
        assert module is not None
        return [outcome.text for outcome in follow_program(Origin(tree, module, "", (), find_nothing), [], {})]

    assert follow('strategy="steps", steps=0') == ["ValueError: strategy steps needs steps, not 0"]
    assert follow("packing=True, max_length=None") == ["ValueError: packing needs max_length"]
    assert follow('packing=True, padding_free=True, kind="wrapped"') == ["documents are cut"]
    assert follow("packing=True, max_length=read()") == []
    assert follow("packing=True, **settings") == []
