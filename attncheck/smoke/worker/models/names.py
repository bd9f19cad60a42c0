"""Finds the model type of a Hub name without its config.json: the type whose name is in it, or a known family.

A wrong type makes a rehearsal answer for another model, so every doubt ends in "": two types in a name, a version or a
modality that the type does not have, a mixture of experts without such a type.

Sources: the type names of the installed transformers, and the config.json files of the publishers' repositories on the
Hub for FAMILIES and VERSIONS. The checkpoints in `@auto_docstring(checkpoint=…)` of transformers 5.17.0 do not count:
models/qwen2_5_vl names Qwen/Qwen2-VL-7B-Instruct, models/sew names BAAI/seggpt-vit-large, models/granitemoe names
ibm-granite/granite-speech-3.2-8b.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

# Families whose names are not those of their types, or that mislead; "": the type differs between its models.
FAMILIES: dict[str, str] = {
    r"pythia": "gpt_neox",
    r"dolly-v2": "gpt_neox",
    r"redpajama-incite": "gpt_neox",
    r"stablelm-(?:base|tuned)-alpha": "gpt_neox",
    r"distilgpt2|dialogpt|cerebras-gpt": "gpt2",
    r"starcoder(?:base|plus)?(?!\d)|gpt_bigcode-santacoder": "gpt_bigcode",
    r"bloomz": "bloom",
    r"tinyllama|code-?llama|open_?llama|vicuna|smollm2?(?=[-_.])|falcon3|deepseek-(?:llm|math)": "llama",
    r"^yi-(?:1\.5-)?\d+b|deepseek-coder-\d|deepseek-r1-distill-llama|llama-?[23](?:[._]\d)?(?![\d.])": "llama",
    r"zephyr-7b|openhermes-2\.5-mistral|mathstral": "mistral",
    r"mistral-(?:small|medium|large)-(?!3\.[12])\d(?:\.\d)?(?![\db.])|(?:chat)?glm[\w.-]*|pixtral|nemotron": "",
    r"phi-4-(?:multimodal|mini-flash)[\w-]*|phi-3-small|ministral-8b|magistral|devstral": "",
    r"ministral-3": "mistral3",
    r"mistral-small-3\.[12]": "mistral3",
    r"qwen1\.5|qwq|deepseek-r1-distill-qwen": "qwen2",
    r"deepseek-r1-0528-qwen3": "qwen3",
    r"qwen3-coder-next": "qwen3_next",
    r"phi-(?:1|1[._]5|2)(?![\d.])": "phi",
    r"phi-4(?:-mini)?(?:-instruct|-reasoning(?:-plus)?)?$": "phi3",
    r"phi-3\.5-moe": "phimoe",
    r"gemma-3-(?:1b|270m)": "gemma3_text",
    r"smolvlm(?!2)": "idefics3",
    r"deepseek-r1$|deepseek-r1-0528$": "deepseek_v3",
    r"deepseek-coder-v2": "deepseek_v2",
    r"llama-3\.2-(?:11|90)b-vision": "mllama",
    r"granite-4": "granitemoehybrid",
    r"granite-3\.\d-\db-a\d+m": "granitemoe",
    r"llava-onevision-qwen2-[\d.]+b-ov(?:-chat)?-hf": "llava_onevision",
    r"llava-v1\.6-(?:mistral|vicuna|34b)(?:-7b|-13b)?-hf": "llava_next",
}
# The versions of a family that have the type, if a version follows its name.
VERSIONS = {
    "qwen2": r"2\.5",
    "phi3": r"3\.5",
    "olmo3": r"3\.1",
    "deepseek_v2": r"v2\.5",
    "deepseek_v3": r"v3(\.1|-0324)",
    "granite": r"3\.\d",
    "stablelm": r"2",
    "gemma": r"1\.1",
    "phi": r"(?!)",
    "smolvlm": r"2",
    "paligemma": r"2",
    "mistral": r"v0\.\d",
    "llava": r"1\.5.*-hf",
}
# Words of a name that say what a model is in addition to its family; a type of another kind does not have them.
MODALITIES = re.compile(r"(?<![a-z])(?:vl|vision|omni|audio|speech|asr|tts|image|ocr|multimodal|video)(?![a-z])")
# Other models made from those of a family: draft and classifier heads, other attention, other objectives.
OTHERS = re.compile(r"eagle|medusa|guard|hybrid|diffu|llada|encoder|(?<![a-z])(?:mtp|nas|moa|clip)(?![a-z])")
EXPERTS = re.compile(r"moe(?![a-z])|(?<![a-z\d])a\d+(?:\.\d+)?b(?![a-z])|\d+x\d+(?:\.\d+)?b|(?<![a-z\d])\d+e(?![a-z])")
SIZE = r"\d+(?:[._]\d+)?[bm](?![a-z])|\d+x\d+(?:\.\d+)?b|\d{3,}(?!\d*\.?\d*[bm])"
NEXT_WORD = re.compile(rf"[-_.]*(?:(?P<size>{SIZE})|(?P<version>[a-z]?\d[\d.]*)|(?P<word>[a-z]*))")
SHORT = 5  # letters: a type with fewer may be any word, so it counts only at the start, before a size


@dataclass(frozen=True)
class _Named:
    """A family in a name: where it is, and its type."""

    start: int
    end: int
    kind: str
    by_family: bool = False

    def contains(self, other: "_Named") -> bool:
        """Return whether this name replaces another: it is longer, or as long and a family's."""
        is_within = self.start <= other.start and other.end <= self.end
        return is_within and (self.end - self.start, self.by_family) > (other.end - other.start, other.by_family)


