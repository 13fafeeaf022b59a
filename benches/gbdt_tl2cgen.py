"""Makes what `cargo bench --bench gbdt -- --tl2cgen FOLDER` compares with: a model as the C that tl2cgen writes.

`python benches/gbdt_tl2cgen.py FOLDER`, with tests/gbdt/make.py's packages, treelite 4.8, tl2cgen 1.0 and gcc.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import tl2cgen
import treelite

sys.path.append(str(Path(__file__).parents[1] / "tests/gbdt"))
from make import synthetic, train

ROWS = 4_000


def main():
    """The model, 4,000 rows that it has not seen, and the library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    train(rng).save_model(folder / "model.json")
    synthetic(rng, ROWS)[0].astype("<f4").tofile(folder / "rows.f32")
    model = treelite.frontend.load_xgboost_model(str(folder / "model.json"))
    tl2cgen.generate_c_code(model, dirpath=str(folder / "c"), params={})
    source, library = folder / "c/main.c", folder / "model.so"
    subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True)


if __name__ == "__main__":
    main()
