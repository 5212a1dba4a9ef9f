"""The command that writes a run's numbers and charts for others."""

import csv
import hashlib
import json
import sys

import pytest
from run_folders import edit, make_run, make_under_way

from fcl_flower.cli import run as cli_run
from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.run_folder import clients_bytes


@pytest.fixture
def study(tmp_path):
    for seed in (1, 2):
        for name, local_only in (("with", False), ("alone", True)):
            folder = tmp_path / "study" / f"{name}-seed{seed}"
            make_run(folder, seed=seed, local_only=local_only)
            (folder / "config.toml").write_text(RunConfig().to_file())
    return tmp_path / "study"


def test_a_study_gives_sheets_and_a_table_in_its_folder(study, fcl):
    answer = fcl("export", "study", "--format", "csv,latex")

    names = {"accuracy.csv", "rounds.csv", "runs.csv", "methods.csv", "methods.tex"}
    assert answer.code == 0
    assert {path.name for path in (study / "export").iterdir()} == names
    assert len(answer.out.splitlines()) == len(names)
    with (study / "export" / "methods.csv").open(newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert labels == ["fedweit local-only", "fedweit"]


def test_the_reference_and_the_folder_are_the_users(study, tmp_path, fcl):
    options = ("--reference", "fedweit local-only", "--output", "out")

    assert fcl("export", "study", *options).code == 0

    with (tmp_path / "out" / "methods.csv").open(newline="") as file:
        found = {row["label"]: row["reference"] for row in csv.DictReader(file)}
    assert found == {"fedweit local-only": "", "fedweit": "fedweit local-only"}
    answer = fcl("export", "study", "--reference", "mine")
    answer.is_refusal("reference: got 'mine', expected one of ", "fedweit local-only")


def test_a_run_gives_the_charts_of_its_page_and_several_those_of_theirs(study, fcl):
    pytest.importorskip("matplotlib", reason="of the extra figures")

    assert fcl("export", "study/with-seed1", "--format", "svg").code == 0
    assert fcl("export", "study", "--format", "svg").code == 0

    own = {p.name for p in (study / "with-seed1/export/figures").glob("*.svg")}
    all_ = {p.name for p in (study / "export/figures").glob("*.svg")}
    assert "01-accuracy-of-every-task-over-time.svg" in own
    assert "01-average-accuracy-of-every-method.svg" in all_


def test_a_format_or_a_folder_that_is_none_is_refused_before_anything_is_written(
    study, tmp_path, fcl
):
    before = sorted(tmp_path.rglob("*"))

    answer = fcl("export", "study", "--format", "csv,xls")
    answer.is_refusal(
        "format: got 'xls', expected one of csv, svg, latex, parquet, pdf"
    )
    fcl("export", "study", "nowhere").is_refusal("folder: got 'nowhere'")

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("formats", "package", "extra"),
    [
        ("csv,parquet", "pyarrow", "frames"),
        ("csv,svg", "matplotlib", "figures"),
        ("csv,pdf", "matplotlib", "figures"),
    ],
)
def test_a_format_whose_package_is_missing_is_refused_before_anything_is_written(
    study, fcl, monkeypatch, formats, package, extra
):
    monkeypatch.setitem(sys.modules, package, None)

    answer = fcl("export", "study", "--format", formats)

    answer.is_refusal(f"got no package {package}", f"'fcl-flower[{extra}]'")
    assert not (study / "export").exists()


def test_a_run_that_goes_on_is_not_taken_for_a_finished_one(study, tmp_path, fcl):
    make_under_way(study / "more-seed1")
    answer = fcl("export", "study")
    answer.is_refusal("folder: got 'study/more-seed1'", "fcl report shows one so far")
    fcl("export", "study/more-seed1").is_refusal("folder: got 'study/more-seed1'")
    answer = fcl("export-model", "study/more-seed1", "--client", "0", "--task", "0")
    answer.is_refusal("folder: got 'study/more-seed1'", "after its first round")
    assert not (study / "export").exists()
    assert fcl("export", "study/with-seed1", "study/with-seed2").code == 0


def test_runs_of_one_title_that_are_not_of_one_scenario_are_no_row(study, fcl):
    edit(study / "with-seed2", "summary.json", dataset="rotated-90:cifar100")

    answer = fcl("export", "study", "--format", "csv,latex")

    answer.is_refusal("study/with-seed2: dataset is 'rotated-90:cifar100', expected")
    assert not (study / "export").exists()


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        ("scenario.json", lambda text: text[:-40], "expected JSON"),
        ("journal.jsonl", lambda text: text.replace("loss", "lost"), "wrong checksum"),
    ],
)
def test_a_damaged_file_is_named(study, fcl, name, damage, expected):
    path = study / "with-seed2" / name
    path.write_text(damage(path.read_text()))

    fcl("export", "study").is_refusal(f"study/with-seed2/{name}: got ", expected)
    assert not (study / "export").exists()


def test_two_runs_of_one_title_and_seed_are_no_row(study, fcl):
    make_run(study / "again-seed1", seed=1)
    (study / "again-seed1" / "config.toml").write_text(RunConfig().to_file())

    fcl("export", "study").is_refusal("label 'fedweit' is used by two runs with the s")
    assert not (study / "export").exists()


@pytest.mark.run
def test_the_network_of_a_client_is_written_and_its_accuracy_told(tmp_path, fcl):
    small = ("--clients", "1", "--tasks", "1", "--rounds", "1", "--dataset", "digits")
    kept = ("--set", "run.keep_clients=true", "--output", "run")
    assert fcl("simulate", "--strategy", "fedavg", *small, *kept).code == 0
    asked = ("export-model", "run", "--client", "0", "--task", "0")

    answer = fcl(*asked)

    assert answer.code == 0
    path, about, told = answer.out.splitlines()
    assert path == "run/export/client-0-task-0.pt"
    assert about == "run/export/client-0-task-0.json"
    written = json.loads((tmp_path / about).read_text())
    digest = hashlib.sha256((tmp_path / path).read_bytes()).hexdigest()
    assert written["files"]["client-0-task-0.pt"]["sha256"] == digest
    assert told == f"accuracy {written['accuracy']['value']:.3f} on " + told[18:]
    fcl(*asked, "--format", "pb").is_refusal("format: got 'pb', expected one of pt")
    assert fcl(*asked, "--output", "out").code == 0
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"client-0-task-0.pt", "client-0-task-0.json"}


@pytest.mark.run
@pytest.mark.parametrize("worth", [0, 10**9])
def test_the_command_says_what_large_states_take_and_how_to_keep_none(
    worth, fcl, tmp_path, monkeypatch
):
    monkeypatch.setattr(cli_run, "_WORTH_A_LINE", worth)
    small = ("--clients", "1", "--tasks", "1", "--rounds", "1", "--dataset", "digits")

    answer = fcl("simulate", "--strategy", "fedavg", *small, "--output", "run")

    assert answer.code == 0
    assert clients_bytes(tmp_path / "run") > 0
    assert ("run/.flower/clients keeps" in answer.out) == (worth == 0)
    assert ("--set run.keep_clients=false" in answer.out) == (worth == 0)
