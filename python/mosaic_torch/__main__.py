"""`python -m mosaic_torch doctor [--json]` and `python -m mosaic_torch profile SCRIPT`."""

from __future__ import annotations

import argparse
import json
import os
import sys

from .errors import MosaicError
from .profiling import command


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit status is 1 where it found something wrong."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_torch", description="mosaic_torch, the Python side")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="say whether the launch path is under control, and prove it")
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    profile = commands.add_parser("profile", help="measure what a script's models do alone on the GPU")
    command.add_arguments(profile)
    options = parser.parse_args(arguments)
    if options.command == "profile":
        try:
            return command.run(options)
        except MosaicError as e:
            print(f"mosaic: {e}", file=sys.stderr)
            return 1

    from . import _doctor, api

    report = _doctor.report(api.runtime)
    try:
        print(json.dumps(report, indent=2) if options.json else _doctor.text(report), flush=True)
    except BrokenPipeError:  # the reader has what it wanted; nothing is to be flushed into the pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
