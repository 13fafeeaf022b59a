"""Makes the golden files beside it, model.json and rows.csv: a model of XGBoost, and the bits of its predictions.

`python make.py`, with xgboost-cpu 3.4.1 and numpy: other releases may grow other trees.
"""

from pathlib import Path

import numpy as np
import xgboost

FOLDER = Path(__file__).parent
FEATURES = [f"x{index}" for index in range(16)]
PARAMETERS = {"objective": "reg:squarederror", "tree_method": "hist", "max_depth": 5, "nthread": 1, "seed": 1}
ROWS = 200


def synthetic(rng, rows, missing=0.0):
    """Rows and a target that takes several features at once to explain."""
    x = rng.standard_normal((rows, len(FEATURES))).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + abs(x[:, 3]) + 0.2 * x[:, 4:].sum(axis=1)
    x[rng.random(x.shape) < missing] = np.nan
    return x, y + rng.normal(scale=0.1, size=rows)


def train(rng, **parameters):
    """100 trees, unless the parameters say otherwise."""
    rounds = parameters.pop("rounds", 100)
    x, y = synthetic(rng, 4_000, missing=0.05)
    data = xgboost.DMatrix(x, y, feature_names=FEATURES)
    return xgboost.train({**PARAMETERS, **parameters}, data, rounds)


def main():
    rng = np.random.default_rng(1)
    booster = train(rng)
    booster.save_model(FOLDER / "model.json")
    x = np.concatenate([synthetic(rng, ROWS // 2)[0], synthetic(rng, ROWS // 2, missing=0.2)[0]])
    bits = booster.predict(xgboost.DMatrix(x, feature_names=FEATURES)).view(np.uint32)
    lines = [",".join([*map(str, row), f"{row_bits:08x}"]) for row, row_bits in zip(x, bits, strict=True)]
    (FOLDER / "rows.csv").write_text("\n".join([",".join([*FEATURES, "prediction_bits"]), *lines, ""]))


if __name__ == "__main__":
    main()
