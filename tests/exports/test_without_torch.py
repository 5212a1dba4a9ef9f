"""The example that predicts by onnxruntime alone, with models of both sides."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import watched
from PIL import ExifTags, Image

import fcl_flower as fcl
from fcl_flower.exports.files import WRITERS
from fcl_flower.exports.manifest import manifest
from fcl_flower.exports.networks import exported
from fcl_flower.simulation.in_process import InProcessTransport, run_simulated

SCRIPT = Path(__file__).parents[2] / "examples" / "predict_without_torch.py"
LIMIT = 150 * 2**20
MEASURED = r"""
import re, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
# Not ru_maxrss, which a process has from the one that has started it.
(peak,) = re.findall(r"VmHWM\D+(\d+) kB", open("/proc/self/status").read())
loaded = ("torch" in sys.modules, "fcl_flower" in sys.modules)
print(1024 * int(peak), *loaded, file=sys.stderr)
"""


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Run a federation in this process whose clients are taken for real ones."""
    monkeypatch.setattr(InProcessTransport, "simulated", False)

    def of(**settings):
        config = fcl.RunConfig.from_settings(**settings, output=str(tmp_path / "run"))
        places = [
            {"state-path": str(tmp_path / f"state-{client}" / "memory")}
            for client in range(config.scenario.clients)
        ]
        run_simulated(InProcessTransport(range(100, 102), config, places), config)

    return of


def told(model, *inputs):
    """Return the example's lines, and what it took."""
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, SCRIPT, model, *inputs],
        capture_output=True,
        text=True,
        timeout=120,
        env={"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    peak, *loaded = ended.stderr.split()[-3:]
    assert loaded == ["False", "False"]
    assert int(peak) < LIMIT
    return [line.split("\t") for line in ended.stdout.splitlines()]


def saved_pictures(folder):
    """Save a plain picture, a phone's that lies on its side, and transparent ones."""
    rng, turned = np.random.default_rng(0), Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    grey, wide = rng.integers(0, 256, (8, 8), np.uint8), rng.integers(0, 256, (6, 9, 3))
    glass = Image.fromarray(rng.integers(0, 256, (8, 8, 4), np.uint8))
    found = {
        "grey.png": (Image.fromarray(grey), {}),
        "turned.jpg": (Image.fromarray(wide.astype(np.uint8)), {"exif": turned}),
        "glass.png": (glass, {}),
        "index.png": (glass.convert("P"), {"transparency": 7}),
    }
    for name, (image, how) in found.items():
        image.save(folder / name, **how)
    return [folder / name for name in found]


@pytest.mark.process
@pytest.mark.parametrize("whose", ["state-1", "run"])
def test_pictures_are_predicted_as_by_the_client_or_the_server(
    whose, federation, tmp_path
):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="of the extra onnx")
    head = {"head": "single"} if whose == "run" else {}
    federation(**watched.SETTINGS, strategy="fedavg", **head)
    pictures = saved_pictures(tmp_path)

    model, task = fcl.load(tmp_path / whose), None if head else 0
    found = exported(model, task)
    WRITERS["onnx"](found, manifest(found), tmp_path / "model.onnx")

    lines = told(tmp_path / "model.onnx", *pictures)

    assert [line[0] for line in lines] == [str(path) for path in pictures]
    for path, (_, name, chance) in zip(pictures, lines, strict=True):
        (live,) = model.predict(path, task)
        assert name == live.name
        assert float(chance) == pytest.approx(live.probability, abs=2e-4)


@pytest.mark.run
def test_the_manifest_of_a_clients_version_says_whose_it_is(federation, tmp_path):
    federation(**watched.SETTINGS, strategy="fedweit")
    found = exported(fcl.load(tmp_path / "state-1", version="task-01"), 0)

    about = json.loads(json.dumps(manifest(found)))

    assert about["run"]["client"] == 1
    assert about["run"]["version"] == "task-01"
    assert about["run"]["strategy"] == "fedweit"
    assert len(about["tasks"]) == 1
