"""The linker on small packages laid for the purpose: each kind of break is found, each kind of guard believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attncheck.doctor.probes.payload.links.linker import link_distributions
from attncheck.doctor.probes.payload.links.own_code import OwnCodeLinker
from attncheck.doctor.probes.payload.links.packages import CONSUMERS

Files = dict[str, str]

# What is taken from: the forms in which packages offer names.
TRANSFORMERS: Files = {
    "__init__": """
import sys
from .utils import _LazyModule
__version__ = "5.0.0"
_import_structure = {"cache_utils": ["Cache", "DynamicCache"], "trainer": ["Trainer", "TrainingArguments"]}
if False:
    pass
else:
    from pathlib import Path
    from .utils import define_import_structure
    sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], _import_structure)
""",
    "utils/__init__": "from .import_utils import *\nfrom .generic import ModelOutput\nclass _LazyModule: ...\n",
    "utils/import_utils": "def is_flash(): ...\ndef _hidden(): ...\nmoved = 1\n",
    "utils/generic": "class ModelOutput: ...\n",
    "cache_utils": """
class Cache:
    def get_seq_length(self): ...
class DynamicCache(Cache):
    def crop(self, n): ...
""",
    "dynamic": "def __getattr__(name): return 1\n",
    "versions": "if __version__:\n    only_sometimes = 1\n",
    "trainer": """
from dataclasses import dataclass
@dataclass
class TrainingArguments:
    output_dir: str = ""
    eval_strategy: str = "no"
class Trainer:
    def __init__(self, model, args=None, processing_class=None): ...
