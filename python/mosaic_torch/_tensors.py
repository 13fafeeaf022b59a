"""Finds the tensors in arguments and results, and tells the caching allocator which other stream uses them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Parameter
from torch.utils import _pytree

_Tensor = torch.Tensor
_NO_TENSORS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout, range}
)
# Parts of a sparse tensor that hold memory, by layout.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def mark(tree: Any, device: int, stream: Any) -> None:
    """Calls `record_stream(stream)` on every tensor of `device` in nested containers.

    Looks into tuples, lists, dicts, what is registered as a pytree (named tuples, `ModelOutput`), mappings and
    dataclasses. Other objects are not searched: for what they hold, the streams' joins at the next call stand.
    """
    try:
        _walk(tree, device, stream)
    except RecursionError:  # a container that holds itself; not worth a visited set on every call
        return


def _walk(tree: Any, device: int, stream: Any) -> None:
    kind = type(tree)
    if kind is _Tensor or kind is Parameter:
        if tree.get_device() == device:
            if tree.layout is torch.strided:
                tree.record_stream(stream)
            else:
                _walk_tensor(tree, device, stream)
    elif kind is tuple or kind is list:
        for value in tree:
            _walk(value, device, stream)
    elif kind is dict:
        for value in tree.values():
            _walk(value, device, stream)
    elif kind not in _NO_TENSORS:
        _walk_other(tree, device, stream)


def _walk_tensor(tensor: torch.Tensor, device: int, stream: Any) -> None:
    """A tensor that is not a plain strided one."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # a wrapper: its inner tensors own the memory
        for name in flatten()[0]:
            _walk(getattr(tensor, name), device, stream)
    elif tensor.layout in _PARTS:
        with torch.no_grad():
            for part in _PARTS[tensor.layout]:
                _walk(getattr(tensor, part)(), device, stream)
    elif tensor.get_device() == device:
        tensor.record_stream(stream)


def _walk_other(tree: Any, device: int, stream: Any) -> None:
    if isinstance(tree, _Tensor):
        _walk_tensor(tree, device, stream)
    elif isinstance(tree, (torch.nn.Module, type, enum.Enum)) or callable(tree):
        return
    elif isinstance(tree, Mapping):
        for value in tree.values():
            _walk(value, device, stream)
    elif dataclasses.is_dataclass(tree):
        for field in dataclasses.fields(tree):
            _walk(getattr(tree, field.name, None), device, stream)
    elif isinstance(tree, (tuple, list, set, frozenset)):
        for value in tree:
            _walk(value, device, stream)
    else:
        for leaf in _pytree.tree_leaves(tree):
            if leaf is not tree:
                _walk(leaf, device, stream)
