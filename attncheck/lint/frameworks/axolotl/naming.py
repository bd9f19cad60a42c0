"""What axolotl does with names of settings: two for one thing, old ones, those of plugins and of the command line.

Lines are those of 0.19.0 for releases from 0.17 on, and of 0.16.1 for older ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attncheck.core.job import DROP, Consequence, SettingProblem
from attncheck.lint.fields.releases import fields
from attncheck.lint.fields.written import inside, truth, value
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.values import Values

SCHEMAS = "utils/schemas"


def says(
    v: Values, consequence: Consequence, message: str, new: str, old: str, *at: str, **others: Any
) -> Iterator[SettingProblem]:
    """Yield an objection at the first written of the settings `at`; `new` and `old` are where the wheels say so."""
    evidence = f"axolotl 0.19.0 {new}" if v.reaches(axolotl.NAMED) or not old else f"axolotl 0.16.1 {old}"
    yield SettingProblem(consequence, message, (evidence,), v.place(*at), **others)


def both_names(v: Values) -> Iterator[SettingProblem]:
    """From 0.17 on attn_implementation beside a boolean is refused, the same implementation in both too."""
    named = inside(v.parsed, "attn_implementation")
    if not named or not v.switches:
        return
    flags = ", ".join(sorted(v.switches))
    message = f"attn_implementation {named!r} beside {flags}"
    if v.reaches(axolotl.NAMED):
        new = f"{SCHEMAS}/config.py:1569: cannot be combined with legacy attention flags"
        yield from says(
            v, "refuses", message, new, "", *v.switches, sets={"attn_implementation": v.asked}, advice="name it once"
        )
    elif v.reaches(axolotl.PASSED_ON) and not _same_family(v):
        message = f"{message}: {v.asked} is loaded, and all else axolotl does is for {flags}"
        old = "loaders/model.py:627: attn_implementation goes before every boolean"
        yield from says(v, "replaces", message, "", old, *v.switches, sets={"attn_implementation": v.asked})


def _same_family(v: Values) -> bool:
    """Say whether one of the booleans stands for what is loaded: flash_attention for any flash kernel."""
    asked = "flash_attention_2" if "flash" in v.asked else v.asked
    return asked in {axolotl.BOOLEANS[flag] for flag in v.switches}


def names_of_implementations(v: Values) -> Iterator[SettingProblem]:
    """From 0.17 on only canonical names and Hub kernels are taken."""
    named = inside(v.parsed, "attn_implementation")
    setting = v.given.get("attn_implementation")
    if named is None or not v.reaches(axolotl.NAMED) or setting is None or not setting.known:
        return
    text = str(named)
    if text in axolotl.CANONICAL or "/" in text:
        return
    sets = {"attn_implementation": axolotl.SHORT[text]} if text in axolotl.SHORT else {}
    new = f"{SCHEMAS}/config.py:1624: is not {'accepted' if sets else 'a recognized backend'}"
    advice = "" if sets else f"one of {', '.join(sorted(axolotl.CANONICAL))}, or a Hub kernel with a '/' in it"
    yield from says(
        v, "refuses", f"attn_implementation {text!r}", new, "", "attn_implementation", sets=sets, advice=advice
    )


def several_booleans(v: Values) -> Iterator[SettingProblem]:
    """Before 0.17 two booleans were refused; since, the first in axolotl's order wins."""
    shifted = ["s2_attention"] if v.on("s2_attention") and not v.reaches(axolotl.SHIFTED_BESIDE_FLASH) else []
    count = [*(flag for flag in v.switches if flag != "eager_attention"), *shifted]
    if len(count) < 2 or inside(v.parsed, "attn_implementation"):
        return
    flags, sets = " and ".join(count), {"attn_implementation": v.asked, **dict.fromkeys(shifted, DROP)}
    if v.reaches(axolotl.NAMED):
        new = f"{SCHEMAS}/config.py:1576: specific backends beat generic flash/sdp/eager fallbacks"
        yield from says(v, "replaces", f"of {flags}, {v.asked} is taken", new, "", *count, sets=sets)
    else:
        old = f"{SCHEMAS}/validation.py:176: Only one of … must be set"
        yield from says(v, "refuses", f"{flags} at once", "", old, *count, sets=sets)


