"""Data sets: read, checked, and fetched over HTTP from a server in this process."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import struct
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from nodeslab import cli, datasets
from nodeslab.datasets import fetching, images, songs, tables
from nodeslab.datasets.published import IMAGES, NAMES, REGRESSION, File


@dataclass
class Mirror:
    """A folder served on 127.0.0.1, and what was asked of it. cut: break off after so many bytes, once for each."""

    folder: Path
    base: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    ranges: bool = True


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    (tmp_path / "served").mkdir()
    here = Mirror(tmp_path / "served")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            here.asked.append((self.path, wanted))
            path = here.folder / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            body = path.read_bytes()
            total, start = len(body), 0
            if wanted is not None and here.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= total:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{total}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(total - start))
            self.end_headers()
            self.wfile.write(body[start : start + here.cut.pop(0)] if here.cut else body[start:])

        def log_message(self, *args: object) -> None:
            """Not into the test's output."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    here.base = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NODESLAB_DATA", raising=False)
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network: every address leads to a closed port; nothing in the cache."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "NODESLAB_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _serve_texts(folder: Path, shift: float = 0.0) -> None:
    """Concrete as the benchmark's repository has it: the target is not the last column here."""
    table = datasets.concrete()
    place = folder / "uci" / "concrete"
    place.mkdir(parents=True)
    values = np.column_stack([table.X[:, :3], table.y, table.X[:, 3:]])
    values[7, 0] += shift
    np.savetxt(place / "data.txt", values, fmt="%.17g")
    np.savetxt(place / "index_features.txt", [0, 1, 2, 4, 5, 6, 7, 8], fmt="%.18e")
    np.savetxt(place / "index_target.txt", [3], fmt="%.18e")


# ---- fetching ------------------------------------------------------------------------------------------------------


