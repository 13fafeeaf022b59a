"""The control layer: the only place here that calls mosaic_torch.

``mosaic`` is the real one, ``off`` calls nothing (a process without the hook), ``path/to/file.py:factory`` is a
stand-in with the same methods, for dry runs.
"""

import importlib.util
import sys


class Control:
    """What the agents ask of it. As it stands: no hook, no roles, no gate."""

    name = "off"

    def hp(self, fn, *, slo, name, device):
        """``fn`` as a high-priority job; returns what to call instead."""
        return fn

    def be(self, fn, *, name, device):
        """``fn`` as a best-effort job; returns what to call instead."""
        return fn

    def request(self, job, arrived_at_s):
        """One request of an HP job: a context manager, which ``open()`` marks as pending beforehand."""
        return _NoRequest()

    def best_effort(self, job):
        """A best-effort section: a context manager."""
        return _NoRequest()

    def configure(self, **settings):
        """Changes settings of this process, ``policy`` among them."""

    def stats(self):
        """The counters, see ``stats_view``."""
        return {}

    def ledger(self):
        """Who has a place in the GPU's ledger: dictionaries with ``role`` and ``pid``."""
        return []

    def unwrap(self, job):
        """Takes an ``nn.Module`` out of its role."""

    def facts(self):
        """Versions, for the record."""
        return {"mosaic_torch": "imported, though off" if "mosaic_torch" in sys.modules else "not imported"}


class _NoRequest:
    def open(self):
        return self

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class MosaicControl(Control):
    """mosaic_torch itself, imported here and nowhere else."""

    name = "mosaic"

    def __init__(self):
        import mosaic_torch

        self._mosaic = mosaic_torch
        self.configure = mosaic_torch.configure
        self.stats = mosaic_torch.stats
        self.unwrap = mosaic_torch.unwrap

    def hp(self, fn, *, slo, name, device):
        return self._mosaic.hp(fn, slo=slo, name=name, device=device)

    def be(self, fn, *, name, device):
        return self._mosaic.be(fn, name=name, device=device)

    def request(self, job, arrived_at_s):
        return self._mosaic.request(job, arrived_at=arrived_at_s)

    def best_effort(self, job):
        return self._mosaic.best_effort(job)

    def ledger(self):
        path = self._mosaic.doctor().get("launch_path") or {}
        return [entry for gpu in path.get("gpus", []) for entry in gpu.get("ledger") or []]

    def facts(self):
        return {"mosaic_torch": getattr(self._mosaic, "__version__", "unknown")}


def make(spec):
    """``mosaic``, ``off`` or ``file.py:factory``."""
    if spec == "off":
        return Control()
    if spec == "mosaic":
        return MosaicControl()
    path, sep, factory = spec.rpartition(":")
    if not sep:
        raise ValueError(f"unknown control {spec!r}: expected mosaic, off or file.py:factory")
    module_spec = importlib.util.spec_from_file_location("mosaic_bench_control", path)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules["mosaic_bench_control"] = module
    module_spec.loader.exec_module(module)
    return getattr(module, factory)()
