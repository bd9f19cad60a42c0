"""A script's imports of packages and names that are not installed: idle, unused, or defined elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.rehearsal.execution import list_absent, list_left_out
from attncheck.rehearsal.watcher import former

INSTALL = """
import sys
from attncheck.rehearsal.watcher import absent
absent.install(sys.argv[1])
"""
SCRIPT = """
import importlib.util
import contextlib
import neptune
from neptune.integrations import Callback
assert importlib.util.find_spec("neptune") is None  # how a package looks around
assert __import__("os", fromlist=["path"], level=0).path and importlib.util.find_spec("xml.dom")
run = neptune.init_run(project="p", config={"lr": 1})
run["a/b"] = 1
with neptune.new(x=1) as other:
    other.log({"loss": 0.5})
@neptune.watch
def kept():
    return 7
assert kept() == 7 and not run and not list(run)
Callback(run).stop()

# as colorama's, termcolor's, icecream's and rich's
assert neptune.Fore.RED + neptune.Style.BRIGHT + "a" + neptune.Style.RESET_ALL == neptune.colored("a", "red") == "a"
assert list(neptune.track(neptune.ic([1, 2]), "steps")) == [1, 2]
import ujson as json
assert json.load is __import__("json").load
from packed.records import SummaryWriter
SummaryWriter("logs").add_scalar("loss", 1.0)

try:
    import guarded_absence
except ImportError:
    fallback = True
assert fallback
with contextlib.suppress(ImportError):
    from guarded_absence import name
import deepspeed.absent as part, no_such_package.inner
from no_such_package.inner import Base, Encoding
class Derived(Base):
    pass
import helpers
def encode(encoding: Encoding | None) -> no_such_package.Kind[int]:
    assert not isinstance(encoding, (Encoding, Derived))
encode(None)
from packed import Moved, Removed, kept as other
from packed.gone import Moved as again
import packed
from packed import AutoModelForVision2Seq as renamed
from packed import ALL_MOVED
assert ALL_MOVED == [1]
assert packed.Moved is Moved and packed.kept == 3 and not hasattr(packed, "Never") and renamed().place == "renamed"
assert Moved is again and Moved().place == "here" and other == 3
"""
GUARDED = {"import decord": "decord", "from packed import sound": "sound"}
USES = {
    "Derived()": "ModuleNotFoundError: No module named 'no_such_package'",
    "helpers.client.ask('x')": "ModuleNotFoundError: No module named 'no_such_package'",
    "Encoding.load('x')": "ModuleNotFoundError: No module named 'no_such_package'",
    "f'{part.__version__}'": "ModuleNotFoundError: No module named 'deepspeed'",
    "Encoding.__dataclass_fields__": "ModuleNotFoundError: No module named 'no_such_package'",
    "Removed": "ok",
    "print(Removed)": "ImportError: cannot import name 'Removed' from 'packed'",
    "if Removed: pass": "ImportError: cannot import name 'Removed' from 'packed'",
    "packed.Never": "AttributeError: module 'packed' has no attribute 'Never'",
    "import packed.broken": "ModuleNotFoundError: No module named 'another_package'",
    "import packed.sound": "ok",
    "import packed.sound as s; s.read('a.wav')": "ModuleNotFoundError: No module named 'decord'",
    "import packed.guarded as s; assert s.decord is None and s.sound is None": "ok",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a script and an installed package that has moved a class."""
    folder = tmp_path_factory.mktemp("absent")
    package = folder / "site-packages" / "packed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("kept = 3\n")
    (package / "elsewhere.py").write_text("class Moved:\n    place = 'here'\nALL_MOVED = [1]\n")
    (package / "records.py").write_text("import tensorboard\n")
    (package / "newer.py").write_text("class AutoModelForImageTextToText:\n    place = 'renamed'\n")
    (package / "broken.py").write_text("import another_package\n")
    media = "import decord\nfrom decord.transforms import Resample\ndef read(path):\n    "
    (package / "sound.py").write_text(f"{media}return decord.load(path)\n")
    guarded = "".join(f"try:\n    {line}\nexcept ImportError:\n    {name} = None\n" for line, name in GUARDED.items())
    (package / "guarded.py").write_text(guarded)
    helpers = "import no_such_package as absent\nclient = absent.Client(key='x')\nclass Kept:\n    x = absent.x(1)\n"
    helpers += "    @mark\n    @absent.call('x')\n    def encode(self): ...\n"
    helpers = f"def mark(function):\n    function.__override__ = True\n    return function\n{helpers}"
    (folder / "helpers.py").write_text(helpers)
    lines = "".join(f"if 'USE' == {use!r}:\n    {use}\n" for use in USES)
    (folder / "train.py").write_text(INSTALL + SCRIPT + lines.replace("'USE'", "sys.argv[2]") + "print('ok')\n")
    return folder


