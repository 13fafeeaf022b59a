"""Topic ``profile_time``: how long ``mosaic profile`` takes with a model that it has not seen."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import report
from .records import Row

TOPIC = "profile_time"
CASES = {
    "efficientnet-b0": "torchvision.models.efficientnet_b0(), torch.randn(32, 3, 224, 224)",
    "vit-b16": "torchvision.models.vit_b_16(), torch.randn(16, 3, 224, 224)",
}
# As a user would write it.
SCRIPT = """
import mosaic_torch, torch, torchvision

model, images = {made}
server = mosaic_torch.hp(model.cuda().eval().requires_grad_(False), slo=1.1, name={name!r})
images = images.cuda()
for _ in range(5):
    server(images)
torch.cuda.synchronize()
"""
LIMIT_S = 300.0


def expected_seconds(options):
    """For planning, on an H200."""
    return 90.0 * len(CASES)


def run(ctx):
    """The topic, as far as time reaches."""
    ctx.progress.total += len(CASES)
    out = []
    with ctx.fleet() as fleet:
        (agent,) = fleet.start(["hp"])
        ctx.facts |= agent.call("facts", 60.0)
    for name, made in CASES.items():
        with ctx.step(f"profile {name}", 90.0) as fits:
            if fits:
                out += measure(name, made, min(LIMIT_S, ctx.budget.left()))
                ctx.publish(TOPIC, out, report.plain(out))


def measure(name, made, limit_s):
    """Profiles one model; the time, and how many of its kernels have counters."""
    with tempfile.TemporaryDirectory(prefix="mosaic-profile-time-") as folder:
        script = Path(folder) / "serve.py"
        script.write_text(SCRIPT.format(made=made, name=name))
        command = [sys.executable, "-m", "mosaic_torch", "profile", "--out", folder, str(script)]
        begin = time.monotonic()
        done = subprocess.run(command, timeout=limit_s, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - begin
        profiles = list(Path(folder).glob("*.profile.jsonl"))
        if not profiles:
            raise RuntimeError(f"no profile (exit status {done.returncode}): {(done.stdout + done.stderr)[-400:]}")
        lines = [json.loads(line) for line in profiles[0].read_text().splitlines()]
    kernels = [line for line in lines if "key" in line]
    counted = sum("metrics" in kernel for kernel in kernels)
    print((done.stdout + done.stderr)[-2000:])
    return [
        Row(TOPIC, name, "mosaic profile", "seconds", seconds, "s", 1),
        Row(TOPIC, name, "mosaic profile", "kernels", len(kernels), "count", 1),
        Row(TOPIC, name, "mosaic profile", "kernels_with_counters", counted, "count", len(kernels)),
    ]
