"""Make the data sets of the papers' tables from public repositories.

    python experiments/reproduce/data.py FOLDER [--only NAME] [--clone OWNER/NAME=PATH]

Each set becomes a file ``NAME.npz`` in FOLDER with the arrays of a named data set. The
repositories are cloned with git, or read where ``--clone`` says that they lie. A set
whose digest is not the recorded one is written, too, and the program ends with 1.
"""

import argparse
import gzip
import hashlib
import io
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from typing_extensions import override

from fcl_flower.data.scenarios.groups import CIFAR100_SUPERCLASSES

Array = npt.NDArray[Any]

CIFAR100 = sorted(chain.from_iterable(CIFAR100_SUPERCLASSES.values()))
"""The names of the fine labels of CIFAR-100, in the official order."""

CIFAR10 = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]

NOT_EVERYWHERE = "dataset/Cifar10/train/75.npz"
"""A file that some copies of the repository lack."""

PACS_CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
PACS_PIXELS = 84
SIGN_PIXELS = 32
HELD_OUT = 0.2
"""The share of each class that is kept for tests where a set has no official split."""


class Repository(NamedTuple):
    """A commit of a public repository, whose files are read by git."""

    name: str
    commit: str

    def clone(self, folder: Path) -> "Clone":
        """Fetch the commit alone into a folder."""
        path = folder / self.name.replace("/", "+")
        _git(folder, "init", "-q", str(path))
        url = f"https://github.com/{self.name}.git"
        _git(path, "fetch", "-q", "--depth", "1", url, self.commit)
        return Clone(path, self.commit)


class Clone(NamedTuple):
    """A commit in a local git repository."""

    path: Path
    commit: str

    def files(
        self, folder: str, without: Collection[str] = ()
    ) -> Iterator[tuple[str, bytes]]:
        """Read the files below a folder, in the order of their paths."""
        listed = _git(self.path, "ls-tree", "-r", "-z", self.commit, f"{folder}/")
        entries = [entry.split("\t", 1) for entry in listed.decode().split("\0")[:-1]]
        entries = [entry for entry in entries if entry[1] not in without]
        # One process reads every file. A file of queries cannot fill a pipe.
        with tempfile.TemporaryFile() as queries:
            for description, _ in entries:
                queries.write(description.split()[2].encode() + b"\n")
            queries.seek(0)
            with subprocess.Popen(
                ["git", "-C", str(self.path), "cat-file", "--batch"],
                stdin=queries,
                stdout=subprocess.PIPE,
            ) as process:
                assert process.stdout is not None
                for _, path in entries:
                    size = int(process.stdout.readline().split()[2])
                    yield path, process.stdout.read(size)
                    process.stdout.read(1)

    def file(self, path: str) -> bytes:
        """Read one file."""
        return _git(self.path, "show", f"{self.commit}:{path}")


def _git(path: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(path), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


class _ArraysOnly(pickle.Unpickler):
    """Read a pickle of arrays in a dictionary, and refuse every other object."""

    @override
    def find_class(self, module: str, name: str) -> object:
        if name in {"_reconstruct", "ndarray", "dtype"} and module.startswith("numpy"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}: expected arrays only")


def _pickled_arrays(content: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(content)) as stored:
        raw = io.BytesIO(stored.zip.read("data.npy"))
    np.lib.format.read_magic(raw)
    np.lib.format.read_array_header_1_0(raw)
    return dict(_ArraysOnly(raw).load().item())


def _split(x: Array, y: Array, share: float = HELD_OUT) -> dict[str, Array]:
    """Keep a share of each class for tests, drawn with seed 0."""
    rng, test = np.random.RandomState(0), np.zeros(len(y), bool)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        test[members[: round(share * len(members))]] = True
    return _arrays(x[~test], y[~test], x[test], y[test])


def _arrays(*arrays: Array) -> dict[str, Array]:
    return dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True))


