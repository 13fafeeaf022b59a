"""The shared object: its two ops through torch, everything that is not per call through its C ABI."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, Protocol

import torch

from .errors import HookError, MosaicError, UsageError

PATH = Path(__file__).parent / "libmosaic.so"

HP, BE = 1, 2
ROLES = {"hp": HP, "be": BE}
ROLE_NAMES = {HP: "hp", BE: "be"}


class Library(Protocol):
    """What the rest of the package needs of the shared object; tests bring their own."""

    def enter(self, job: int, request: int, device: int, /) -> int: ...
    def leave(self, token: int, ok: bool, /) -> None: ...
    def init(self) -> None: ...
    def shutdown(self) -> None: ...
    def job_register(self, name: str, role: int, device: int, slo: float, fingerprint: int) -> int: ...
    def job_unregister(self, job: int) -> None: ...
    def request_open(self, job: int, arrived_at_ns: int) -> int: ...
    def request_close(self, request: int) -> None: ...
    def process_role(self, role: int, name: str, slo: float) -> None: ...
    def configure(self, settings: dict[str, Any]) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def doctor(self) -> dict[str, Any]: ...
    def record_start(self, job: int) -> None: ...
    def record_stop(self) -> str: ...


_INT, _I64, _U64, _F64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_double
_STR, _OWNED = ctypes.c_char_p, ctypes.c_void_p

# name -> (result, arguments). _OWNED is a char* that mosaic_free takes back.
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "mosaic_init": (_INT, []),
    "mosaic_last_error": (_STR, []),
    "mosaic_job_register": (_I64, [_STR, _INT, _INT, _F64, _U64]),
    "mosaic_job_unregister": (_INT, [_I64]),
    "mosaic_request_open": (_I64, [_I64, _I64]),
    "mosaic_request_close": (_INT, [_I64]),
    "mosaic_stats_json": (_OWNED, []),
    "mosaic_doctor_json": (_OWNED, []),
    "mosaic_free": (None, [_OWNED]),
    "mosaic_configure": (_INT, [_STR]),
    "mosaic_process_role": (_INT, [_INT, _STR, _F64]),
    "mosaic_shutdown": (None, []),
    "mosaic_record_start": (_INT, [_I64]),
    "mosaic_record_stop": (_OWNED, []),
}


class SharedLibrary:
    """`libmosaic.so`, loaded."""

    def __init__(self, path: Path = PATH) -> None:
        if not path.exists():
            raise HookError(f"{path} is missing: the package was not built; install it again (pip install .)")
        try:
            # torch first: it brings libtorch.so into scope, which the ops link to.
            torch.ops.load_library(str(path))
            self._c = ctypes.CDLL(str(path))
        except OSError as e:
            raise HookError(f"{path} cannot be loaded by torch {torch.__version__}: {e}") from e
        for name, (result, arguments) in _PROTOTYPES.items():
            try:
                function = getattr(self._c, name)
            except AttributeError:
                raise HookError(f"{path} has no {name}: it is another version's; install mosaic-torch again") from None
            function.restype, function.argtypes = result, arguments
        # `_op` is the C function itself: no Python frame, so no signal handler runs between it and its caller.
        self.enter = torch.ops.mosaic.enter.default._op
        self.leave = torch.ops.mosaic.leave.default._op

    def _check(self, result: int, error: type[MosaicError] = MosaicError) -> int:
        if result < 0:
            text = self._c.mosaic_last_error() or b""
            raise error(text.decode(errors="replace") or f"libmosaic.so failed with {result} and no text")
        return result

    def _text(self, owned: int | None) -> str:
        if not owned:
            self._check(-1)
        try:
            return ctypes.string_at(owned).decode()
        finally:
            self._c.mosaic_free(owned)

    def init(self) -> None:
        """Puts the hook in force; again after a fork. Cheap when it is."""
        self._check(self._c.mosaic_init(), HookError)

    def shutdown(self) -> None:
        """For Python's exit: opens the gate, but for daemon threads, which stay in it when Python ends."""
        self._c.mosaic_shutdown()

    def job_register(self, name: str, role: int, device: int, slo: float, fingerprint: int) -> int:
        return self._check(self._c.mosaic_job_register(name.encode(), role, device, slo, fingerprint))

    def job_unregister(self, job: int) -> None:
        self._check(self._c.mosaic_job_unregister(job))

    def request_open(self, job: int, arrived_at_ns: int) -> int:
        return self._check(self._c.mosaic_request_open(job, arrived_at_ns))

    def request_close(self, request: int) -> None:
        self._check(self._c.mosaic_request_close(request))

    def process_role(self, role: int, name: str, slo: float) -> None:
        self._check(self._c.mosaic_process_role(role, name.encode(), slo), HookError)

    def configure(self, settings: dict[str, Any]) -> None:
        try:
            text = json.dumps(settings, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise UsageError(f"found settings {settings!r}, expected finite numbers and strings: {e}") from None
        self._check(self._c.mosaic_configure(text.encode()), UsageError)

    def stats(self) -> dict[str, Any]:
        return json.loads(self._text(self._c.mosaic_stats_json()))

    def doctor(self) -> dict[str, Any]:
        return json.loads(self._text(self._c.mosaic_doctor_json()))

    def record_start(self, job: int) -> None:
        self._check(self._c.mosaic_record_start(job))

    def record_stop(self) -> str:
        return self._text(self._c.mosaic_record_stop())
