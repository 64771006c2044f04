"""The paper's section 4 as pure functions of numbers: u_l, vartheta_l, r_l, epsilon_n, s_l, B_l and lambda_l.

A network is given by its widths (k_0, ..., k_{L+1}): k_0 inputs, L hidden layers, k_{L+1} outputs; layer l
(l = 0 ... L) has k_{l+1} nodes with k_l + 1 incoming weights each, the bias counted.

Convolutions are counted by what the formulas mean, in a `Topology`: a node is an output channel, so k_{l+1} is
the number of output channels, and k_l + 1 is the number of weights into one channel plus its bias, that is
(input channels / groups) x (kernel size) + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, TypeAlias

from nodeslab.checks import number, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "B_circ",
    "Contraction",
    "InclusionPriors",
    "Topology",
    "authors_image_priors",
    "edge_prior",
    "epsilon",
    "inclusion_priors",
    "log_B_circ",
    "optimal_contraction",
    "plot",
    "r",
    "rate_sum",
    "s_circ",
    "table",
    "u",
    "vartheta",
]

SMALLEST = 1e-50  # appendix B: inclusion probabilities do not fall below this
LARGEST_EXPONENT = 10.0  # ... and exp(-C_l (k_l + 1) vartheta_l) stays away from 0


@dataclass(frozen=True)
class Topology:
    """The layers l = 0 ... L: `fan_in[l]` = k_l weights into each of `nodes[l]` = k_{l+1} nodes."""

    fan_in: tuple[int, ...]
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.fan_in) != len(self.nodes) or not self.nodes:
            raise ValueError(
                f"A topology needs a fan-in for each layer, got {len(self.fan_in)} for {len(self.nodes)} layers."
            )
        for name, values in (("fan_in", self.fan_in), ("nodes", self.nodes)):
            for i, value in enumerate(values):
                whole(f"{name}[{i}]", value)

    @classmethod
    def of(cls, widths: Widths) -> Topology:
        """From (k_0, ..., k_{L+1})."""
        if isinstance(widths, Topology):
            return widths
        if isinstance(widths, (str, bytes, dict)) or not isinstance(widths, Iterable):
            raise TypeError(f"widths must be whole numbers (k_0, ..., k_(L+1)), got {widths!r}.")
        k = [whole(f"widths[{i}]", w) for i, w in enumerate(widths)]
        if len(k) < 2:
            raise ValueError(f"widths needs at least the inputs and the outputs, got {k}; write e.g. [8, 50, 1].")
        return cls(tuple(k[:-1]), tuple(k[1:]))

    @property
    def hidden(self) -> int:
        """L, the number of hidden layers."""
        return len(self.nodes) - 1


Widths: TypeAlias = "Sequence[int] | Topology"


def _observations(n: object) -> int:
    return whole("n, the number of observations,", n)


def _each(name: str, values: float | Sequence[float], count: int) -> tuple[float, ...]:
    """One positive number for each of `count` layers; a single number serves all."""
    if not isinstance(values, (Real, Iterable)) or isinstance(values, (str, bytes, dict)):
        raise TypeError(
            f"{name} must be a number, or one for each layer, got {values!r} of type {type(values).__name__}."
        )
    given: Sequence[object] = (values,) * count if isinstance(values, Real) else tuple(values)
    if len(given) != count:
        which = "hidden layer" if name == "C" else "layer"
        raise ValueError(
            f"{name} needs {count} value{'s' if count != 1 else ''}, one for each {which}, got {len(given)}."
        )
    return tuple(number(f"{name}[{i}]", v, 0.0, 1e150) for i, v in enumerate(given))


def u(widths: Widths, n: int) -> tuple[float, ...]:
    """u_l = (L+1)^2 (log n + log(L+1) + log k_{l+1} + log(k_l + 1)), l = 0 ... L (above Lemma 4.1)."""
    t, n = Topology.of(widths), _observations(n)
    layers = t.hidden + 1
    return tuple(
        layers**2 * (math.log(n) + math.log(layers) + math.log(out) + math.log(into + 1))
        for into, out in zip(t.fan_in, t.nodes, strict=True)
    )


def _vartheta(t: Topology, n: int, leading: Iterable[float], log_b: Sequence[float]) -> tuple[float, ...]:
    log_sum_u = math.log(sum(u(t, n)))
    return tuple(
        lead
        + (sum(log_b) - log_b[i])
        + t.hidden
        + math.log(t.nodes[i])
        + math.log(t.fan_in[i] + 1)
        + math.log(n)
        + log_sum_u
        for i, lead in enumerate(leading)
    )


def vartheta(widths: Widths, n: int, B: float | Sequence[float] | None = None) -> tuple[float, ...]:
    """vartheta_l = B_l^2/(k_l+1) + sum_{m != l} log B_m + L + log k_{l+1} + log(k_l+1) + log n + log sum_m u_m.

    Equation (e:var-r), l = 0 ... L. By default B_l = k_l + 1, appendix B's choice.
    """
    t, n = Topology.of(widths), _observations(n)
    b = tuple(k + 1.0 for k in t.fan_in) if B is None else _each("B", B, len(t.fan_in))
    leading = (b_l**2 / (k + 1) for b_l, k in zip(b, t.fan_in, strict=True))
    return _vartheta(t, n, leading, [math.log(v) for v in b])


def _sparsity(t: Topology, s: Sequence[float]) -> tuple[float, ...]:
    """s_0 ... s_L; the output layer's, where no node is selected, may be left out."""
    if isinstance(s, (str, bytes, dict)) or not isinstance(s, Iterable):
        raise TypeError(f"s must be the nodes of each layer (s_0, ..., s_L), got {s!r} of type {type(s).__name__}.")
    values = tuple(number(f"s[{i}]", v, -math.inf) for i, v in enumerate(s))
    if len(values) == t.hidden:
        values += (float(t.nodes[-1]),)
    if len(values) != t.hidden + 1:
        raise ValueError(f"s needs {t.hidden} values, one for each hidden layer, got {len(s)}.")
    for i, (v, k) in enumerate(zip(values, t.nodes, strict=True)):
        if not 0 <= v <= k:
            raise ValueError(f"s[{i}] must be between 0 and the layer's {k} nodes, got {v}.")
    return values


