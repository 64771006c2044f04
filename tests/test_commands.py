"""Bad command lines and files: each gives one sentence on stderr, a status that is not 0, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nodeslab as ns
from nodeslab import cli
from nodeslab.commands.parser import make_parser

GOOD = "a,b,colour,price\n" + "\n".join(
    f"{np.sin(i):.5f},{i % 7}.5,{'red' if i % 3 else 'blue'},{np.cos(i):.5f}" for i in range(60)
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fit that took two epochs, and the file beside it."""
    place = tmp_path_factory.mktemp("fitted")
    (place / "good.csv").write_text(GOOD)
    argv = ["fit", "good.csv", "--target", "price", "--epochs", "2", "--hidden", "4", "--out", "o"]
    before = Path.cwd()
    os.chdir(place)
    try:
        assert cli.main(argv) == 0
    finally:
        os.chdir(before)
    return place


def _lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


def _rows(column: str, of: Callable[[int], object], rows: int = 60) -> str:
    return _lines(f"a,{column},price", *(f"{np.sin(i):.4f},{of(i)},{np.cos(i):.4f}" for i in range(rows)))


Make = Callable[[Path], object]


def _file(name: str, content: str | bytes) -> Make:
    return lambda p: (p / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _parquet(p: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [[1], [2], [3], [4]], "price": [1.0, 2.5, 3.0, 4.0]}), p / "lists.parquet")
    when = pa.array([1, 2, 3, 4], pa.timestamp("s"))
    pq.write_table(pa.table({"a": when, "price": [1.0, 2.5, 3.0, 4.0]}), p / "dates.parquet")


def _flip(name: str) -> Make:
    """One character of a file of the fit, changed in its middle."""

    def flip(p: Path) -> None:
        content = bytearray((p / "o" / name).read_bytes())
        digits = (
            [i for i, c in enumerate(content) if chr(c).isdigit()] if name.endswith("json") else [len(content) // 2]
        )
        at = digits[len(digits) // 2]
        content[at] = ord("1") if content[at] != ord("1") else ord("2")
        (p / "o" / name).write_bytes(content)

    return flip


def _cut(name: str, size: int) -> Make:
    return lambda p: (p / "o" / name).write_bytes((p / "o" / name).read_bytes()[:size])


def _gone(name: str) -> Make:
    return lambda p: (p / "o" / name).unlink()


def _saved(p: Path) -> None:
    model = ns.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), ns.ssig(), n=10)
    ns.save(model, p / "m.nodeslab")
    ns.save(model.mean(), p / "plain.nodeslab")
    (p / "damaged.nodeslab").write_bytes((p / "m.nodeslab").read_bytes()[:-3])


def _npz(p: Path) -> None:
    np.savez(p / "short.npz", X=np.zeros((3, 2)), y=np.zeros(4))
    np.savez(p / "named.npz", X=np.zeros((3, 2)), z=np.zeros(3))
    np.savez(p / "flat.npz", X=np.zeros(3), y=np.zeros(3))
    np.savez(p / "objects.npz", X=np.array([[None, 1]] * 4), y=np.zeros(4))


