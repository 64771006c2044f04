"""The choices: a prior is a product of small factors, `Normal(1.0) * Node()`.

Everything here is frozen data; what is learnt lives in `gates.py`, `scales.py` and `posterior.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, TypeAlias

from nodeslab.checks import number, probability

__all__ = [
    "Edge",
    "Factor",
    "Horseshoe",
    "Node",
    "Normal",
    "Prior",
    "Spec",
    "as_prior",
    "hsbnn",
    "ssig",
    "svbnn",
    "vbnn",
]


SMALL = 1e-15  # scales beyond 1e-15 and 1e15 overflow in float32 once squared


def _gate(owner: str, prior: object, start: object, temperature: object, gradient: object) -> dict[str, object]:
    """What every factor with a gate must hold to."""
    if not isinstance(gradient, str) or gradient not in ("gumbel", "reinmax"):
        raise ValueError(f'{owner}: gradient must be "gumbel" or "reinmax", got {gradient!r}.')
    return {
        "prior": _probabilities(owner, prior),
        "start": probability(f"{owner}: start", start),
        "temperature": number(f"{owner}: temperature", temperature, 0.0),
    }


def _probabilities(owner: str, prior: object) -> float | tuple[float, ...] | None:
    """A prior inclusion probability, or one for each hidden layer."""
    if prior is None or isinstance(prior, Real):
        return None if prior is None else probability(f"{owner}: prior", prior)
    if isinstance(prior, str) or not isinstance(prior, Iterable):
        raise TypeError(
            f"{owner}: prior must be a number between 0 and 1, or one for each hidden layer, got {prior!r}."
        )
    values = tuple(probability(f"{owner}: prior[{i}]", value) for i, value in enumerate(prior))
    if not values:
        raise ValueError(f"{owner}: prior is empty; give one probability, or one for each hidden layer.")
    return values


@dataclass(frozen=True)
class Factor:
    """One factor of a prior; `*` multiplies factors into a `Prior`."""

    role: ClassVar[str]

    def _set(self, **checked: object) -> None:
        """Checked values in the place of what was given."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __mul__(self, other: Factor | Prior) -> Prior:
        return Prior((self,)) * other

    def describe(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Normal(Factor):
    """w ~ N(0, sigma^2): the slab, and on its own the prior of VBNN (Blundell et al., 2015).

    rho: where the spread softplus(rho) of every weight starts.
    """

    sigma: float = 1.0
    rho: float = -6.0

    role: ClassVar[str] = "slab"

    def __post_init__(self) -> None:
        self._set(sigma=number("Normal: sigma", self.sigma, 0.0))
        if not SMALL < self.sigma < 1 / SMALL:
            raise ValueError(f"Normal: sigma must be between {SMALL:g} and {1 / SMALL:g}, got {self.sigma}.")
        self._set(rho=number("Normal: rho", self.rho, -80.0, 80.0))

    def describe(self) -> str:
        return f"Normal({self.sigma:g})"


@dataclass(frozen=True)
class Node(Factor):
    """z_lj ~ Ber(lambda_l), one gate for all weights into a node and its bias: SS-IG.

    prior: lambda_l; None takes the corollary's value for each layer (`nodeslab.theory.inclusion_priors`),
        a sequence gives one value for each hidden layer, in the order of the network.
    start: gamma_lj before training. temperature: tau of the Gumbel-softmax relaxation.
    gradient: how a gate's gradient is estimated, "gumbel" (the paper's) or "reinmax" (see `gates.Gate`).
    """

    prior: float | Sequence[float] | None = None
    start: float = 0.99
    temperature: float = 0.5
    gradient: str = "gumbel"

    role: ClassVar[str] = "gate"

    def __post_init__(self) -> None:
        self._set(**_gate("Node", self.prior, self.start, self.temperature, self.gradient))


@dataclass(frozen=True)
class Edge(Factor):
    """z_ljk ~ Ber(lambda), one gate for each weight and bias, in every layer: SV-BNN (Bai, Song and Cheng, 2020).

    prior: lambda; None takes -log lambda = log T + 0.1 ((L+1) log N + log(sqrt(n) p))
        (`nodeslab.theory.edge_prior`).
    """

    prior: float | None = None
    start: float = 0.99
    temperature: float = 0.5
    gradient: str = "gumbel"

    role: ClassVar[str] = "gate"

    def __post_init__(self) -> None:
        if self.prior is not None and not isinstance(self.prior, Real):
            raise TypeError(f"Edge: prior must be one number for the whole network, got {self.prior!r}.")
        self._set(**_gate("Edge", self.prior, self.start, self.temperature, self.gradient))


@dataclass(frozen=True)
class Horseshoe(Factor):
    """w = tau~ upsilon beta, tau~^2 = c^2 tau^2 / (c^2 + tau^2 upsilon^2): HS-BNN (Ghosh, Yao and Doshi-Velez, 2018).

    tau_lj ~ C+(0, node) scales a node, upsilon_l ~ C+(0, layer) a layer (the output layer has only this one),
    c^2 ~ IG(slab_a, slab_b) bounds large weights; beta has the slab `Normal(1.0)`.
    A node counts as closed when q(tau~ upsilon < threshold) > certainty: an ad-hoc rule for pruning, not
    a part of the model, and its two numbers need tuning.
    """

    node: float = 1.0
    layer: float = 1.0
    slab_a: float = 2.0
    slab_b: float = 6.0
    threshold: float = 1e-3
    certainty: float = 0.9

    role: ClassVar[str] = "scale"

    def __post_init__(self) -> None:
        for name in ("node", "layer", "slab_a", "slab_b", "threshold"):
            self._set(**{name: number(f"Horseshoe: {name}", getattr(self, name), 0.0, 1e15)})
        self._set(certainty=probability("Horseshoe: certainty", self.certainty))


@dataclass(frozen=True)
class Prior:
    """A product of factors: one slab, at most one gate, at most one scale."""

    factors: tuple[Factor, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for f in self.factors:
            if not isinstance(f, Factor):
                raise TypeError(f"A prior is made of factors such as ns.Node(), got {f!r} of type {type(f).__name__}.")
        for role in ("slab", "gate", "scale"):
            same = [f.describe() for f in self.factors if f.role == role]
            if len(same) > 1:
                raise ValueError(f"A prior takes one {role}, got {' and '.join(same)}; keep one of them.")

    def __mul__(self, other: Factor | Prior) -> Prior:
        if isinstance(other, Factor):
            return Prior((*self.factors, other))
        if isinstance(other, Prior):
            return Prior(self.factors + other.factors)
        raise TypeError(
            f"A prior is multiplied by a factor such as ns.Node(), got {other!r} of type {type(other).__name__}."
        )

    @property
    def slab(self) -> Normal:
        for f in self.factors:
            if isinstance(f, Normal):
                return f
        if not self.factors:
            raise ValueError("The prior has no factors; write ns.Normal(1.0), or ns.Normal(1.0) * ns.Node().")
        raise ValueError(f"The prior {self.describe()} has no slab; write ns.Normal(1.0) * {self.describe()}.")

    @property
    def gate(self) -> Node | Edge | None:
        return next((f for f in self.factors if isinstance(f, (Node, Edge))), None)

    @property
    def scale(self) -> Horseshoe | None:
        return next((f for f in self.factors if isinstance(f, Horseshoe)), None)

    def describe(self) -> str:
        return " * ".join(f.describe() for f in self.factors)


Spec: TypeAlias = "Factor | Prior | Mapping[str, Factor | Prior | None]"


def as_prior(spec: object, where: str) -> Prior:
    """A `Prior` with a slab, or a sentence that says what is missing."""
    if isinstance(spec, Factor):
        spec = Prior((spec,))
    if not isinstance(spec, Prior):
        raise TypeError(
            f"{where} must be a prior such as ns.Normal(1.0) * ns.Node(), got {spec!r} of type {type(spec).__name__}."
        )
    _ = spec.slab
    return spec


def ssig(sigma: float = 1.0, prior: float | Sequence[float] | None = None) -> Prior:
    """SS-IG: a spike-and-slab Gaussian prior on every node (section 3 of the paper)."""
    return Normal(sigma) * Node(prior)


def vbnn(sigma: float = 1.0) -> Prior:
    """VBNN: a Gaussian prior on every weight, no selection (Blundell et al., 2015)."""
    return Prior((Normal(sigma),))


def svbnn(sigma: float = 1.0, prior: float | None = None) -> Prior:
    """SV-BNN: a spike-and-slab Gaussian prior on every edge (Bai, Song and Cheng, 2020)."""
    return Normal(sigma) * Edge(prior)


def hsbnn() -> Prior:
    """HS-BNN: a regularised horseshoe prior on every node (Ghosh, Yao and Doshi-Velez, 2018)."""
    return Normal(1.0) * Horseshoe()
