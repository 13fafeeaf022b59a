"""The rig on a real GPU: who comes first, how much later the other comes, and that nothing of its own is in the way."""

import pytest
import torch

import mosaic_torch
from mosaic_torch.api import runtime
from mosaic_torch.profiling import pairs, rig, zoo
from mosaic_torch.profiling.dataset import CYCLES_PER_NS
from mosaic_torch.profiling.kernels import measure_alone, zoo_kernels
from mosaic_torch.profiling.observe import Observer
from mosaic_torch.profiling.patience import Patience

pytestmark = pytest.mark.gpu

SPIN_NS = 200_000
EQUAL, RUNNING, ARRIVING = pairs.FULL
MODES = {mode.title: mode for mode, _ in pairs.modes()}


@pytest.fixture(scope="module")
def observer():
    before = mosaic_torch.stats()["settings"]
    mosaic_torch.configure(policy="none")
    yield Observer(runtime, torch.cuda.current_device())
    mosaic_torch.configure(**before)


@pytest.fixture(scope="module")
def lanes(observer):
    return pairs.Lanes(observer, torch.cuda.get_device_properties(observer.device).multi_processor_count)


@pytest.fixture
def measured(observer, lanes):
    """Two configurations of the zoo beside each other: the pair's line, and what they take alone."""

    def measured(mode, configs):
        patience = Patience(lambda keys: None)
        a, b = zoo_kernels(observer, configs, print)
        measure_alone([a, b], lanes.full(False, "a"), patience)
        released = lanes.rig(mode, CYCLES_PER_NS)
        (line,) = pairs.measure(released, mode, [(a, b)], lanes.sms, lambda n: None, print, patience)
        return line, [kernel.isolated[lanes.sms].median_ns for kernel in (a, b)]

    return measured


@pytest.fixture
def beside(measured, lanes):
    """Two spins beside each other; how many of their blocks an SM is to hold."""

    def beside(mode, a_per_sm, b_per_sm):
        blocks = (int(lanes.sms * per_sm) for per_sm in (a_per_sm, b_per_sm))
        cycles = int(SPIN_NS * CYCLES_PER_NS)
        line, _ = measured(mode, [zoo.make("spin", "compute", threads=1024, blocks=n, cycles=cycles) for n in blocks])
        return line

    return beside


@pytest.mark.parametrize("title", MODES)
def test_the_first_is_first(title, beside):
    """Fault: now one, now the other is first: places for blocks, and all that follows, change from round to round.

    Or the other comes so late that short kernels do not meet.
    """
    line = beside(MODES[title], 0.3, 0.05)
    assert not line["noisy"]
    first_ns = line["b_alone_ns" if MODES[title].b_first else "a_alone_ns"]["median_ns"]
    lead_ns, later_ns = abs(line["lead_ns"]), MODES[title].later * first_ns
    assert later_ns < lead_ns < later_ns + (20_000 if later_ns else rig.A_FIRST_NS + 3_000)


@pytest.mark.parametrize("mode", pairs.FULL, ids=lambda mode: mode.name)
def test_nothing_of_the_rig_is_beside_a_kernel(mode, measured):
    """Fault: a thread still there makes two blocks share an SM; where each had one, the kernel takes twice as long."""
    params = {"dtype": "fp32", "ilp": 4, "threads": 512, "per_sm": 1}
    chains = [zoo.make("chain", "compute", **params, iterations=n) for n in (4096, 4095)]
    line, alone_ns = measured(mode, chains)
    in_rig_ns = [line[f"{kernel}_alone_ns"]["median_ns"] for kernel in "ab"]
    assert in_rig_ns == pytest.approx(alone_ns, rel=0.05)


@pytest.mark.parametrize("mode", pairs.FULL, ids=lambda mode: mode.name)
def test_a_delay_needs_no_sm(mode, beside):
    """Fault: blocks that fit beside the others come only when those have ended, since what delays them did not fit."""
    line = beside(mode, 1, 1)
    assert line["overlap_ns"] > 0.5 * SPIN_NS
    assert max(line["a_ns"]["median_ns"], line["b_ns"]["median_ns"]) < 1.1 * SPIN_NS


def test_the_two_have_sms_of_their_own(beside):
    """Fault: a partition's stream that uses the other's SMs."""
    line = beside(MODES["separate-a64"], 0.9, 0.9)
    assert abs(line["lead_ns"]) < 20_000
    # 118 blocks on 64 SMs, two on each: one wave.
    assert max(line["a_ns"]["median_ns"], line["b_ns"]["median_ns"]) < 1.1 * SPIN_NS
