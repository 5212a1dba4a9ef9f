"""A run that ends on the way and goes on, beside one that does not."""

import pytest
from fakes import (
    asked_in,
    diagnostics_of,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
)


class PulledPlugError(BaseException):
    """The server ends."""


def outcome(folder):
    """Return all that a run leaves and that does not depend on time."""
    texts = [(folder / name).read_text() for name in ("accuracy.csv", "scenario.json")]
    return summary_of(folder), rounds_of(folder), texts, diagnostics_of(folder)


def check_resumed(folder, config, number, kind="train"):
    """Let a run end in a round, and go on: it ends as one that did not, bit by bit.

    Args:
        folder: for both runs.
        config: from a folder and settings to a configuration.
        number: of the round in which client 1 has answered as the server ends.
        kind: of the message.

    Returns:
        the summary.
    """

    def pulled(who, message, reply):
        if who == 1 and asked_in(message, number, kind):
            raise PulledPlugError
        return reply

    def made(name):
        return config(folder / name, client_state=str(folder / f"{name}-state"))

    run_in_process(made("whole"))
    with pytest.raises(PulledPlugError):
        run_in_process(made("ended"), tamper=pulled)
    assert len(rounds_of(folder / "ended")) == number - 1
    assert not (folder / "ended" / "summary.json").exists()
    run_in_process(made("ended").replace(resume=True))

    assert outcome(folder / "ended") == outcome(folder / "whole")
    return summary_of(folder / "whole")


def small(**settings):
    """Return what makes the smallest run of a folder, for `check_resumed`."""
    return lambda folder, **more: tiny(folder, **settings, **more)
