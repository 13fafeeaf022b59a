"""When requests arrive: offsets in nanoseconds from the start, a pure function of the seed."""

import random

CLOSED = "closed"


def parse(text):
    """``closed``, ``poisson0.5`` or ``gamma0.5x4`` (load 0.5, coefficient of variation 4) → (kind, load, cv)."""
    if text == CLOSED:
        return CLOSED, None, None
    try:
        if text.startswith("poisson"):
            load, cv = float(text.removeprefix("poisson")), 1.0
            kind = "poisson"
        elif text.startswith("gamma"):
            load, cv = (float(part) for part in text.removeprefix("gamma").split("x"))
            kind = "gamma"
        else:
            raise ValueError(text)
    except ValueError:
        raise ValueError(f"unknown load {text!r}: expected closed, poisson<load> or gamma<load>x<cv>") from None
    if not (load > 0 and cv > 0):
        raise ValueError(f"load {text!r}: load and coefficient of variation must be above 0")
    return kind, load, cv


def offsets_ns(rate_hz, cv, seed, count):
    """``count`` arrival offsets of a renewal process with gamma-distributed gaps: cv 1 is Poisson, above 1 bursts."""
    if rate_hz <= 0:
        raise ValueError(f"arrival rate must be above 0, found {rate_hz}")
    rng = random.Random(f"arrivals {seed}")
    shape = 1.0 / (cv * cv)
    scale = 1.0 / (rate_hz * shape)
    at = 0.0
    out = []
    for _ in range(count):
        at += rng.gammavariate(shape, scale)
        out.append(round(at * 1e9))
    return out


def chunk_ns(rate_hz, cv, seed, total, chunks, index):
    """Part ``index`` of ``chunks`` of the same arrivals, counted from the part's own start (the gap before its first
    arrival is kept), so that a long segment can alternate with others."""
    if not 0 <= index < chunks:
        raise ValueError(f"chunk {index} of {chunks}")
    whole = offsets_ns(rate_hz, cv, seed, total)
    first, last = total * index // chunks, total * (index + 1) // chunks
    base = whole[first - 1] if first else 0
    return [offset - base for offset in whole[first:last]]
