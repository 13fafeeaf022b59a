"""Fixtures, and the rule for tests that need a GPU: they are skipped loudly where there is none."""

import signal

import pytest
import torch

from fakes import world

# A runner in the background is started with interrupts ignored, and so would be the programs that are interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="NO GPU HERE: run `pytest -m gpu` on a GPU machine"))


@pytest.fixture(autouse=True)
def autograd_as_it_was():
    """A BE call changes this setting of its thread for good, on purpose."""
    yield
    torch.autograd.set_multithreading_enabled(True)


@pytest.fixture
def both():
    return world()


@pytest.fixture
def runtime(both):
    return both[0]


@pytest.fixture
def library(both):
    return both[1]
