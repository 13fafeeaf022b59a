"""The shared object: its two ops through torch, everything that is not per call through its C ABI."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, Protocol

import torch

from .errors import HookError, MosaicError, UsageError

PATH = Path(__file__).parent / "libmosaic.so"

HP, BE, OBSERVED = 1, 2, 3
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
    def stream_set_role(self, stream: int, job: int) -> None: ...
    def observe_start(self, job: int, options: dict[str, Any]) -> None: ...
    def observe_stop(self) -> list[dict[str, Any]]: ...
    def kept_fill(self, kept: int, stream: int) -> None: ...
    def kept_launch(self, kept: int, stream: int) -> None: ...
    def kept_clear(self) -> None: ...
    def device(self, device: int) -> dict[str, Any]: ...
    def stream_create(self, device: int, priority: int) -> int: ...
    def partition(self, device: int, sms: int) -> dict[str, int]: ...
    def partition_stream(self, partition: int, rest: bool, priority: int) -> int: ...
    def partition_close(self, partition: int) -> None: ...
    def ncu_metrics(self) -> list[str]: ...
    def ncu_launches(self, path: str) -> list[dict[str, Any]]: ...


_INT, _I64, _U64, _F64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_double
_STR, _OWNED, _STREAM = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p

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
    "mosaic_stream_set_role": (_INT, [_STREAM, _I64]),
    "mosaic_observe_start": (_INT, [_I64, _STR]),
    "mosaic_observe_stop": (_OWNED, []),
    "mosaic_kept_fill": (_INT, [_I64, _STREAM]),
    "mosaic_kept_launch": (_INT, [_I64, _STREAM]),
    "mosaic_kept_clear": (_INT, []),
    "mosaic_ncu_metrics": (_OWNED, []),
    "mosaic_ncu_json": (_OWNED, [_STR]),
    "mosaic_device_json": (_OWNED, [_INT]),
    "mosaic_stream_create": (_I64, [_INT, _INT]),
    "mosaic_partition": (_OWNED, [_INT, _INT]),
    "mosaic_partition_stream": (_I64, [_I64, _INT, _INT]),
    "mosaic_partition_close": (_INT, [_I64]),
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

    def stream_set_role(self, stream: int, job: int) -> None:
        """Gives a stream the role of a job; -1 takes it away."""
        self._check(self._c.mosaic_stream_set_role(stream, job))

    def observe_start(self, job: int, options: dict[str, Any]) -> None:
        """Starts to observe an observed job; mosaic.h describes the options, and the lines of `observe_stop`."""
        self._check(self._c.mosaic_observe_start(job, json.dumps(options).encode()))

    def observe_stop(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._text(self._c.mosaic_observe_stop()).splitlines()]

    def kept_fill(self, kept: int, stream: int) -> None:
        """Makes the fills again that came right before a kept launch."""
        self._check(self._c.mosaic_kept_fill(kept, stream))

    def kept_launch(self, kept: int, stream: int) -> None:
        """Launches it again, without its fills: its module is loaded, and what its parameters point to is there."""
        self._check(self._c.mosaic_kept_launch(kept, stream))

    def kept_clear(self) -> None:
        self._check(self._c.mosaic_kept_clear())

    def device(self, device: int) -> dict[str, Any]:
        return json.loads(self._text(self._c.mosaic_device_json(device)))

    def stream_create(self, device: int, priority: int) -> int:
        return self._check(self._c.mosaic_stream_create(device, priority))

    def partition(self, device: int, sms: int) -> dict[str, int]:
        """Splits a GPU's SMs: the partition's number, and how many SMs it and the rest have."""
        return json.loads(self._text(self._c.mosaic_partition(device, sms)))

    def partition_stream(self, partition: int, rest: bool, priority: int) -> int:
        return self._check(self._c.mosaic_partition_stream(partition, rest, priority))

    def partition_close(self, partition: int) -> None:
        self._check(self._c.mosaic_partition_close(partition))

    def ncu_metrics(self) -> list[str]:
        """What Nsight Compute is asked for."""
        return json.loads(self._text(self._c.mosaic_ncu_metrics()))

    def ncu_launches(self, path: str) -> list[dict[str, Any]]:
        """Nsight Compute's table, launch by launch, in plain units."""
        return [json.loads(line) for line in self._text(self._c.mosaic_ncu_json(path.encode())).splitlines()]
