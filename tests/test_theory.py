"""Section 4 by hand: an independent transcription of the formulas, and the numbers that are known."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import nodeslab as ns
from nodeslab import theory

WIDTHS, N = [784, 400, 300, 10], 60_000
K, L = WIDTHS, 2


def _u(l: int) -> float:  # noqa: E741
    return (L + 1) ** 2 * (math.log(N) + math.log(L + 1) + math.log(K[l + 1]) + math.log(K[l] + 1))


def _vartheta(l: int, B: list[float]) -> float:  # noqa: E741
    value = B[l] ** 2 / (K[l] + 1) + L + math.log(K[l + 1]) + math.log(K[l] + 1) + math.log(N)
    value += math.log(_u(0) + _u(1) + _u(2))
    for m in range(L + 1):
        if m != l:
            value += math.log(B[m])
    return value


def test_u() -> None:
    assert theory.u(WIDTHS, N) == pytest.approx([_u(0), _u(1), _u(2)], rel=1e-14)


@pytest.mark.parametrize("B", [None, 3.0, [2.0, 5.0, 0.5]])
def test_vartheta_and_r(B: float | list[float] | None) -> None:
    bounds = [k + 1.0 for k in K[:-1]] if B is None else [B] * 3 if isinstance(B, float) else B
    expected = [_vartheta(i, bounds) for i in range(3)]
    assert theory.vartheta(WIDTHS, N, B) == pytest.approx(expected, rel=1e-14)
    s = [40, 30, 10]
    r = [s[i] * (K[i] + 1) * expected[i] / N for i in range(3)]
    assert theory.r(WIDTHS, N, s, B) == pytest.approx(r, rel=1e-14)
    assert theory.r(WIDTHS, N, s[:2], B) == pytest.approx(r, rel=1e-14)  # the output layer keeps its nodes
    assert theory.rate_sum(WIDTHS, N, s, B, xi=0.25) == pytest.approx(sum(r) + 0.25)
    total = (sum(r) + 0.25) * (_u(0) + _u(1) + _u(2))
    assert theory.epsilon(WIDTHS, N, s, B, xi=0.25) == pytest.approx(math.sqrt(total))


def test_the_sieves_bounds() -> None:
    eps = 0.7
    total = _u(0) + _u(1) + _u(2)
    s = N * eps**2 / total - 1
    assert theory.s_circ(WIDTHS, N, eps) == pytest.approx(s)
    assert theory.log_B_circ(WIDTHS, N, eps) == pytest.approx(N * eps**2 / ((L + 1) * (L + 1) * (s + 1)))
    assert theory.B_circ(WIDTHS, N, eps) == pytest.approx(math.exp(theory.log_B_circ(WIDTHS, N, eps)))
    assert theory.B_circ([10**6] * 60, N, eps) == math.inf


@pytest.mark.parametrize("C", [1e-6, [1e-6, 1e-5]])
def test_inclusion_priors(C: float | list[float]) -> None:
    priors = theory.inclusion_priors(WIDTHS, N, C=C)
    constants = [C, C] if isinstance(C, float) else C
    bounds = [k + 1.0 for k in K[:-1]]
    for i, value in enumerate(priors):
        assert value == pytest.approx(math.exp(-constants[i] * (K[i] + 1) * _vartheta(i, bounds)) / K[i + 1], rel=1e-12)
    assert len(priors) == 2
    assert tuple(constants) == priors.C


@pytest.mark.parametrize(
    "widths", [[8, 50, 1], [784, 400, 400, 10], [1, 1, 1], [100_000, 5000, 3], [3] * 30, [10**7, 2, 1]]
)
@pytest.mark.parametrize("n", [1, 1000, 10**9])
def test_automatic_constants(widths: list[int], n: int) -> None:
    """A negative power of ten for each layer; the next larger one would break the rule, so this is the largest."""
    priors = theory.inclusion_priors(widths, n)
    for value, c, exponent in zip(priors, priors.C, priors.exponents, strict=True):
        assert 1e-50 <= value < 1
        power = -math.log10(c)
        assert power == pytest.approx(round(power))
        assert power >= 1
        assert exponent <= 10
        assert c == 0.1 or 10 * exponent > 10


def test_the_authors_settings() -> None:
    """The values that their code prints, which design notes record to three digits."""
    assert theory.authors_image_priors("mlp") == pytest.approx((1.54e-3, 2.34e-3), rel=3e-3)
    assert theory.authors_image_priors("lenet") == pytest.approx((7.5e-4, 1.2e-3, 7.5e-4, 1.2e-3), rel=5e-3)
    net = nn.Sequential(nn.Linear(784, 400), nn.SiLU(), nn.Linear(400, 400), nn.SiLU(), nn.Linear(400, 10))
    model = ns.bayesian(net, ns.ssig(prior=theory.authors_image_priors("mlp")), n=60_000)
    assert [p.inclusion_prior for p in model._posteriors()][:2] == list(theory.authors_image_priors("mlp"))
    with pytest.raises(ValueError, match="mlp"):
        theory.authors_image_priors("resnet")


def test_edge_prior() -> None:
    weights = 785 * 400 + 401 * 400 + 401 * 10
    for layers, L_ in ((None, 2), (3, 3)):
        expected = math.log(weights) + 0.1 * ((L_ + 1) * math.log(400) + math.log(math.sqrt(60_000) * 784))
        assert -math.log(theory.edge_prior([784, 400, 400, 10], 60_000, layers)) == pytest.approx(expected)


def test_convolutions_are_counted_by_channel() -> None:
    """k_{l+1} is the number of channels, k_l + 1 the weights into one with its bias."""
    net = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    model = ns.bayesian(net, ns.ssig(), n=100)
    expected = theory.inclusion_priors(theory.Topology((9, 96), (6, 3)), 100)
    assert next(model._posteriors()).inclusion_prior == expected[0]


@pytest.mark.parametrize("xi", [lambda s, B: 1.0 / s[0], lambda s, B: 0.0])
def test_optimal_contraction_when_xi_says_nothing_of_B(xi: object) -> None:
    best = theory.optimal_contraction([3, 5, 1], 40, xi)  # type: ignore[arg-type]
    assert min(best.B) >= 0.1


def test_optimal_contraction_is_a_minimum() -> None:
    """Against brute force over s and a fine grid of B, for a toy approximation error."""

    def xi(s: tuple[int, ...], B: tuple[float, ...]) -> float:
        return 4.0 / s[0] + 0.5 * sum(1 / b for b in B)

    widths, n = [3, 12, 1], 5000
    best = theory.optimal_contraction(widths, n, xi)
    grid = [10 ** (i / 25) for i in range(-25, 76)]
    brute = min(
        theory.rate_sum(widths, n, (s, 1), (b0, b1), xi((s, 1), (b0, b1)))
        for s in range(1, 13)
        for b0 in grid
        for b1 in grid[::5]
    )
    assert best.rate_sum <= brute + 1e-9
    assert best.rate_sum == pytest.approx(theory.rate_sum(widths, n, best.s, best.B, best.xi))
    assert best.s[-1] == 1
    assert best.priors == theory.inclusion_priors(widths, n, B=best.B)
    with pytest.raises(ValueError, match="squared error"):
        theory.optimal_contraction(widths, n, lambda s, B: -1.0)


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: theory.u([3], 10), ValueError, "inputs and the outputs"),
        (lambda: theory.u([3, 0, 1], 10), ValueError, r"widths\[1\]"),
        (lambda: theory.u([3, 2.5, 1], 10), TypeError, r"widths\[1\] must be a whole number"),
        (lambda: theory.u([3, 2, 1], 0), ValueError, "at least 1"),
        (lambda: theory.u([3, 2, 1], 1.5), TypeError, "whole number"),
        (lambda: theory.vartheta([3, 2, 1], 10, B=[1, 2, 3]), ValueError, "B needs 2"),
        (lambda: theory.vartheta([3, 2, 1], 10, B=-1), ValueError, r"B\[0\]"),
        (lambda: theory.r([3, 2, 1], 10, [5]), ValueError, r"s\[0\]"),
        (lambda: theory.u([3, True, 1], 10), TypeError, r"widths\[1\]"),
        (lambda: theory.u([3, 2, 1], True), TypeError, "n, the number of observations"),
        (lambda: theory.Topology((1.5,), (2,)), TypeError, r"fan_in\[0\]"),  # type: ignore[arg-type]
        (lambda: theory.rate_sum([3, 2, 1], 10, [1], xi=-1.0), ValueError, "xi must be at least 0"),
        (lambda: theory.epsilon([8, 50, 1], 1030, [10], B=1e-8), ValueError, "take B larger"),
        (lambda: theory.s_circ([3, 2, 1], 10, 0.0), ValueError, "epsilon_n"),
        (lambda: theory.edge_prior([3, 2, 1], 10, layers=-5), ValueError, "layers must be at least 0"),
        (
            lambda: theory.inclusion_priors([3, 2, 1], 10, C=[0.1, 0.1]),
            ValueError,
            "C needs 1 value, one for each hidden",
        ),
        (lambda: theory.inclusion_priors([3, 2, 1], 10, C=0.0), ValueError, r"C\[0\]"),
        (lambda: theory.inclusion_priors([3, 2, 1], 10, C=1e9), ValueError, "smaller"),
    ],
)
def test_refusals(call: object, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        call()  # type: ignore[operator]


def test_plot_and_command(tmp_path: Path) -> None:
    file = tmp_path / "t.png"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nodeslab",
            "theory",
            "--widths",
            "784",
            "400",
            "400",
            "10",
            "--n",
            "60000",
            "--plot",
            file,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 5
    assert "3.728e-06" in done.stdout
    assert file.read_bytes().startswith(b"\x89PNG")
