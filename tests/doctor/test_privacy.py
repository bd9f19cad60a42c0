"""Home paths, users, hosts and credentials in URLs are removed; names that only resemble them stay."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from attncheck.doctor.probes.payload import privacy


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    fake_account(monkeypatch, home="/home/alice", user="alice", host="gpu17.corp.example")
    return monkeypatch


def fake_account(patch: pytest.MonkeyPatch, home: str, user: str, host: str) -> None:
    """Make the process appear to run as this account on this machine."""
    for name in ("LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "COMPUTERNAME"):
        patch.delenv(name, raising=False)
    patch.setenv("HOME", home)
    patch.setenv("USER", user)
    patch.setattr(privacy, "_read_account", lambda: (user, home))
    patch.setattr(os, "uname", lambda: os.uname_result(("Linux", host, "6.1", "#1", "x86_64")))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/alice", "~"),
        ("/home/alice/env/bin/python", "~/env/bin/python"),
        ("HOME=/home/alice:/opt", "HOME=~:/opt"),
        ("file:///home/alice/src", "file://~/src"),
        ("File \"/home/alice/x.py\", line 3, in '/home/alice'.", "File \"~/x.py\", line 3, in '~'."),
        ("/scratch/alice/data", "/scratch/$USER/data"),
        ("/mnt/home/alice/x", "/mnt/home/$USER/x"),
        ("https://github.com/alice/repo", "https://github.com/$USER/repo"),
        ("on gpu17: lost", "on <host>: lost"),
        ("GPU17.corp.example:29500", "<host>:29500"),
        ("https://bob:p@ss@index.example/simple", "https://index.example/simple"),
        ("git+ssh://git@github.com/a/b.git", "git+ssh://github.com/a/b.git"),
        ("caf\udce9 /home/alice", "caf? ~"),
    ],
)
def test_cleans(alice: pytest.MonkeyPatch, text: str, cleaned: str) -> None:
    assert privacy.scrub([text]) == [cleaned]


@pytest.mark.parametrize(
    "text",
    [
        "/home/alice-old/x",
        "/home/alicee",
        "/x/malice/y",
        "alice",
        "talice/bob",
        "gpu170",
        "my-gpu17x",
        'numpy>=1.2; extra == "all"',
        "https://download.pytorch.org/whl/cu128",
        "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU",
        "Müller",
    ],
)
def test_leaves_alone(alice: pytest.MonkeyPatch, text: str) -> None:
    assert privacy.scrub(text) == text


def test_walks_everything_and_keys_too(alice: pytest.MonkeyPatch) -> None:
    document = {"/home/alice/a": [1, None, True, 2.5, ("/home/alice", {"b": "gpu17"})]}
    assert privacy.scrub(document) == {"~/a": [1, None, True, 2.5, ["~", {"b": "<host>"}]]}


@pytest.mark.parametrize("home", ["/", "", "relative"])
def test_a_home_that_is_none(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    fake_account(monkeypatch, home=home, user="", host="")
    assert privacy.scrub("/opt/env/lib /") == "/opt/env/lib /"


def test_without_home_and_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def unknown(_: Any) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert privacy.scrub("/opt/env") == "/opt/env"


def test_home_through_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    fake_account(monkeypatch, home=str(link), user="", host="")
    assert privacy.scrub([f"{real}/x", f"{link}/x"]) == ["~/x", "~/x"]


@pytest.mark.parametrize("name", ["root", "runner", "ray", "torch", "io", "42", "ubuntu"])
def test_account_names_that_name_no_person_stay(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake_account(monkeypatch, home="/srv/home", user=name, host="localhost")
    text = f"/env/lib/python3.12/site-packages/{name}/lib"
    assert privacy.scrub(text) == text


@pytest.mark.parametrize("name", ["torch", "triton", "localhost", "vm1", "localhost.localdomain"])
def test_machine_names_that_would_garble_stay(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake_account(monkeypatch, home="/srv/home", user="", host=name)
    assert privacy.scrub(f"{name} 2.9") == f"{name} 2.9"


def test_public_url() -> None:
    assert privacy.strip_url_secrets("https://u:p@h/x?k=1 http://v/y#z /plain?x") == "https://h/x http://v/y /plain?x"


def test_forty_thousand_strings_in_linear_time(alice: pytest.MonkeyPatch) -> None:
    document = [f'/home/alice/env/lib/module_{i}.py: needs numpy>=1.{i}; extra == "x"' for i in range(40_000)]
    began = time.process_time()
    privacy.scrub(document)
    assert time.process_time() - began < 60  # half a second on an idle machine; what is quadratic takes minutes
