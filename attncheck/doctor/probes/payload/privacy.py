"""Cleans what leaves the machine: no home path, user name, host name, credential or token in any string.

The host's name is taken from the kernel alone: asking for the full name would ask the network.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Accounts and machines that name no person and no site. Replacing them would only garble paths and package names.
_WORDS = """
root runner user users ubuntu debian centos fedora rocky almalinux ec2-user azureuser nobody daemon default
jovyan apps admin administrator docker container nvidia python python3 conda mamba mambauser anaconda jenkins
gitpod vscode codespace vagrant test tester worker workspace build builder service www-data
home lib64 local share site-packages dist-packages scratch work venv data
linux darwin win32 x86_64 aarch64 cpython cuda cudnn nccl node server host machine laptop cluster
torch pytorch torchvision torchaudio triton transformers tokenizers accelerate kernels peft deepspeed vllm
trl ray fla main base latest train trainer training
sglang openrlhf verl llamafactory axolotl swift ms-swift nemo apex xformers numpy einops flash_attn flash-attn
ring_flash_attn ring-flash-attn liger_kernel liger-kernel megatron attention flash ring model models
huggingface attncheck localhost
"""
_IMPERSONAL = frozenset(_WORDS.split())
_URL = re.compile(r"(?<=://)[^/\s'\"<>?#]*@")
_QUERY = re.compile(r"(://[^\s?#]*)[?#]\S*")
_SECRET = (
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,}|pypi-Ag[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|(?<=[Bb]earer )[\w.~+/=-]{8,}"
    r"|(?<=[Tt]oken[=:])(?=[\w-]*\d)[\w-]{16,}|(?<=TOKEN[=:])(?=[\w-]*\d)[\w-]{16,}"
    r"|(?<=[Kk]ey=)(?=[\w-]*\d)[\w-]{16,}|(?<=KEY=)(?=[\w-]*\d)[\w-]{16,}"
    r"|(?<=[Pp]assword=)[^\s&'\",;<]+|(?<=PASSWORD=)[^\s&'\",;<]+"
)
# In lower case: what a text must hold before the costly pattern is tried on it. Most are versions and package names.
_MARKS = (
    *("://", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "akia", "pypi-ag", "eyj"),
    *("bearer ", "token=", "token:", "key=", "password="),
)
_COMPONENT_ENDS = r"(?![\w@~+-]|\.\w)"  # the end of a path component, or of a sentence
_INSTEAD = {"url": "", "home": "~", "user": "$USER", "host": "<host>", "secret": "<secret>"}


def public_url(text: str) -> str:
    """Return `text` with user, password, query and fragment taken out of every URL in it."""
    return _QUERY.sub(r"\1", _URL.sub("", text)) if "://" in text else text


def scrub(document: Any) -> Any:
    """Return `document` (dictionaries, lists, scalars) with every string cleaned, keys too."""
    pattern, marks = _pattern()
    texts: set[str] = set()
    _gather(document, texts)
    whole = "\n".join(texts).lower()
    marks = [mark for mark in marks if mark in whole]
    cleaned = {}
    for text in texts:
        if not text.isascii() or any(mark in text.lower() for mark in marks):
            cleaned[text] = _clean(text, pattern)
    return _rebuild(document, cleaned)


def _gather(value: Any, texts: set[str]) -> None:
    if isinstance(value, str):
        texts.add(value)
    elif isinstance(value, dict):
        texts.update(value)
        for item in value.values():
            _gather(item, texts)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather(item, texts)


def _rebuild(value: Any, cleaned: dict[str, str]) -> Any:
    if isinstance(value, str):
        return cleaned.get(value, value)
    if isinstance(value, dict):
        return {cleaned.get(key, key): _rebuild(item, cleaned) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rebuild(item, cleaned) for item in value]
    return value


def _clean(text: str, pattern: re.Pattern[str]) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as UTF-8
    return pattern.sub(lambda match: _INSTEAD[match.lastgroup or "secret"], text)


def _pattern() -> tuple[re.Pattern[str], list[str]]:
    """Return the pattern of all that must go, and the marks, in lower case, without one of which it cannot match."""
    homes, users, hosts = home_paths(), user_names(), host_names()
    parts = [r"(?<=://)(?P<url>[^/\s'\"<>?#]*@)"]
    if homes:
        parts.append(rf"(?<![\w.~-])(?P<home>{_any(homes)}){_COMPONENT_ENDS}")
    if users:
        parts.append(rf"(?<=[/\\~])(?P<user>{_any(users)}){_COMPONENT_ENDS}")
    if hosts:
        parts.append(rf"(?<![\w-])(?P<host>(?i:{_any(hosts)}))(?![\w-])")
    parts.append(f"(?P<secret>{_SECRET})")
    return re.compile("|".join(parts)), [mark.lower() for mark in (*homes, *users, *hosts, *_MARKS)]


def home_paths() -> list[str]:
    """Return the paths that lead to the home directory, as HOME and the user database tell it, links resolved."""
    found = {os.environ.get("HOME", ""), os.path.expanduser("~"), _account()[1]}
    found |= {os.path.realpath(path) for path in found if os.path.isabs(path)}
    found = {path.rstrip("/\\") for path in found if os.path.isabs(path)}
    return sorted((path for path in found if len(path) > 2), key=len, reverse=True)


def user_names() -> list[str]:
    """Return the names of the account, where they can be a person's."""
    found = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")} | {_account()[0]}
    for path in home_paths():
        folder, name = os.path.split(path)
        if os.path.basename(folder).lower() in ("home", "users"):
            found.add(name)
    return sorted(name for name in found if _telling(name))


def host_names() -> list[str]:
    """Return this machine's names in lower case, long form first, where they can name a site."""
    names = {os.environ.get("HOSTNAME", ""), os.environ.get("COMPUTERNAME", "")}
    if hasattr(os, "uname"):
        names.add(os.uname().nodename)
    names |= {name.partition(".")[0] for name in names}
    return sorted((name.lower() for name in names if len(name) > 3 and _telling(name)), key=len, reverse=True)


def _telling(name: str) -> bool:
    short = name.lower().partition(".")[0]
    return len(name) > 2 and short not in _IMPERSONAL and not name.isdigit()


def _account() -> tuple[str, str]:
    """Return name and home of this process's account; containers often run as one that has no entry."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        return entry.pw_name, entry.pw_dir
    except (ImportError, AttributeError, KeyError, OSError):
        return "", ""


def _any(names: list[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
