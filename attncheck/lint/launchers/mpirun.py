"""mpirun and mpiexec; options that take values: the usual ones of Open MPI and MPICH, no one version's."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.launch import Word
from attncheck.lint.launchers import Launcher, Taken
from attncheck.lint.launchers.options import Front, base, count, names

ONE = names(
    "-np -n --n -c --np -npernode --npernode -N -ppn --ppn -H -host --host -hosts -hostfile --hostfile -machinefile "
    "--machinefile -f -x -wdir --wdir -wd -path --path --prefix -prefix -map-by --map-by -bind-to --bind-to -rank-by "
    "--rank-by -launcher --launcher -output-filename --output-filename -l"
)
TWO = names("-mca --mca -env -genv --genv -gmca --gmca")


def take(words: Sequence[Word]) -> Taken | None:
    """Return what mpirun is told."""
    if not words or base(words[0]) not in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun"):
        return None
    values: dict[str, Word] = {}
    environ: dict[str, str] = {}
    at = 1
    while at < len(words) and words[at].text.startswith("-"):
        name, takes = words[at].text, 2 if words[at].text in TWO else 1 if words[at].text in ONE else 0
        given = words[at + 1 : at + 1 + takes]
        if given:
            values["-" + name.lstrip("-")] = given[0]
        if name == "-x" and given and "=" in given[0].text:
            key, _, environ[key] = given[0].text.partition("=")
        elif name in ("-env", "-genv", "--genv") and len(given) == 2:
            environ[given[0].text] = given[1].text
        at += 1 + takes
    nodes, processes = _counts(Front(values))
    return Taken(tuple(words[at:]), environ, nodes, processes)


def _counts(options: Front) -> tuple[Fact[int], Fact[int]]:
    def first(*names: str) -> Word | None:
        return next((options.values[name] for name in names if name in options.values), None)

    total = count(first("-np", "-n", "-c"), "-np", Absent())
    each = count(first("-npernode", "-N", "-ppn"), "-npernode", Absent())
    if isinstance(each, Known):
        nodes: Fact[int] = Absent("mpirun's hosts say how many nodes")
        return Known(max(total.value // each.value, 1)) if isinstance(total, Known) else nodes, each
    if first("-H", "-host", "-hosts", "-hostfile", "-machinefile", "-f") is None:
        return Known(1), total
    return Absent("mpirun's hosts say how many nodes"), Unreadable("-np is over hosts whose slots are not known")


LAUNCHER = Launcher("mpirun", take)
