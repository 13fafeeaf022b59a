"""What every topic is given: options, the clock, the record, and a way to say what it did not cover."""

import contextlib
import dataclasses
import shlex
import sys
import time

from .budget import Budget, Progress
from .device import record_folder
from .fleet import AgentLost, Fleet
from .records import Record, provenance


@dataclasses.dataclass
class Context:
    """One command's run."""

    options: object
    budget: Budget
    progress: Progress
    command: str = dataclasses.field(
        default_factory=lambda: shlex.join(["python", "-m", "mosaic_torch.bench", *sys.argv[1:]])
    )
    run_id: str = dataclasses.field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S"))
    uncovered: list = dataclasses.field(default_factory=list)
    failures: list = dataclasses.field(default_factory=list)
    facts: dict = dataclasses.field(default_factory=dict)
    records: dict = dataclasses.field(default_factory=dict)

    def fleet(self, control=None):
        options = self.options
        return Fleet(
            device=options.device, control=control or options.control, tiny=options.tiny, seed=options.weight_seed
        )

    def record(self, topic):
        """The topic's record; its folder is named after the GPU unless --out says another."""
        if topic not in self.records:
            folder = self.options.out or f"benches/record/{record_folder(self.facts.get('gpu', 'unknown'))}"
            self.records[topic] = Record(folder, topic)
        return self.records[topic]

    def publish(self, topic, rows, table):
        """Writes what is known so far: rows, table, provenance, and what is missing."""
        record = self.record(topic)
        record.write_rows(rows)
        record.write_text("\n\n".join(filter(None, [provenance(self.command, self.facts), table, self.shortfall()])))

    def shortfall(self):
        lines = [f"not covered: {what}" for what in self.uncovered]
        return "\n".join(lines + [f"failed: {what}" for what in self.failures])

    @contextlib.contextmanager
    def step(self, what, seconds):
        """A step that fails or does not fit is named and left out; the others go on.

        Yields True if there is time for it. A lost agent is no such failure: the caller must start a new one.
        """
        if not self.budget.fits(seconds):
            self.uncovered.append(f"{what}: {seconds:.0f} s needed, {max(0.0, self.budget.left()):.0f} s left")
            yield False
            return
        begin = time.monotonic()
        try:
            yield True
        except AgentLost:
            raise
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            self.progress.step(f"{what}: FAILED, {error}")
        else:
            self.progress.step(f"{what} ({time.monotonic() - begin:.1f} s)")