def find_type(name: str, types: Collection[str], has_experts: Callable[[str], bool]) -> str:
    """Return the type of a named model among the installed `types`, "" if the name does not decide it.

    `has_experts` returns whether a type's class is a mixture of experts.
    """
    base = name.lower().rstrip("/").rpartition("/")[2].replace("___", ".")  # ModelScope's folder of "Qwen2.5"
    matches = [*_iter_families(base), *_iter_types(base, types)]
    longest = [named for named in matches if not any(other.contains(named) for other in matches)]
    kinds = {named.kind for named in longest}
    if len(kinds) != 1 or OTHERS.search(base):
        return ""
    kind = kinds.pop()
    if kind not in types or not all(named.by_family or _fits_version(base, named) for named in longest):
        return ""
    is_named = {word for named in longest if named.by_family for word in MODALITIES.findall(base[: named.end])}
    words = set(MODALITIES.findall(base)) - is_named
    if any(word not in kind.split("_") and not (word == "vl" and kind.endswith("vl")) for word in words):
        return ""
    if not EXPERTS.search(base):
        return kind
    own = kind if has_experts(kind) else ""
    return next((other for other in (f"{kind}_moe", f"{kind}moe") if other in types), own)


def _iter_families(base: str) -> Iterator[_Named]:
    for pattern, kind in FAMILIES.items():
        for match in re.finditer(rf"(?<![a-z])(?:{pattern})", base):
            yield _Named(match.start(), match.end(), kind, True)


def _iter_types(base: str, types: Collection[str]) -> Iterator[_Named]:
    """Yield the types in a name; a size is no part of a type: Mistral-3B is no mistral3."""
    for kind in types:
        text = "[-_.]?".join(re.sub(r"\W|_", "", kind))
        for match in re.finditer(rf"(?<![a-z]){text}(?!(?<=\d)(?!forc)[a-z\d])(?!(?<=[a-z])(?!forc)[a-z])", base):
            is_word = len(kind) < SHORT and kind.isalpha() and kind not in (*VERSIONS, base)  # opt, git, bit
            if not is_word or re.match(rf"[-_]?(?:{SIZE})", base[match.end() :] if match.start() == 0 else ""):
                yield _Named(match.start(), match.end(), kind)


def _fits_version(base: str, named: _Named) -> bool:
    """Return whether the text after a type's name is no other version of its family."""
    following = NEXT_WORD.match(base, named.end)
    if following is None or not following["version"]:
        return True
    digits = re.search(r"v?\d+$", base[named.start : named.end])  # "qwen2" and ".5" are 2.5
    whole = base[named.end - len(digits[0]) if digits else named.end :].lstrip("-_.")
    return re.match(rf"(?:{VERSIONS.get(named.kind, '(?!)')})(?![\d.]*\d)", whole) is not None
