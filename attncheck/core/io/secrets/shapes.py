"""Masks secrets recognised by their shape: tokens of known services, webhooks, credentials in URLs, private keys.

The shapes of tokens are a selection of the rules of gitleaks 8.30.0 (config/gitleaks.toml,
https://github.com/gitleaks/gitleaks, MIT licence). The context that some rules require was removed and minimum lengths
were lowered, so that a token that a message truncates is masked too. From the services' own documentation come: W&B's
`wandb_v1_` and `local-` keys, OpenRouter, Groq, NVIDIA, Replicate, Together, ModelScope, Docker Hub, Tencent, the
webhooks of Discord, Feishu, Lark, DingTalk, WeCom and Telegram. Rules that match bare hexadecimal digits were left out:
such digits are just as often a commit or a digest. Names alone identify those secrets.

Each expression is compiled when a text contains its marker, and has no nested repetition: time is linear.
"""

from __future__ import annotations

import re

from attncheck.core.io.secrets.names import MASK, compile_once

# marker: expression for the rest. "(?<![A-Za-z0-9])" comes before each, so that "disk-…" does not match "sk-…".
_TOKENS = {
    "hf_": r"[A-Za-z0-9]{16,}",
    "api_org_": r"[A-Za-z0-9]{16,}",
    "wandb_v1_": r"\w{16,}",
    "local-": r"[0-9a-f]{40}\b",
    "ghp_": r"[A-Za-z0-9]{16,}",
    "gho_": r"[A-Za-z0-9]{16,}",
    "ghu_": r"[A-Za-z0-9]{16,}",
    "ghs_": r"[A-Za-z0-9]{16,}",
    "ghr_": r"[A-Za-z0-9]{16,}",
    "github_pat_": r"\w{16,}",
    "glpat-": r"[\w-]{16,}(?:\.[\w-]{9,})?",
    "gldt-": r"[\w-]{16,}",
    "glrt-": r"[\w-]{16,}(?:\.[\w-]{9,})?",
    "glft-": r"[\w-]{16,}",
    "glptt-": r"[0-9a-f]{16,}",
    "glcbt-": r"[\w-]{16,}",
    "glsoat-": r"[\w-]{16,}",
    "gloas-": r"[\w-]{16,}",
    "glagent-": r"[\w-]{16,}",
    "GR1348941": r"[\w-]{16,}",
    "sk-": r"[\w-]{16,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek and many more
    "sk_live_": r"[A-Za-z0-9]{10,}",
    "sk_test_": r"[A-Za-z0-9]{10,}",
    "rk_live_": r"[A-Za-z0-9]{10,}",
    "rk_test_": r"[A-Za-z0-9]{10,}",
    "gsk_": r"[A-Za-z0-9]{20,}",
    "xai-": r"[A-Za-z0-9]{20,}",
    "pplx-": r"[A-Za-z0-9]{20,}",
    "nvapi-": r"[\w-]{20,}",
    "r8_": r"[A-Za-z0-9]{20,}",
    "tgp_v1_": r"[\w-]{20,}",
    "ms-": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "AIza": r"[\w-]{30,}",
    "ya29.": r"[\w-]{20,}",
    "GOCSPX-": r"[\w-]{20,}",
    "1//0": r"[\w-]{30,}",
    "AKIA": r"[A-Z0-9]{12,}",
    "ASIA": r"[A-Z0-9]{12,}",
    "ABIA": r"[A-Z0-9]{12,}",
    "ACCA": r"[A-Z0-9]{12,}",
    "ABSK": r"[A-Za-z0-9+/]{60,}={0,2}",
    "LTAI": r"[A-Za-z0-9]{12,}",
    "AKID": r"[A-Za-z0-9]{28,}",
    "AKLT": r"[A-Za-z0-9]{20,}={0,2}",
    "xoxb-": r"[\w-]{10,}",
    "xoxp-": r"[\w-]{10,}",
    "xoxa-": r"[\w-]{8,}",
    "xoxr-": r"[\w-]{8,}",
    "xoxs-": r"[\w-]{10,}",
    "xoxo-": r"[\w-]{10,}",
    "xoxe-": r"[\w-]{10,}",
    "xoxe.": r"xox[bp]-[\w-]{10,}",
    "xapp-": r"[\w-]{10,}",
    "npm_": r"[A-Za-z0-9]{20,}",
    "pypi-AgE": r"[\w-]{16,}",
    "rubygems_": r"[a-f0-9]{20,}",
    "dckr_pat_": r"[\w-]{16,}",
    "dckr_oat_": r"[\w-]{16,}",
    "dapi": r"[a-f0-9]{32}(?:-\d)?\b",
    "dop_v1_": r"[a-f0-9]{20,}",
    "doo_v1_": r"[a-f0-9]{20,}",
    "dor_v1_": r"[a-f0-9]{20,}",
    "dp.pt.": r"[A-Za-z0-9]{20,}",
    "lin_api_": r"[A-Za-z0-9]{20,}",
    "ntn_": r"[0-9]{11}[A-Za-z0-9]{20,}",
    "SG.": r"[\w=-]{16,}\.[\w=-]{16,}",
    "PMAK-": r"[a-f0-9]{24}-[a-f0-9]{20,}",
    "pul-": r"[a-f0-9]{40}\b",
    "hvs.": r"[\w-]{20,}",
    "hvb.": r"[\w-]{20,}",
    "glsa_": r"[A-Za-z0-9]{20,}_[A-Fa-f0-9]{8}",
    "glc_": r"[A-Za-z0-9+/]{32,}={0,3}",
    "sntrys_": r"[A-Za-z0-9+/=_]{20,}",
    "sntryu_": r"[a-f0-9]{20,}",
    "shpat_": r"[a-fA-F0-9]{20,}",
    "shpss_": r"[a-fA-F0-9]{20,}",
    "sgp_": r"\w{30,}",
    "pnu_": r"[A-Za-z0-9]{30,}",
    "rdme_": r"[a-z0-9]{30,}",
    "ATATT3": r"[\w=-]{30,}",
    "ops_eyJ": r"[A-Za-z0-9+/=]{30,}",
    "AGE-SECRET-KEY-1": r"[A-Z0-9]{30,}",
    "eyJ": r"[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # a JSON Web Token
    "sha256~": r"[\w-]{20,}",
    "SEC": r"[a-f0-9]{64}\b",  # DingTalk's signing secret
    "SK": r"[0-9a-f]{32}\b",
}
# marker in lower case: an expression whose group 1 is kept.
_URLS = {
    "hooks.slack.com": r"(?i)(hooks\.slack\.com/(?:services|workflows|triggers)/)[\w/+-]{8,}",
    "/api/webhooks/": r"(?i)(discord(?:app)?\.com/api/webhooks/)[\w/-]{8,}",
    "webhook.office.com": r"(?i)(\.webhook\.office\.com/)[\w@/-]{8,}",
    "/bot/v2/hook/": r"(?i)(/open-apis/bot/v2/hook/)[\w-]{8,}",
    "/bot/hook/": r"(?i)(/open-apis/bot/hook/)[\w-]{8,}",
    "robot/send": r"(?i)(robot/send\?access_token=)[\w-]{8,}",
    "webhook/send": r"(?i)(webhook/send\?key=)[\w-]{8,}",
    "api.telegram.org": r"(?i)(api\.telegram\.org/bot)[\w:-]{8,}",
    "sctapi.ftqq.com": r"(?i)(sctapi\.ftqq\.com/)\w{8,}",
    "chat.googleapis.com": r"(?i)(chat\.googleapis\.com/v1/spaces/)[\w/?=&%.-]{8,}",
    "logic.azure.com": r"(?i)(logic\.azure\.com[\w:/.-]{0,300}\?)[\w&=%./-]{8,}",
    "maker.ifttt.com": r"(?i)(maker\.ifttt\.com/trigger/[\w-]{1,100}/(?:json/)?with/key/)[\w-]{8,}",
}
_LONG_WORD = r"[\w-]{16}"  # every token contains such a word; most texts do not
_PRIVATE_KEY = (
    r"(-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:[^-]|-(?!----)){16,20000}(?:-----END[ A-Z0-9]{0,40}KEY(?: BLOCK)?-----)?"
)
_TELEGRAM = r"(?<![\d.])\d{8,10}:(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[A-Za-z0-9_-]{35}(?![\w-])"
_COOKIE = r"(?i)(?<![\w-])((?:set-)?cookie:[ ]{1,4})(?=[^\s=;]{1,100}=)([^\n\"']{4,})"
_BEARER = r"(?i)(\bbearer\s{1,4})(?=[\w.~+/=-]{0,40}\d|[\w.~+/=-]{24})[\w.~+/=-]{8,}"
# The last "@" before the path ends the credentials; a password may contain "/" if a user comes before it.
_USERINFO = r"(://)([^\s/?#@\"'<>\\]{0,200}:[^\s\"'<>\\@]{0,300}@(?:[^\s/\"'<>\\@]{0,300}@)?|[^\s/?#\"'<>\\]{1,300}@)"
_QUERY = (
    r"(?i)([?&;](?:x-amz-(?:signature|credential|security-token)|sig|signature|key|auth|secret)=)([^&\s\"'<>#]{8,})"
)
_PORT = r":\d{1,5}(?:[/?#]|\Z)"
_VARIABLE_PARTS = r"\$\{[^{}]*\}|\$[A-Za-z_]\w*|\{[\w.\[\]\"']*\}|<[^<>]*>|%[A-Za-z_]\w*%"
_PLAIN_USERS_WORDS = "git hg svn user root ubuntu oauth2 x-access-token anonymous me"
_PLAIN_USERS = frozenset(_PLAIN_USERS_WORDS.split())