FIT = "fit bad.csv --target price --out new"
#: What is made first, the command line, the status, and a word of the sentence.
CASES: dict[str, tuple[Make | None, str, int, str]] = {
    # the command line
    "nothing": (None, "", 2, "COMMAND"),
    "no such command": (None, "fly", 2, "invalid choice: 'fly'"),
    "no file": (None, "fit", 2, "required: FILE"),
    "unknown option": (None, "fit good.csv --target price --speed 3", 2, "--speed"),
    "no value": (None, "fit good.csv --target", 2, "expected one argument"),
    "model": (None, "fit good.csv --target price --model gp", 2, "invalid choice: 'gp'"),
    "task": (None, "fit good.csv --target price --task ranking", 2, "invalid choice: 'ranking'"),
    "epochs": (None, "fit good.csv --target price --epochs 0", 2, "from 1, got '0'"),
    "half an epoch": (None, "fit good.csv --target price --epochs 1.5", 2, "from 1, got '1.5'"),
    "width": (None, "fit good.csv --target price --hidden 5 0", 2, "--hidden: must be a whole number from 1"),
    "batch": (None, "fit good.csv --target price --batch-size many", 2, "got 'many'"),
    "rate": (None, "fit good.csv --target price --lr -1", 2, "--lr"),
    "rate that is no number": (None, "fit good.csv --target price --lr nan", 2, "greater than 0 and finite"),
    "seed": (None, f"fit good.csv --target price --seed {2**64}", 2, f"from 0 to {2**63 - 1}"),
    "negative seed": (None, "fit good.csv --target price --seed=-1", 2, "--seed"),
    "interval": (None, "predict o good.csv --interval 1.0", 2, "between 0 and 1, got '1.0'"),
    "interval in percent": (None, "predict o good.csv --interval 90", 2, "between 0 and 1"),
    "draws": (None, "predict o good.csv --draws 0", 2, "from 1, got '0'"),
    "ending of answers": (None, "predict o good.csv --out answers.xlsx", 2, ".csv or .parquet"),
    "no rows to predict": (None, "predict o", 2, "required: FILE"),
    "bench": (None, "bench fast", 2, "invalid choice: 'fast'"),
    "rounds": (None, "bench step --rounds 0", 2, "from 1, got '0'"),
    "bench's rows": (None, "bench scale --rows 0", 2, "--rows: must be a whole number from 1"),
    "bench's draws": (None, "bench predict --draws 0", 2, "--draws: must be a whole number from 1"),
    "theory": (None, "theory", 2, "needs --widths and --n"),
    "theory's widths": (None, "theory --widths three --n 5", 2, "invalid int value: 'three'"),
    "theory's n": (None, "theory --widths 3 2 1 --n 0", 2, "from 1, got '0'"),
    "theory's picture": (None, "theory --widths 3 2 1 --n 5 --plot x.gif", 2, ".png, .svg or .pdf"),
    "seeds": (None, "reproduce sim1 --seeds 0", 2, "from 1, got '0'"),
    "both reports": (None, "report o --records r", 2, "not both"),
    "report's ending": (None, "report o --out page.pdf", 2, "must end in .html"),
    "nothing to export": (None, "export o", 2, "say what to write"),
    "export's ending": (None, "export o --onnx m.pt2", 2, "must end in .onnx"),
    "shape of a fit": (None, "export o --onnx --shape 3", 2, "--shape is for a saved model"),
    "class of a fit": (None, "shrink o --net a:B", 2, "--net is for a saved model"),
    "plain and not": (None, "shrink o --plain --bayesian", 2, "not allowed with"),
    # the file of a fit
    "missing file": (None, "fit none.csv --target price", 1, "none.csv does not exist"),
    "a folder": (None, "fit o --target price --out new", 1, "is a folder"),
    "another ending": (_file("bad.txt", GOOD), "fit bad.txt --target price --out new", 1, "got .txt"),
    "no ending": (_file("bad", GOOD), "fit bad --target price --out new", 1, "got no ending"),
    "no target": (None, "fit good.csv --out new", 1, "It has a, b, colour, price"),
    "another target": (None, "fit good.csv --target cost --out new", 1, "has a, b, colour, price"),
    "another column": (None, "fit good.csv --target price --drop d --out new", 1, "no column called 'd'"),
    "dropped target": (None, "fit good.csv --target price --drop price --out new", 1, "no column called 'price'"),
    "another category": (None, "fit good.csv --target price --categories d --out new", 1, "no column called 'd'"),
    "empty": (_file("bad.csv", ""), FIT, 1, "is empty"),
    "a header": (_file("bad.csv", "a,price\n"), FIT, 1, "and no rows"),
    "no header": (_file("bad.csv", _lines("1,2", "3,4", "5,7")), FIT, 1, "its first line must hold the names"),
    "one column": (_file("bad.csv", _lines("price", *map(str, range(60)))), FIT, 1, "no column but 'price'"),
    "ragged": (_file("bad.csv", _lines("a,price", "1,2", "3")), FIT, 1, "1 values in row 1, but 2 columns"),
    "comma": (_file("bad.csv", _lines("a,price", "1,2", "red, light,3")), FIT, 1, "must stand in quotes"),
    "twice": (_file("bad.csv", _lines("a,a,price", "1,2,3")), FIT, 1, "2 columns called 'a'"),
    "not utf-8": (_file("bad.csv", "a,price\nsch\xf6n,1\n".encode("latin-1")), FIT, 1, "in UTF-8"),
    "binary": (_file("bad.csv", bytes(range(256))), FIT, 1, "bad.csv"),
    "few rows": (_file("bad.csv", _rows("b", lambda i: i * i, 3)), FIT, 1, "at least 4 are needed"),
    "dates": (_file("bad.csv", _rows("when", lambda i: f"2024-01-{i % 28 + 1:02}")), FIT, 1, "days since the first"),
    "other dates": (_file("bad.csv", _rows("when", lambda i: f"{i % 28 + 1}/12/24 10:00")), FIT, 1, "holds dates"),
    "times": (_file("bad.csv", _rows("when", lambda i: f"{i % 24}:15")), FIT, 1, "holds dates or times"),
    "units": (_file("bad.csv", _rows("cost", lambda i: f"$ {i}.5")), FIT, 1, "write numbers plainly"),
    "decimal comma": (_file("bad.csv", _rows("b", lambda i: f'"{i},5"')), FIT, 1, "holds '0,5' in row 0"),
    "typo": (_file("bad.csv", _rows("b", lambda i: "1o" if i == 7 else i)), FIT, 1, "'1o' in row 7, while 98%"),
    "infinity": (_file("bad.csv", _rows("b", lambda i: "inf" if i == 3 else i)), FIT, 1, "holds inf in row 3"),
    "huge": (_file("bad.csv", _rows("b", lambda i: f"{i}e306")), FIT, 1, "too large"),
    "constant target": (_file("bad.csv", _lines("a,price", *(f"{i},7.5" for i in range(60)))), FIT, 1, "constant"),
    "empty target": (_file("bad.csv", _lines("a,price", *(f"{i},NA" for i in range(60)))), FIT, 1, "is empty"),
    "constant columns": (
        _file("bad.csv", _lines("a,price", *(f"3,{np.sin(i)}" for i in range(60)))),
        FIT,
        1,
        "no column to predict 'price' from (a constant)",
    ),
    "texts to regress on": (None, "fit good.csv --target colour --task regression --out new", 1, "holds texts"),
    "halves as classes": (None, "fit good.csv --target b --task classification --out new", 1, "whole numbers or texts"),
    "names as classes": (
        _file("bad.csv", _lines("a,price", *(f"{i},n{i}" for i in range(60)))),
        FIT,
        1,
        "is it the right column?",
    ),
    "a rare class": (
        _file("bad.csv", _lines("a,price", *(f"{i},{'x' if i == 25 else 'yn'[i % 2]}" for i in range(60)))),
        FIT + " --seed 1",
        1,
        "'x' of 'price' is too rare",
    ),
    "no Parquet": (_file("bad.parquet", GOOD), "fit bad.parquet --target price --out new", 1, "cannot be read as Par"),
    "lists": (_parquet, "fit lists.parquet --target price --out new", 1, "neither numbers nor texts"),
    "dates in Parquet": (_parquet, "fit dates.parquet --target price --out new", 1, "holds dates"),
    "no npz": (_file("bad.npz", GOOD), "fit bad.npz --out new", 1, "cannot be read as an .npz"),
    "lengths": (_npz, "fit short.npz --out new", 1, "X of shape (3, 2) and y of shape (4,)"),
    "other arrays": (_npz, "fit named.npz --out new", 1, "no column called 'y'"),
    "X of one axis": (_npz, "fit flat.npz --out new", 1, "X of shape (3,)"),
    "objects": (_npz, "fit objects.npz --out new", 1, "cannot be read as an .npz"),
    # where it goes
    "a file for a folder": (None, "fit good.csv --target price --out good.csv", 1, "is not a folder"),
    "a folder in a file": (None, "fit good.csv --target price --out good.csv/o", 1, "is not a folder"),
    "another fit": (None, "fit good.csv --target price --epochs 3 --hidden 4 --out o", 1, "(epochs differ)"),
    "other data": (
        _file("bad.csv", GOOD + "\n1,2,red,3"),
        "fit bad.csv --target price --epochs 2 --hidden 4 --out o",
        1,
        "(data differ)",
    ),
    "answers nowhere": (None, "predict o good.csv --out nowhere/a.csv", 1, "make it first"),
    "answers over rows": (None, "predict o good.csv --out good.csv", 1, "would overwrite"),
    "a page nowhere": (None, "report o --out nowhere/a.html", 1, "a folder that exists"),
    "a graph nowhere": (None, "export o --onnx nowhere/a.onnx", 1, "make it first"),
    "a small model nowhere": (None, "shrink o --out nowhere/m", 1, "make it first"),
    "the demo in a file": (None, "demo --out good.csv", 1, "is not a folder"),
    # a fit's folder and what is in it
    "no fit": (None, "predict nowhere good.csv", 1, "There is no folder nowhere"),
    "a file for a fit": (None, "predict good.csv good.csv", 1, "is a file"),
    "no fit's folder": (lambda p: (p / "e").mkdir(), "predict e good.csv", 1, "is not the folder of a fit"),
    "report of no fit": (lambda p: (p / "e").mkdir(), "report e", 1, "is not the folder of a fit"),
    "export of no fit": (lambda p: (p / "e").mkdir(), "export e --onnx", 1, "is not the folder of a fit"),
    "unfinished": (_gone("result.json"), "predict o good.csv", 1, "is not finished"),
    "no model": (_gone("model.nodeslab"), "predict o good.csv", 1, "There is no file"),
    "damaged model": (_flip("model.nodeslab"), "predict o good.csv", 1, "checksum does not match"),
    "half a model": (_cut("model.nodeslab", 500), "shrink o", 1, "is damaged"),
    "damaged preprocessing": (_flip("preprocessing.json"), "predict o good.csv", 1, "checksum does not match"),
    "half a preprocessing": (_cut("preprocessing.json", 80), "export o --onnx", 1, "is damaged"),
    "no preprocessing": (_gone("preprocessing.json"), "predict o good.csv", 1, "There is no file"),
    "damaged result": (_flip("result.json"), "report o", 1, "checksum does not match"),
    "damaged fit": (_cut("fit.json", 20), "fit good.csv --target price --out o", 1, "is damaged"),
    "no test rows": (_gone("test.npz"), "report o", 1, "missing or damaged"),
    "half of the test rows": (_cut("test.npz", 200), "report o", 1, "missing or damaged"),
    "not shrunk": (None, "predict o good.csv --small", 1, "nodeslab shrink o makes it"),
    # rows to predict
    "no such rows": (None, "predict o none.csv", 1, "There is no file none.csv"),
    "fewer columns": (_file("new.csv", "a,b\n1,2\n"), "predict o new.csv", 1, "lacks the column colour"),
    "no columns": (_file("new.csv", "x\n1\n"), "predict o new.csv", 1, "lacks columns a, b, colour"),
    "text for a number": (_file("new.csv", "a,b,colour\nx,2,red\n"), "predict o new.csv", 1, "holds 'x' in row 0"),
    "rows without end": (_file("new.csv", "a,b,colour\ninf,2,red\n"), "predict o new.csv", 1, "holds inf in row 0"),
    "no rows": (_file("new.csv", "a,b,colour\n"), "predict o new.csv", 1, "no rows"),
    # saved models, data, the paper
    "no saved model": (None, "show none", 1, "There is no file none"),
    "another file": (None, "show good.csv", 1, "is not a nodeslab file"),
    "damaged file": (_saved, "show damaged.nodeslab", 1, "checksum does not match"),
    "no draws": (_saved, "export m.nodeslab --onnx", 1, "cannot sample"),
    "draws of a plain one": (_saved, "export plain.nodeslab --onnx --draws 2", 1, "draws= is for a model"),
    "shape that does not fit": (_saved, "shrink m.nodeslab --shape 5", 1, "cannot take an example of shape (2, 5)"),
    "data": (None, "data moon", 1, "There is no data set 'moon'"),
    "experiment": (None, "reproduce moon --out r", 1, "moon"),
    "records": (None, "report --records nowhere", 1, "There is no folder nowhere"),
    "C": (None, "theory --widths 3 2 1 --n 5 --C -1", 1, "C[0] must be between 0"),
    "too few widths": (None, "theory --widths 3 --n 5", 1, "the inputs and the outputs"),
}