@pytest.mark.parametrize("use", USES)
def test_a_script_imports_what_is_not_installed(folder: Path, tmp_path: Path, use: str) -> None:
    """It runs as long as it does not use it; then the error is that of the import."""
    (tmp_path / "watch").mkdir()
    command = [sys.executable, str(folder / "train.py"), str(tmp_path / "watch"), use]
    environ = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{folder / 'site-packages'}"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert USES[use] in (ended.stdout if USES[use] == "ok" else ended.stderr.splitlines()[-1]), ended.stderr
    lines = list_absent(str(tmp_path))
    started = [line.split(" ")[0] for line in lines]
    moved = ["packed.ALL_MOVED", "packed.AutoModelForVision2Seq", "packed.Moved", "packed.gone.Moved"]
    removed = ["packed.Removed", "ujson", "deepspeed", "no_such_package"]
    own = ["decord"] * ("packed.sound" in use)
    assert started == ["neptune", "tensorboard", *moved, *removed[:2], *own, *removed[2:]]
    assert lines[4].endswith("rehearsed with the one in packed.elsewhere")


@pytest.mark.parametrize(
    ("use", "moved"),
    [
        ("packed.Moved()", True),
        ("packed.Moved() if packed.VERSION < (2,) else None", False),
        ("import user; user.read()", False),
    ],
)
def test_only_a_name_that_a_script_takes_is_moved(use: str, moved: bool, tmp_path: Path) -> None:
    """A script may choose by version; a package in the folder of `pip install --target` is none."""
    installed, watch = tmp_path / "packages", tmp_path / "watch"
    for path in (watch, installed / "packed", installed / "packed-2.0.dist-info"):
        path.mkdir(parents=True)
    (installed / "packed" / "__init__.py").write_text("VERSION = (2, 0)\n")
    (installed / "packed" / "elsewhere.py").write_text("class Moved:\n    pass\n")
    expects = "try:\n        packed.Moved\n    except AttributeError:\n        return\n    raise SystemExit(2)\n"
    expects = f"import packed\ndef read():\n    {expects}"
    (installed / "user.py").write_text(expects)
    (tmp_path / "train.py").write_text(f"{INSTALL}import packed\n{use}\n")
    command = [sys.executable, str(tmp_path / "train.py"), str(watch)]
    environ = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{installed}"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert ended.returncode == 0, ended.stderr
    assert [line.split(" ")[0] for line in list_absent(str(tmp_path))] == ["packed.Moved"] * moved


@pytest.mark.parametrize(
    ("end", "status"), [("if __name__ == '__main__':\n    print('ok')\n", 0), ("print('ok')\n", 1)]
)
def test_the_body_of_a_script_with_a_main_only_defines_names(tmp_path: Path, end: str, status: int) -> None:
    """A plain script's body is its program, so a call there is a use."""
    (tmp_path / "watch").mkdir()
    script = tmp_path / "train.py"
    script.write_text(f"{INSTALL}from no_such_package import Client\nclient = Client(key='x')\n{end}")
    command = [sys.executable, str(script), str(tmp_path / "watch")]
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert ended.returncode == status, ended.stderr


@pytest.mark.parametrize(("without_gpu", "status"), [("1", 0), ("", 1)])
def test_ligers_patches_are_left_out_without_a_gpu(tmp_path: Path, without_gpu: str, status: int) -> None:
    """Its own losses are imported as they are, and so is all of it if there is a GPU."""
    (tmp_path / "watch").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        f"{INSTALL}from liger_kernel.transformers import AutoLigerKernelForCausalLM, apply_liger_kernel_to_llama\n"
        "apply_liger_kernel_to_llama(rope=True)\nassert AutoLigerKernelForCausalLM.from_pretrained\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "watch")]
    environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "ATTNCHECK_WITHOUT_GPU": without_gpu}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert ended.returncode == status, ended.stderr
    assert list_left_out(str(tmp_path)) == (("liger_kernel",) if without_gpu else ())


