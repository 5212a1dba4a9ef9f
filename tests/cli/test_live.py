"""Commands with --live: what their page shows while something goes on."""

import http.client
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_folders import make_run, make_under_way

from fcl_flower.core.errors import RoundError
from fcl_flower.core.processes import free_port
from fcl_flower.deploy import diagnosis
from fcl_flower.deploy.submission import SuperLink
from fcl_flower.results import monitors as live
from fcl_flower.simulation import progress
from fcl_flower.simulation.local_runs import Job

TINY = ["--clients", "2", "--tasks", "2", "--rounds", "1", "--classes-per-task", "2"]


def got(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/")
    reply = connection.getresponse()
    found = reply.status, reply.read().decode()
    connection.close()
    return found


@pytest.fixture
def looks(monkeypatch):
    """Let no command run anything: what it would do is look at its own page."""
    port, seen = free_port(), []
    monkeypatch.setattr(live, "SHARE", 1e9)
    monkeypatch.setattr(live, "LOOKS_SECONDS", 0)

    def looking(leave):
        def run_all(backend, jobs, watch):
            for job in jobs:
                seen.append(got(port))
                leave(job)
                seen.append(got(port))
                yield job, RoundError("that is all")

        monkeypatch.setattr(progress, "run_all", run_all)
        return port, seen

    return looking


def test_a_simulation_serves_the_page_of_its_run_and_says_where_first(fcl, looks):
    port, seen = looks(lambda job: make_under_way(job.folder / "x").rename("y"))

    answer = fcl("simulate", *TINY, "--live", "--live-port", port, "--output", "here")

    assert answer.out.splitlines()[0] == f"live: http://127.0.0.1:{port}/"
    assert seen[0][0] == 503
    assert "folder: got 'here', expected that of a run" in seen[0][1]
    assert answer.err == "fcl: that is all\n"


def test_the_page_of_a_simulation_is_that_of_its_folder(fcl, looks):
    def leave(job):
        made = make_under_way(job.folder / "made", strategy="fedavg")
        for path in made.iterdir():
            path.rename(job.folder / path.name)

    port, seen = looks(leave)
    fcl("simulate", *TINY, "--live", "--live-port", port, "--output", "here")

    status, page = seen[1]
    assert status == 200
    assert "<title>fedavg, under way</title>" in page
    assert "connect-src 'self'" in page
    assert 'id="live"' in page


def test_a_run_of_a_real_federation_serves_the_page_of_its_folder(
    fcl, looks, monkeypatch
):
    """Its server, which is of this machine, writes that folder."""

    def leave(job):
        make_under_way(job.folder, strategy="fedavg")

    port, seen = looks(leave)

    def run(self, config, watch, **_):
        place = Job(SimpleNamespace(config=config), Path(config.run.output))
        assert len(list(progress.run_all(None, [place], watch))) == 1

    monkeypatch.setattr(diagnosis, "diagnose_server", lambda *server: None)
    monkeypatch.setattr(SuperLink, "connected", lambda self: 2)
    monkeypatch.setattr(SuperLink, "run", run)
    shape = ("--strategy", "fedavg", "--tasks", "2", "--classes-per-task", "2")
    page = ("--live", "--live-port", port, "--output", "here")

    answer = fcl("run", "--insecure", *shape, *page)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0] == f"live: http://127.0.0.1:{port}/"
    assert [status for status, _ in seen] == [503, 200]
    assert "<title>fedavg, under way</title>" in seen[1][1]
    with pytest.raises(ConnectionRefusedError):
        got(port)


def test_a_comparison_serves_the_page_of_all_its_runs_so_far(fcl, looks):
    def leave(job):
        name = job.run.config.strategy.name
        make = make_run if name == "local" else make_under_way
        made = make(job.folder.with_name("made"), strategy=name)
        (made / "report.html").touch()
        if job.folder.exists():
            job.folder.rmdir()
        made.rename(job.folder)

    port, seen = looks(leave)
    command = ["compare", "--strategies", "fedavg", *TINY, "--live"]
    answer = fcl(*command, "--live-port", port, "--output", "here")

    assert answer.out.splitlines()[0] == f"live: http://127.0.0.1:{port}/"
    assert [status for status, _ in seen] == [503, 200, 200, 200]
    assert "no run has begun" in seen[0][1]
    assert "fedavg seed 1, under way" in seen[1][1]
    assert "local</" in seen[3][1]
    assert 'id="live"' in seen[3][1]
    assert "<a href" not in seen[3][1], "nothing but the page is served"


def test_a_file_on_the_disk_follows_nobody(tmp_path, fcl):
    make_under_way(tmp_path / "run")
    assert fcl("report", "run").out == "run/report.html\n"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "under way" in page
    for word in ("connect-src", 'id="live"', "fetch("):
        assert word not in page


def test_a_studys_folder_gives_the_comparison_of_its_runs_so_far(tmp_path, fcl):
    make_run(tmp_path / "study" / "local-seed1", strategy="local")
    make_under_way(tmp_path / "study" / "fedavg-seed1", strategy="fedavg")
    (tmp_path / "study" / "export").mkdir()

    assert fcl("report", "study").out == "study/comparison.html\n"
    page = (tmp_path / "study" / "comparison.html").read_text()
    assert "fedavg seed 1, under way" in page
    assert "local</" in page
    assert fcl("report", "study", "--output", "other").out == "other/comparison.html\n"
    again = fcl("report", "study/local-seed1", "study/fedavg-seed1")
    assert again.out == "comparison.html\n"
