"""Fits the predictor of a GPU on a folder of profiles: coefficients, trees, intervals, and the rivals.

`python -m mosaic_torch.train` reads `profiles/h200` and writes `models/h200`. The same data give the same bytes. The
formulas and all rows are `mosaic fit`'s, so that what is trained is what is evaluated; here XGBoost grows the trees.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import MosaicError, UsageError

# Few trees, shallow: both models stay in the first-level cache of a CPU, and there are a few thousand rows.
TREES = {"n_estimators": 60, "max_depth": 4, "learning_rate": 0.1, "min_child_weight": 3.0, "reg_lambda": 2.0}
SAMPLED = {"subsample": 0.8, "colsample_bytree": 0.7}
# As gradient boosting's defaults in scikit-learn.
GPUPOOL = {"n_estimators": 100, "max_depth": 3, "learning_rate": 0.1, "min_child_weight": 1.0, "reg_lambda": 0.0}
# Groups of families; what a group's errors are is said by models that have not seen it.
FOLDS = 6
# In the order of `Sharing::ALL` in rust/predict/sharing.rs.
SHARINGS = ("full_equal", "full_hp_high_running", "full_hp_high_arriving", "separate", "confined")
# Durations that a class needs for residuals of its own; one with fewer takes those of all.
LEAST = 30
BANDWIDTHS = ("gb_per_s", "sms")


@dataclass(frozen=True)
class Table:
    """A CSV of numbers; text columns are kept apart."""

    names: list[str]
    values: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """By name."""
        return self.values[:, self.names.index(name)]

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """Several, as XGBoost takes them."""
        return self.values[:, [self.names.index(name) for name in names]].astype(np.float32)


class Fitter:
    """Runs the steps of `mosaic fit` on one folder of profiles."""

    def __init__(self, mosaic: str, data: Path) -> None:
        self._mosaic, self.data = mosaic, data

    def write(self, step: str, out: Path, models: Path | None = None, families: Sequence[str] = ()) -> Path:
        """One step's file."""
        command = [self._mosaic, "fit", step, "--data", str(self.data), "--out", str(out)]
        command += ["--models", str(models)] if models else []
        command += ["--families", ",".join(families)] if families else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MosaicError(done.stderr.strip().removeprefix("mosaic: ") or f"{command} ended with {done.returncode}")
        return out

    def rows(self, step: str, models: Path | None = None, families: Sequence[str] = ()) -> Table:
        """One step's rows."""
        with tempfile.TemporaryDirectory() as folder:
            return read(self.write(step, Path(folder) / "rows.csv", models, families))


def read(path: Path) -> Table:
    """Reads a CSV whose cells are numbers."""
    with path.open() as file:
        names = file.readline().strip().split(",")
        values = np.loadtxt(file, delimiter=",", ndmin=2) if names else np.empty((0, 0))
    if values.size == 0:
        raise MosaicError(f"{path}: found no rows, expected pairs of seen kernels: measure pairs first")
    return Table(names, values)


def grow(
    rows: np.ndarray, target: np.ndarray, weight: np.ndarray | None, names: Sequence[str], path: Path, **how: Any
) -> None:
    """Trains trees and saves them; single-threaded and seeded, so the same rows give the same bytes."""
    try:
        import xgboost
    except ImportError as e:
        raise UsageError("xgboost was not found: pip install xgboost-cpu") from e
    model = xgboost.XGBRegressor(
        objective="reg:squarederror", tree_method="hist", n_jobs=1, random_state=1, **{**TREES, **how}
    )
    model.fit(rows, target, sample_weight=weight)
    booster = model.get_booster()
    booster.feature_names = list(names)
    booster.save_model(path)


def features(table: Table) -> list[str]:
    """Names of what a row has besides what it should say."""
    return [name for name in table.names if name not in ("target", "weight")]


def grow_from(table: Table, path: Path, keep: Sequence[str] | None = None) -> None:
    """Trees of one mechanism. What is not kept is the same in all rows, so that no split is by it."""
    names = features(table)
    rows = table.columns(names)
    if keep is not None:
        rows[:, [name not in keep for name in names]] = 0.0
    grow(rows, table.column("target"), table.column("weight"), names, path, **SAMPLED)


def train(fitter: Fitter, out: Path, without: Sequence[str] = ()) -> None:
    """Coefficients, then trees between SMs, then trees on an SM, which rest on both."""
    out.mkdir(parents=True, exist_ok=True)
    fitter.write("coefficients", out / "coefficients.json", families=without)
    grow_from(fitter.rows("inter", families=without), out / "inter_sm.json")
    grow_from(fitter.rows("intra", out, without), out / "intra_sm.json")


def folds(families: Sequence[str]) -> list[list[str]]:
    """Groups of families, by their order."""
    return [list(families[i::FOLDS]) for i in range(FOLDS)]


