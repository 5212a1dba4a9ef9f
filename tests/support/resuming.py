"""A run that ends on the way and goes on, beside one that does not."""

import pytest
from fakes import run_in_process, summary_of, tiny


class PulledPlugError(BaseException):
    """The server ends."""


def whole_and_resumed(folder, after, **given):
    """Return the summaries; the second run ended after some answers of clients."""

    def pulled(who, message, reply):
        asked.append(who)
        if len(asked) == after:
            raise PulledPlugError
        return reply

    def config(name):
        return tiny(folder / name, client_state=str(folder / f"{name}-state"), **given)

    asked = []
    run_in_process(config("whole"))
    with pytest.raises(PulledPlugError):
        run_in_process(config("broken"), tamper=pulled)
    run_in_process(config("broken").replace(resume=True))
    return summary_of(folder / "whole"), summary_of(folder / "broken")
