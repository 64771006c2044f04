"""The `nodeslab` command. Torch is imported by the commands that need it, not by `--help`."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from nodeslab.commands.parser import UsageError, make_parser

__all__ = ["main"]

#: Which file of `commands` holds each command, as a function of its name.
HOME = {
    "tables": ("fit", "predict", "report"),
    "files": ("show", "shrink", "export"),
    "others": ("theory", "reproduce", "bench", "data", "demo"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked; one sentence on stderr and 2 for a wrong command line, 1 for what failed."""
    where = "nodeslab"
    before = warnings.formatwarning
    try:
        args = make_parser().parse_args(argv)
        where = f"nodeslab {args.command}"
        warnings.formatwarning = _warning(where)
        _run(args.command)(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{where}: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who read the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except UsageError as e:
        print(f"{e.where or where}: {_sentence(e)}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, OSError, ArithmeticError, ImportError, RuntimeError, MemoryError) as e:
        print(f"{where}: {_sentence(e)}", file=sys.stderr)
        return 1
    finally:
        warnings.formatwarning = before
    return 0


def _run(command: str) -> Callable[[Any], None]:
    module = next(name for name, commands in HOME.items() if command in commands)
    run: Callable[[Any], None] = getattr(importlib.import_module(f"nodeslab.commands.{module}"), command)
    return run


def _sentence(e: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(e, OSError) and e.strerror and e.filename is not None:
        return f"{e.strerror}: {e.filename}."
    if isinstance(e, MemoryError):
        return "there is not enough memory for this."
    words = " ".join(str(e).split()) or type(e).__name__
    return words if words[-1] in ".!?" else f"{words}."


def _warning(where: str) -> Callable[..., str]:
    return lambda message, *rest, **more: f"{where}: {' '.join(str(message).split())}\n"
