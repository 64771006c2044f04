"""A fit's records as TensorBoard events."""

from __future__ import annotations

import importlib
import os
import weakref
from typing import Any

import numpy as np

from nodeslab.checks import whole
from nodeslab.model import Bayesian
from nodeslab.parallel import join
from nodeslab.training import Record

__all__ = ["TensorBoard"]

BINS = np.linspace(0.0, 1.0, 21)  # of a histogram of probabilities


class TensorBoard:
    """A callback of `ns.fit` that writes every record for TensorBoard: `callback=ns.TensorBoard("runs/one")`.

    Scalars are elbo, nll, kl, flops_ratio, lr and seconds, open/LAYER and validation/METRIC, by epoch; histograms are
    inclusion/LAYER, the probability that each of a layer's nodes is open.

    folder: where the events go, one for each fit; a fit that is resumed goes on in it, from where it was taken up.
    every: epochs from one histogram to the next, the first one included; 0 writes none.

    Of several ranks the first one writes. Torch's random state is not touched.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 10) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"TensorBoard: folder must be a path, got {folder!r} of type {type(folder).__name__}.")
        self.folder, self.every = os.fspath(folder), whole("TensorBoard: every", every, least=0)
        try:
            self._make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as e:
            raise ValueError('TensorBoard needs another package: pip install "nodeslab[tensorboard]".') from e
        self._writer: Any = None

    def __call__(self, model: Bayesian, record: Record) -> None:
        """Write one record; never stops the fit."""
        if not join().first:
            return
        if self._writer is None:
            # what an earlier run wrote after the epoch at which this one goes on is not shown
            self._writer = self._make(self.folder, purge_step=record.epoch)
            weakref.finalize(self, self._writer.close)
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.epoch)
        if self.every and (record.epoch - 1) % self.every == 0:
            for node in model.nodes():
                values = node.inclusion.detach().cpu().double().numpy()
                self._writer.add_histogram(f"inclusion/{node.path or '(net)'}", values, record.epoch, bins=BINS)
        self._writer.flush()


def scalars(record: Record) -> dict[str, float]:
    """What TensorBoard shows of a record, by tag."""
    names = ("elbo", "nll", "kl", "flops_ratio", "lr", "seconds")
    layers = {f"open/{path or '(net)'}": count for path, count in record.open.items()}
    figures = {f"validation/{name}": value for name, value in record.validation.items()}
    return {**{name: getattr(record, name) for name in names}, **layers, **figures}
