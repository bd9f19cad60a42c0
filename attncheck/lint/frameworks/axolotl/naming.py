"""Problems with names of axolotl's settings: duplicates, old names, those of plugins and the command line.

`constraints` says which releases have each problem and where it was read.
"""

from collections.abc import Iterator

from attncheck.lint.fields import (
    DROP,
    SettingProblem,
    get_nested,
    is_true,
    parse_value,
    read_fields,
)
from attncheck.lint.frameworks.axolotl import constraints
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.values import AxolotlReading


def implementation_named_twice(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for attn_implementation alongside a boolean: refused since 0.17, even if both name the same one."""
    implementation = get_nested(settings.parsed_values, "attn_implementation")
    if not implementation or not settings.attention_flags:
        return
    flags = ", ".join(sorted(settings.attention_flags))
    message = f"attn_implementation {implementation!r} alongside {flags}"
    yield from settings.setting_problem(
        "refuses",
        message,
        constraints.NAMED_TWICE,
        *settings.attention_flags,
        sets={"attn_implementation": settings.implementation},
        advice="name it once",
    )
    if not _same_family(settings):
        message = f"{message}: {settings.implementation} is loaded, but the rest of axolotl uses {flags}"
        yield from settings.setting_problem(
            "replaces",
            message,
            constraints.NAMED_TWICE_LOADED,
            *settings.attention_flags,
            sets={"attn_implementation": settings.implementation},
        )


def _same_family(settings: AxolotlReading) -> bool:
    """Return whether a boolean names the loaded implementation; flash_attention names any flash kernel."""
    family = "flash_attention_2" if "flash" in settings.implementation else settings.implementation
    return family in {axolotl.FLAG_IMPLEMENTATIONS[flag] for flag in settings.attention_flags}


def unknown_implementation(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check the implementation's name: since 0.17, only canonical names and Hub kernels are accepted."""
    implementation = get_nested(settings.parsed_values, "attn_implementation")
    setting = settings.by_field.get("attn_implementation")
    if implementation is None or setting is None or not setting.known:
        return
    name = str(implementation)
    if name in axolotl.CANONICAL_IMPLEMENTATIONS or "/" in name:
        return
    sets = {"attn_implementation": axolotl.SHORT_NAMES[name]} if name in axolotl.SHORT_NAMES else {}
    yield from settings.setting_problem(
        "refuses",
        f"attn_implementation {name!r}",
        constraints.UNKNOWN_IMPLEMENTATION,
        "attn_implementation",
        sets=sets,
        advice=""
        if sets
        else f"one of {', '.join(sorted(axolotl.CANONICAL_IMPLEMENTATIONS))}, or a Hub kernel with a '/' in it",
    )


def several_booleans(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for several booleans: refused before 0.17; since then, the first in axolotl's order wins."""
    refused_flags = (
        ["s2_attention"]
        if settings.is_on("s2_attention") and not settings.is_at_least(axolotl.S2_BESIDE_FLASH_SINCE)
        else []
    )
    names = [*(flag for flag in settings.attention_flags if flag != "eager_attention"), *refused_flags]
    if len(names) < 2 or get_nested(settings.parsed_values, "attn_implementation"):
        return
    flags, sets = (
        " and ".join(names),
        {"attn_implementation": settings.implementation, **dict.fromkeys(refused_flags, DROP)},
    )
    yield from settings.setting_problem(
        "replaces",
        f"of {flags}, {settings.implementation} wins",
        constraints.SEVERAL_BOOLEANS,
        *names,
        sets=sets,
    )
    yield from settings.setting_problem(
        "refuses", f"{flags} at once", constraints.SEVERAL_BOOLEANS_REFUSED, *names, sets=sets
    )


def deprecated_names(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for deprecated names: the booleans since 0.17, sequence_parallel_degree since 0.12."""
    if len(settings.attention_flags) == 1 and not get_nested(settings.parsed_values, "attn_implementation"):
        message = (
            f"{settings.attention_flags[0]} is deprecated and read as attn_implementation: {settings.implementation}"
        )
        ranges, sets = constraints.DEPRECATED_BOOLEAN, {"attn_implementation": settings.implementation}
        flag = settings.attention_flags[0]
        yield from settings.setting_problem("replaces", message, ranges, flag, sets=sets, mild=True)
    size = get_nested(settings.parsed_values, "sequence_parallel_degree")
    if size:
        other = get_nested(settings.parsed_values, "context_parallel_size")
        if other and other != size:
            message = f"sequence_parallel_degree {size} has no effect next to context_parallel_size {other}"
        else:
            message = f"sequence_parallel_degree is deprecated and read as context_parallel_size: {size}"
        sets = {"ring_size": str(settings.ring_size)}
        field = "sequence_parallel_degree"
        yield from settings.setting_problem(
            "ignores" if other and other != size else "replaces",
            message,
            constraints.DEPRECATED_DEGREE,
            field,
            sets=sets,
            mild=True,
        )


def removed_settings(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for removed settings: since 0.17, shifted-sparse attention and flash-attn's RMS norm raise."""
    for name in ("s2_attention", "flash_attn_rms_norm"):
        if is_true(get_nested(settings.parsed_values, name)):
            yield from settings.setting_problem(
                "refuses", f"{name}: true", constraints.REMOVED, name, sets={name: DROP}
            )
    if settings.packed and settings.is_on("s2_attention"):
        yield from settings.setting_problem(
            "refuses",
            "s2_attention with sample_packing",
            constraints.SHIFTED_SPARSE_PACKING,
            "s2_attention",
            sets={"s2_attention": DROP},
        )


def missing_plugins(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for settings of a plugin that `plugins` does not name: they are dropped."""
    known_names = read_fields("axolotl", "names", settings.version)
    ignored: dict[str, list[str]] = {}
    for name in settings.by_field:
        folder = axolotl.find_plugin(settings.version, name) if name not in known_names else ""
        if folder and not settings.has_plugin(folder) and settings.parsed_values[name] not in (None, False):
            ignored.setdefault(folder, []).append(name)
    for folder, names in ignored.items():
        yield from settings.setting_problem(
            "ignores",
            f"{', '.join(names)}: no effect without axolotl.integrations.{folder} in plugins",
            constraints.MISSING_PLUGIN,
            *names,
            advice=f"add the plugin of axolotl.integrations.{folder} to plugins",
            mild=True,
        )


def underscored_options(settings: AxolotlReading) -> Iterator[SettingProblem]:
    """Check for options with underscores: `axolotl train` accepts only dashes, and passes other options on."""
    if [word.text for word in settings.launch.words][:1] != ["axolotl"]:
        return
    for name, setting in settings.by_field.items():
        option = setting.name.lstrip("-")
        if setting.name.startswith("--") and "_" in option and settings.launch.file is not None:
            message, sets = (
                f"{setting.name} is not an option of `axolotl train`",
                {name: "true" if parse_value(setting.value) is None else setting.value},
            )
            yield from settings.setting_problem("refuses", message, constraints.UNDERSCORED_OPTION, name, sets=sets)
            message, ranges = (
                f"{message}: it is passed to the launcher, which refuses it",
                constraints.PASSED_ON_OPTION,
            )
            yield from settings.setting_problem("refuses", message, ranges, name, sets=sets)
