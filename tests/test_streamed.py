"""Data larger than memory: memmaps and Parquet files in shuffled blocks, against the same rows in memory."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab import sealed, streamed
from nodeslab.mapped import Mapped
from nodeslab.parquet import RowGroups
from nodeslab.streamed import Streamed

ROWS, COLUMNS, BATCH = 1000, 4, 30


def _table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows that say which they are: the first column is the row's number over 1000."""
    X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    X[:, 0] = np.arange(ROWS) / ROWS
    return X, np.sin(X[:, 1])


def _mapped(folder: Path, *arrays: np.ndarray[Any, Any]) -> list[Any]:
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", array)
    return [np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(len(arrays))]


def _parquet(file: Path, X: np.ndarray[Any, Any], y: np.ndarray[Any, Any], group: int = 90) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {f"c{i}": X[:, i] for i in range(X.shape[1])} | {"price": y}
    pq.write_table(pa.table(columns), file, row_group_size=group)
    return file


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 51 rows and buffers of 256, so that a thousand rows are four buffers."""
    monkeypatch.setattr("nodeslab.mapped.BLOCK_BYTES", 1024)
    monkeypatch.setattr(streamed, "BUFFER_BYTES", 5 * 1024 + 100)


def _model(dtype: torch.dtype = torch.float32, outputs: int = 1, inputs: int = COLUMNS) -> ns.Bayesian:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    return ns.bayesian(net, ns.ssig(), n=ROWS).to(dtype)


def _fit(data: Any, model: ns.Bayesian | None = None, **options: Any) -> ns.Bayesian:
    fitted = _model() if model is None else model
    chosen: dict[str, Any] = {"epochs": 2, "batch_size": BATCH, "seed": 1, "progress": False}
    ns.fit(fitted, data, **({"likelihood": ns.Gaussian("learn")} | chosen | options))
    return fitted


def _same(a: ns.Bayesian, b: ns.Bayesian) -> bool:
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


# ---- the same as in memory -----------------------------------------------------------------------------------------


def test_what_fits_into_the_buffer_is_dealt_out_as_arrays_are(tmp_path: Path) -> None:
    X, y = _table()
    in_memory = _fit((X, y))
    mapped_X, mapped_y = _mapped(tmp_path, X, y)
    assert _same(in_memory, _fit((mapped_X, mapped_y)))
    assert _same(in_memory, _fit((mapped_X, y)))
    assert _same(in_memory, _fit((X, mapped_y)))
    assert _same(in_memory, _fit(ns.Parquet(_parquet(tmp_path / "t.parquet", X, y), "price")))


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.astype(">f8"),
        lambda X: np.asfortranarray(X),
        lambda X: np.concatenate([X, X], 1),
        lambda X: np.concatenate([X[:300], X]),
        lambda X: X[::-1].copy(),
    ],
    ids=["another byte order", "columns first", "a view of columns", "a view of rows", "reversed"],
)
def test_memmaps_of_any_layout(change: Any, tmp_path: Path) -> None:
    X, y = _table()
    (file,) = _mapped(tmp_path, change(X))
    views = {(ROWS, COLUMNS): file, (ROWS, 2 * COLUMNS): file[:, :COLUMNS], (ROWS + 300, COLUMNS): file[300:]}
    view = views[file.shape] if not np.array_equal(file, X[::-1]) else file[::-1]
    assert _same(_fit((X, y)), _fit((view, y)))


def test_changes_that_are_in_memory_only_are_kept(tmp_path: Path) -> None:
    """Mode "c" writes to no file: handing its pages back would lose what was changed."""
    X, y = _table()
    np.save(tmp_path / "X.npy", np.zeros_like(X))
    changed = np.load(tmp_path / "X.npy", mmap_mode="c")
    changed[:] = X
    assert _same(_fit((X, y)), _fit((changed, y)))
    assert np.array_equal(changed, X)


@pytest.mark.parametrize("kind", ["classes", "images", "several inputs", "float64"])
def test_kinds_of_data(kind: str, tmp_path: Path) -> None:
    X, y = _table()
    rng = np.random.default_rng(1)
    model: Any = None
    options: dict[str, Any] = {}
    if kind == "classes":
        y = rng.integers(0, 3, ROWS)
        options = {"likelihood": ns.Categorical()}
        model = lambda: _model(outputs=3)  # noqa: E731
    elif kind == "images":
        X = rng.integers(0, 255, (ROWS, 1, 8, 8)).astype(np.uint8)
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 1))
        model = lambda: ns.bayesian(net, ns.ssig(), n=ROWS)  # noqa: E731
    elif kind == "float64":
        model = lambda: _model(torch.float64)  # noqa: E731
    else:

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.a, self.b = nn.Linear(COLUMNS, 3), nn.Linear(6, 1)

            def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
                return self.b(torch.cat([self.a(x), z], 1))

        z = rng.normal(size=(ROWS, 3))
        model = lambda: ns.bayesian(Two(), ns.ssig(), n=ROWS)  # noqa: E731
        mapped_X, mapped_z = _mapped(tmp_path, X, z)
        assert _same(_fit(((X, z), y), model()), _fit(((mapped_X, mapped_z), y), model()))
        return
    mapped_X, mapped_y = _mapped(tmp_path, X, y)
    assert _same(_fit((X, y), model(), **options), _fit((mapped_X, mapped_y), model(), **options))


# ---- the shuffle ---------------------------------------------------------------------------------------------------


def _order(source: Streamed, skip: int = 0) -> list[list[int]]:
    return [[round(float(v) * ROWS) for v in X[:, 0]] for (X,), _ in source.epoch(skip)]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("kind", ["memmap", "parquet"])
def test_every_row_comes_once_and_blocks_are_mixed(kind: str, tmp_path: Path) -> None:
    X, y = _table()
    if kind == "memmap":
        reader: Any = Mapped(_mapped(tmp_path, X), y)
    else:
        reader = RowGroups(ns.Parquet(_parquet(tmp_path / "t.parquet", X, y), "price"))
    source = Streamed(reader, torch.float32, False, BATCH)
    torch.manual_seed(3)
    first, second = _order(source), _order(source)
    for batches in (first, second):
        assert [len(b) for b in batches] == [BATCH] * 33 + [10]
        assert sorted(row for b in batches for row in b) == list(range(ROWS))
    assert first != second
    # a batch comes from several blocks (a buffer holds five of 51 rows, or two groups of 90) ...
    edges = np.cumsum(reader.sizes)
    blocks = [len(set(np.searchsorted(edges, b, side="right"))) for b in first]
    assert np.mean(blocks) > (4 if kind == "memmap" else 1.9)
    # ... and over many epochs a row's place is uniform: mean 1/2, variance 1/12
    epochs = [[row for batch in _order(source) for row in batch] for _ in range(60)]
    places = np.array([rows.index(500) for rows in epochs]) / ROWS
    assert abs(places.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 60)
    assert 0.05 < places.var() < 0.12


@pytest.mark.usefixtures("_small")
def test_rows_keep_their_targets(tmp_path: Path) -> None:
    X, y = _table()
    source = Streamed(Mapped(_mapped(tmp_path, X), y), torch.float32, False, BATCH)
    for (x,), target in source.epoch():
        assert torch.equal(target.float(), torch.from_numpy(y)[(x[:, 0] * ROWS).round().long()])


@pytest.mark.usefixtures("_small")
def test_skipping_reads_only_what_follows(tmp_path: Path) -> None:
    X, y = _table()
    reader = Mapped(_mapped(tmp_path, X), y)
    source = Streamed(reader, torch.float32, False, BATCH)
    read: list[int] = []
    whole = reader.read
    reader.read = lambda block: (read.append(block), whole(block))[1]  # type: ignore[method-assign,func-returns-value]
    for skip in (0, 1, 7, 8, 9, 17, 30, 33):
        torch.manual_seed(4)
        expected = _order(source)
        after = torch.get_rng_state()
        read.clear()
        torch.manual_seed(4)
        assert _order(source, skip) == expected[skip:]
        assert torch.equal(torch.get_rng_state(), after)
        assert len(read) <= -(-(ROWS - skip * BATCH) // 51) + 5


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("at", [1, 12, 33, 34, 40])
def test_resumes_to_the_bit(at: int, tmp_path: Path) -> None:
    """Broken off before, at and after a buffer's and an epoch's end."""
    X, y = _table()
    data = tuple(_mapped(tmp_path, X, y))
    undisturbed = _fit(data)
    seen = 0

    def stop(module: nn.Module, args: Any, out: Any) -> None:
        nonlocal seen
        seen += module.training
        if seen == at:
            os.kill(os.getpid(), signal.SIGTERM)

    model = _model()
    handle = model.net.get_submodule("1").register_forward_hook(stop)
    with pytest.raises(SystemExit):
        _fit(data, model, checkpoint=tmp_path / "run")
    handle.remove()
    meta, _ = sealed.read(tmp_path / "run", "checkpoint")
    assert meta["epoch"] * 34 + meta["step"] == at
    assert _same(undisturbed, _fit(data, checkpoint=tmp_path / "run"))
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="belongs to another fit: data differ"):
        _fit((_mapped(tmp_path / "other", X[:, ::-1].copy())[0], y), checkpoint=tmp_path / "run")


@pytest.mark.usefixtures("_small")
def test_the_start_of_a_learnt_noise_is_the_targets_spread(tmp_path: Path) -> None:
    """Joined over blocks, with a mean that is far from zero: the sum of squares alone would lose it."""
    X, y = _table()
    far = 1e6 + 3.0 * y.astype(np.float64)
    source = Streamed(Mapped(_mapped(tmp_path, X), far), torch.float64, False, BATCH)
    extremes = source.survey(lambda v: v)
    assert float(source.spread) == pytest.approx(far.std(ddof=1), rel=1e-9)
    assert extremes.tolist() == [far.min(), far.max()]


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small")
def test_memmaps_refuse_with_the_row(tmp_path: Path) -> None:
    X, y = _table()

    def data(row: int, column: int, value: float) -> Any:
        broken = X.copy()
        broken[row, column] = value
        return _mapped(tmp_path, broken)[0], y

    with pytest.raises(ValueError, match="X holds nan at row 777, column 2; impute it or drop the row"):
        _fit(data(777, 2, np.nan))
    bad = y.copy()
    bad[901] = np.inf
    with pytest.raises(ValueError, match="y holds inf at row 901; impute"):
        _fit((X, _mapped(tmp_path, bad)[0]))
    constant = X.copy()
    constant[:, 3] = 2
    with pytest.raises(ValueError, match=r"Column 3 of X is constant \(2 in every row\)"):
        _fit((_mapped(tmp_path, constant)[0], y))
    _fit((_mapped(tmp_path, constant)[0], y), allow_constant=True, epochs=1)
    constant[-1, 3] = 0  # in the last block only
    _fit((_mapped(tmp_path, constant)[0], y), epochs=1)
    with pytest.raises(ValueError, match="X has 1000 rows and y has 999"):
        _fit((_mapped(tmp_path, X)[0], y[1:]))
    with pytest.raises(ValueError, match=r"y is constant \(3 in every row\)"):
        _fit((_mapped(tmp_path, X)[0], np.full(ROWS, 3.0)))
    with pytest.raises(ValueError, match="y holds one class only"):
        _fit((_mapped(tmp_path, X)[0], np.ones(ROWS, int)), _model(outputs=3), likelihood=ns.Categorical())
    labels = np.arange(ROWS) % 3
    labels[850] = 9
    with pytest.raises(ValueError, match="label 9"):
        _fit((_mapped(tmp_path, X)[0], labels), _model(outputs=3), likelihood=ns.Categorical())
    with pytest.raises(ValueError, match="one row"):
        _fit((_mapped(tmp_path, X[:1])[0], y[:1]))


def test_parquet_refuses_by_name(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = _table()

    def file(**columns: Any) -> Path:
        base = {"a": X[:, 0], "b": X[:, 1], "price": y}
        pq.write_table(pa.table(base | columns), tmp_path / "t.parquet", row_group_size=300)
        return tmp_path / "t.parquet"

    def refused(word: str, path: Any, target: str = "price", features: Any = None) -> None:
        with pytest.raises((ValueError, TypeError, FileNotFoundError), match=word) as e:
            _fit(ns.Parquet(path, target, features), _model(inputs=2))
        assert "\n" not in str(e.value)

    refused(r"Column 'town' of .*t\.parquet holds string, not numbers; encode it", file(town=["x"] * ROWS))
    refused("Column 'when' .* timestamp.*; turn it into a number", file(when=np.array(["2020-01-01"] * ROWS, "M8[s]")))
    refused("0 columns called 'cost', one was expected; it has 'a', 'b', 'price'", file(), "cost")
    refused("0 columns called 'z'", file(), features=["a", "z"])
    gap = [None if i == 640 else 1.0 * i for i in range(ROWS)]
    refused(r"t\.parquet has an empty value at row 640, column 'b'", file(b=gap))
    refused("X holds nan at row 640, column 1", file(b=np.array(gap, float)))
    refused("is a folder; give a pattern", tmp_path)
    refused("There is no file .*none", tmp_path / "none-*.parquet")
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    refused("cannot be read as Parquet", tmp_path / "text.parquet")
    refused("features must be at least one column and not the target", file(), features=["a", "price"])
    refused("features must be a list of names", file(), features="ab")
    refused("target must be the name of a column", file(), target=3)  # type: ignore[arg-type]
    refused("path must be a file or a pattern", 3)


def test_parquet_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ValueError, match=r'pip install "nodeslab\[parquet\]"'):
        _fit(ns.Parquet(__file__, "price"))


def test_parquet_files_together(tmp_path: Path) -> None:
    """A pattern is its files in order; integers in one and floats in another; bools and decimals are numbers."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for i, values in enumerate(([1, 2, 3], [4.5, 5.5])):
        flags = pa.array([bool(v > 2) for v in values])
        decimal = pa.array(values).cast(pa.float64()).cast(pa.decimal128(9, 2))
        table = pa.table({"a": values, "b": flags, "c": decimal, "y": [10 * v for v in values]})
        pq.write_table(table, tmp_path / f"part{i}.parquet")
    table = ns.Parquet(tmp_path / "part*.parquet", "y", features=["c", "a", "b"])
    assert (table.rows, table.columns) == (5, ("c", "a", "b"))
    parts = list(table.batches(2))
    assert [len(y) for _, y in parts] == [2, 1, 2]
    values = [1, 2, 3, 4.5, 5.5]
    assert np.array_equal(np.concatenate([X for X, _ in parts]), [[v, v, v > 2] for v in values])
    assert np.concatenate([y for _, y in parts]).tolist() == [10 * v for v in values]