def test_a_set_made_from_texts_is_the_published_one(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    _serve_texts(mirror.folder)
    datasets.fetch("concrete", mirror.base)
    place = datasets.cache() / "uci"
    assert sorted(p.name for p in place.iterdir() if not p.name.startswith(".")) == ["concrete.npz"]
    found, shipped = datasets.uci("concrete"), datasets.concrete()
    assert np.array_equal(found.X, shipped.X)
    assert np.array_equal(found.y, shipped.y)
    assert (found.columns, found.target) == (shipped.columns, shipped.target)
    asked = len(mirror.asked)
    datasets.fetch("concrete", mirror.base)  # it is there
    assert len(mirror.asked) == asked == 3
    (place / "concrete.npz").write_bytes((place / "concrete.npz").read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"cannot be read as a data set .* nodeslab data concrete"):
        datasets.uci("concrete")
    datasets.fetch("concrete", mirror.base)  # as the sentence says
    assert np.array_equal(datasets.uci("concrete").X, shipped.X)


def test_one_wrong_number_is_refused(mirror: Mirror) -> None:
    _serve_texts(mirror.folder, shift=0.1)
    with pytest.raises(ValueError, match="are not the published numbers of concrete"):
        datasets.fetch("concrete", mirror.base)
    assert not [p for p in (datasets.cache() / "uci").rglob("*") if p.is_file() and not p.name.startswith(".")]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(
    mirror: Mirror, tmp_path: Path, ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four breaks: three in the first call, which gives up, and one in the second, which ends it."""
    monkeypatch.setattr(fetching, "CHUNK", 1000)  # at a break the chunk under way is lost
    body = np.random.RandomState(0).bytes(50_000)
    (mirror.folder / "a").mkdir()
    (mirror.folder / "a" / "big.bin").write_bytes(body)
    mirror.cut, mirror.ranges = [10_000, 9_000, 8_000, 7_000], ranges
    file = File("a/big.bin", "http://nowhere.invalid/big.bin", _sha(body))
    with pytest.raises(ValueError, match=r"a/big.bin cannot be fetched from http://127.0.0.1.*NODESLAB_DATA"):
        fetching.fetch_file(file, mirror.base, tmp_path)
    kept = (tmp_path / "a" / "big.bin.part").stat().st_size
    assert kept == (27_000 if ranges else 8_000)
    assert fetching.fetch_file(file, mirror.base, tmp_path).read_bytes() == body
    assert not (tmp_path / "a" / "big.bin.part").exists()
    starts = [r for _, r in mirror.asked]
    if ranges:
        assert starts == [None, "bytes=10000-", "bytes=19000-", "bytes=27000-", "bytes=34000-"]
    assert len(starts) == 5


@pytest.mark.parametrize("left", [b"", b"x"])
def test_a_part_that_has_all_bytes(mirror: Mirror, tmp_path: Path, left: bytes) -> None:
    """Killed after the last byte, or with more bytes than the file has: the first is used, the second is not."""
    body = b"the whole file"
    (mirror.folder / "f").write_bytes(body)
    (tmp_path / "f.part").write_bytes(body + left)
    assert fetching.fetch_file(File("f", "", _sha(body)), mirror.base, tmp_path).read_bytes() == body


def test_a_wrong_sum_leaves_nothing(mirror: Mirror, tmp_path: Path) -> None:
    (mirror.folder / "f").write_bytes(b"other bytes")
    with pytest.raises(ValueError, match=r"f cannot be fetched .*hash"):
        fetching.fetch_file(File("f", "", _sha(b"the bytes")), mirror.base, tmp_path / "to")
    assert [p.name for p in (tmp_path / "to").iterdir()] == [".f.lock"]
    with pytest.raises(ValueError, match="404"):
        fetching.fetch_file(File("g", "", None), mirror.base, tmp_path / "to")


def test_two_at_once_fetch_once(mirror: Mirror, tmp_path: Path) -> None:
    body = np.random.RandomState(1).bytes(3_000_000)
    (mirror.folder / "f").write_bytes(body)
    file = File("f", "", _sha(body))
    got: list[bytes] = []
    both = [
        threading.Thread(target=lambda: got.append(fetching.fetch_file(file, mirror.base, tmp_path).read_bytes()))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert got == [body, body]
    assert len(mirror.asked) == 1


# ---- images --------------------------------------------------------------------------------------------------------


def _idx(values: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


def test_images_are_fetched_read_and_checked(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.random.RandomState(0)
    parts = [stream.randint(0, 256, (6, 3, 4)), stream.randint(0, 10, 6)]
    parts += [stream.randint(0, 256, (2, 3, 4)), stream.randint(0, 10, 2)]
    bodies = [_idx(p) for p in parts]
    files = tuple(File(f.path, f.address, _sha(b)) for f, b in zip(IMAGES["mnist"], bodies, strict=True))
    monkeypatch.setitem(IMAGES, "mnist", files)
    (mirror.folder / "mnist").mkdir()
    for file, body in zip(files, bodies, strict=True):
        (mirror.folder / file.path).write_bytes(body)
    datasets.fetch("mnist", mirror.base)
    data = datasets.mnist()
    for found, truth in zip((data.X, data.y, data.X_test, data.y_test), parts, strict=True):
        assert np.array_equal(found, truth)
    assert data.X.dtype == data.X_test.dtype == np.uint8
    assert data.X.flags.writeable
    damaged = datasets.cache() / files[2].path
    damaged.write_bytes(_idx(parts[2] // 2))
    with pytest.raises(ValueError, match=r"t10k-images.* is not the published file.*nodeslab data mnist"):
        datasets.mnist()
    datasets.fetch("mnist", mirror.base)
    assert np.array_equal(datasets.mnist().X_test, parts[2])


def test_idx_of_another_type_is_refused(tmp_path: Path) -> None:
    body = gzip.compress(struct.pack(">HBBI", 0, 13, 1, 1) + b"\0\0\0\0")
    (tmp_path / "f").write_bytes(body)
    with pytest.raises(ValueError, match="type 13"):
        images._read_idx(tmp_path / "f", File("f", "", _sha(body)))


def test_the_published_images(data_folder: str) -> None:
    """Against figures known from elsewhere: the means that are used to standardise them, and the digits' counts."""
    mnist, fashion = datasets.mnist(), datasets.fashion_mnist()
    assert mnist.X.shape == fashion.X.shape == (60_000, 28, 28)
    assert mnist.X_test.shape == fashion.X_test.shape == (10_000, 28, 28)
    assert mnist.X.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert mnist.X.std() / 255 == pytest.approx(0.3081, abs=5e-5)
    assert fashion.X.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert np.bincount(mnist.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.y_test)[0] == 980
    assert np.bincount(fashion.y).tolist() == [6000] * 10
    assert mnist.y[:5].tolist() == [5, 0, 4, 1, 9]


# ---- YearPredictionMSD ---------------------------------------------------------------------------------------------


def _songs(rows: int = 30) -> np.ndarray:
    stream = np.random.RandomState(3)
    values = np.round(stream.normal(0, 50, (rows, 91)), 5)
    values[:, 0] = stream.randint(1922, 2012, rows)
    return values


def _song_text(values: np.ndarray) -> str:
    return "".join(",".join([str(int(row[0])), *(f"{v:.5f}" for v in row[1:])]) + "\n" for row in values)


def test_year_as_text_and_as_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = _songs()
    (tmp_path / "year").mkdir()
    text = tmp_path / "year" / songs.TEXT
    text.write_text(_song_text(values))
    packed = tmp_path / "other.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(text, songs.TEXT)
    monkeypatch.setenv("NODESLAB_DATA", str(tmp_path))
    for table in (datasets.year(rows=30, train=24), datasets.year(packed, rows=30, train=24)):
        assert np.array_equal(table.X, values[:, 1:])
        assert np.array_equal(table.y, values[:, 0])
        assert len(table.columns) == 90
    part = datasets.split(table, 0)
    assert (len(part.y), len(part.y_test)) == (24, 6)
    assert np.allclose(part.original(part.y_test), values[24:, 0])  # the last rows, in their order
    assert np.allclose(part.X.mean(0), 0)
    with pytest.raises(ValueError, match="one fixed split"):
        datasets.split(table, 1)


def test_year_checks_what_it_reads(tmp_path: Path) -> None:
    values = _songs()
    file = tmp_path / songs.TEXT
    file.write_text(_song_text(values))
    with pytest.raises(ValueError, match=r"holds 30 rows of 91 numbers; expected are 515345"):
        datasets.year(file)
    values[3, 0] = 12
    file.write_text(_song_text(values))
    with pytest.raises(ValueError, match=r"has 12 in column 1 of row 4, where a year"):
        datasets.year(file, rows=30, train=20)
    file.write_text("2001,3,four\n")
    with pytest.raises(ValueError, match="cannot be read"):
        datasets.year(file, rows=30, train=20)
    with pytest.raises(ValueError, match="0 < train < rows"):
        datasets.year(file, rows=30, train=30)
    with pytest.raises(ValueError, match="There is no file"):
        datasets.year(tmp_path / "none.zip", rows=30, train=20)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(ValueError, match="it holds no YearPredictionMSD"):
        datasets.year(tmp_path / "empty.zip", rows=30, train=20)
    assert songs.ROWS - songs.TRAIN == 51_630


def test_year_is_fetched_whole_or_refused(mirror: Mirror) -> None:
    (mirror.folder / "year").mkdir()
    served = mirror.folder / "year" / "yearpredictionmsd.zip"
    served.write_bytes(b"<html>moved</html>")
    with pytest.raises(ValueError, match=r"is not a \.zip"):
        datasets.fetch("year", mirror.base)
    with zipfile.ZipFile(served, "w") as archive:
        archive.writestr(songs.TEXT, _song_text(_songs()))
    datasets.fetch("year", mirror.base)
    assert len(datasets.year(rows=30, train=20).y) == 30


# ---- what is there -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("offline")
def test_without_a_network_a_missing_set_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"data.txt cannot be fetched from https://raw.*set NODESLAB_DATA"):
        datasets.uci("wine")
    with pytest.raises(ValueError, match=r"mnist/train-images.*cannot be fetched"):
        datasets.mnist()
    with pytest.raises(ValueError, match=r"yearpredictionmsd.zip cannot be fetched"):
        datasets.year()
    assert len(datasets.uci("concrete").y) == 1030  # ships with the package
    monkeypatch.setenv("NODESLAB_DATA", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="not a folder"):
        datasets.uci("wine")
    with pytest.raises(ValueError, match="no regression set 'boston'; there are concrete, wine"):
        datasets.uci("boston")


def test_a_changed_number_in_a_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.concrete()
    X = table.X.copy()
    X[0, 0] = np.nextafter(X[0, 0], np.inf)
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "concrete.npz", X=X, y=table.y, feature_names=table.columns, target_name=table.target)
    monkeypatch.setenv("NODESLAB_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="does not hold the published numbers of concrete"):
        datasets.uci("concrete")
    assert tables.digest(table.X, table.y) == REGRESSION["concrete"].digest


def test_the_data_command(mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data"]) == 0
    said = capsys.readouterr().out
    assert "1,030 x 8    checked; ships with the package" in said
    assert said.count("not here") == len(NAMES) - 1
    _serve_texts(mirror.folder)
    assert cli.main(["data", "concrete", "--from", mirror.base, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["name"], entry["rows"], entry["columns"]) == ("concrete", 1030, 8)
    assert cli.main(["data", "wine", "--from", mirror.base]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "uci/wine/data.txt cannot be fetched" in err
    assert len(err.splitlines()) == 1
    assert cli.main(["data", "moon"]) == 1
    assert "There is no data set 'moon'" in capsys.readouterr().err
