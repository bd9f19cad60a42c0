"""Installed distributions in every state: complete, half removed, duplicate, shadowed, editable."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.environment import Clash, Distribution
from attncheck.doctor.probes.payload.links import extensions
from attncheck.doctor.probes.payload.packages import distributions, integrity, metadata
from tests.conftest import find_python

Package = dict[str, Any]


def install(
    site: Path,
    name: str,
    version: str,
    files: dict[str, str] | None = None,
    headers: str = "",
    record: bool = True,
    **extra: str,
) -> Path:
    """Write a package and its metadata as pip does; `extra` are files of the dist-info, "_" for "."."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{headers}\n\nText.\n",
        "INSTALLER": "pip\n",
        "WHEEL": "Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n",
        **{key.replace("_json", ".json").replace("_txt", ".txt"): text for key, text in extra.items()},
    }
    for file, text in texts.items():
        (info / file).write_text(text)
    lines = []
    for file, text in (files if files is not None else {f"{name}/__init__.py": "x = 1\n"}).items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(text)}")
    if record:
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]) + "\n")
    return info


def collect_by_name(*sites: Path) -> tuple[dict[str, Package], list[Package], list[str]]:
    """Return the distributions by name, the clashes and the shadows; each record is checked to be readable."""
    installed, clashes, shadows = distributions.collect_distributions([str(site) for site in sites])
    for distribution in installed:  # every record is readable by attncheck
        codec.read(Distribution, {key: value for key, value in distribution.items() if key[0] != "_"})
    for clash in clashes:
        codec.read(Clash, clash)
    return {distribution["name"]: distribution for distribution in installed}, clashes, shadows


def test_reads_a_watched_distribution_in_full(tmp_path: Path) -> None:
    headers = "Requires-Python: >=3.9\nLicense: line one\n        line two\nRequires-Dist: torch\nRequires-Dist: einops"
    install(tmp_path, "flash_attn", "2.8.3", headers=headers)
    distribution = collect_by_name(tmp_path)[0]["flash-attn"]
    assert (distribution["version"], distribution["installer"], distribution["problem"]) == ("2.8.3", "pip", "")
    assert distribution["wheel_tags"] == ["cp312-cp312-linux_x86_64"]
    assert (distribution["requires"], distribution["requires_python"]) == (["torch", "einops"], ">=3.9")
    assert (distribution["files_missing"], distribution["files_altered"]) == ([], [])


def test_other_distributions_get_name_version_and_installer(tmp_path: Path) -> None:
    install(tmp_path, "Some.Package", "1.0", headers="Requires-Dist: x")
    distribution = collect_by_name(tmp_path)[0]["some-package"]
    assert (distribution["version"], distribution["installer"], distribution["requires"]) == ("1.0", "pip", [])


def test_half_removed_packages(tmp_path: Path) -> None:
    (install(tmp_path, "flash_attn", "2.8.3") / "METADATA").unlink()
    (tmp_path / "triton-3.6.0.dist-info").mkdir()
    (tmp_path / "~lash_attn-2.8.2.dist-info").mkdir()
    (tmp_path / "~orch").mkdir()
    (tmp_path / "trl-1.0.dist-info").write_text("")
    info = install(tmp_path, "vllm", "0.11.0", top_level_txt="vllm\n")
    shutil.rmtree(tmp_path / "vllm")
    assert info.exists()
    installed = collect_by_name(tmp_path)[0]
    assert installed["flash-attn"]["problem"] == "METADATA is missing"
    assert installed["flash-attn"]["version"] == "2.8.3"
    assert installed["triton"]["problem"] == "its metadata directory is empty"
    assert "interrupted" in installed["~lash-attn"]["problem"]
    assert "interrupted" in installed["~orch"]["problem"]
    assert "not a directory" in installed["trl"]["problem"]
    assert "files no longer exist" in installed["vllm"]["problem"]


def test_metadata_that_is_not_utf8_is_read_and_told(tmp_path: Path) -> None:
    info = install(tmp_path, "verl", "0.9.1")
    (info / "METADATA").write_bytes(b"Name: verl\nVersion: 0.9.1\nAuthor: M\xfcller\n\n")
    distribution = collect_by_name(tmp_path)[0]["verl"]
    assert (distribution["version"], distribution["problem"]) == ("0.9.1", "METADATA is not UTF-8")


def test_metadata_without_name_or_version(tmp_path: Path) -> None:
    info = install(tmp_path, "verl", "0.9.1")
    (info / "METADATA").write_text("Metadata-Version: 2.1\n\nName: trap\n")
    distribution = collect_by_name(tmp_path)[0]["verl"]
    assert (distribution["version"], distribution["problem"]) == (
        "0.9.1",
        "METADATA has no Name; METADATA has no Version",
    )


