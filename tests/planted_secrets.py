"""Secrets of many shapes, made anew from pieces: a token written out would alarm whoever scans this repository."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from random import Random

HEX = "0123456789abcdef"
LETTERS = string.ascii_letters + string.digits
CAPITALS = string.ascii_uppercase + string.digits


def draw(random: Random, length: int, alphabet: str = LETTERS) -> str:
    """Return characters of an alphabet; digits among them, as in every token of this length."""
    return "".join(random.choices(alphabet, k=length - 4)) + "7" + random.choice(alphabet) + "3" + "5"


def _prefixed(*pieces: str, length: int, alphabet: str = LETTERS) -> Callable[[Random], str]:
    return lambda random: "".join(pieces) + draw(random, length, alphabet)


def _make_uuid(random: Random) -> str:
    return "-".join(draw(random, length, HEX) for length in (8, 4, 4, 4, 12))


def _make_jwt(random: Random) -> str:
    return ".".join(("ey" + "J" + draw(random, 30), "ey" + "J" + draw(random, 40), draw(random, 43)))


# Known wherever they stand, whatever is written before them.
TOKENS: dict[str, Callable[[Random], str]] = {
    "hugging_face": _prefixed("hf", "_", length=34),
    "wandb_v1": _prefixed("wandb", "_v1_", length=60),
    "wandb_local": _prefixed("local", "-", length=40, alphabet=HEX),
    "github": _prefixed("gh", "p_", length=36),
    "github_app": _prefixed("gh", "s_", length=36),
    "github_fine": _prefixed("github", "_pat_", length=82),
    "gitlab": _prefixed("gl", "pat-", length=20),
    "openai": _prefixed("sk", "-proj-", length=100),
    "anthropic": _prefixed("sk", "-ant-api03-", length=95),
    "openrouter": _prefixed("sk", "-or-v1-", length=64, alphabet=HEX),
    "groq": _prefixed("gs", "k_", length=52),
    "nvidia": _prefixed("nv", "api-", length=64),
    "replicate": _prefixed("r8", "_", length=37),
    "google": _prefixed("AI", "za", length=35),
    "google_oauth": _prefixed("ya", "29.", length=60),
    "aws_id": _prefixed("AK", "IA", length=16, alphabet=CAPITALS),
    "alibaba_id": _prefixed("LT", "AI", length=20),
    "slack_bot": lambda r: "xo" + "xb-" + "-".join((draw(r, 12, "0123456789"), draw(r, 12, "0123456789"), draw(r, 24))),
    "slack_app": lambda r: (
        "xa" + "pp-1-" + draw(r, 11, CAPITALS) + "-" + draw(r, 13, "0123456789") + "-" + draw(r, 64, HEX)
    ),
    "npm": _prefixed("np", "m_", length=36),
    "pypi": _prefixed("py", "pi-AgEIcHlwaS5vcmc", length=80),
    "docker": _prefixed("dck", "r_pat_", length=27),
    "databricks": _prefixed("da", "pi", length=32, alphabet=HEX),
    "sendgrid": lambda r: "S" + "G." + draw(r, 22) + "." + draw(r, 43),
    "stripe": _prefixed("sk", "_live_", length=24),
    "jwt": _make_jwt,
    "modelscope": lambda r: "m" + "s-" + _make_uuid(r),
    "vault": _prefixed("hv", "s.", length=95),
    "telegram": lambda r: draw(r, 10, "123456789") + ":AA" + draw(r, 33),
    "dingtalk_secret": _prefixed("SE", "C", length=64, alphabet=HEX),
}
# A URL of which the last part is the secret.
WEBHOOKS: dict[str, tuple[str, Callable[[Random], str]]] = {
    "slack_hook": (
        "https://hooks.slack.com/services/",
        lambda r: "/".join((draw(r, 9, CAPITALS), draw(r, 11, CAPITALS), draw(r, 24))),
    ),
    "discord_hook": ("https://discord.com/api/webhooks/", lambda r: draw(r, 18, "0123456789") + "/" + draw(r, 68)),
    "feishu_hook": ("https://open.feishu.cn/open-apis/bot/v2/hook/", _make_uuid),
    "dingtalk_hook": ("https://oapi.dingtalk.com/robot/send?access_token=", lambda r: draw(r, 64, HEX)),
    "wecom_hook": ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=", _make_uuid),
    "telegram_bot": ("https://api.telegram.org/bot", lambda r: draw(r, 10, "0123456789") + ":" + draw(r, 35)),
}
# Known by the name before them alone.
NAMED: dict[str, Callable[[Random], str]] = {
    "wandb_hex": lambda r: draw(r, 40, HEX),
    "word": lambda r: "hunter" + draw(r, 6, string.ascii_lowercase),
    "short": lambda r: draw(r, 7),  # too short to be remembered: its name must be beside it
    "symbols": lambda r: "pW!" + draw(r, 10) + "^~%+" + draw(r, 4),
    "base64": lambda r: base64.b64encode(draw(r, 30).encode()).decode(),
    "uuid": _make_uuid,
    "aws_secret": lambda r: draw(r, 16) + "/" + draw(r, 10) + "+" + draw(r, 12),
}


def make_secret(shape: str, seed: int) -> str:
    """Return a secret of this shape; another one for each seed."""
    random = Random(f"{shape} {seed}")
    return {**TOKENS, **NAMED}[shape](random) if shape not in WEBHOOKS else WEBHOOKS[shape][1](random)