def r(widths: Widths, n: int, s: Sequence[float], B: float | Sequence[float] | None = None) -> tuple[float, ...]:
    """r_l = s_l (k_l + 1) vartheta_l / n, l = 0 ... L (equation e:var-r)."""
    t, n = Topology.of(widths), _observations(n)
    theta = vartheta(t, n, B)
    return tuple(s_l * (k + 1) * v / n for s_l, k, v in zip(_sparsity(t, s), t.fan_in, theta, strict=True))


def rate_sum(
    widths: Widths, n: int, s: Sequence[float], B: float | Sequence[float] | None = None, xi: float = 0.0
) -> float:
    """sum_l r_l + xi, which the remark on optimal contraction minimises; xi is the squared approximation error."""
    return sum(r(widths, n, s, B)) + number("xi", xi, 0.0, least=True)


def epsilon(
    widths: Widths, n: int, s: Sequence[float], B: float | Sequence[float] | None = None, xi: float = 0.0
) -> float:
    """epsilon_n = sqrt((sum_l r_l + xi) sum_l u_l), the contraction rate of theorem 4.4 (thm:var-post)."""
    total = rate_sum(widths, n, s, B, xi)
    if total < 0:
        raise ValueError(
            f"sum r_l + xi is {total:.4g}: B is so small that its logarithm makes vartheta negative; take B larger."
        )
    return math.sqrt(total * sum(u(widths, n)))


