"""Marking what crosses streams: a tensor missed here can be given away while a stream still uses it."""

import collections
import dataclasses
import enum

import pytest
import torch

from fakes import OnGpu
from mosaic_torch._tensors import mark

Pair = collections.namedtuple("Pair", "a b")
STREAM = "stream"


@dataclasses.dataclass
class Batch:
    x: object
    label: str = "cat"


class Output(collections.OrderedDict):
    """Like transformers' ModelOutput."""


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: (t, 1),
        lambda t: [None, "x", [t]],
        lambda t: {"a": {"b": (t,)}},
        lambda t: Pair(1.0, t),
        lambda t: Batch([t]),
        lambda t: Output(logits=t),
        lambda t: collections.deque([t]),
        lambda t: {"batch": Batch({"x": Pair(t, Colour.RED)})},
    ],
)
def test_a_tensor_is_found_in_a_container(wrap):
    tensor = OnGpu()
    mark(wrap(tensor), 0, STREAM)
    assert tensor.marks == [STREAM]


def test_a_tensor_of_another_device_is_left_alone():
    """A stream of one GPU must not be recorded on memory of another."""
    tensor = OnGpu(1)
    mark([tensor, torch.ones(2)], 0, STREAM)
    assert tensor.marks == []


def test_values_without_tensors_are_passed_over():
    mark([None, 1, 2.0, "x", b"y", torch.float32, print, int, Colour.RED, torch.nn.Linear(1, 1), object()], 0, STREAM)


def test_inner_tensors_of_a_wrapper_are_marked():
    """A wrapper subclass (DTensor, quantised weights) has no memory of its own; marking it does nothing or fails."""

    class Wrapper(OnGpu):
        def __tensor_flatten__(self):
            return ["inner"], None

    outer = Wrapper()
    outer.inner = OnGpu()
    mark(outer, 0, STREAM)
    assert (outer.marks, outer.inner.marks) == ([], [STREAM])


def test_parts_of_a_sparse_tensor_are_looked_at():
    """record_stream on a sparse tensor raises; on the CPU the parts are simply on another device."""
    mark(torch.eye(3).to_sparse(), 0, STREAM)
    seen = []

    class Sparse(OnGpu):
        layout = torch.sparse_coo

        def _indices(self):
            seen.append("indices")
            return torch.zeros(1)

        def _values(self):
            seen.append("values")
            return torch.zeros(1)

    tensor = Sparse()
    mark(tensor, 0, STREAM)
    assert (seen, tensor.marks) == (["indices", "values"], [])


def test_a_container_that_holds_itself_does_not_fail_the_call():
    tensor, loop = OnGpu(), []
    loop += [tensor, loop]
    mark(loop, 0, STREAM)
    assert STREAM in tensor.marks
