"""Loads this package under a private name, without importing ``mosaic_torch`` around it.

A worker that measures "hook off" must not import ``mosaic_torch``, whose import installs the hook; this folder is a
part of that package, so it is loaded by path instead. Run as a script it is the worker's entry point.
"""

import importlib.util
import sys
from pathlib import Path

NAME = "mosaic_bench"


def load():
    """Returns the package, loaded once, under the name ``mosaic_bench``."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    here = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(NAME, here / "__init__.py", submodule_search_locations=[str(here)])
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)
    return package


if __name__ == "__main__":
    # A script's own folder comes first on the path: `records` or `plan` of this folder would shadow other modules.
    sys.path.pop(0)
    load()
    from importlib import import_module

    sys.exit(import_module(f"{NAME}.worker").main(sys.argv[1:]))