def test_there_are_at_least_fifty() -> None:
    assert len(CASES) >= 50


@pytest.mark.parametrize("name", CASES)
def test_one_sentence(
    name: str, fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, line, status, word = CASES[name]
    place = tmp_path / "here"
    shutil.copytree(fitted, place)
    monkeypatch.chdir(place)
    if make is not None:
        make(place)
    before = {p: p.read_bytes() if p.is_file() else None for p in place.rglob("*")}
    assert cli.main(line.split()) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert word in err
    assert err.startswith("nodeslab")
    assert err.endswith((".\n", "?\n"))
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert {p: p.read_bytes() if p.is_file() else None for p in place.rglob("*")} == before


def test_a_fit_that_fails_leaves_no_claim_on_its_folder(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate at which everything overflows: one sentence, and another rate may use the same folder."""
    argv = ["fit", str(fitted / "good.csv"), "--target", "price", "--epochs", "30", "--out", str(fitted / "wild")]
    assert cli.main([*argv, "--lr", "1e30"]) == 1
    err = capsys.readouterr().err
    assert "Training stopped" in err
    assert err.count("\n") == 1
    assert cli.main(argv) == 0


def test_no_traceback_from_a_process(fitted: Path) -> None:
    """The real command: no traceback, the status, and silence when who reads has left."""
    command = [sys.executable, "-m", "nodeslab"]
    done = subprocess.run([*command, "fit", "none.csv"], capture_output=True, text=True, check=False, cwd=fitted)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    (fitted / "long.csv").write_text(GOOD + "\n" + "\n".join(GOOD.splitlines()[1:] * 2000))
    line = f"{sys.executable} -m nodeslab predict o long.csv --draws 1 | head -1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, cwd=fitted)
    assert (done.stdout, done.stderr) == ("prediction,std,low,high\n", "")


def test_every_command_has_an_example_and_json() -> None:
    def parsers(parser: object) -> list[object]:
        groups = [a for a in parser._actions if hasattr(a, "choices") and isinstance(a.choices, dict)]  # type: ignore[attr-defined]
        return [p for group in groups for inner in group.choices.values() for p in (parsers(inner) or [inner])]

    found = parsers(make_parser())
    assert len(found) == 10 + 8
    for parser in found:
        text = " ".join(parser.format_help().split())  # type: ignore[attr-defined]
        assert f"example: {parser.prog} " in text or f"example: {parser.prog}" == text[-len(parser.prog) - 9 :]  # type: ignore[attr-defined]
        assert "--json" in text


def test_json_of_errors_stays_on_stderr(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", str(fitted / "o"), "none.csv", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "There is no file" in err
    assert cli.main(["show", str(fitted / "o"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bayesian"] is True


def test_the_seed_may_be_large(fitted: Path, tmp_path: Path) -> None:
    argv = ["fit", str(fitted / "good.csv"), "--target", "price", "--epochs", "1", "--seed", str(2**63 - 1)]
    torch.manual_seed(0)
    assert cli.main([*argv, "--out", str(tmp_path / "o")]) == 0
