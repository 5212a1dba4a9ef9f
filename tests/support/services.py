"""A service in one process, with clients that outlive its server."""

from fakes import InProcessTransport, rounds_of, summary_of
from local_runs import table

from fcl_flower.config.run_config import RunConfig
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.rounds.client import forget_runs
from fcl_flower.rounds.messages import decode_request
from fcl_flower.service.loop import Service
from fcl_flower.service.status import ServiceStatus


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
        policy.write(self.run)
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
        self.tamper = lambda client, request, reply: reply

    def event(self):
        if self.events == self.kill_at:
            self.kill_at = None
            raise KilledError
        self.events += 1

    def sleep(self, seconds):
        self.now += 10.0
        if self.now > 1e5:
            raise AssertionError(self.status())
        self.waits(self.status().learned, self.now)

    def service(self):
        """Return a service whose clients are those of this world."""

        def answered(client, request, reply):
            self.event()
            if request.kind == "train":
                stage = decode_request(request.content).stage
                self.trained.append((client, stage.round, stage.task))
            return self.tamper(client, request, reply)

        world = self

        class Network(InProcessTransport):
            def nodes(self):
                return [n for n in super().nodes() if n not in world.offline]

        nodes = [100 + client for client in range(len(self.places))]
        state = str(self.folder / "states")
        places = [{"data-path": str(p), "state-path": state} for p in self.places]
        network = Network(
            nodes, self.config, tamper=answered, places=places, delay=self.delay
        )
        return Service(self.config, network, lambda: self.now, self.sleep)

    def serve(self):
        """Let a server serve until the test has seen enough, or it is killed."""
        try:
            with simulated():
                forget_runs()
                self.service().run()
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
        return ServiceStatus.read(self.run)
