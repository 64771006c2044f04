"""The fused step in C, compiled once where there is a compiler; without one, torch operations do the same.

The source is `kernel.c`. It is built with the machine's own `cc` into the user's cache folder, at the first fit whose
network is large enough to gain; set NODESLAB_KERNEL=0 to do without.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Kernel", "kernel"]

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fPIC", "-fopenmp")
LONG, F, P = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class Kernel:
    """The three functions of kernel.c, on float32 CPU tensors that are contiguous."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._normal, self._draw, self._back = (
            library.nodeslab_normal,
            library.nodeslab_draw,
            library.nodeslab_back,
        )
        self._normal.argtypes = [P, LONG, ctypes.c_uint64, ctypes.c_int]
        self._draw.argtypes = [LONG, LONG, P, P, P, P, F, P, P, P, ctypes.c_int]
        self._back.argtypes = [LONG, LONG, P, P, P, P, P, P, P, LONG, F, P, P, P, ctypes.c_int]
        for function in (self._normal, self._draw, self._back):
            function.restype = None

    def normal(self, out: Tensor, seed: int) -> None:
        """out ~ N(0, 1)."""
        self._normal(out.data_ptr(), out.numel(), seed, _threads(out.numel()))

    def draw(
        self,
        mean: Tensor,
        rho: Tensor,
        noise: Tensor,
        factor: Tensor | None,
        sigma: float,
        spread: Tensor,
        weight: Tensor,
        divergence: Tensor,
    ) -> None:
        """spread, weight and each row's KL; factor has one number for each row."""
        rows = divergence.numel()
        self._draw(
            rows,
            mean.numel() // rows,
            mean.data_ptr(),
            rho.data_ptr(),
            noise.data_ptr(),
            None if factor is None else factor.data_ptr(),
            sigma,
            spread.data_ptr(),
            weight.data_ptr(),
            divergence.data_ptr(),
            _threads(mean.numel()),
        )

    def back(
        self,
        grad: Tensor,
        mean: Tensor,
        rho: Tensor,
        noise: Tensor,
        spread: Tensor,
        factor: Tensor | None,
        pull: Tensor,
        sigma: float,
        d_mean: Tensor,
        d_rho: Tensor,
        d_factor: Tensor,
    ) -> None:
        """d_mean, d_rho and each row's d_factor."""
        rows = d_factor.numel()
        self._back(
            rows,
            mean.numel() // rows,
            grad.data_ptr(),
            mean.data_ptr(),
            rho.data_ptr(),
            noise.data_ptr(),
            spread.data_ptr(),
            None if factor is None else factor.data_ptr(),
            pull.data_ptr(),
            0 if pull.numel() == 1 else 1,
            sigma,
            d_mean.data_ptr(),
            d_rho.data_ptr(),
            d_factor.data_ptr(),
            _threads(mean.numel()),
        )


def _threads(count: int) -> int:
    return torch.get_num_threads() if count >= 16_384 else 1


@cache
def kernel() -> Kernel | None:
    """The compiled kernel, or None where it is switched off, or cannot be built, or gives wrong numbers."""
    if os.environ.get("NODESLAB_KERNEL") == "0" or sys.platform != "linux":
        return None
    try:
        built = Kernel(ctypes.CDLL(str(_library())))
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None
    return built if _right(built) else None


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nodeslab"


def _library() -> Path:
    """Build kernel.c, or find what was built from the same source, compiler and processor."""
    source = resources.files("nodeslab").joinpath("kernel.c").read_bytes()
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise OSError("no C compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    key = hashlib.sha256(b"\0".join([source, version, _processor().encode(), " ".join(FLAGS).encode()])).hexdigest()[
        :20
    ]
    target = _folder() / f"kernel-{key}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        c, made = Path(work) / "kernel.c", Path(work) / "kernel.so"
        c.write_bytes(source)
        # OpenMP's functions are left open: torch has them loaded, and one pool of threads is enough
        command = [compiler, *FLAGS, "-shared", "-nostartfiles", "-nodefaultlibs", str(c), "-o", str(made), "-lm"]
        subprocess.run(command, capture_output=True, check=True, timeout=60)
        os.replace(made, target)
    return target


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _right(built: Kernel) -> bool:
    """The kernel against torch on a few numbers, so that a broken compiler costs speed and not truth."""
    mean, rho = torch.linspace(-2, 2, 70).reshape(2, 35), torch.linspace(-9, 3, 70).reshape(2, 35)
    noise, spread, weight = (torch.empty_like(mean) for _ in range(3))
    divergence = torch.empty(2)
    built.normal(noise, 1)
    if not bool(torch.isfinite(noise).all()) or not 0.5 < float(noise.std()) < 1.5:
        return False
    built.draw(mean, rho, noise, None, 1.0, spread, weight, divergence)
    exact = torch.nn.functional.softplus(rho)
    return bool(torch.allclose(spread, exact, rtol=1e-5)) and bool(
        torch.allclose(weight, mean + exact * noise, atol=1e-5)
    )