def test_record_is_compared_with_the_disk(tmp_path: Path) -> None:
    files = {"flash_attn/__init__.py": "x = 1\n", "flash_attn/a.py": "a", "flash_attn/b.py": "b"}
    info = install(tmp_path, "flash_attn", "2.8.3", files)
    with (info / "RECORD").open("a") as record:
        record.write("flash_attn/__pycache__/a.cpython-312.pyc,,\n../../../bin/tool,sha256=x,12\n")
    (tmp_path / "flash_attn/a.py").unlink()
    (tmp_path / "flash_attn/b.py").write_text("longer")
    distribution = collect_by_name(tmp_path)[0]["flash-attn"]
    assert (distribution["files_missing"], distribution["files_altered"]) == (["flash_attn/a.py"], ["flash_attn/b.py"])


def test_files_all_gone(tmp_path: Path) -> None:
    install(tmp_path, "flash_attn", "2.8.3")
    shutil.rmtree(tmp_path / "flash_attn")
    assert "files no longer exist" in collect_by_name(tmp_path)[0]["flash-attn"]["problem"]


def test_flash_attn_4_over_flash_attn(tmp_path: Path) -> None:
    shared = "flash_attn/cute/interface.py"
    license_files = {"flash_attn/cute/LICENSE.txt": "same"}
    install(tmp_path, "flash_attn", "2.8.3", {"flash_attn/__init__.py": "x = 1\n", shared: "old", **license_files})
    install(tmp_path, "flash_attn_4", "4.0.0b36", {shared: "new", **license_files})
    installed, clashes, shadows = collect_by_name(tmp_path)
    assert clashes == [{"path": shared, "owners": ["flash-attn", "flash-attn-4"]}]
    assert installed["flash-attn"]["files_altered"] == [shared]  # the same size: only the hash tells
    assert installed["flash-attn-4"]["files_altered"] == []
    assert shadows == []


def test_namespaces_by_design_do_not_clash(tmp_path: Path) -> None:
    for name in ("nvidia_nccl_cu12", "nvidia_cudnn_cu12"):
        install(tmp_path, name, "1.0", {"nvidia/__init__.py": "", f"nvidia/{name}/__init__.py": ""})
    assert collect_by_name(tmp_path)[1] == []


def test_two_nccl_libraries_in_one_place_clash(tmp_path: Path) -> None:
    for name in ("nvidia_nccl_cu12", "nvidia_nccl_cu13"):
        install(tmp_path, name, "1.0", {"nvidia/nccl/lib/libnccl.so.2": name})
    owners = ["nvidia-nccl-cu12", "nvidia-nccl-cu13"]
    assert collect_by_name(tmp_path)[1] == [{"path": "nvidia/nccl/lib/libnccl.so.2", "owners": owners}]


def test_duplicates_in_one_directory_are_both_listed(tmp_path: Path) -> None:
    install(tmp_path, "flash_attn", "2.7.4")
    install(tmp_path, "flash_attn", "2.8.3")
    installed = distributions.collect_distributions([str(tmp_path)])[0]
    assert [distribution["version"] for distribution in installed] == ["2.7.4", "2.8.3"]


def test_directories_come_in_order_and_once(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    install(first, "torch", "2.8.0")
    install(second, "torch", "2.9.0")
    link.symlink_to(first)
    installed = distributions.collect_distributions([str(first), str(link), str(tmp_path / "none"), str(second)])[0]
    assert [(distribution["version"], distribution["location"]) for distribution in installed] == [
        ("2.8.0", str(first)),
        ("2.9.0", str(second)),
    ]


def test_a_checkout_in_front_shadows(tmp_path: Path) -> None:
    site, checkout = tmp_path / "site", tmp_path / "flash-attention"
    install(site, "flash_attn", "2.8.3")
    (checkout / "flash_attn").mkdir(parents=True)
    (checkout / "flash_attn/__init__.py").write_text("")
    assert collect_by_name(checkout, site)[2] == [f"flash_attn at {checkout}/flash_attn"]
    assert collect_by_name(site, checkout)[2] == []


def test_a_leftover_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "flash_attn/__pycache__").mkdir(parents=True)
    assert collect_by_name(tmp_path)[2] == [f"flash_attn at {tmp_path}/flash_attn (no __init__.py)"]


def test_a_leftover_init_beside_flash_attn_4_is_told(tmp_path: Path) -> None:
    install(tmp_path, "flash_attn_4", "4.0.0b36", {"flash_attn/cute/interface.py": "new"})
    assert collect_by_name(tmp_path)[2] == []
    (tmp_path / "flash_attn/__init__.py").write_text("")
    assert collect_by_name(tmp_path)[2] == [f"flash_attn at {tmp_path}/flash_attn"]


