"""A SuperNode whose messages are answered by one process that stays.

It replaces Flower's SuperExec, which starts a process for each message. Here a
worker answers all messages of a run, one after another, as a SuperNode asks for them;
another run gets another worker, so that nothing of a run is there in the next. If a
worker ends or hangs, its message is answered by an error, and the next gets another.
"""

import signal
import subprocess
import sys
import time
from logging import ERROR
from multiprocessing import Pipe
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullAppMessagesRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from fcl_flower.core.errors import RoundError
from fcl_flower.core.log import log

WORKER = Path(__file__).with_name("worker.py")
QUICK, SLOW = 0.1, 1.0
"""Seconds between two looks: in the midst of a run, and when nothing has come for
`BUSY_SECONDS`. A look costs some milliseconds of a processor."""
BUSY_SECONDS = 30.0
IDLE_SECONDS = 600.0
"""Seconds until an idle worker is ended: a client without a run needs no memory."""
START_SECONDS = 120.0
"""Seconds that a worker may take until it has a message."""
PUSH_SECONDS = 120.0
"""Seconds that a worker may take to hand an answer to its SuperNode."""
SEEN_SECONDS = 2.0
"""Seconds until a SuperNode has seen an answer: it looks twice a second."""
NO_AGENTS = (
    "this client runs client apps alone, expected fcl client --speedups off for an "
    "agent"
)
ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"


class WorkerProcess:
    """The process that answers the messages of one run, at the other end of a socket.

    The socket has no name: no other process can reach it, and at the end of either side
    the other one knows. Bytes go over it, never pickled objects: tokens there, and back
    first the message that was found (without content); then the object id of its
    answer, just before that is handed over; then a word if the worker stays for another
    one, and nothing if it does not.
    """

    def __init__(self, address: str) -> None:
        """Start one for the SuperNode at an address of this machine."""
        self._channel, other = Pipe()
        with other:
            # By its path: see there.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER), str(other.fileno()), address],
                pass_fds=[other.fileno()],
            )

    def send(self, token: str) -> None:
        """Hand over what opens a message; a `RoundError` if the worker has ended."""
        try:
            self._channel.send_bytes(token.encode())
        except OSError as error:
            raise self._ended() from error

    def receive(self, seconds: float) -> bytes:
        """Wait for what the worker says next, or raise a `RoundError`."""
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


class Executor:
    """Answers the messages of one SuperNode."""

    def __init__(self, address: str, secret: bytes) -> None:
        """Start nothing yet; the secret is shared with the SuperNode alone."""
        self._address = address
        self._supernode = self._client(
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=[ACQUIRE_TASK]
            )
        )
        self._worker: WorkerProcess | None = None
        self._run = 0
        self._last = time.monotonic()

    def run(self) -> None:
        """Answer messages for as long as this process lasts."""
        while True:
            if not self.look():
                time.sleep(self.rest())

    def look(self) -> bool:
        """Answer one message if there is one; tell whether there was."""
        kinds = [TaskType.CLIENT_APP, TaskType.AGENT_APP]  # all that a message is for
        request = AcquireTaskRequest(supported_task_types=kinds)
        try:
            found: AcquireTaskResponse = self._supernode.AcquireTask(request)
        except httpx.TransportError:  # it has not started yet, or ends
            return False
        if not found.token:
            return False
        if found.task.type == TaskType.CLIENT_APP:
            self._answer(found.token, found.task.run_id)
        else:
            self._fail(found.token, None, NO_AGENTS)
        self._last = time.monotonic()
        return True

    def rest(self) -> float:
        """Name the seconds until the next look; end a worker that has no work."""
        quiet = time.monotonic() - self._last
        if quiet > IDLE_SECONDS:
            self._end_worker()
        return QUICK if quiet < BUSY_SECONDS else SLOW

    def close(self) -> None:
        """End what there is of it."""
        self._end_worker()
        self._supernode.close()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _answer(self, token: str, run: int) -> None:
        if self._worker is None or self._run != run:
            self._end_worker()
            self._worker, self._run = WorkerProcess(self._address), run
        worker, message, answer = self._worker, None, ""
        try:
            worker.send(token)
            message = ProtoMessage.FromString(worker.receive(START_SECONDS))
            # A server waits no longer, so that nothing is lost with the worker.
            answer = worker.receive(message.metadata.ttl).decode()
            stays = worker.receive(PUSH_SECONDS)
        except RoundError as error:
            log(ERROR, "%s", error)
            self._end_worker()
            if answer:
                self._withdraw(token, answer)
            else:
                self._fail(token, message, str(error))
        else:
            if not stays:
                self._end_worker()

    def _fail(self, token: str, message: ProtoMessage | None, reason: str) -> None:
        # Where this fails, the SuperNode does it after a minute without a word.
        supernode = self._client(RuntimeTokenHttpInterceptor(token))
        try:
            if message is None:
                pulled = supernode.PullMessages(PullAppMessagesRequest())
                (message,) = pulled.messages_list
            question = message_from_proto(message)
            about = question.metadata
            context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
            reply = Message(Error(code=0, reason=reason), reply_to=question)
            push_message(supernode, reply, context)
            push_task_output(supernode, None, SubStatus.FAILED, reason)
        except (httpx.HTTPError, ValueError) as error:
            said = str(error).partition("\n")[0]
            log(ERROR, "this could not be told to the server: %s", said)
        finally:
            supernode.close()

    def _withdraw(self, token: str, answer: str) -> None:
        # A SuperNode waits without end for the rest of an answer. An error in its place
        # would be a second one, which stands for the answer to the next message and
        # puts all later ones off by one. So the server misses this one; if nothing of
        # it has come, the SuperNode answers when it has heard nothing for a minute.
        time.sleep(SEEN_SECONDS)
        supernode = self._client(RuntimeTokenHttpInterceptor(token))
        try:
            found = ConfirmMessageReceivedRequest(message_object_id=answer)
            supernode.ConfirmMessageReceived(found)  # forgets what any message holds
        except httpx.HTTPError as error:
            log(ERROR, "the SuperNode may wait for an answer in vain: %s", error)
        finally:
            supernode.close()

    def _client(self, identity: ProtobufClientInterceptor) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor("SuperExec"), identity],
        )
