"""Masks the secrets that commands take without a name: `wandb login X`, `curl -u user:X`, `echo X | docker login`.

A program's arguments end with its command and may continue over several lines. The secret is the value of a particular
option, or the word at a particular position. A login's standard input is also a secret: from a pipe, a here-string or a
here-document.
"""

from __future__ import annotations

import re

from attncheck.core.io.secrets.names import MASK, compile_once
from attncheck.core.io.secrets.values import is_harmless, is_random

_ARGUMENTS = r"(?:[^\n|;&\\]|\\[\s\S]|[;&](?=\S)(?![;&]))*"  # the arguments of one command; a URL may contain & and ;
_GAP = r"[\s=\"',]{0,4}"  # between an option and its value, in a command or a list of words
_SECRET = r"([^\s\"'$,=][^\s\"']+)"
_LOGIN = rf"([\s\"'](?:-u|-U|-a|--user|--auth|--proxy-user){_GAP}[^\s:\"'$]{{1,100}}:){_SECRET}"
# A word that identifies the command: an expression up to its arguments, and one for the text before the secret.
_OPTIONS = {
    "curl": (r"\bcurl\b", _LOGIN),
    "wget": (r"\bwget\b", _LOGIN),
    "http": (r"(?<!\S)https?(?=\s)", _LOGIN),
    "-user": (r"(?<![\w-])--(?:proxy-)?user\b", rf"(\A{_GAP}[^\s:\"'$]{{1,100}}:)([^\s\"']*\d[^\s\"']*)"),
    "sshpass": (r"\bsshpass\b", rf"([\s\"']-p{_GAP}){_SECRET}"),
    "mysql": (r"\bmysql\w*", rf"([\s\"']-p[\"']?){_SECRET}"),
    "mariadb": (r"\bmariadb[\w-]*", rf"([\s\"']-p[\"']?){_SECRET}"),
    " login": (
        r"\b(?:docker|podman|nerdctl|buildah|skopeo|helm|oras|crane|az|oc|cf|swanlab|modelscope|ms)\s+"
        r"(?:[\w-]+\s+)?login\b",
        rf"([\s\"']-[pkt]{_GAP}){_SECRET}",
    ),
    "wandb": (r"\bwandb login\b", r"(\s[\"']?)((?=[\w-]*\d)(?=[\w-]*[A-Za-z])\w[\w-]{7,})(?![^\s\"'\\])"),
    "wandb.login": (r"\bwandb\.login\(", r"((?:\A|key\s{0,4}=)\s{0,4}[\"'])([^\"'\n]{8,})"),
    "vault": (r"\bvault login\b", r"(\s[\"']?)((?=[\w.]*\d)[\w.]{8,})(?![^\s\"'\\])"),
    "authtoken": (r"\bngrok\s+(?:config\s+)?(?:add-)?authtoken\b", rf"(\s[\"']?){_SECRET}"),
    "redis-cli": (r"\bredis-cli\b", rf"([\s\"']-a{_GAP}){_SECRET}"),
    "ldap": (r"\bldap[a-z]+\b", rf"([\s\"']-w{_GAP}){_SECRET}"),
    "openssl": (r"\bopenssl\b", rf"([\s\"']-k{_GAP}|\bpass:){_SECRET}"),
    "zip": (r"\b(?:un)?zip\b", rf"([\s\"']-P{_GAP}){_SECRET}"),
    "7z": (r"\b7z[azr]?\b", rf"([\s\"']-p[\"']?){_SECRET}"),
    "mc alias": (r"\bmc alias set\b", rf"(\A\s+\S+\s+\S+\s+\S+\s+[\"']?){_SECRET}"),
    "from-literal": (r"--from-literal\b", rf"([=\s][\"']?[\w.-]+=[\"']?){_SECRET}"),
}
_READS_STDIN = (
    r"--password-stdin|--token-stdin|--with-token|--passphrase-fd|\bchpasswd\b|\bpasswd --stdin"
    r"|\bsudo\s(?:-\w+\s)*-\w*S\b|\b(?:docker|podman|wandb|swanlab|hf|huggingface-cli|gh|vault)\s(?:auth\s)?login(?![\w.])"
)
_READER_WORDS = ("stdin", "with-token", "passphrase-fd", "sudo", "passwd", "login")
_LINE = r"(?:[^\n\\]|\\[\s\S])+"
_QUOTED = r"\"(?:[^\"\\\n]|\\.){0,300}\"|'[^'\n]{0,300}'"
_WORD = rf"{_QUOTED}|[^\s|;&\"'<>]+"
_PIPED = rf"(\b(?:echo|printf)\s)((?:{_QUOTED}|\\[\s\S]|[^\n|;&\"'<>\\]){{1,300}})(?=\|)"
_HERE_STRING = rf"(<<<\s?)({_WORD})"
_HERE_DOCUMENT = (
    rf"((?:{_READS_STDIN})[^\n]{{0,200}}?<<-?\s?[\"']?(?P<end>\w+)[\"']?[^\n]{{0,200}}\n)"
    rf"((?:(?!\s*(?P=end)\b)[^\n]*\n){{1,20}})"
)


def mask_commands(text: str) -> str:
    """Return `text` with the secrets that commands take masked."""
    for marker, (program, option) in _OPTIONS.items():
        if marker in text:
            text = _mask_options(text, program, option)
    if not any(word in text for word in _READER_WORDS):
        return text
    if "<<" in text:
        text = compile_once(_HERE_DOCUMENT).sub(lambda match: f"{match[1]}{_mask_words(match[3])}", text)
    return compile_once(_LINE).sub(_mask_input, text) if "|" in text or "<<<" in text else text


def _mask_options(text: str, program: str, option: str) -> str:
    command = compile_once(f"({program})({_ARGUMENTS})")
    return command.sub(lambda match: match[1] + compile_once(option).sub(_mask_argument, match[2]), text)


def _mask_argument(match: re.Match[str]) -> str:
    value = match[2]
    is_kept = is_harmless("password", value) and not is_random(value)
    is_user = match[1].endswith(":") and value.isdecimal()  # the user of a container: -u 1000:1000
    return match[0] if is_kept or is_user else match[1] + MASK


def _mask_input(match: re.Match[str]) -> str:
    """Return a line whose command reads a secret from standard input, with that input masked."""
    line = match[0]
    if not compile_once(_READS_STDIN).search(line):
        return line
    for expression in (_PIPED, _HERE_STRING):
        line = compile_once(expression).sub(lambda match: match[1] + _mask_words(match[2]), line)
    return line


def _mask_words(text: str) -> str:
    return compile_once(_WORD).sub(lambda match: _mask_word(match[0]), text)


def _mask_word(word: str) -> str:
    """Return a word piped to a command, masked inside its quotes; options of echo, formats and variables stay."""
    bare = word.strip("\"'")
    user, _, password = bare.partition(":$")
    is_kept = bare.startswith(("-", "%")) or is_harmless("password", f"${password}" if password and user else bare)
    return word if is_kept else word.replace(bare, MASK)
