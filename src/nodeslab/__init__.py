"""nodeslab: give it a PyTorch network and data; it learns which nodes are needed, and how sure it is."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nodeslab import metrics as metrics
    from nodeslab import parallel as parallel
    from nodeslab import plot as plot
    from nodeslab import theory as theory
    from nodeslab.compaction import Compact as Compact
    from nodeslab.costs import Cost as Cost
    from nodeslab.costs import cost as cost
    from nodeslab.estimators import CrossValidation as CrossValidation
    from nodeslab.estimators import SpikeSlabClassifier as SpikeSlabClassifier
    from nodeslab.estimators import SpikeSlabRegressor as SpikeSlabRegressor
    from nodeslab.estimators import cross_validate as cross_validate
    from nodeslab.exporting import export as export
    from nodeslab.io import load as load
    from nodeslab.io import save as save
    from nodeslab.likelihoods import Bernoulli as Bernoulli
    from nodeslab.likelihoods import Categorical as Categorical
    from nodeslab.likelihoods import Gaussian as Gaussian
    from nodeslab.model import Bayesian as Bayesian
    from nodeslab.model import NodeRecord as NodeRecord
    from nodeslab.model import bayesian as bayesian
    from nodeslab.parquet import Parquet as Parquet
    from nodeslab.prediction import Prediction as Prediction
    from nodeslab.prediction import predict as predict
    from nodeslab.replicas import fit_replicas as fit_replicas
    from nodeslab.shrinking import ShrinkPlan as ShrinkPlan
    from nodeslab.shrinking import shrink as shrink
    from nodeslab.shrinking import shrink_plan as shrink_plan
    from nodeslab.spec import Edge as Edge
    from nodeslab.spec import Horseshoe as Horseshoe
    from nodeslab.spec import Node as Node
    from nodeslab.spec import Normal as Normal
    from nodeslab.spec import Prior as Prior
    from nodeslab.spec import hsbnn as hsbnn
    from nodeslab.spec import ssig as ssig
    from nodeslab.spec import svbnn as svbnn
    from nodeslab.spec import vbnn as vbnn
    from nodeslab.sweeps import repeat as repeat
    from nodeslab.tensorboard import TensorBoard as TensorBoard
    from nodeslab.training import History as History
    from nodeslab.training import Ramp as Ramp
    from nodeslab.training import Record as Record
    from nodeslab.training import fit as fit

#: Where each public name lives. They are imported at first use, so that `nodeslab --help` does not wait for torch.
_HOME = {
    "model": ("Bayesian", "NodeRecord", "bayesian"),
    "spec": ("Edge", "Horseshoe", "Node", "Normal", "Prior", "hsbnn", "ssig", "svbnn", "vbnn"),
    "likelihoods": ("Bernoulli", "Categorical", "Gaussian"),
    "training": ("History", "Ramp", "Record", "fit"),
    "prediction": ("Prediction", "predict"),
    "compaction": ("Compact",),
    "costs": ("Cost", "cost"),
    "exporting": ("export",),
    "estimators": ("CrossValidation", "SpikeSlabClassifier", "SpikeSlabRegressor", "cross_validate"),
    "io": ("load", "save"),
    "parquet": ("Parquet",),
    "sweeps": ("repeat",),
    "replicas": ("fit_replicas",),
    "shrinking": ("ShrinkPlan", "shrink", "shrink_plan"),
    "tensorboard": ("TensorBoard",),
    "metrics": (),
    "parallel": (),
    "plot": (),
    "theory": (),
}
_NAMES = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", "metrics", "parallel", "plot", "theory", *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(f"nodeslab.{_NAMES[name]}"), name)
    elif name in _HOME:
        value = importlib.import_module(f"nodeslab.{name}")
    else:
        raise AttributeError(f"module 'nodeslab' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
