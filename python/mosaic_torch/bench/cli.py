"""The command line of ``python -m mosaic_torch.bench``."""

import argparse
import importlib
import sys

from . import arrivals, report, summary
from .budget import Budget, Progress
from .context import Context
from .plan import fit
from .records import COLUMNS, RawFile, write_csv
from .variants import PLACEMENTS, VARIANTS
from .workloads import WORKLOADS

# In the order in which `all` runs them: what is cheap and would spoil the rest comes first.
TOPICS = ("coverage", "identity", "micro", "overhead", "death", "profile_time", "bound")
DEFAULT_VARIANTS = ["isolated", "isolated-again", "no-op", "idle-only", "streams", "priority"]
BOUND_BES = ["bert-large", "dlrm", "resnet50-fp16"]


def parser():
    """The parser of all subcommands."""
    top = argparse.ArgumentParser(prog="python -m mosaic_torch.bench", description="Measures mosaic_torch on this GPU.")
    commands = top.add_subparsers(dest="topic", required=True)
    common = _common()
    for topic in TOPICS:
        command = commands.add_parser(
            topic, parents=[common], help=importlib.import_module(f".{topic}", __package__).__doc__
        )
        if topic == "bound":
            _bound_options(command)
        if topic == "coverage":
            command.add_argument("--skip", action="append", default=[], help="leave out this case (may be repeated)")
    everything = commands.add_parser("all", parents=[common], help="every topic, as far as --max-seconds reaches")
    _bound_options(everything)
    everything.add_argument("--topics", type=_names(TOPICS), default=list(TOPICS), help="only these, comma-separated")
    everything.add_argument("--skip", action="append", default=[], help="coverage: leave out this case")
    remake = commands.add_parser("report", help="remakes the bound record from raw files")
    remake.add_argument("raw", nargs="+", help="raw files of one or several commands, oldest first")
    remake.add_argument("--csv", help="write the rows here")
    return top


def _common():
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", help="folder of the records (default: benches/record/<gpu>)")
    common.add_argument("--max-seconds", type=float, help="stop cleanly within this time and name what is missing")
    common.add_argument("--device", default="cuda")
    common.add_argument("--tiny", action="store_true", help="scaled-down models, for dry runs")
    common.add_argument("--control", default="mosaic", help=argparse.SUPPRESS)
    common.add_argument("--weight-seed", type=int, default=0)
    common.add_argument("--plan", action="store_true", help="print what would run, with expected seconds, and stop")
    return common


def _names(allowed):
    def parse(text):
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}: expected some of {', '.join(allowed)}")
        return names

    return parse


def _loads(text):
    loads = [load for load in text.split(",") if load]
    try:
        for load in loads:
            arrivals.parse(load)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return loads


def _bound_options(command):
    add = command.add_argument
    add("--placements", type=_names(PLACEMENTS), default=list(PLACEMENTS), help="comma-separated; default: all")
    add("--hp", default="resnet50", choices=WORKLOADS)
    add("--be", type=_names(WORKLOADS), default=BOUND_BES, help="comma-separated workloads")
    add("--loads", type=_loads, default=["poisson0.5", "closed"], help="closed, poisson<load>, gamma<load>x<cv>")
    add("--variants", type=_names(VARIANTS), default=DEFAULT_VARIANTS)
    add("--seeds", type=int, default=3)
    add("--requests", type=int, default=1000, help="of an open-loop segment")
    add("--closed-requests", type=int, default=500)
    add("--chunks", type=int, default=4, help="parts into which segments are split to alternate")
    add("--rival-chunks", type=int, help="streams and priority: only so many of the parts")
    add("--be-idle-seconds", type=float, default=2.0)
    add("--overload-seconds", type=float, default=1.0, help="a request that starts so late ends its segment")
    add("--stall-ms", type=float, default=100.0)
    add("--calibration-requests", type=int, default=200)


def main(argv=None):
    """Runs one command; 0 if nothing failed, 1 if something did, 130 if interrupted."""
    options = parser().parse_args(argv)
    if options.topic == "report":
        return _remake(options)
    if "variants" in options and "isolated" not in options.variants:
        options.variants = ["isolated", *options.variants]
    if options.plan:
        return _print_plan(options)
    budget = Budget(options.max_seconds)
    progress = Progress(budget)
    context = Context(options, budget, progress)
    code = 0
    try:
        for topic in _topics(options):
            _run_topic(context, topic)
    except KeyboardInterrupt:
        context.uncovered.append("the rest: interrupted")
        code = 130
    return _conclude(context) or code


def _topics(options):
    return [topic for topic in TOPICS if topic in options.topics] if options.topic == "all" else [options.topic]


def _run_topic(context, topic):
    """One topic; what ends it early is named, and the next one goes on."""
    try:
        importlib.import_module(f".{topic}", __package__).run(context)
    except Exception as error:
        context.failures.append(f"{topic}: {type(error).__name__}: {error}")
        context.progress.say(f"{topic} FAILED: {error}")


def _conclude(context):
    for topic, record in context.records.items():
        print(f"\n== {topic}: {record.csv_path}")
        print(report.bound(record.rows) if topic == "bound" else report.plain(record.rows))
    if context.shortfall():
        print(f"\n{context.shortfall()}")
        for topic, record in context.records.items():
            table = report.bound(record.rows) if topic == "bound" else report.plain(record.rows)
            context.publish(topic, record.rows, table)
    print(f"\n{context.budget.spent():.1f} s", flush=True)
    return 1 if context.failures else 0


def _print_plan(options):
    for topic in _topics(options):
        module = importlib.import_module(f".{topic}", __package__)
        if topic == "bound":
            _print_bound_plan(options, module)
        else:
            print(f"{topic}: about {module.expected_seconds(options):.0f} s")
    return 0


def _print_bound_plan(options, bound):
    limit = float("inf") if options.max_seconds is None else options.max_seconds - Budget.RESERVE_S
    for placement in options.placements:
        kept, out = fit(bound.make_plan(options, placement), limit / len(options.placements) - bound.START_S)
        at = bound.START_S
        print(f"bound, {placement}: about {at:.0f} s to start")
        for segment in kept:
            at += segment.seconds
            print(f"  {at:6.1f} s  {segment.title}")
        print(f"bound, {placement}: about {at:.0f} s")
        for group in dict.fromkeys(segment.group for segment in out):
            print(f"  left out: {bound.describe(group)}")


def _remake(options):
    items = []
    for raw in options.raw:
        try:
            items += RawFile(raw).read()
        except OSError as error:
            print(f"{raw}: {error}", file=sys.stderr)
            return 2
    rows = summary.bound_rows(items)
    print(report.bound(rows) if rows else "no segments")
    if options.csv:
        write_csv(options.csv, rows)
        print(f"{options.csv}: {len(rows)} rows of {', '.join(COLUMNS)}")
    return 0
