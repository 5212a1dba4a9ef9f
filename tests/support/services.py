"""A service in one process, with clients that outlive its server."""

from contextlib import ExitStack

from fakes import InProcessGrid, rounds_of, summary_of
from local_runs import table

from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.client import forget_runs
from fcl_flower.federation.messages import decode_request
from fcl_flower.federation.service import Service
from fcl_flower.flower.identity import flower_identity
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.results import service as files
from fcl_flower.results.service import read_status


class KilledError(BaseException):
    """The server ends."""


class DoneError(BaseException):
    """The test has seen enough."""


def deliver(place, number, classes=("c0", "c1")):
    """Give a client a task, if it does not have it yet."""
    task = place / f"task-{number:02}"
    if not task.exists():
        task.mkdir(parents=True)
        seed = 10 * number + ord(place.name)
        (task / "train.csv").write_text(table(classes, seed, each=20))


class World:
    """Clients that outlive a server, a clock, and what is delivered when it waits.

    ``waits(learned, now)`` is called when the service has learned so many tasks and
    waits. Of what happens one after another, `kill_at` is the number of the event
    before which the server is killed.
    """

    def __init__(self, folder, policy, waits, clients=2, **settings):
        self.folder, self.waits, self.now = folder, waits, 1000.0
        self.places = [folder / name for name in "abcd"[:clients]]
        for place in self.places:
            place.mkdir(parents=True)
        self.events, self.kill_at = 0, None
        self.trained = []
        self.run = folder / "run"
        self.run.mkdir()
        files.write(self.run / files.POLICY_FILE, policy)
        usual = {"strategy": "fedavg", "rounds": 1, "classes_per_task": 2}
        chosen = {**usual, **settings}
        self.config = RunConfig.from_settings(
            scenario="local-data",
            model="mlp",
            num_features=3,
            output=str(self.run),
            **chosen,
        )
        self.offline = set()
        self.delay = lambda client: 0
        self.tamper = lambda client, message, reply: reply

    def event(self):
        if self.events == self.kill_at:
            self.kill_at = None
            raise KilledError
        self.events += 1

    def sleep(self, seconds):
        self.now += 10.0
        if self.now > 1e5:
            raise AssertionError(read_status(self.run))
        self.waits(read_status(self.run).learned, self.now)

    def serve(self):
        """Let a server serve until the test has seen enough, or it is killed."""

        def answered(client, message, reply):
            self.event()
            if message.metadata.message_type == "train":
                stage = decode_request(message.content).stage
                self.trained.append((client, stage.round, stage.task))
            return self.tamper(client, message, reply)

        world = self

        class Grid(InProcessGrid):
            def get_node_ids(self):
                return [n for n in super().get_node_ids() if n not in world.offline]

        nodes = [100 + client for client in range(len(self.places))]
        state = str(self.folder / "states")
        places = [{"data-path": str(p), "state-path": state} for p in self.places]
        grid = Grid(
            nodes, self.config.flat(), tamper=answered, places=places, delay=self.delay
        )
        try:
            with ExitStack() as stack:
                for one in (simulated(), flower_identity()):
                    stack.enter_context(one)
                forget_runs()
                Service(self.config, grid, lambda: self.now, self.sleep).run()
        except DoneError:
            return True
        except KilledError:
            return False
        finally:
            forget_runs()

    def outcome(self, folder=None):
        """Return the numbers of the run in a folder; None for the world's own."""
        place = folder or self.run
        table = (place / "accuracy.csv").read_text()
        return summary_of(place), rounds_of(place), table

    def status(self):
        return read_status(self.run)
