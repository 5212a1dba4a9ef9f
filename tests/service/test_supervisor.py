"""What keeps a service going: it begins again, but not without an end."""

import pytest

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.core.files import COMMAND_LOCK, lock_folder
from fcl_flower.deploy.diagnosis import Obstacle
from fcl_flower.service import supervisor
from fcl_flower.service.status import Policy
from fcl_flower.service.supervisor import keep_serving


class SuperLink:
    """Runs that end as a test says: by an error, well, or by an interrupt."""

    def __init__(self, *ends):
        self.ends, self.stopped, self.began = list(ends), [], 0

    def run(self, config, *, report, on_start, server_app):
        assert server_app == "fcl_flower.flower_app.server_app:service"
        self.began += 1
        on_start(f"{self.began}")
        end = self.ends.pop(0)
        if end is not None:
            raise end

    def stop(self, run, report):
        self.stopped.append(run)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return a function that serves, and what was said and how long was waited."""

    class Served:
        def __init__(self):
            self.said, self.slept, self.obstacles, self.now = [], [], [], 0.0

        def __call__(self, superlink):
            config, policy = RunConfig().replace(output=str(tmp_path)), Policy(every=7)
            given = (config, policy, self.obstacle, self.said.append, self.sleep)
            keep_serving(superlink, *given)

        def obstacle(self):
            return self.obstacles.pop(0) if self.obstacles else None

        def sleep(self, seconds):
            self.slept.append(seconds)
            self.now += seconds

    made = Served()
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: made.now)
    return made


def test_a_service_that_ends_begins_again_after_longer_and_longer_pauses(
    tmp_path, served
):
    link = SuperLink(RoundError("a"), RoundError("b"), None, KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        served(link)

    assert served.slept == [10, 20, 40]
    assert "a; the service begins again in 10 s" in served.said
    assert "the run was stopped; the service begins again in 40 s" in served.said
    # What a run may have left behind is ended first, as it would keep the folder.
    assert link.stopped == ["1", "2", "3"]
    assert Policy.read(tmp_path).every == 7


def test_too_many_failures_within_an_hour_end_it_and_the_cause_is_said(served):
    link = SuperLink(*map(RoundError, "abcdefg"))

    with pytest.raises(RoundError, match=r"ended 5 times within \d+ s, at last as e;"):
        served(link)


def test_failures_that_are_rare_are_no_end(served, monkeypatch):
    monkeypatch.setattr(supervisor, "PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 1000.0)
    link = SuperLink(*map(RoundError, "abcdefg"), KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        served(link)

    assert len(served.slept) == 7


def test_a_server_that_is_away_is_waited_for_and_counts_as_no_failure(served):
    away = Obstacle("no program listens", "start it", True)
    served.obstacles = [None, away, away, *[None] * 3]
    link = SuperLink(RoundError("cut off"), KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        served(link)

    assert served.slept == [10.0]
    assert (
        served.said.count("no program listens: start it; trying again every 10 s") == 1
    )


def test_a_server_that_cannot_be_trusted_ends_it(served):
    served.obstacles = [Obstacle("it has a certificate of another", "leave", False)]
    with pytest.raises(RoundError, match="a certificate of another"):
        served(SuperLink())


def test_two_services_never_work_in_one_folder(tmp_path, served):
    with (
        lock_folder(tmp_path, "output", COMMAND_LOCK),
        pytest.raises(ConfigError, match="output: got"),
    ):
        served(SuperLink())
