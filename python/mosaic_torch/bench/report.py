"""Tables for people."""

from . import summary


def table(header, lines):
    """Columns as wide as they must be; numbers are passed as text."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(header, *lines, strict=True)]
    out = []
    for line in (header, *lines):
        out.append("  ".join(str(cell).ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return "\n".join(out)


def plain(rows):
    """Any rows, one a line."""
    return table(
        ("case", "variant", "metric", "value", "unit", "n"),
        [(r.case, r.variant, r.metric, f"{r.value:.4g}", r.unit, r.n) for r in rows],
    )


def bound(rows):
    """One line a variant of a case, with the target beside what was found."""
    cells = {}
    for row in rows:
        cells.setdefault((row.case, row.variant), {})[row.metric] = row
    lines = []
    for (case, variant), metrics in cells.items():
        fields = dict(part.split("=", 1) for part in case.split())
        lines.append(_bound_line(fields, variant, metrics))
    header = ("hp", "be", "load", "placement", "seed", "variant", "p50", "mean", "p99", "BE", "n", "p99 ms", "notes")
    return table(header, lines)


def _bound_line(fields, variant, metrics):
    def show(metric, form="{:.3f}"):
        return form.format(metrics[metric].value) if metric in metrics else "-"

    notes = []
    if variant == "idle-only":
        limit = summary.P99_TARGET.get(fields["placement"])
        if limit and "hp_p99_ratio" in metrics:
            met = metrics["hp_p99_ratio"].value <= limit
            notes.append(f"p99 {'<=' if met else 'MISSES'} {limit}")
        aim = summary.BE_TARGET.get(fields["be"])
        if aim and fields["load"].startswith("poisson") and "be_fraction" in metrics:
            met = metrics["be_fraction"].value >= aim
            notes.append(f"BE {'>=' if met else 'MISSES'} {aim}")
    if "overloaded" in metrics and metrics["overloaded"].value:
        notes.append("overloaded")
    if metrics.get("stalls") and metrics["stalls"].value:
        notes.append(f"{metrics['stalls'].value:.0f} stalls")
    if metrics.get("host_bound") and metrics["host_bound"].value:
        notes.append(f"{metrics['host_bound'].value:.0f} late by their own CPU")
    if "hp_p99_spread" in metrics:
        notes.append(f"p99 spread of its parts {metrics['hp_p99_spread'].value:.3f}")
    ratios = [show("hp_p50_ratio"), show("hp_mean_ratio"), show("hp_p99_ratio"), show("be_fraction")]
    where = [fields[name] for name in ("hp", "be", "load", "placement", "seed")]
    return (*where, variant, *ratios, show("requests", "{:.0f}"), show("hp_p99_ms", "{:.2f}"), "; ".join(notes))