def mask_shapes(text: str) -> str:
    """Return `text` with the secrets masked that their shape identifies."""
    if compile_once(_LONG_WORD).search(text):
        for marker, rest in _TOKENS.items():
            if marker in text:
                text = compile_once(f"(?<![A-Za-z0-9]){re.escape(marker)}{rest}").sub(_mask_token, text)
        if ":" in text:
            text = compile_once(_TELEGRAM).sub(MASK, text)
        if "-----BEGIN" in text:
            text = compile_once(_PRIVATE_KEY).sub(rf"\1{MASK}", text)
    if "earer " in text or "EARER " in text:
        text = compile_once(_BEARER).sub(rf"\1{MASK}", text)
    if "ookie: " in text:
        text = compile_once(_COOKIE).sub(rf"\1{MASK}", text)
    return _mask_urls(text) if "/" in text else text


def _mask_token(match: re.Match[str]) -> str:
    is_words = match[0].replace("-", "").replace("_", "").isalpha() and match[0].islower()  # hf_transfer, sk-learn
    return match[0] if is_words else MASK


def _mask_urls(text: str) -> str:
    lower_text = text.lower()
    for marker, expression in _URLS.items():
        if marker in lower_text:
            text = compile_once(expression).sub(rf"\1{MASK}", text)
    if "://" in text:
        if "@" in text:
            text = compile_once(_USERINFO).sub(_mask_userinfo, text)
        if "=" in text:
            text = compile_once(_QUERY).sub(_mask_query, text)
    return text


def _mask_userinfo(match: re.Match[str]) -> str:
    """Return a URL's user and password masked; a port, a variable, or a user without a password is kept."""
    user, colon, password = match[2][:-1].partition(":")
    if colon and compile_once(_PORT).match(colon + password):
        return match[0]
    secret = password if colon else user
    if not compile_once(_VARIABLE_PARTS).sub("", secret).strip(":"):
        return match[0]
    if not colon and (
        user.lower() in _PLAIN_USERS or not (len(user) >= 16 and any(character.isdigit() for character in user))
    ):
        return match[0]
    return f"{match[1]}{MASK}@"


def _mask_query(match: re.Match[str]) -> str:
    return match[1] + MASK if compile_once(_VARIABLE_PARTS).sub("", match[2]) else match[0]