def test_a_logger_without_its_own_requirements_does_nothing(tmp_path: Path) -> None:
    """The report names both; another package that does not import still ends the script."""
    (tmp_path / "watch").mkdir()
    installed = tmp_path / "site-packages"
    for name in ("wandb", "other"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text("import no_such_requirement\n")
    environ = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{installed}"}
    for name, status in (("wandb", 0), ("other", 1)):
        (tmp_path / "train.py").write_text(f"{INSTALL}import {name}\n{name}.init(project='p').log(1)\n")
        command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "watch")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
        assert ended.returncode == status, ended.stderr
    assert [line.split(" is not")[0] for line in list_absent(str(tmp_path))] == ["no_such_requirement"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has the name")
@pytest.mark.parametrize(("name", "status"), [("getargspec", 0), ("no_such_name", 1)])
def test_a_name_that_python_no_longer_has_is_made(tmp_path: Path, name: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{INSTALL}import inspect\nold = inspect.{name}\n"
        "assert old(lambda a, b=1: a) == (['a', 'b'], None, None, (1,))\n"
    )
    (tmp_path / "watch").mkdir()
    command = [sys.executable, str(script), str(tmp_path / "watch")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert any("inspect.getargspec" in line for line in list_absent(str(tmp_path))) == (not status)


def test_names_that_trl_and_transformers_no_longer_have_are_made() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    assert not hasattr(transformers, "AdamW") and former.has("transformers", "AdamW")
    optimizer = former.make("transformers", "AdamW")([torch.nn.Parameter(torch.ones(2))], correct_bias=True)
    assert (optimizer.defaults["eps"], optimizer.defaults["weight_decay"]) == (1e-6, 0.0)
    if not torch.cuda.is_available():
        assert former.make("trl", "get_kbit_device_map")() is None
    assert not former.has("trl", "PPOTrainer")


# w5 w6 <|assistant|> w3 w4, two turns of it, and a row without an answer
@pytest.mark.parametrize(
    ("text", "instruction", "labels"),
    [
        ("<|user|> w5 w6 <|assistant|> w3 w4", None, [0, 0, 0, 0, 3, 4]),
        ("<|user|> w5 <|assistant|> w3 <|user|> w6 <|assistant|> w4", "<|user|>", [0, 0, 0, 3, 0, 0, 0, 4]),
        ("<|user|> w5 <|assistant|> w3 <|user|> w6 <|assistant|> w4", None, [0, 0, 0, 0, 0, 0, 0, 4]),
        ("<|user|> w5 <|assistant|> w3 <|user|> w6", "<|user|>", [0, 0, 0, 3, 0, 0]),
        ("<|user|> w5 w6", None, [0, 0, 0]),
        ("w5 w6", "<|user|>", [0, 0]),
    ],
)
def test_only_answers_are_labelled(text: str, instruction: str | None, labels: list[int]) -> None:
    """As TRL's collator did up to 0.19: the last answer, or each one up to the next instruction."""
    pytest.importorskip("torch")
    from attncheck.rehearsal.worker.materials import make_tokenizer

    tokenizer = make_tokenizer(True)
    collator = former.make("trl", "DataCollatorForCompletionOnlyLM")("<|assistant|>", instruction, tokenizer=tokenizer)
    batch = collator([tokenizer(text, add_special_tokens=False)])
    assert batch["labels"].tolist() == [[label or -100 for label in labels]]
    collator.padding_free = True
    batch = collator([tokenizer(text, add_special_tokens=False)] * 2)
    assert batch["position_ids"].tolist() == [[*range(len(labels))] * 2] and "attention_mask" not in batch


@pytest.mark.parametrize(("use", "status"), [("", 0), ("kit.Other()", 1), ("import kit.broken", 1)])
def test_a_file_that_the_scripts_own_package_lacks_is_unused(tmp_path: Path, use: str, status: int) -> None:
    """A pattern for ignored files may have left it out; an absolute import is answered like a relative one."""
    (tmp_path / "kit").mkdir()
    (tmp_path / "watch").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text("from .models.other import Other\nfrom kit.models import More\n")
    (tmp_path / "kit" / "broken.py").write_text("raise ModuleNotFoundError('broken', name='broken')\n")
    (tmp_path / "train.py").write_text(f"{INSTALL}import kit\n{use}\n")
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "watch")]
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert ended.returncode == status, ended.stderr
    assert [line.split(" ")[0] for line in list_absent(str(tmp_path))][:1] == ["kit.models"]
