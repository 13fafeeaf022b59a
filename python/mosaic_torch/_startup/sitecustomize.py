"""Puts an unmodified program under a role: `mosaic run` places this folder first on PYTHONPATH.

Python imports the first `sitecustomize` it finds, once, before the program. This one lets the next one on the path
run as if it had been found, and then waits for torch: the role is applied right after `import torch`. A program that
never imports torch notices nothing. Standard library only, and never an exception: it runs in every Python that
inherits the environment.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


def _run_next_sitecustomize():
    """The user's own sitecustomize, which ours hides."""
    path = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    ours = sys.modules.get("sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise


def _apply_role():
    """Imports mosaic_torch, which reads the role from the environment; by file if the program cannot see it."""
    if "mosaic_torch" in sys.modules:
        return
    spec = importlib.util.find_spec("mosaic_torch") or importlib.util.spec_from_file_location(
        "mosaic_torch", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["mosaic_torch"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as e:  # the program goes on, and its user is told
        sys.modules.pop("mosaic_torch", None)
        print(f"mosaic_torch: this process runs WITHOUT its role: {e}", file=sys.stderr)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as everyone else does, and has the role applied once it is imported.

    It stays in place until then: programs also look torch up without importing it.
    """

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        spec = next((s for f in others if (s := f.find_spec(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _apply_role()

            spec.loader.exec_module = exec_module
        return spec


if os.environ.get("MOSAIC_ROLE"):
    if "torch" in sys.modules:
        _apply_role()
    else:
        sys.meta_path.insert(0, _AfterTorch())
_run_next_sitecustomize()