@deprecate_kwarg("tokenizer")
def decorated(processing_class): ...
def needs_two(first, second): ...
def takes_all(**kwargs): ...
""",
    "models/__init__": "",
    "models/llama/__init__": "from ...utils import define_import_structure\n",
    "models/llama/modeling_llama": "__all__ = ['LlamaForCausalLM']\nclass LlamaForCausalLM: ...\n",
}


def lay(site: Path, packages: dict[str, Files]) -> None:
    for package, files in packages.items():
        for name, text in files.items():
            path = site / package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def link(site: Path, trl: Files, **others: Files) -> list[dict[str, Any]]:
    """Return the records of a trl with these files next to transformers 5.0.0."""
    lay(site, {"transformers": TRANSFORMERS, "trl": {"__init__": "", **trl}, **others})
    installed = [{"name": name, "version": "5.0.0"} for name in ("transformers", "trl", *others)]
    return [record for found in link_distributions(installed, [str(site)], CONSUMERS).values() for record in found]


def describe(record: dict[str, Any]) -> str:
    when = "guarded" if record["fallback_line"] else "later" if record["function"] else "import"
    return f"{when} {record['source']}:{record['name']}" + (f"({record['argument']})" if record["argument"] else "")


BREAKS: dict[str, tuple[str, str]] = {
    "a name that is gone": ("from transformers.cache_utils import HybridCache", "transformers.cache_utils:HybridCache"),
    "a name that the lazy package never had": ("from transformers import Gone", "transformers:Gone"),
    "a module that no longer exists": ("import transformers.gone", "transformers.gone:"),
    "a name of a module that no longer exists": ("from transformers.gone.more import x", "transformers.gone.more:"),
    "a private name, which a star import leaves out": (
        "from transformers.utils import _hidden",
        "transformers.utils:_hidden",
    ),
    "both alternatives": (
        "try:\n    from transformers.utils import a\nexcept ImportError:\n    from transformers.utils import b",
        "transformers.utils:b",
    ),
    "raised again": (
        "try:\n    from transformers.utils import a\nexcept ImportError as e:\n    raise ImportError('no') from e",
        "transformers.utils:a",
    ),
    "a guard that catches something else": (
        "try:\n    from transformers.utils import a\nexcept ModuleNotFoundError:\n    a = None",
        "transformers.utils:a",
    ),
    "a version check that holds": (
        "import transformers\nfrom packaging import version\n"
        "if version.parse(transformers.__version__) >= version.parse('4.50'):\n    from transformers.utils import a",
        "transformers.utils:a",
    ),
    "a base class": (
        "from transformers import cache_utils\nclass Mine(cache_utils.HybridCache): ...",
        "transformers.cache_utils:HybridCache",
    ),
    "an else of a check that fails": (
        "import transformers\nfrom packaging.version import Version\n"
        "old = Version(transformers.__version__) < Version('4')\n"
        "if old:\n    pass\nelse:\n    from transformers.utils import a",
        "transformers.utils:a",
    ),
}
CLEAN: dict[str, str] = {
    "a name that is there": "from transformers.cache_utils import DynamicCache",
    "a lazy name": "from transformers import Cache, Trainer",
    "a submodule": "from transformers.models.llama import modeling_llama",
    "a star import's name": "from transformers.utils import is_flash, moved",
    "a name that __getattr__ may make": "from transformers.dynamic import anything",
    "a name under an open condition": "from transformers.versions import only_sometimes",
    "a package that is not installed": "from flash_attn import gone",
    "for the type checker": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from transformers.utils import a",
    "a version check that fails": (
        "import transformers\nfrom packaging import version\n"
        "if version.parse(transformers.__version__) < version.parse('4.50'):\n    from transformers.utils import a"
    ),
    "a package that is checked for": (
        "from transformers.utils import is_flash\nif is_peft_available():\n    from transformers.utils import a"
    ),
    "asked before": "from transformers import cache_utils\nif hasattr(cache_utils, 'Gone'):\n    x = cache_utils.Gone",
    "an attribute of Python's own": "from transformers import Trainer\nx = Trainer.__dataclass_fields__",
    "a definition for the attribute": "from transformers.cache_utils import DynamicCache\nx = DynamicCache.crop",
    "rebound": "from transformers import cache_utils\ncache_utils = other()\nx = cache_utils.Gone",
    "a second try that succeeds": (
        "try:\n    from transformers.gone import moved\nexcept ImportError:\n    from transformers.utils import moved"
    ),
    "only in a docstring": '"""\nfrom transformers.utils import gone\n"""',
    "does not parse": "def (:\nfrom transformers.utils import gone",
}


@pytest.mark.parametrize("case", BREAKS.values(), ids=BREAKS)
def test_what_stops_an_import_is_found(case: tuple[str, str], tmp_path: Path) -> None:
    source, target = case
    records = link(tmp_path, {"inner": source, "__init__": "from .inner import x", "apart": "import os"})
    stopping = [record for record in records if not record["fallback_line"]]
    assert [describe(record) for record in stopping] == [f"import {target}"]
    assert set(stopping[0]["breaks"]) == {"trl", "trl.inner", "trl.apart"}


@pytest.mark.parametrize("source", CLEAN.values(), ids=CLEAN)
def test_what_is_there_or_guarded_or_open_is_no_break(source: str, tmp_path: Path) -> None:
    records = link(tmp_path, {"inner": source, "__init__": "from . import inner"})
    assert [describe(record) for record in records if not record["fallback_line"]] == []


def test_a_guard_is_recorded_with_the_line_where_the_module_goes_on(tmp_path: Path) -> None:
    source = "try:\n    from transformers.utils import a\nexcept ImportError:\n    a = None\n"
    (record,) = link(tmp_path, {"inner": source})
    assert describe(record) == "guarded transformers.utils:a" and record["fallback_line"] == 4


def test_what_a_function_takes_is_for_later(tmp_path: Path) -> None:
    source = "class A:\n    def train(self, x):\n        if x:\n            from transformers.utils import a\n"
    (record,) = link(tmp_path, {"inner": source, "__init__": "from . import inner"})
    assert (record["function"], record["conditions"], record["breaks"]) == ("A.train", ["x"], [])


def test_the_name_of_a_flag_in_another_module_is_followed(tmp_path: Path) -> None:
    flags = "import transformers\nfrom packaging import version as v\n"
    flags += "NEW = v.parse(transformers.__version__) >= v.parse('5')\n"
    source = "from .flags import NEW\nif not NEW:\n    from transformers.utils import a\n"
    assert link(tmp_path, {"flags": flags, "inner": source}) == []


def test_a_flag_that_a_failed_import_leaves_off_is_believed(tmp_path: Path) -> None:
    flags = "try:\n    from transformers.utils import gone\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
    source = "from .flags import HAS\nif HAS:\n    from transformers.utils import also_gone\n"
    assert [describe(r) for r in link(tmp_path, {"flags": flags, "inner": source})] == [
        "guarded transformers.utils:gone"
    ]


def test_a_name_that_the_package_puts_back_is_left_open(tmp_path: Path) -> None:
    patch = "import transformers.utils\ntransformers.utils.a = 1\n"
    (record,) = link(tmp_path, {"patch": patch, "inner": "from transformers.utils import a"})
    assert record["patched_by"] == "trl.patch"


def test_it_says_where_a_name_is_now(tmp_path: Path) -> None:
    (record,) = link(tmp_path, {"inner": "from transformers.cache_utils import moved"})
    assert record["moved_to"] == ["transformers.utils.import_utils"]


def test_a_lazy_package_breaks_where_its_names_are_taken(tmp_path: Path) -> None:
    lazy = (
        "import sys\n_import_structure = {'dpo_trainer': ['DPOTrainer'], 'sft_trainer': ['SFTTrainer']}\n"
        "sys.modules[__name__] = _LazyModule(__name__, __file__, _import_structure)\n"
    )
    files = {
        "__init__": lazy,
        "dpo_trainer": "from transformers.utils import gone\nclass DPOTrainer: ...\n",
        "sft_trainer": "class SFTTrainer: ...\n",
        "scripts": "from trl import DPOTrainer\n",
        "other": "from trl import SFTTrainer\n",
    }
    (record,) = link(tmp_path, files, verl={"__init__": "", "trainer": "from trl import DPOTrainer"})
    assert record["breaks"] == ["trl.dpo_trainer", "trl.scripts", "verl.trainer"]


def test_a_module_that_goes_on_without_something_may_lack_a_name_of_its_own(tmp_path: Path) -> None:
    files = {
        "outputs": "try:\n    from transformers.utils import gone\nexcept Exception:\n    gone = None\n"
        "if gone is not None:\n    class Output(gone): ...\n",
        "model": "from .outputs import Output\n",
    }
    (record,) = link(tmp_path, files)
    assert record["breaks"] == ["trl.model"]


CALLS: dict[str, tuple[str, str]] = {
    "a keyword of a data class": (
        "from transformers import TrainingArguments\nx = TrainingArguments(evaluation_strategy='no')",
        "it takes no argument evaluation_strategy, but eval_strategy",
    ),
    "a keyword of __init__": (
        "from transformers import Trainer\nTrainer(model=1, tokenizer=2)",
        "it takes no argument tokenizer",
    ),
    "too many by position": (
        "from transformers.trainer import needs_two\nneeds_two(1, 2, 3)",
        "it takes 2 arguments by position, not 3",
    ),
    "too few": ("from transformers.trainer import needs_two\nneeds_two(1)", "it wants second"),
}
GOOD_CALLS = {
    "what it takes": "from transformers import Trainer\nTrainer(1, args=2, processing_class=3)",
    "a decorator that may take more": "from transformers.trainer import decorated\ndecorated(tokenizer=1)",
    "any keyword": "from transformers.trainer import takes_all\ntakes_all(x=1)",
    "unpacked": "from transformers.trainer import needs_two\nneeds_two(*pair)\nneeds_two(**both)",
    "a parameter of the same name": "from transformers.trainer import needs_two\ndef f(needs_two):\n    needs_two(1)",
    "caught": "from transformers.trainer import needs_two\ntry:\n    needs_two(1)\nexcept TypeError:\n    pass",
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_a_call_that_does_not_fit_is_found(case: tuple[str, str], tmp_path: Path) -> None:
    source, reason = case
    (record,) = link(tmp_path, {"inner": source})
    assert (record["kind"], record["reason"]) == ("argument", reason)


@pytest.mark.parametrize("source", GOOD_CALLS.values(), ids=GOOD_CALLS)
def test_a_call_that_fits_or_may_fit_is_none(source: str, tmp_path: Path) -> None:
    assert [r for r in link(tmp_path, {"inner": source}) if not r["fallback_line"]] == []


def link_script(tmp_path: Path, source: str, **others: str) -> list[dict[str, Any]]:
    site, folder = tmp_path / "site", tmp_path / "own"
    lay(site, {"transformers": TRANSFORMERS})
    folder.mkdir()
    for name, text in {"train": source, **others}.items():
        (folder / f"{name}.py").write_text(text)
    linker = OwnCodeLinker([{"name": "transformers", "version": "5.0.0"}], [str(site)])
    return linker.link("launch", [str(folder / "train.py")], [str(folder)])


@pytest.mark.parametrize("use", ["cache.seen_tokens", "cache.get_usable_length(1)"])
@pytest.mark.parametrize(
    "head", ["def forward(self, cache: Optional[Cache] = None):", "def forward(self):\n    cache = DynamicCache()"]
)
def test_an_attribute_of_a_variable_whose_class_is_known(head: str, use: str, tmp_path: Path) -> None:
    records = link_script(tmp_path, f"from transformers import Cache, DynamicCache\n{head}\n    return {use}\n")
    assert [r["name"].partition(".")[2] for r in records] == [use.partition("(")[0][6:]]


@pytest.mark.parametrize(
    "body",
    [
        "return cache.get_seq_length()",
        "cache = cache.to_legacy()\n    return cache.seen_tokens",
        "return cache.seen_tokens if hasattr(cache, 'seen_tokens') else 0",
    ],
)
def test_an_attribute_that_is_there_or_may_be(body: str, tmp_path: Path) -> None:
    source = f"from transformers import Cache\ndef forward(self, cache: Cache):\n    {body}\n"
    assert [r["name"] for r in link_script(tmp_path, source) if r["name"] != "Cache.to_legacy"] == []


def test_files_beside_a_script_are_followed(tmp_path: Path) -> None:
    records = link_script(
        tmp_path, "import helper\n", helper="from transformers.utils import gone\n", apart="import gone_too"
    )
    assert [(Path(r["path"]).name, r["name"]) for r in records] == [("helper.py", "gone")]


def test_a_file_that_only_a_function_imports_is_for_later(tmp_path: Path) -> None:
    source = "def evaluate():\n    import helper\n"
    (record,) = link_script(tmp_path, source, helper="from transformers.utils import gone\n")
    assert record["conditions"] == ["a function that imports it is called"]


def test_a_package_beside_the_script_hides_the_installed_one(tmp_path: Path) -> None:
    lay(tmp_path / "own", {"transformers": {"__init__": "gone = 1"}})
    site = tmp_path / "site"
    lay(site, {"transformers": TRANSFORMERS})
    script = tmp_path / "own" / "train.py"
    script.write_text("from transformers import gone\n")
    linker = OwnCodeLinker([{"name": "transformers", "version": "5.0.0"}], [str(site)])
    assert linker.link("launch", [str(script)], []) == []