def test_predictions_by_batches_are_those_of_one_call(tmp_path: Path) -> None:
    X, y = _table()
    table = ns.Parquet(_parquet(tmp_path / "t.parquet", X, y), "price")
    model = _fit(table)
    whole = ns.predict(model, X, seed=0)
    means = torch.cat([ns.predict(model, part, seed=0).mean for part, _ in table.batches()])
    assert torch.allclose(means, whole.mean, rtol=0, atol=1e-6)


# ---- memory --------------------------------------------------------------------------------------------------------

MEASURE = """
import resource, sys, torch, numpy as np, nodeslab as ns
torch.set_num_threads(1)
X, y = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2], mmap_mode="r")
def fit(X, y, n):
    model = ns.bayesian(torch.nn.Linear(X.shape[1], 1), ns.vbnn(), n=n)
    ns.fit(model, (X, y), likelihood=ns.Gaussian(1.0), epochs=1, batch_size=8192, seed=0, progress=False)
fit(X[:100], y[:100], 100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fit(X, y, len(y))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are handed back, and memory is measured, on Linux")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file of 320 MiB, three buffers' worth and more, costs one buffer of 64 MiB and what a batch needs."""
    rows, columns = 2**20, 80
    X = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=np.float32, shape=(rows, columns))
    noise = np.random.default_rng(0).normal(size=(2**16, columns)).astype(np.float32)
    for i in range(0, rows, 2**16):
        X[i : i + 2**16] = noise
    np.save(tmp_path / "y.npy", np.tile(noise[:, 0], rows // 2**16))
    del X
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "X.npy"), str(tmp_path / "y.npy")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 160, f"{grown} MiB"
