"""Models that XGBoost trains here, evaluated in Rust: the same bits for every row."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ROWS = 10_000

xgboost = pytest.importorskip("xgboost", reason="NO XGBOOST: pip install xgboost-cpu")
sys.path.append(str(ROOT / "tests/gbdt"))
import make  # noqa: E402

# Building the crate takes minutes where nothing is built yet.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Rust's predictions."""
    if not shutil.which("cargo"):
        pytest.skip("NO CARGO: the model's evaluation in Rust cannot be built")
    folder = tmp_path_factory.mktemp("gbdt")
    model, rows, out = folder / "model.json", folder / "rows.f32", folder / "out.f32"
    build = ["cargo", "test", "--quiet", "--locked", "--no-default-features", "--bench", "gbdt"]

    def predictions(booster, x):
        booster.save_model(model)
        x.astype("<f4").tofile(rows)
        out.unlink(missing_ok=True)
        subprocess.run([*build, "--", "--model", model, "--rows", rows, "--out", out], cwd=ROOT, check=True)
        return np.fromfile(out, "<f4")

    return predictions


def assert_same_bits(found, expected):
    wrong = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
    assert len(found) == len(expected)
    assert not len(wrong), f"{len(wrong)} of {len(found)} rows, the first: {found[wrong[0]]} != {expected[wrong[0]]}"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"objective": "reg:absoluteerror", "max_depth": 8, "gamma": 0.5, "rounds": 33},
        {"objective": "reg:pseudohubererror", "num_parallel_tree": 3, "subsample": 0.5, "rounds": 9},
        {"objective": "reg:quantileerror", "quantile_alpha": 0.9, "max_depth": 1},
        {"base_score": -2.5, "tree_method": "exact", "max_depth": 6, "rounds": 7},
    ],
    ids=["squared", "absolute-pruned", "huber-forest", "quantile-stumps", "exact"],
)
def test_predictions_are_the_bits_of_xgboost(evaluate, parameters):
    rng = np.random.default_rng(3)
    booster = make.train(rng, **parameters)
    x = np.concatenate([make.synthetic(rng, ROWS)[0], make.synthetic(rng, ROWS, missing=0.2)[0]])
    found = evaluate(booster, x)
    assert_same_bits(found, booster.predict(xgboost.DMatrix(x, feature_names=make.FEATURES)))
    assert np.unique(found).size > 10, "a model that predicts always the same tells nothing"


def test_infinities_and_zeros_compare_as_numbers(evaluate):
    rng = np.random.default_rng(4)
    booster = make.train(rng)
    odd = np.array([np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, np.nan, 3.4e38], np.float32)
    x = make.synthetic(rng, ROWS)[0]
    x = np.where(rng.random(x.shape) < 0.3, rng.choice(odd, x.shape), x)
    assert_same_bits(evaluate(booster, x), booster.inplace_predict(x, validate_features=False))
