"""A worker as its executor sees it: a process at the other end of a socket.

The socket has no name: no other process can reach it, and at the end of either side the
other one knows. Bytes go over it, never pickled objects: tokens there, and back first
the message that was found (without content); then the object id of its answer, just
before that is handed over; then a word if the worker stays for another one, and nothing
if it does not.
"""

import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

from fcl_flower.core.errors import RoundError

PROGRAM = Path(__file__).with_name("worker.py")


class Worker:
    """The process that answers the messages of one run."""

    def __init__(self, address: str) -> None:
        """Start one.

        Args:
            address: HOST:PORT of this machine, where the SuperNode has the messages.
        """
        self._channel, other = Pipe()
        with other:
            # By its path: see there.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), str(other.fileno()), address],
                pass_fds=[other.fileno()],
            )

    def send(self, token: str) -> None:
        """Hand over what opens a message.

        Raises:
            RoundError: the worker has ended.
        """
        try:
            self._channel.send_bytes(token.encode())
        except OSError as error:
            raise self._ended() from error

    def receive(self, seconds: float) -> bytes:
        """Return what the worker says next.

        Raises:
            RoundError: it has ended, or says nothing in time.
        """
        try:
            if self._channel.poll(seconds):
                return self._channel.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        raise RoundError(
            f"the client's worker did not answer in {seconds:.0f} s and was ended; "
            "the next message gets another"
        )

    def end(self) -> None:
        """End the process by force, wherever it is; wait until it is gone."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _ended(self) -> RoundError:
        code = self._process.wait()
        how = f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += ", as for want of memory"
        return RoundError(
            f"the client's worker ended {how}; the next message gets another"
        )