def test_owned_by_an_unwatched_distribution(tmp_path: Path) -> None:
    install(tmp_path, "my_torch_build", "2.9.0", {"torch/__init__.py": ""})
    assert collect_by_name(tmp_path)[2] == []


def test_without_record_the_name_or_top_level_owns(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.9.0", record=False, INSTALLER="conda\n")
    install(tmp_path, "pytorch", "2.9.0", {"triton/__init__.py": ""}, record=False, top_level_txt="triton\n")
    installed, _, shadows = collect_by_name(tmp_path)
    assert (installed["torch"]["problem"], shadows) == ("", [])


def test_pip_without_record_cannot_uninstall(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.9.0", record=False)
    assert collect_by_name(tmp_path)[0]["torch"]["problem"] == "RECORD is missing"


def test_editable(tmp_path: Path) -> None:
    site, source = tmp_path / "site", tmp_path / "my verl"
    (source / "verl").mkdir(parents=True)
    (source / "verl/__init__.py").write_text("")
    document = {"url": source.as_uri(), "dir_info": {"editable": True}}
    install(site, "verl", "0.9.1", {"__editable___verl_finder.py": ""}, direct_url_json=json.dumps(document))
    installed, _, shadows = collect_by_name(site, source)
    assert installed["verl"]["editable"] is True
    assert (installed["verl"]["direct_url"], installed["verl"]["problem"], shadows) == (source.as_uri(), "", [])


def test_egg_link(tmp_path: Path) -> None:
    site, source = tmp_path / "site", tmp_path / "source"
    (source / "verl").mkdir(parents=True)
    (source / "verl/__init__.py").write_text("")
    (source / "verl.egg-info").mkdir()
    (source / "verl.egg-info/PKG-INFO").write_text("Name: verl\nVersion: 0.5\n")
    (source / "verl.egg-info/requires.txt").write_text("torch\n\n[test]\npytest\n")
    site.mkdir()
    (site / "verl.egg-link").write_text(f"{source}\n.")
    (site / "trl.egg-link").write_text("/nowhere\n.")
    installed, _, shadows = collect_by_name(site, source)
    assert (installed["verl"]["editable"], installed["verl"]["version"], installed["verl"]["requires"]) == (
        True,
        "0.5",
        ["torch"],
    )
    assert "not on sys.path" in installed["trl"]["problem"]
    assert shadows == []


def test_egg_directory_of_setup_py_install(tmp_path: Path) -> None:
    egg = tmp_path / "flash_attn_3-3.0.0b1-py3.12-linux-x86_64.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO/PKG-INFO").write_text("Name: flash_attn_3\nVersion: 3.0.0b1\n")
    distribution = collect_by_name(egg)[0]["flash-attn-3"]
    assert (distribution["version"], distribution["location"]) == ("3.0.0b1", str(egg))


def test_distutils_egg_info_file(tmp_path: Path) -> None:
    (tmp_path / "apex-0.1-py3.10.egg-info").write_text("Metadata-Version: 1.0\nName: apex\nVersion: 0.1\n")
    distribution = collect_by_name(tmp_path)[0]["apex"]
    assert (distribution["version"], distribution["problem"]) == ("0.1", "")


def test_direct_url_has_no_credentials() -> None:
    document = {"url": "https://me:pass@host/x.git?token=1", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert metadata.parse_direct_url(json.dumps(document).encode()) == ("git+https://host/x.git@abc", False)
    assert metadata.parse_direct_url(b"[" * 100_000) == ("", False)


def test_a_pipe_in_place_of_metadata_does_not_hang(tmp_path: Path) -> None:
    info = install(tmp_path, "torch", "2.9.0")
    (info / "METADATA").unlink()
    os.mkfifo(info / "METADATA")
    assert "cannot be read" in collect_by_name(tmp_path)[0]["torch"]["problem"]


def test_runs_under_python_3_8(tmp_path: Path) -> None:
    install(tmp_path, "flash_attn", "2.8.3")
    code = (
        "import json; from attncheck.doctor.probes.payload import environ, host, hub, privacy\n"
        "from attncheck.doctor.probes.payload.packages import build_tools, distributions\n"
        f"site = [{str(tmp_path)!r}]\n"
        "answers = [distributions.collect_distributions(site), build_tools.collect_build_tools(site)]\n"
        "answers += [environ.collect_variables(), host.collect_host(), hub.collect_hub_cache()]\n"
        "print(json.dumps(privacy.scrub(answers)))"
    )
    python = find_python("3.8")
    root = str(Path(__file__).parents[2])
    answer = subprocess.run([python, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(answer.stdout)[0][0][0]["name"] == "flash-attn"


@pytest.mark.slow
def test_real_wheels_of_ring_flash_attn_and_flash_attn_4(tmp_path: Path) -> None:
    requirements = ["ring-flash-attn==0.1.8", "flash-attn-4==4.0.0b36"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), *requirements]
    if subprocess.run(command, capture_output=True, timeout=300).returncode:
        pytest.skip("the package index cannot be reached")
    installed, clashes, shadows = collect_by_name(tmp_path)
    assert installed["ring-flash-attn"]["version"] == "0.1.8"
    assert installed["flash-attn-4"]["version"] == "4.0.0b36"
    assert any(line.startswith("nvidia-cutlass-dsl") for line in installed["flash-attn-4"]["requires"])
    for distribution in installed.values():
        assert (distribution["problem"], distribution["files_missing"], distribution["files_altered"]) == ("", [], [])
    assert (clashes, shadows) == ([], [])


def test_the_hash_of_a_record_is_that_of_the_wheels_own_files() -> None:
    own = b"peft/__init__.py,sha256=abc,10\r\npeft/x.so,sha256=def,20\r\n"
    installed = own + b"../../../bin/peft,sha256=1,9\npeft-1.dist-info/RECORD,,\npeft/__pycache__/x.cpython-311.pyc,,\n"
    assert integrity.hash_record(installed) == integrity.hash_record(own)
    assert integrity.hash_record(b"\n".join(reversed(own.splitlines()))) == integrity.hash_record(own)
    assert integrity.hash_record(own.replace(b"def", b"deg")) != integrity.hash_record(own)
    assert integrity.hash_record(b"") == integrity.hash_record(b"peft-1.dist-info/RECORD,,\n") == ""


HANDED = 'grad_acc_kwargs["num_steps"] = self.args.gradient_accumulation_steps'
DIVIDED = "loss = loss / self.current_gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ((HANDED, DIVIDED), {"ATN457": True}),
        ((HANDED, "loss = loss / self.args.gradient_accumulation_steps"), {"ATN457": True}),
        (('grad_acc_kwargs["num_steps"] = 1', DIVIDED), {"ATN457": False}),
        ((HANDED,), {"ATN457": False}),
        ((f"# {HANDED}", DIVIDED), {"ATN457": False}),
    ],
)
def test_a_fault_is_read_in_the_installed_file(lines: tuple[str, ...], faults: dict[str, bool], tmp_path: Path) -> None:
    text = "".join(f"        {line}\n" for line in lines)
    install(tmp_path, "transformers", "5.3.0", {"transformers/trainer.py": text})
    install(tmp_path, "trl", "1.0.0")
    by_name, _, _ = collect_by_name(tmp_path)
    assert by_name["transformers"]["faults"] == faults and by_name["trl"]["faults"] == {}


def test_without_the_file_no_fault_is_denied(tmp_path: Path) -> None:
    install(tmp_path, "transformers", "5.3.0")
    assert collect_by_name(tmp_path)[0]["transformers"]["faults"] == {}


FLASH_ATTN_FILES = {
    "flash_attn/__init__.py": "from flash_attn.interface import attend\n",
    "flash_attn/interface.py": (
        "import os\nimport einops\nUSE_ROCM = os.getenv('ATTNCHECK_TEST_ROCM', 'FALSE') == 'TRUE'\n"
        "if USE_ROCM:\n    from .rocm import attend\nelse:\n    import flash_attn_2_cuda as attend\n"
        "try:\n    import flash_attn_optional\nexcept ImportError:\n    pass\n"
        "def call():\n    import flash_attn_called\n"
    ),
}


def find_missing_modules(tmp_path: Path, **files: str) -> list[str]:
    headers = "Requires-Dist: einops"
    install(tmp_path, "flash_attn", "2.8.3", FLASH_ATTN_FILES, headers)
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    installed = distributions.collect_distributions([str(tmp_path)])[0]
    extensions.find_missing_modules(installed, [str(tmp_path)])
    missing: list[str] = installed[0]["missing_modules"]
    return missing


def test_an_extension_that_no_file_has_is_missing(tmp_path: Path) -> None:
    assert find_missing_modules(tmp_path) == ["flash_attn_2_cuda (flash_attn/interface.py:7)"]


def test_an_extension_that_is_there_is_not_missing(tmp_path: Path) -> None:
    assert find_missing_modules(tmp_path, flash_attn_2_cuda__so="") == []


def test_a_variable_decides_which_extension_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCHECK_TEST_ROCM", "TRUE")
    assert find_missing_modules(tmp_path) == []