def s_circ(widths: Widths, n: int, epsilon_n: float) -> float:
    """s_l° = n epsilon_n^2 / sum_j u_j - 1, the same for every layer (above Lemma 4.1)."""
    return n * number("epsilon_n", epsilon_n, 0.0, 1e100) ** 2 / sum(u(widths, n)) - 1.0


def log_B_circ(widths: Widths, n: int, epsilon_n: float) -> float:
    """log B_l° = n epsilon_n^2 / ((L+1) sum_{j=0}^L (s_j° + 1)), the same for every layer (above Lemma 4.1)."""
    layers = Topology.of(widths).hidden + 1
    size = number("epsilon_n", epsilon_n, 0.0, 1e100)
    return n * size**2 / (layers * (layers * (s_circ(widths, n, size) + 1.0)))


def B_circ(widths: Widths, n: int, epsilon_n: float) -> float:
    """B_l° = exp(log B_l°); infinity where that is too large for a float."""
    value = log_B_circ(widths, n, epsilon_n)
    return math.exp(value) if value < 709.0 else math.inf


class InclusionPriors(tuple[float, ...]):
    """lambda_l for each hidden layer, a tuple; `.C` holds the constants and `.exponents` C_l (k_l + 1) vartheta_l."""

    C: tuple[float, ...]
    exponents: tuple[float, ...]

    def __new__(cls, values: Iterable[float], C: Iterable[float], exponents: Iterable[float]) -> InclusionPriors:
        self = super().__new__(cls, tuple(values))
        self.C, self.exponents = tuple(C), tuple(exponents)
        return self

    def __getnewargs__(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        return tuple(self), self.C, self.exponents

    def __repr__(self) -> str:
        values = ", ".join(f"{v:.4g}" for v in self)
        return f"InclusionPriors({values}; C = {', '.join(f'{c:g}' for c in self.C)})"


def _automatic_C(unit_exponent: float, nodes: int) -> float:
    """The largest C_l = 10^-1, 10^-2, ... with C_l (k_l+1) vartheta_l <= 10, hence lambda_l far above 1e-50."""
    power = 1
    while True:
        C = 10.0**-power
        exponent = C * unit_exponent
        if exponent <= LARGEST_EXPONENT and -exponent - math.log(nodes) >= math.log(SMALLEST):
            return C
        power += 1


def inclusion_priors(
    widths: Widths,
    n: int,
    C: float | Sequence[float] | None = None,
    B: float | Sequence[float] | None = None,
) -> InclusionPriors:
    """lambda_l = exp(-C_l (k_l + 1) vartheta_l) / k_{l+1} for each hidden layer (corollary 4.5).

    B_l defaults to k_l + 1. C_l defaults to appendix B's rule, a negative power of ten for each layer: the largest
    that keeps exp(-C_l (k_l+1) vartheta_l) away from 0 (an exponent of at most 10), and so lambda_l above 1e-50.
    The result is a tuple whose `.C` says which constants were used.
    """
    t, n = Topology.of(widths), _observations(n)
    theta = vartheta(t, n, B)
    unit = [(k + 1) * v for k, v in zip(t.fan_in, theta, strict=True)][: t.hidden]
    nodes = t.nodes[: t.hidden]
    if C is None:
        constants: tuple[float, ...] = tuple(_automatic_C(e, k) for e, k in zip(unit, nodes, strict=True))
    else:
        constants = _each("C", C, t.hidden)
    exponents = [c * e for c, e in zip(constants, unit, strict=True)]
    return _priors(exponents, nodes, constants)


def _priors(exponents: Sequence[float], nodes: Sequence[int], constants: Sequence[float]) -> InclusionPriors:
    values = [math.exp(-min(e, 745.0)) / k for e, k in zip(exponents, nodes, strict=True)]
    for i, (value, e) in enumerate(zip(values, exponents, strict=True)):
        if value < 1e-300:
            raise ValueError(
                f"lambda_{i} = exp(-{e:.4g}) / {nodes[i]} is 0 in floating point; "
                f"take C[{i}] = {constants[i]:g} smaller."
            )
        if value >= 1.0:
            values[i] = 1.0 - 1e-12  # a layer of one node, and an exponent of 0 to the last bit
    return InclusionPriors(values, constants, exponents)


#: The fully connected part of the two image networks, whose lambda the authors give to the convolutions as well.
AUTHORS = {
    "mlp": ((784, 400, 400, 10), (0, 1)),
    "lenet": ((800, 800, 500, 10), (0, 1, 0, 1)),
}


def authors_image_priors(network: str, n: int = 60_000) -> InclusionPriors:
    """lambda_l of the authors' image experiments, by name: "mlp" (784-400-400-10) or "lenet" (LeNet-Caffe).

    Their code has C_l = 1e-9 and (k_l + 1)^2 where the corollary has B_l^2 / (k_l + 1). In LeNet conv1 shares the
    value of fc1, and conv2 that of fc2.
    """
    if network not in AUTHORS:
        raise ValueError(f"network must be one of {', '.join(map(repr, AUTHORS))}, got {network!r}.")
    widths, shared = AUTHORS[network]
    t = Topology.of(widths)
    log_b = [math.log(k + 1) for k in t.fan_in]
    theta = _vartheta(t, _observations(n), [float((k + 1) ** 2) for k in t.fan_in], log_b)
    C = 1e-9
    exponents = [C * (t.fan_in[i] + 1) * theta[i] for i in shared]
    return _priors(exponents, [t.nodes[i] for i in shared], [C] * len(shared))


def edge_prior(widths: Widths, n: int, layers: int | None = None, weights: int | None = None) -> float:
    """-log lambda = log T + 0.1 ((L+1) log N + log(sqrt(n) p)), SV-BNN (Bai, Song and Cheng, 2020).

    T counts all weights and biases (`weights`, for a network that is more than a chain), N is the largest hidden width,
    p the number of inputs. L is the number of hidden layers; the authors' image code takes one more (`layers=3` for
    784-400-400-10).
    """
    t, n = Topology.of(widths), _observations(n)
    chain = sum((k + 1) * out for k, out in zip(t.fan_in, t.nodes, strict=True))
    total = chain if weights is None else whole("weights", weights)
    largest = max(t.nodes[:-1]) if t.hidden else t.nodes[0]
    L = t.hidden if layers is None else whole("layers", layers, least=0)
    return math.exp(-math.log(total) - 0.1 * ((L + 1) * math.log(largest) + math.log(math.sqrt(n) * t.fan_in[0])))


@dataclass(frozen=True)
class Contraction:
    """The minimiser (s*, B*) of sum_l r_l + xi, and lambda_l with B* in the corollary's place of B."""

    s: tuple[int, ...]
    B: tuple[float, ...]
    rate_sum: float
    xi: float
    epsilon: float
    priors: InclusionPriors


def optimal_contraction(
    widths: Widths,
    n: int,
    xi: Callable[[tuple[int, ...], tuple[float, ...]], float],
    C: float | Sequence[float] | None = None,
    sweeps: int = 20,
) -> Contraction:
    """s*, B* = argmin over s, B of sum_l r_l + xi(s, B): the remark on optimal contraction.

    xi(s, B) is the squared approximation error of the best network with at most s_l nodes whose incoming weights
    have L1 norm at most B_l (l = 0 ... L). It depends on the unknown truth, so it is yours to give. B_l is sought
    between 1/10 and 1000 (k_l + 1): below, log B_l would reward a bound for being small. Coordinate
    descent over whole s_l and over B_l on a grid that is refined around its best value; it ends in a point that
    no single change improves.
    """
    if not callable(xi):
        raise TypeError(f"xi must be a function of (s, B), got {xi!r} of type {type(xi).__name__}.")
    t, n = Topology.of(widths), _observations(n)
    s, B = list(t.nodes), [k + 1.0 for k in t.fan_in]

    def value(s_: Sequence[int], b_: Sequence[float]) -> float:
        error = number(f"xi(s, B), a squared error, at s = {tuple(s_)}", xi(tuple(s_), tuple(b_)), 0.0, least=True)
        return rate_sum(t, n, s_, b_, error)

    best = value(s, B)
    for _ in range(sweeps):
        before = best
        for i in range(t.hidden + 1):
            if i < t.hidden:  # the output layer keeps its nodes
                for candidate in _whole_numbers(t.nodes[i]):
                    trial = [*s[:i], candidate, *s[i + 1 :]]
                    if (v := value(trial, B)) < best:
                        best, s = v, trial
                for step in (1, -1):  # between the candidates of a wide layer
                    while 1 <= s[i] + step <= t.nodes[i]:
                        trial = [*s[:i], s[i] + step, *s[i + 1 :]]
                        if (v := value(trial, B)) >= best:
                            break
                        best, s = v, trial
            width = math.log(1e3)
            for _level in range(8):
                center = math.log(B[i])
                for j in range(-10, 11):
                    b = min(max(math.exp(center + width * j / 10), 0.1), 1e3 * (t.fan_in[i] + 1))
                    trial_b = [*B[:i], b, *B[i + 1 :]]
                    if (v := value(s, trial_b)) < best:
                        best, B = v, trial_b
                width /= 5.0
        if before - best <= 1e-12 * abs(before):
            break
    final = float(xi(tuple(s), tuple(B)))
    return Contraction(tuple(s), tuple(B), best, final, epsilon(t, n, s, B, final), inclusion_priors(t, n, C=C, B=B))


def _whole_numbers(largest: int, count: int = 128) -> list[int]:
    """1 ... largest, thinned to a geometric grid when there are many."""
    if largest <= count:
        return list(range(1, largest + 1))
    return sorted({round(largest ** (i / (count - 1))) for i in range(count)})


def table(widths: Widths, n: int, C: float | Sequence[float] | None = None) -> list[dict[str, float]]:
    """The quantities of section 4, a row for each layer l = 0 ... L; lambda_L = 1."""
    t = Topology.of(widths)
    priors = inclusion_priors(t, n, C)
    rows = []
    for i, (into, nodes, u_l, theta) in enumerate(zip(t.fan_in, t.nodes, u(t, n), vartheta(t, n), strict=True)):
        hidden = i < t.hidden
        rows.append(
            {
                "l": i,
                "k_l": into,
                "k_l+1": nodes,
                "u": u_l,
                "vartheta": theta,
                "C": priors.C[i] if hidden else math.nan,
                "exponent": priors.exponents[i] if hidden else 0.0,
                "lambda": priors[i] if hidden else 1.0,
            }
        )
    return rows


def plot(widths: Widths, n: int, ax: Axes, C: float | Sequence[float] | None = None) -> Axes:
    """lambda_l of each hidden layer against C_l, with the constants in use marked, on matplotlib axes."""
    t = Topology.of(widths)
    chosen = inclusion_priors(t, n, C)
    powers = [10.0**-p for p in [x / 10 for x in range(121)]]
    for i in range(t.hidden):
        unit = chosen.exponents[i] / chosen.C[i]
        curve = [(c, -(c * unit + math.log(t.nodes[i])) / math.log(10)) for c in powers]
        curve = [(c, v) for c, v in curve if v >= -60]
        (line,) = ax.plot([c for c, _ in curve], [v for _, v in curve], label=f"layer {i}: {t.nodes[i]} nodes")
        ax.plot([chosen.C[i]], [math.log10(chosen[i])], "o", color=line.get_color())
    ax.axhline(math.log10(SMALLEST), color="0.5", linestyle=":", label="appendix B's floor, 1e-50")
    ax.set_xscale("log")
    ax.set_xlabel("constant $C_l$ (dots: in use)")
    ax.set_ylabel(r"$\log_{10}\,\lambda_l$, prior inclusion probability")
    ax.legend()
    return ax
