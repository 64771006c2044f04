"""What the paper says beside what the records say; the verdict is computed, never written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from nodeslab.paper.published import Printed, authors_last, paper
from nodeslab.paper.rows import MODELS, rows_of

__all__ = ["Claim", "Records", "by_name", "claims_of", "last_of", "verdict"]

Records = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Claim:
    """One line of a table: a quantity of a row in the paper, the bar it is held to, and what the runs gave.

    sense: "<=" or ">=", how ours must stand to the bar. decimals: those that the paper prints, to which ours are
    rounded before they are compared. summary: "mean", or "median" as the paper has it for simulation II's nodes.
    """

    row: str
    quantity: str
    paper: str
    reference: float | None
    bar: float | None
    sense: str
    decimals: int
    ours: tuple[float, ...]
    summary: str = "mean"
    note: str = ""

    @property
    def value(self) -> float | None:
        if not self.ours:
            return None
        return median(self.ours) if self.summary == "median" else fmean(self.ours)

    @property
    def sd(self) -> float | None:
        return stdev(self.ours) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.value is None or self.reference is None else self.value - self.reference

    @property
    def verdict(self) -> str:
        return verdict(self.value, self.bar, self.sense, self.decimals)


def verdict(value: float | None, bar: float | None, sense: str, decimals: int) -> str:
    """Ours against the bar: "met", "missed", or "met as printed" where it is met once rounded to the paper's decimals.

    "not run" without a value, "-" without a bar.
    """
    if value is None:
        return "not run"
    if bar is None:
        return "-"
    sign = 1.0 if sense == "<=" else -1.0
    if sign * value <= sign * bar:
        return "met"
    return "met as printed" if sign * round(value, decimals) <= sign * bar + 1e-12 else "missed"


def by_name(records: Iterable[dict[str, Any]]) -> Records:
    """{row: its records, by seed}."""
    found: Records = {}
    for record in sorted(records, key=lambda r: (r["name"], r["seed"])):
        found.setdefault(record["name"], []).append(record)
    return found


def claims_of(experiment: str, records: Records) -> list[Claim]:
    """The lines of an experiment's table, whether it was run or not."""
    made: list[Claim] = CLAIMS[experiment](records)
    return made


def _final(records: Records, name: str, key: str) -> tuple[float, ...]:
    return tuple(r["final"][key] for r in records.get(name, []) if key in r["final"])


def last_of(record: dict[str, Any], key: str, epochs: int, summary: str = "mean") -> float | None:
    """The mean (or median) of a curve over the last epochs of a run."""
    curve = record["curve"]
    if key not in curve:
        return None
    start = curve["epoch"][-1] - epochs
    values = [v for e, v in zip(curve["epoch"], curve[key], strict=True) if e > start]
    return median(values) if summary == "median" else fmean(values)


def _lasts(records: Records, name: str, key: str, epochs: int, summary: str = "mean") -> tuple[float, ...]:
    found = [last_of(r, key, epochs, summary) for r in records.get(name, [])]
    return tuple(v for v in found if v is not None)


def _open(records: Records, name: str) -> tuple[float, ...]:
    """Nodes of the first layer that are open in the mean network."""
    found = []
    for r in records.get(name, []):
        path, total = next(iter(r["nodes"].items()))
        found.append(r["final"][f"nodes_mean_{path}"] * total)
    return tuple(found)


def _sim1(records: Records) -> list[Claim]:
    out = []
    for width, bar in (("20", 4), ("100", 5)):
        name, dense = f"sim1/{width}/ss-ig", f"sim1/{width}/vbnn"
        out.append(
            Claim(name, "open nodes", "2 (the truth)", 2.0, bar, "<=", 1, _open(records, name), note=f"at most {bar}")
        )
        rival = _final(records, dense, "test_rmse")
        reference = fmean(rival) if rival else None
        out.append(Claim(dense, "test RMSE", "", None, None, "<=", 4, rival))
        out.append(
            Claim(
                name,
                "test RMSE",
                "that of VBNN",
                reference,
                None if reference is None else 1.05 * reference,
                "<=",
                4,
                _final(records, name, "test_rmse"),
                note="at most 5 % above our VBNN's",
            )
        )
        out.append(
            Claim(name, "noise in the test rows", "", None, None, "<=", 4, _final(records, name, "noise_rmse_test"))
        )
    return out


def _sim2(records: Records) -> list[Claim]:
    out = []
    for row in rows_of(["sim2"]):
        name, last = row.name, row.last
        published = paper()["sim2"][MODELS[row.model]]
        held = name == f"sim2/{row.model}"  # the other rows draw the frontier
        for key in ("train_rmse", "test_rmse"):
            printed = Printed(published[key])
            strict = row.model == "ss-ig"
            free = not held or (strict and key == "train_rmse")
            bar = None if free else printed.mean + (0 if strict else 2 * (printed.sd or 0))
            note = "" if bar is None else "at most the paper's mean" if strict else "at most the paper's mean + 2 sd"
            words = f"{key.split('_')[0]} RMSE"
            ours = _lasts(records, name, key, last)
            out.append(Claim(name, words, printed.text, printed.mean, bar, "<=", printed.decimals, ours, note=note))
        if published["nodes"] is not None:
            for layer, (path, share) in enumerate(zip(("0", "2"), published["nodes"], strict=True), 1):
                bar = share if held and row.model == "ss-ig" else None
                ours = _lasts(records, name, f"nodes_mean_{path}", last, "median")
                out.append(
                    Claim(
                        name,
                        f"nodes left, layer {layer}",
                        f"{share:.2f}",
                        share,
                        bar,
                        "<=",
                        2,
                        ours,
                        "median",
                        "" if bar is None else "at most the paper's",
                    )
                )
        out.append(
            Claim(name, "noise in the test rows", "", None, None, "<=", 4, _final(records, name, "noise_rmse_test"))
        )
    return out