def cifar(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make CIFAR-10 and CIFAR-100, with a sixth of each class for tests.

    The source has images as ``(x / 255 - 0.5) / 0.5``. It merges the official splits,
    which cannot be told apart any more. CIFAR-10 is without `NOT_EVERYWHERE`,
    so it has 58,865 of its 60,000 images.
    """
    sets = {}
    for name, classes in (("Cifar10", CIFAR10), ("Cifar100", CIFAR100)):
        files = clone.files(f"dataset/{name}", without=[NOT_EVERYWHERE])
        parts = [_pickled_arrays(file) for path, file in files if path.endswith(".npz")]
        x = np.concatenate([part["x"] for part in parts]).transpose(0, 2, 3, 1)
        y = np.concatenate([part["y"] for part in parts]).astype(np.int64)
        pixels = np.rint((x * 0.5 + 0.5) * 255).astype(np.uint8)
        names = {"class_names": np.array(classes)}
        sets[name.lower()] = {**_split(pixels, y, 1 / 6), **names}
    return sets


def mnist(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make MNIST in its official split."""
    return {"mnist": _labelled_folders(clone, "")}


def fashion_mnist(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make Fashion-MNIST in its official split."""
    return {"fashion_mnist": _labelled_folders(clone, "fashion_mnist_images/")}


def _labelled_folders(clone: Clone, root: str) -> dict[str, Array]:
    arrays = []
    for split in ("train", "test"):
        files = list(clone.files(f"{root}{split}"))
        arrays.append(np.stack([_pixels(content) for _, content in files]))
        arrays.append(np.array([int(path.split("/")[-2]) for path, _ in files]))
    return _arrays(*arrays)


def mnist_m(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make MNIST-M: digits over patches of photographs, in the source's split."""
    arrays = []
    for split in ("train", "test"):
        folder = f"mnist_m/mnist_m_{split}"
        images = {
            Path(path).name: _pixels(content) for path, content in clone.files(folder)
        }
        lines = clone.file(f"{folder}_labels.txt").decode().split("\n")
        rows = [line.split() for line in lines if line.strip()]
        arrays.append(np.stack([images[name] for name, _ in rows]))
        arrays.append(np.array([int(label) for _, label in rows]))
    return {"mnist_m": _arrays(*arrays)}


def notmnist(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make the letters of notMNIST that the source has, each image once.

    The source's larger file is damaged, so that its 10,000 test images are all.
    """
    content = gzip.decompress(clone.file("t10k-images-idx3-ubyte.gz"))
    images = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)
    content = gzip.decompress(clone.file("t10k-labels-idx1-ubyte.gz"))
    labels = np.frombuffer(content, np.uint8, offset=8).astype(np.int64)
    _, first = np.unique(images.reshape(len(images), -1), axis=0, return_index=True)
    kept = np.sort(first)
    names = {"class_names": np.array(list("ABCDEFGHIJ"))}
    return {"notmnist": {**_split(images[kept], labels[kept]), **names}}


def traffic_signs(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make the German traffic signs that the source has, of all 43 kinds.

    The pictures of one sign by the road are a track. No track is in both splits.
    """
    images: list[Array] = []
    labels: list[int] = []
    tests: list[bool] = []
    for kind in range(43):
        tracks: dict[str, list[Array]] = {}
        for path, content in clone.files(f"gtsrb/{kind}"):
            if content:  # two of the source's files are empty
                track = Path(path).name.split("_")[0]
                tracks.setdefault(track, []).append(_pixels(content, SIGN_PIXELS))
        order = np.random.RandomState(kind).permutation(sorted(tracks))
        held_out = {*order[: max(1, round(HELD_OUT * len(order)))]}
        for track, frames in tracks.items():
            images += frames
            labels += [kind] * len(frames)
            tests += [track in held_out] * len(frames)
    x, y, test = np.stack(images), np.array(labels), np.array(tests)
    names = {"class_names": np.array([f"sign {kind}" for kind in range(43)])}
    return {"traffic_signs": {**_arrays(x[~test], y[~test], x[test], y[test]), **names}}


def pacs(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make a set of each style of PACS: photo, art painting, cartoon and sketch."""
    sets = {}
    for style in ("photo", "art_painting", "cartoon", "sketch"):
        files = list(clone.files(f"PACS/{style}"))
        x = np.stack([_pixels(content, PACS_PIXELS) for _, content in files])
        y = np.array([PACS_CLASSES.index(path.split("/")[-2]) for path, _ in files])
        names = {"class_names": np.array(PACS_CLASSES)}
        sets[f"pacs_{style}"] = {**_split(x, y), **names}
    return sets


def _pixels(content: bytes, size: int = 0) -> Array:
    image: Image.Image = Image.open(io.BytesIO(content))
    if size:
        image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8)


HEART_COLUMNS = (0, 1, 2, 3, 4, 6, 7, 8, 9)
"""The columns that every hospital recorded: all but fbs, slope, ca and thal."""


def heart(clone: Clone) -> dict[str, dict[str, Array]]:
    """Make a table of each of four hospitals.

    Columns that some hospital hardly recorded, and patients with missing values, are
    left out. The kinds of chest pain and of the resting electrocardiogram get columns
    of their own. All columns are scaled by the mean and the standard deviation over the
    training patients of all hospitals.
    """
    sets = {}
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        text = clone.file(f"heart+disease/processed.{hospital}.data").decode()
        patients = [line.split(",") for line in text.splitlines() if line[0].isdigit()]
        chosen = [[cells[at] for at in (*HEART_COLUMNS, -1)] for cells in patients]
        rows = [[float(cell) for cell in cells] for cells in chosen if "?" not in cells]
        table = np.array(rows)
        pain, cardiogram = table[:, 2:3], table[:, 5:6]
        plain = np.delete(table[:, :-1], (2, 5), axis=1)
        x = np.hstack([plain, pain == (1, 2, 3), cardiogram == (1, 2)])
        sets[f"heart_{hospital}"] = _split(x, (table[:, -1] > 0).astype(np.int64))
    train = np.concatenate([arrays["x_train"] for arrays in sets.values()])
    mean, deviation = train.mean(0), train.std(0)
    for arrays in sets.values():
        for key in ("x_train", "x_test"):
            arrays[key] = ((arrays[key] - mean) / deviation).astype(np.float32)
        arrays["class_names"] = np.array(["well", "ill"])
    return sets


class Source(NamedTuple):
    """A repository, the function that makes its sets, and the digests of the sets."""

    repository: Repository
    make: Callable[[Clone], dict[str, dict[str, Array]]]
    digests: dict[str, str]


SOURCES = {
    "cifar": Source(
        Repository("zeruishao/FedLoRE", "d245aaf98f9742255aa95f0433f137e4b8c5149a"),
        cifar,
        {"cifar10": "36980d3d5b60fd8e", "cifar100": "054481af95a7caaa"},
    ),
    "mnist": Source(
        Repository("rasbt/mnist-pngs", "d26bd33bf1e454dd15bd4fe8b8ba64c76308f91c"),
        mnist,
        {"mnist": "8fde628e573bc2a9"},
    ),
    "fashion_mnist": Source(
        Repository("Sentdex/nnfs_book", "6c459c9ebadcccb2b4967da1cce1b57ed32e2791"),
        fashion_mnist,
        {"fashion_mnist": "42a89398006adf31"},
    ),
    "mnist_m": Source(
        Repository(
            "ShichengChen/Domain-Adversarial-Training-of-Neural-Networks",
            "dae4e088b27b9e0d6c8d586fa9972f86c97cb503",
        ),
        mnist_m,
        {"mnist_m": "20d918a16f1f5643"},
    ),
    "notmnist": Source(
        Repository(
            "davidflanagan/notMNIST-to-MNIST",
            "17823f4d4a3acd8317c07866702d2eb2ac79c7a0",
        ),
        notmnist,
        {"notmnist": "f0f418a70413f190"},
    ),
    "traffic_signs": Source(
        Repository("jovanzac/Traffic", "4218b162fecd7ae1b1fa5aa9c33140c8d3dd9fc0"),
        traffic_signs,
        {"traffic_signs": "4b5ae5083e36d8a6"},
    ),
    "pacs": Source(
        Repository(
            "MachineLearning2020/Homework3-PACS",
            "d586a6cf3db84896fb6cc465c7bf51bdaf6d65d8",
        ),
        pacs,
        {
            "pacs_photo": "761b80e722cde3dc",
            "pacs_art_painting": "f85ff7f6db339be9",
            "pacs_cartoon": "5df5579eeb340d2c",
            "pacs_sketch": "dd004a24f8656fcd",
        },
    ),
    "heart": Source(
        Repository(
            "peter-biz/AI-Project-1", "ae41f9ba5d2f233e65f458d928f608cc73ece998"
        ),
        heart,
        {
            "heart_cleveland": "72b5f037b6edc57b",
            "heart_hungarian": "2a6d6937e50f95b9",
            "heart_switzerland": "02239d3220557e2c",
            "heart_va": "42e0f8ffb15345b9",
        },
    ),
}


def digest(arrays: dict[str, Array]) -> str:
    """Compute a digest of the arrays, their shapes and dtypes."""
    total = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        total.update(f"{key} {array.dtype} {array.shape} ".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def main() -> int:
    """Make the sets, and say of each whether its digest is the recorded one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=SOURCES, nargs="+", default=list(SOURCES))
    parser.add_argument("--clone", metavar="OWNER/NAME=PATH", action="append")
    arguments = parser.parse_args()
    known = {source.repository.name for source in SOURCES.values()}
    paths = {}
    for given in arguments.clone or ():
        name, _, place = given.partition("=")
        if name not in known or not place:
            names = ", ".join(sorted(known))
            parser.error(f"--clone: got {given!r}, expected NAME=PATH, NAME of {names}")
        paths[name] = Path(place)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    wrong = False
    for source in map(SOURCES.__getitem__, arguments.only):
        name, commit = source.repository
        with tempfile.TemporaryDirectory() as folder:
            try:
                clone = (
                    Clone(paths[name], commit)
                    if name in paths
                    else source.repository.clone(Path(folder))
                )
                made = source.make(clone)
            except subprocess.CalledProcessError as error:
                said = error.stderr.decode().strip()
                raise SystemExit(f"{name} at {commit}: git says {said!r}") from None
        for set_name, arrays in made.items():
            path = arguments.folder / f"{set_name}.npz"
            np.savez_compressed(path, allow_pickle=False, **arrays)
            found, expected = digest(arrays), source.digests.get(set_name)
            wrong |= found != expected
            sizes = f"{len(arrays['x_train'])} train, {len(arrays['x_test'])} test"
            print(f"{path}: {sizes}, digest {found}, expected {expected}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