def deprecated_names(v: Values) -> Iterator[SettingProblem]:
    """Names that still work and will go: the booleans from 0.17 on, sequence_parallel_degree from 0.12 on."""
    if len(v.switches) == 1 and v.reaches(axolotl.NAMED) and not inside(v.parsed, "attn_implementation"):
        message = f"{v.switches[0]} is deprecated and read as attn_implementation: {v.asked}"
        new = f"{SCHEMAS}/config.py:1582: is deprecated and will be removed in a future release"
        sets = {"attn_implementation": v.asked}
        yield from says(v, "replaces", message, new, "", v.switches[0], sets=sets, mild=True)
    size = inside(v.parsed, "sequence_parallel_degree")
    if size and v.reaches(axolotl.CONTEXT_PARALLEL):
        other = inside(v.parsed, "context_parallel_size")
        if other and other != size:
            message = f"sequence_parallel_degree {size} does nothing beside context_parallel_size {other}"
        else:
            message = f"sequence_parallel_degree is deprecated and read as context_parallel_size: {size}"
        new, old = f"{SCHEMAS}/validation.py:1783", f"{SCHEMAS}/validation.py:1409"
        sets = {"ring_size": str(v.ring)}
        at = "sequence_parallel_degree"
        yield from says(
            v, "ignores" if other and other != size else "replaces", message, new, old, at, sets=sets, mild=True
        )


def gone_but_known(v: Values) -> Iterator[SettingProblem]:
    """From 0.17 on shifted-sparse attention and flash-attn's RMS norm are names that raise."""
    for name in ("s2_attention", "flash_attn_rms_norm"):
        if v.reaches(axolotl.NAMED) and truth(inside(v.parsed, name)):
            new = f"{SCHEMAS}/deprecated.py:127: is no longer supported"
            yield from says(v, "refuses", f"{name}: true", new, "", name, sets={name: DROP})
    if not v.reaches(axolotl.NAMED) and v.packed and v.on("s2_attention"):
        old = f"{SCHEMAS}/validation.py:201: shifted-sparse attention does not currently support sample packing"
        yield from says(
            v, "refuses", "s2_attention with sample_packing", "", old, "s2_attention", sets={"s2_attention": DROP}
        )


def plugins_missing(v: Values) -> Iterator[SettingProblem]:
    """A plugin's settings are dropped where `plugins` does not name it."""
    known = fields("axolotl", "names", v.version)
    lost: dict[str, list[str]] = {}
    for name in v.given:
        folder = axolotl.plugin_of(v.version, name) if name not in known else ""
        if folder and not v.plugin(folder) and v.parsed[name] not in (None, False):
            lost.setdefault(folder, []).append(name)
    for folder, names in lost.items():
        message = f"{', '.join(names)}: no effect without axolotl.integrations.{folder} in plugins"
        where = "integrations/config.py:25: fields of plugins that are not registered are not in the schema"
        advice = f"add the plugin of axolotl.integrations.{folder} to plugins"
        yield from says(v, "ignores", message, where, "", *names, advice=advice, mild=True)


def command_names(v: Values) -> Iterator[SettingProblem]:
    """`axolotl train` knows its options with dashes alone; what it does not know goes to the launcher."""
    words = [word.text for word in v.launch.words]
    if words[:1] != ["axolotl"]:
        return
    for name, setting in v.given.items():
        written = setting.name.lstrip("-")
        if setting.name.startswith("--") and "_" in written and v.launch.file is not None:
            message = f"{setting.name} is no option of `axolotl train`: it goes to the launcher, which refuses it"
            where = "cli/main.py:96 ignore_unknown_options, cli/utils/args.py:172: options have dashes"
            sets = {name: value_text(setting.value)}
            yield SettingProblem("refuses", message, (f"axolotl 0.19.0 {where}",), setting.location, sets)


def value_text(text: str) -> str:
    """Return a switch's value as a setting has it."""
    return "true" if value(text) is None else text
