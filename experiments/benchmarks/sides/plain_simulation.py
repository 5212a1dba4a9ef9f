"""Flower's own FedAvg in Flower's simulation runtime, with our client's training.

python plain_simulation.py FOLDER SETTINGS

SETTINGS is the configuration of our side as JSON. The app is that of
``experiments/round_overhead/plain.py``: a client builds data and learner for each
message as ours does, and keeps nothing between two. The last line that is printed says
what the rounds and the clients told, as JSON.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.processes import (
    await_port,
    free_port,
    start_guarded,
    stop_guarded,
)
from fcl_flower.deploy.commands import (
    SUPERLINK,
    environment,
    program,
    write_superlink,
)
from fcl_flower.deploy.submission import write_app


def main() -> None:
    """Run it, with as many workers as there are cores."""
    folder, settings = Path(sys.argv[1]).absolute(), json.loads(sys.argv[2])
    told = folder / "rounds.json"
    config = RunConfig.of({**settings, "run.output": str(told)})
    write_app(folder / "app", config, ("plain:server_app", "plain:client_app"))
    port, control = free_port(), free_port()
    home = folder / "home"
    write_superlink(home, f"127.0.0.1:{port}", None)
    env = environment(home)
    link = start_guarded(
        [
            *(program("flower-superlink"), "--insecure", "--simulation"),
            *("--isolation", "subprocess", "--host", "127.0.0.1"),
            *("--port", str(port), "--control-api-address", f"127.0.0.1:{control}"),
        ],
        env,
    )
    try:
        await_port(link, port)
        options = (
            f"num-supernodes={config.scenario.clients} client-resources-num-cpus=1 "
            f"init-args-num-cpus={len(os.sched_getaffinity(0))}"
        )
        command = [program("flwr"), "run", str(folder / "app"), SUPERLINK, "--stream"]
        run = subprocess.Popen([*command, "--federation-config", options], env=env)
        # Written at the run's end, of which the command itself may hear much later.
        while not told.exists() and run.poll() is None:
            time.sleep(0.2)
        run.terminate()
        run.wait()
    finally:
        stop_guarded(link)
    print(told.read_text())


if __name__ == "__main__":
    main()
