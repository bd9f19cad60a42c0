"""Plants a fault in an installed package while it is imported: ATTNCHECK_TEST_PLANT is "module\\nold text\\nnew text".

The package on disk stays unchanged. This is a user's own `sitecustomize`, which the watcher's hands on to.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader

MODULE, OLD, NEW = os.environ.get("ATTNCHECK_TEST_PLANT", "\n\n").split("\n")


class _Planted(SourceFileLoader):
    def get_data(self, path):  # type: ignore[no-untyped-def]
        """Return the module's source with the fault in it; its compiled code is not read."""
        data = super().get_data(path)
        if not path.endswith(".py"):
            raise OSError
        if OLD.encode() not in data:
            raise ImportError(f"the plant does not fit {MODULE}: {OLD!r} is not in it")
        return data.replace(OLD.encode(), NEW.encode(), 1)


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the spec of the one module, with a loader that plants."""
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Planted(name, spec.origin)
        return spec


if MODULE:
    sys.meta_path.insert(0, _Finder())
