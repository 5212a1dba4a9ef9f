"""What a hostile answer to a query does to a run: as much as none."""

import numpy as np
from fakes import asked_in, failure, rounds_of, run_in_process
from mutants import array_of, with_array

from fcl_flower.rounds import messages
from fcl_flower.rounds.replies import SURVEY
from fcl_flower.rounds.transport import Reply


def hostile_and_absent(folder, config, number, group, tensor):
    """Return the rounds of two runs: client 1 answers hostilely in one, or not at all.

    Args:
        folder: for both runs.
        config: from a folder to a configuration.
        number: of the round with the query.
        group: of the answer.
        tensor: in it, which comes with its sign changed.
    """

    def hostile(who, message, reply):
        if who != 1 or not asked_in(message, number, SURVEY):
            return reply
        values = messages.decode_payload(reply.content)[group][tensor]
        bad = array_of(-np.asarray(values))
        return Reply(message, with_array(reply.content, group, tensor, bad))

    def absent(who, message, reply):
        gone = who == 1 and asked_in(message, number, SURVEY)
        return failure(message, "gone") if gone else reply

    run_in_process(config(folder / "a"), tamper=hostile)
    run_in_process(config(folder / "b"), tamper=absent)
    return rounds_of(folder / "a"), rounds_of(folder / "b")
