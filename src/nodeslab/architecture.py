"""A network of torch's own layers as JSON, and back: what lets a file be loaded without its class or a pickle."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from nodeslab.model import is_guard

__all__ = ["build", "describe"]

CONTAINERS = (nn.Sequential, nn.ModuleList)


def describe(net: nn.Module) -> dict[str, Any] | None:
    """The network as nested dicts, or None when a class in it is not torch's own.

    The description is tried out before it is returned: what is rebuilt must have the same modules and shapes.
    """
    seen: dict[int, str] = {}
    try:
        tree = _describe(net, "", seen)
        rebuilt = build(tree, meta=True)
    except (_Foreign, TypeError, ValueError, RuntimeError):
        return None
    if repr(rebuilt) != repr(net) or _shapes(rebuilt.state_dict()) != _shapes(net.state_dict()):
        return None
    return tree


class _Foreign(Exception):
    pass


def _shapes(state: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in state.items()}


def _torch_class(name: str) -> type[nn.Module]:
    kind = getattr(nn, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__.startswith("torch.nn.modules")):
        raise ValueError(f"The file names a layer {name!r} that torch.nn does not have.")
    return kind


def _describe(module: nn.Module, path: str, seen: dict[int, str]) -> dict[str, Any]:
    if id(module) in seen:
        return {"same": seen[id(module)]}
    seen[id(module)] = path
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind or not kind.__module__.startswith("torch.nn.modules"):
        raise _Foreign(path)
    hooks = [*module._forward_hooks.values(), *(h for h in module._forward_pre_hooks.values() if not is_guard(h))]
    if hooks or "forward" in module.__dict__:  # what a hook or a forward of its own does is not in the constructor
        raise _Foreign(path)
    if isinstance(module, CONTAINERS):
        children = {
            name: _describe(child, f"{path}.{name}".lstrip("."), seen)
            for name, child in module._modules.items()
            if child is not None
        }
        return {"type": kind.__name__, "children": children}
    if module._modules:
        raise _Foreign(path)
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name in ("self", "device", "dtype") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name not in module.__dict__ and name not in module._parameters:
            if parameter.default is inspect.Parameter.empty:
                raise _Foreign(path)
            continue
        value = module._parameters[name] is not None if name in module._parameters else module.__dict__[name]
        options[name] = _plain(value, path)
    return {"type": kind.__name__, "options": options}


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list, torch.Size)):
        return [_plain(v, path) for v in value]
    raise _Foreign(path)


def _option(value: Any) -> Any:
    return tuple(_option(v) for v in value) if isinstance(value, list) else value


def build(tree: dict[str, Any], meta: bool = False) -> nn.Module:
    """The network of a description; on the meta device it has shapes and no memory."""
    with torch.device("meta" if meta else "cpu"):
        return _build(tree, "", {})


def _build(tree: dict[str, Any], path: str, made: dict[str, nn.Module]) -> nn.Module:
    if "same" in tree:
        return made[tree["same"]]
    kind = _torch_class(tree["type"])
    if "children" in tree:
        if kind not in CONTAINERS:
            raise ValueError(f"The file gives children to a {tree['type']}.")
        module: nn.Module = kind()
        made[path] = module
        for name, child in tree["children"].items():
            module.add_module(name, _build(child, f"{path}.{name}".lstrip("."), made))
        return module
    made[path] = kind(**{name: _option(value) for name, value in tree["options"].items()})
    return made[path]
