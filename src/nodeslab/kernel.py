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

from nodeslab import kl

__all__ = ["Kernel", "LayerStruct", "TensorStruct", "kernel", "lies_in_rows"]

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fPIC", "-fopenmp")
WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
PARALLEL = 16_384  # weights from which a second thread pays

LONG, SEED, INT, F, P = ctypes.c_int64, ctypes.c_uint64, ctypes.c_int, ctypes.c_float, ctypes.c_void_p


class TensorStruct(ctypes.Structure):
    """`tensor` of kernel.c."""

    _fields_ = (
        *((name, LONG) for name in ("rows", "cols", "number")),
        *((name, P) for name in ("mean", "rho", "grad", "weight", "divergence", "along", "d_mean", "d_rho")),
    )


class LayerStruct(ctypes.Structure):
    """`layer` of kernel.c."""

    _fields_ = (
        *((name, LONG) for name in ("nodes", "tensors", "reinmax")),
        *((name, F) for name in ("sigma", "log_odds", "temperature", "unused")),
        ("seed", SEED),
        ("total", ctypes.c_double),
        *((name, P) for name in ("logit", "scale", "gates", "d_logit", "d_scale")),
        ("part", TensorStruct * 2),
    )


def lies_in_rows(tensor: Tensor, rows: int) -> bool:
    """True for what the kernel takes: float32 on the CPU, a node's weights side by side, the nodes in turn."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or len(tensor) != rows:
        return False
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


class Kernel:
    """The functions of kernel.c, on an array of `LayerStruct`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._draw, self._back, self._normal = library.nodeslab_draw, library.nodeslab_back, library.nodeslab_normal
        self._draw.argtypes, self._draw.restype = [P, LONG, INT], ctypes.c_double
        self._back.argtypes, self._back.restype = [P, LONG, F, INT], None
        self._normal.argtypes, self._normal.restype = [P, LONG, LONG, LONG, SEED], None

    def draw(self, layers: ctypes.Array[LayerStruct], weights: int) -> float:
        """Gates, weights and KL of all layers, which have so many weights, from their seeds; returns the KL."""
        total: float = self._draw(layers, len(layers), _threads(weights))
        return total

    def back(self, layers: ctypes.Array[LayerStruct], d_kl: float, weights: int) -> None:
        """The gradients of all parameters, for what was drawn from the layers' seeds."""
        self._back(layers, len(layers), d_kl, _threads(weights))

    def normal(self, out: Tensor, seed: int, number: int = 0) -> None:
        """The noise eps ~ N(0, 1) that a tensor of this number and shape has in the draw with this seed."""
        self._normal(out.data_ptr(), len(out), out.numel() // len(out), number, seed)


def _threads(count: int) -> int:
    return torch.get_num_threads() if count >= PARALLEL else 1


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
    key = hashlib.sha256(
        b"\0".join([source, version, _processor().encode(), " ".join((*FLAGS, *WIDE)).encode()])
    ).hexdigest()[:20]
    target = _folder() / f"kernel-{key}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        c, made = Path(work) / "kernel.c", Path(work) / "kernel.so"
        c.write_bytes(source)
        # OpenMP's functions are left open: torch has them loaded, and one pool of threads is enough
        command = [
            compiler,
            *FLAGS,
            *WIDE,
            "-shared",
            "-nostartfiles",
            "-nodefaultlibs",
            str(c),
            "-o",
            str(made),
            "-lm",
        ]
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
    noise, weight, divergence, gates = torch.empty(2, 35), torch.empty(2, 35), torch.empty(2), torch.empty(6, 2)
    part = TensorStruct(2, 35, 0, mean.data_ptr(), rho.data_ptr(), None, weight.data_ptr(), divergence.data_ptr())
    one = LayerStruct(2, 1, 0, 1.0, 0.0, 1.0, 0.0, 1, 0.0, None, None, gates.data_ptr(), None, None, (part,))
    total = built.draw((LayerStruct * 1)(one), 70)
    built.normal(noise, 1)
    spread = torch.nn.functional.softplus(rho)
    exact = kl.gaussian(mean, spread, 1.0).sum(1)
    return (
        bool(torch.isfinite(noise).all())
        and 0.5 < float(noise.std()) < 1.5
        and bool(torch.allclose(weight, mean + spread * noise, atol=1e-5))
        and bool(torch.allclose(divergence, exact, rtol=1e-5))
        and abs(total - float(exact.sum())) < 1e-5 * total
    )
