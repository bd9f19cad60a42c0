"""The fields of transformers' and TRL's argument classes in a release, for programs that derive from them.

Used if the package itself cannot be read; the tables in attncheck/lint/names were read from released wheels.
"""

from collections.abc import Callable, Mapping

from attncheck.core.program import ProgramOption
from attncheck.lint.fields.names import build_parser_options
from attncheck.lint.fields.releases import is_at_least, list_releases, parse_version

NARGS: Mapping[str, int | str] = {"bool": "?", "list": "+"}


def make_class_finder(versions: Mapping[str, str]) -> Callable[[str], Mapping[str, ProgramOption] | None]:
    """Return a function that finds the fields of a class by its dotted name, for the `versions` of available packages.

    It returns None for a class of another package, and if its package has no version there.
    """

    def find(name: str) -> Mapping[str, ProgramOption] | None:
        package, _, _ = name.partition(".")
        class_name = name.rpartition(".")[2]
        transformers = versions.get("transformers", "")
        if package == "transformers" and transformers:
            classes = ("TrainingArguments", class_name) if class_name == "Seq2SeqTrainingArguments" else (class_name,)
            return _read_options(("transformers", transformers, classes), package)
        if package == "trl" and versions.get("trl") and transformers:
            base = ("transformers", transformers, ("TrainingArguments",)) if class_name.endswith("Config") else None
            parts = [part for part in (base, ("trl", versions["trl"], (class_name,))) if part is not None]
            own = _read_options(parts[-1], package)
            if own is None or class_name == "ModelConfig" or base is None:
                return own
            return {**(_read_options(base, "transformers") or {}), **own}
        return None

    return find


def _read_options(part: tuple[str, str, tuple[str, ...]], package: str) -> dict[str, ProgramOption] | None:
    """Return the options; None for a release older than all in the table: a prefix may fit only one option there."""
    oldest = parse_version(list_releases(package)[0])
    if not is_at_least(part[1], f"{oldest.major}.{oldest.minor}.dev0"):
        return None
    options = build_parser_options(part).current
    place = f"{package} {part[1]} {part[2][-1]}"
    return {
        name: ProgramOption(option.kind, option.default, option.choices, NARGS.get(option.kind, 1), place)
        for name, option in options.items()
    } or None
