"""Run this checkout as a Flower app on NVFlare's simulator, with two sites.

python examples/nvflare_job.py [WORKSPACE]
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from nvflare.app_opt.flower.recipe import FlowerRecipe
from nvflare.recipe import SimEnv

SETTINGS = {
    "strategy.name": "fedweit",
    "scenario.clients": 2,
    "scenario.tasks": 2,
    "federation.rounds_per_task": 1,
    "data.datasets": "digits",
    "run.seed": 1,
}
checkout = Path(__file__).resolve().parents[1]
workspace = Path(sys.argv[1] if len(sys.argv) > 1 else "workspace").resolve()
workspace.mkdir(parents=True, exist_ok=True)
# NVFlare copies a folder whole, .venv and .git too: give it what Flower would send.
flwr = Path(sys.executable).with_name("flwr")
subprocess.run([flwr, "build", "--app", checkout], cwd=workspace, check=True)
fab = max(workspace.glob("*.fab"), key=os.path.getmtime)
zipfile.ZipFile(fab).extractall(workspace / "app")
# Flower would install the app's requirements once more, below ~/.flwr.
os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
# Names in quotes: of bare names from one table, Flower keeps the last alone.
config = {f'"{name}"': value for name, value in SETTINGS.items()}
# NVFlare allows ten seconds for each; two cores need seven to ten.
names = ["configure_task_timeout", "start_task_timeout", "superlink_ready_timeout"]
waits = dict.fromkeys(names, 120)
recipe = FlowerRecipe(str(workspace / "app"), name="fcl", run_config=config, **waits)
recipe.execute(SimEnv(num_clients=2, workspace_root=str(workspace)))
