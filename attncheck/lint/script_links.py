"""Finds names that a launch's scripts import and the installed packages no longer have, with doctor's linker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core import codec
from attncheck.core.facts import Fact, Known
from attncheck.core.launch import Launch
from attncheck.core.links import LAUNCH_CODE, UnresolvedName
from attncheck.core.records import replace
from attncheck.core.snapshot import Snapshot
from attncheck.lint.programs.modules import INSTALLED
from attncheck.lint.programs.places import find_program
from attncheck.lint.programs.program import Entry

if TYPE_CHECKING:
    from attncheck.doctor.probes.payload.links.own_code import OwnCodeLinker


@dataclass
class ScriptLinks:
    """Links scripts with the packages of the examined environment, each script once."""

    snapshot: Snapshot
    site_folders: Sequence[Path]
    links_by_script: dict[tuple[Path, ...], Fact[tuple[UnresolvedName, ...]]] = field(default_factory=dict)

    @cached_property
    def _linker(self) -> "OwnCodeLinker":
        from attncheck.doctor.probes.payload.links.own_code import OwnCodeLinker  # late: a target has no links

        installed = [{"name": item.name, "version": item.version} for item in self.snapshot.distributions]
        return OwnCodeLinker(installed, [str(folder) for folder in self.site_folders])

    def add(self, snapshot: Snapshot, launch: Launch) -> Snapshot:
        """Return `snapshot` with the links of the script that a launch starts; unchanged if no files were read."""
        if not isinstance(snapshot.links, Known):
            return snapshot
        return replace(snapshot, links=self._find(launch, snapshot.links))

    def _find(self, launch: Launch, installed: Known[tuple[UnresolvedName, ...]]) -> Fact[tuple[UnresolvedName, ...]]:
        name = launch.words[0].text if launch.words else ""
        place = find_program(launch, Entry(name), tuple(self.site_folders)) if name.endswith(".py") else None
        if place is None:
            return installed
        script, tree = Path(place[0].name), place[1]
        if not INSTALLED.isdisjoint(script.parts):
            return installed
        folders = tuple(folder for folder in tree.folders if folder not in self.site_folders)
        key = (script, *folders)
        if key not in self.links_by_script:
            records = self._linker.link(LAUNCH_CODE, [str(script)], [str(folder) for folder in folders])
            shown = [{**record, "path": tree.show_path(Path(str(record["path"])))} for record in records]
            links = tuple(codec.read(UnresolvedName, record) for record in shown)
            self.links_by_script[key] = Known((*installed.value, *links)) if links else installed
        return self.links_by_script[key]
