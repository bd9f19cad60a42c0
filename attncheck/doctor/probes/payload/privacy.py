"""Removes text that identifies a person or a site from every string: home path, user name, host name, user of a URL.

Tokens and passwords are masked later, by the program that runs this payload, when a snapshot is shown.

The host name comes only from the kernel, because resolving the full name would use the network.
"""

from __future__ import annotations

import os
import re
from typing import Any

# Accounts and machines that identify no person or site. Replacing them would only garble paths and package names.
_IMPERSONAL_NAMES = """
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
_IMPERSONAL = frozenset(_IMPERSONAL_NAMES.split())
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"<>?#]*@")
_URL_QUERY = re.compile(r"(://[^\s?#]*)[?#]\S*")
_COMPONENT_ENDS = r"(?![\w@~+-]|\.\w)"  # the end of a path component, or of a sentence
_REPLACEMENTS = {"url": "", "home": "~", "user": "$USER", "host": "<host>"}


def strip_url_secrets(text: str) -> str:
    """Return `text` with user, password, query and fragment removed from every URL in it."""
    return _URL_QUERY.sub(r"\1", _URL_CREDENTIALS.sub("", text)) if "://" in text else text


def scrub(document: Any) -> Any:
    """Return `document` (dictionaries, lists, scalars) with every string cleaned, including keys."""
    pattern, markers = _build_pattern()
    texts: set[str] = set()
    _gather_strings(document, texts)
    all_text = "\n".join(texts).lower()
    markers = [marker for marker in markers if marker in all_text]
    cleaned = {}
    for text in texts:
        if not text.isascii() or any(marker in text.lower() for marker in markers):
            cleaned[text] = _clean_text(text, pattern)
    return _replace_strings(document, cleaned)


def _gather_strings(value: Any, texts: set[str]) -> None:
    if isinstance(value, str):
        texts.add(value)
    elif isinstance(value, dict):
        texts.update(value)
        for item in value.values():
            _gather_strings(item, texts)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather_strings(item, texts)


def _replace_strings(value: Any, cleaned: dict[str, str]) -> Any:
    if isinstance(value, str):
        return cleaned.get(value, value)
    if isinstance(value, dict):
        return {cleaned.get(key, key): _replace_strings(item, cleaned) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_strings(item, cleaned) for item in value]
    return value


def _clean_text(text: str, pattern: re.Pattern[str]) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as UTF-8
    return pattern.sub(lambda match: _REPLACEMENTS[str(match.lastgroup)], text)


def _build_pattern() -> tuple[re.Pattern[str], list[str]]:
    """Return the pattern of everything to remove, and lower-case markers; a text that matches has one of them."""
    homes, users, hosts = home_paths(), user_names(), host_names()
    parts = [r"(?<=://)(?P<url>[^/\s'\"<>?#]*@)"]
    if homes:
        parts.append(rf"(?<![\w.~-])(?P<home>{_join_alternatives(homes)}){_COMPONENT_ENDS}")
    if users:
        parts.append(rf"(?<=[/\\~])(?P<user>{_join_alternatives(users)}){_COMPONENT_ENDS}")
    if hosts:
        parts.append(rf"(?<![\w-])(?P<host>(?i:{_join_alternatives(hosts)}))(?![\w-])")
    return re.compile("|".join(parts)), [marker.lower() for marker in (*homes, *users, *hosts, "://")]


def home_paths() -> list[str]:
    """Return the paths of the home directory, from HOME and the user database, with links resolved."""
    paths = {os.environ.get("HOME", ""), os.path.expanduser("~"), _read_account()[1]}
    paths |= {os.path.realpath(path) for path in paths if os.path.isabs(path)}
    paths = {path.rstrip("/\\") for path in paths if os.path.isabs(path)}
    return sorted((path for path in paths if len(path) > 2), key=len, reverse=True)


def user_names() -> list[str]:
    """Return the names of the account, if they may identify a person."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")} | {_read_account()[0]}
    for path in home_paths():
        folder, name = os.path.split(path)
        if os.path.basename(folder).lower() in ("home", "users"):
            names.add(name)
    return sorted(name for name in names if _is_identifying(name))


def host_names() -> list[str]:
    """Return this machine's names in lower case, long form first, if they may identify a site."""
    names = {os.environ.get("HOSTNAME", ""), os.environ.get("COMPUTERNAME", "")}
    if hasattr(os, "uname"):
        names.add(os.uname().nodename)
    names |= {name.partition(".")[0] for name in names}
    return sorted((name.lower() for name in names if len(name) > 3 and _is_identifying(name)), key=len, reverse=True)


def _is_identifying(name: str) -> bool:
    short = name.lower().partition(".")[0]
    return len(name) > 2 and short not in _IMPERSONAL and not name.isdecimal()


def _read_account() -> tuple[str, str]:
    """Return name and home of this process's account, which in containers often has no entry."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        return entry.pw_name, entry.pw_dir
    except (ImportError, AttributeError, KeyError, OSError):
        return "", ""


def _join_alternatives(names: list[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