def residuals(fitter: Fitter, families: Sequence[str], classes: int) -> list[dict[str, float]]:
    """Errors of models that had not seen a pair's family, by class."""
    errors: list[np.ndarray] = []
    for held_out in folds(families):
        with tempfile.TemporaryDirectory() as folder:
            train(fitter, Path(folder), held_out)
            errors.append(fitter.rows("residuals", Path(folder), held_out).values)
    found = np.concatenate(errors)
    for index, name in enumerate(SHARINGS):
        some = found[found[:, 0] // (classes // len(SHARINGS)) == index]
        errors_pct = f"p50 {_error(some, 50):.2f} %, p95 {_error(some, 95):.1f} %"
        print(f"held-out families, {name}: |error| {errors_pct}, n {len(some)}")
    return [_class(found[found[:, 0] == index, 1], found[:, 1]) for index in range(classes)]


def _error(found: np.ndarray, q: float) -> float:
    return float(np.percentile(100 * np.abs(1 - np.exp(-found[:, 1])), q))


def _class(logs: np.ndarray, everything: np.ndarray) -> dict[str, float]:
    used = logs if len(logs) >= LEAST else everything
    p5, p95 = np.percentile(used, [5, 95])
    numbers = {"mean": used.mean(), "sd": used.std(), "p5": p5, "p95": p95}
    return {**{name: round(float(value), 6) for name, value in numbers.items()}, "n": len(logs)}


def rivals(fitter: Fitter, out: Path) -> None:
    """KACE's regression and GPUPool's trees, one for each way to share, on the rows that ours are trained on."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = fitter.write("rivals", Path(folder) / "rows.csv")
        with path.open() as file:
            names = file.readline().strip().split(",")[1:]
            lines = [line.strip().split(",") for line in file]
    for sharing in sorted({line[0] for line in lines}):
        table = Table(names, np.array([line[1:] for line in lines if line[0] == sharing], dtype=float))
        slowdown = table.column("slowdown")
        kace = [name for name in names if name.startswith("kace.")]
        fit = linear(table.values[:, [names.index(name) for name in kace]], slowdown)
        fit = {"features": [name.removeprefix("kace.") for name in kace], **fit}
        (out / f"kace-{sharing}.json").write_text(json.dumps(fit, indent=1) + "\n")
        gpupool = [name for name in names if name.startswith("gpupool.")]
        short = [name.removeprefix("gpupool.") for name in gpupool]
        grow(table.columns(gpupool), 1 / slowdown, None, short, out / f"gpupool-{sharing}.json", **GPUPOOL)


def linear(rows: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """Ordinary least squares on standardised features."""
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale == 0] = 1.0
    standard = np.column_stack([(rows - mean) / scale, np.ones(len(rows))])
    weights, *_ = np.linalg.lstsq(standard, target, rcond=None)
    numbers = {"mean": mean, "scale": scale, "weights": weights[:-1]}
    rounded = {name: [float(f"{x:.9g}") for x in values] for name, values in numbers.items()}
    return {**rounded, "intercept": float(f"{weights[-1]:.9g}")}


def ablations(fitter: Fitter, out: Path) -> None:
    """Trees between SMs that see bandwidths only (§6.4), and that see all but working sets and hit rates."""
    out.mkdir(parents=True, exist_ok=True)
    table = fitter.rows("inter")
    names = features(table)
    grow_from(table, out / "inter_sm_bandwidth.json", [name for name in names if name.endswith(BANDWIDTHS)])
    footprints = ("working_set", "hit_pct")
    grow_from(table, out / "inter_sm_no_footprint.json", [n for n in names if not n.endswith(footprints)])


def seen_families(data: Path) -> list[str]:
    """Families and workloads that may be fitted on."""
    found: set[str] = set()
    for path in [data / "kernels.jsonl", *sorted((data / "workloads").glob("*.jsonl.gz"))]:
        for kernel in _kernels(path):
            if not kernel["unseen"]:
                zoo = kernel["key"].startswith("zoo:")
                found.add(kernel["families"][0] if zoo else kernel["key"].split(":")[0])
    return sorted(found)


def _kernels(path: Path) -> list[dict[str, Any]]:
    import gzip

    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if "key" in line]


def _find_mosaic(given: str | None) -> str:
    beside = Path(sys.executable).parent / "mosaic"
    built = Path(__file__).resolve().parents[2] / "target" / "release" / "mosaic"
    found = given or shutil.which("mosaic") or next((str(p) for p in (beside, built) if p.exists()), None)
    if found is None:
        raise UsageError("the command mosaic was not found: build it (`cargo build --release`), or name it by --mosaic")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_torch.train", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("profiles/h200"), help="folder of profiles")
    parser.add_argument("--out", type=Path, help="folder of models; default: models/, under the data's name")
    parser.add_argument("--mosaic", help="the command mosaic")
    options = parser.parse_args(arguments)
    out = options.out or options.data.resolve().parents[1] / "models" / options.data.name
    try:
        fitter = Fitter(_find_mosaic(options.mosaic), options.data)
        train(fitter, out)
        # Sharing, role and exposure: `rust/predict/interval.rs`.
        table = residuals(fitter, seen_families(options.data), classes=len(SHARINGS) * 2 * 4)
        (out / "residuals.json").write_text("[\n" + ",\n".join(map(json.dumps, table)) + "\n]\n")
        rivals(fitter, out / "rivals")
        ablations(fitter, out / "ablations")
    except MosaicError as e:
        print(f"mosaic_torch.train: {e}", file=sys.stderr)
        return 1
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