def _uci(records: Records) -> list[Claim]:
    out = []
    for row in rows_of(["uci"]):
        name, published = row.name, paper()["uci"][row.data][MODELS[row.model]]
        printed = Printed(published["rmse"])
        factor = 0.5 if row.model == "ss-ig" else 2.0
        bar = printed.mean + factor * (printed.sd or 0.0)
        out.append(
            Claim(
                name,
                "test RMSE",
                printed.text,
                printed.mean,
                bar,
                "<=",
                printed.decimals,
                _final(records, name, "test_rmse"),
                note=f"at most the paper's mean + {factor:g} sd",
            )
        )
        ours = _final(records, name, "nodes_mean_0")
        if "nodes" in published:
            printed = Printed(published["nodes"])
            bar_nodes = printed.mean + 0.03 if row.model == "ss-ig" else None
            note = "at most the paper's + 0.03" if bar_nodes is not None else ""
            out.append(Claim(name, "nodes left", printed.text, printed.mean, bar_nodes, "<=", 2, ours, note=note))
        for key, words in (
            ("test_log_likelihood", "test log-likelihood"),
            ("coverage90", "coverage of 90 % intervals"),
            ("fit_seconds", "seconds, its share of a batched run"),
        ):
            out.append(Claim(name, words, "", None, None, ">=", 3, _final(records, name, key)))
    return out


def _images(experiment: str) -> Any:
    def claims(records: Records) -> list[Claim]:
        out = []
        for row in rows_of([experiment]):
            name, model = row.name, MODELS[row.model]
            strict = name == f"{experiment}/{row.data}/ss-ig"  # the other rows of SS-IG are for comparison
            goal = paper()["images"][f"{experiment}/{row.data}"]
            columns = [
                ("test_accuracy", "test_accuracy", "test accuracy", ">=", goal["accuracy"]),
                ("compression_ratio", "compression_draws", "compression ratio", "<=", None),
                ("flops_ratio", "flops_draws", "FLOPs ratio", "<=", goal["flops"] + 0.01),
            ]
            if experiment == "mlp":
                columns += [
                    (f"sparsity_fc{i}", f"nodes_draws_{path}", f"nodes left, layer {i}", "<=", None)
                    for i, path in ((1, "0"), (2, "2"))
                ]
            for column, key, words, sense, goal_bar in columns:
                reference = authors_last(experiment, row.data, model, column, end=row.epochs)
                if reference is None:
                    continue
                bar = goal_bar if strict else None
                ours = _lasts(records, name, key, 50)
                note = "" if bar is None else "the authors'" + (" + 0.01" if sense == "<=" else "")
                out.append(Claim(name, words, f"{reference:.4f}", reference, bar, sense, 4, ours, note=note))
            if row.model == "ss-ig":
                out.append(
                    Claim(
                        name,
                        "FLOPs ratio, mean network",
                        "",
                        None,
                        None,
                        "<=",
                        4,
                        _lasts(records, name, "flops_mean", 50),
                    )
                )
        return out

    return claims


def _widths(records: Records) -> list[Claim]:
    out = []
    goal = paper()["widths"]
    for width in (400, 800, 1200):
        name, dense = f"widths/{width}/ss-ig", f"widths/{width}/vbnn"
        for layer, (path, share) in enumerate(zip(("0", "2"), goal["closed"], strict=True), 1):
            ours = tuple(1.0 - v for v in _lasts(records, name, f"nodes_mean_{path}", 50))
            out.append(
                Claim(
                    name,
                    f"nodes closed, layer {layer}",
                    f"> {share:.2f}",
                    share,
                    share,
                    ">=",
                    2,
                    ours,
                    note="at least the paper's",
                )
            )
        rival = _lasts(records, dense, "test_accuracy", 50)
        reference = fmean(rival) if rival else None
        out.append(Claim(dense, "test accuracy", "", None, None, ">=", 4, rival))
        out.append(
            Claim(
                name,
                "test accuracy",
                "that of VBNN",
                reference,
                None if reference is None else reference - goal["accuracy_loss"],
                ">=",
                4,
                _lasts(records, name, "test_accuracy", 50),
                note="within 2 points of our VBNN's",
            )
        )
    return out


CLAIMS = {
    "sim1": _sim1,
    "sim2": _sim2,
    "uci": _uci,
    "mlp": _images("mlp"),
    "lenet": _images("lenet"),
    "widths": _widths,
}


def counted(claims: Sequence[Claim]) -> str:
    """How many of the lines that are held to a bar were met, missed and not run."""
    verdicts = [c.verdict for c in claims if c.note]
    return (
        ", ".join(f"{verdicts.count(v)} {v}" for v in ("met", "met as printed", "missed", "not run") if v in verdicts)
        or "no bars"
    )
