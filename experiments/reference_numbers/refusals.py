"""Every configuration that is known to be refused, and the setting that is blamed.

``refusals.json`` holds settings (or arguments of ``fcl``), the keys that the refusal
names, the one that is blamed first, and the sentence itself::

    python experiments/reference_numbers/refusals.py               # half a minute
    python experiments/reference_numbers/refusals.py --sentences   # word by word
    python experiments/reference_numbers/refusals.py --write       # anew, as it is now

``{folder}`` in a case stands for a temporary folder, which is also ``$FCL_DATA``.
"""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fcl_flower.cli.main import main as fcl
from fcl_flower.config.run_config import RunConfig, refuse_attack
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.texts import load_stdlib_docs, words
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve

CASES = Path(__file__).with_name("refusals.json")
SECTIONS = (
    *("strategy", "scenario", "data", "model", "training"),
    *("federation", "asynchronous", "privacy", "run"),
)

FILES = {
    "cut": "clients = ",
    "typed": "[scenario]\nclients = '3'",
    "misspelt": "[scenario]\nclient = 3",
    "bare": "client = 3",
    "section": "[strategi]\nname = 'x'",
    "number": "training = 3",
    "list": "[strategy]\nlambda1 = [1]",
}
"""Configurations that are malformed, by the name of their file."""


def refusal(case: Mapping[str, Any]) -> str:
    """Tell with which sentence a case is refused; empty where it is not.

    What a TOML parser says is left out, as each version of Python says it otherwise.
    ``{words}`` stands for the number of words in that version's own docstrings.
    """
    found = re.sub(r"(a TOML file|in TOML) \(.*\)", r"\1", sentence(case))
    return found.replace(f" {words_of_docs()} words", " {words} words")


@lru_cache
def words_of_docs() -> int:
    """Count the different words of ``stdlib-docs``."""
    docs = load_stdlib_docs()
    return len({word for text in docs.train.x + docs.test.x for word in words(text)})


def sentence(case: Mapping[str, Any]) -> str:
    """Tell what a case is answered with, word by word."""
    try:
        if "command" in case:
            return said(case["command"])
        config = RunConfig.from_settings(**case["settings"])
        if "node" in case:  # the client of a deployment
            refuse_attack(config)
            resolve(config).on_node(NodeConfig.of(case["node"]))
        else:
            validate(resolve(config))
    except ConfigError as error:
        return str(error)
    return ""


def said(command: list[str]) -> str:
    """Tell what a command says when it ends with 2, without running anything."""
    sys.argv = ["fcl", *command]
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        try:
            fcl()
        except SystemExit as ended:
            if ended.code == 2:
                return shown.getvalue().removeprefix("fcl: ").removesuffix("\n")
    return ""


def main() -> None:
    """Compare all cases; exit with 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", action="store_true", help="every word counts")
    parser.add_argument("--write", action="store_true", help="write the file anew")
    given = parser.parse_args()
    cases = json.loads(CASES.read_text())
    wrong, other = [], []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FCL_DATA"] = folder
        os.chdir(folder)
        write_data(Path(folder))
        for number, case in enumerate(cases):
            asked = json.loads(json.dumps(case).replace("{folder}", folder))
            found = refusal(asked).replace(folder, "{folder}")
            about = f"{number} {json.dumps(case.get('settings', case.get('command')))}"
            if not found:
                wrong.append(f"{about}\n  no longer refused: {case['sentence']}")
            elif keys(found) != case["keys"]:
                wrong.append(f"{about}\n  was: {case['sentence']}\n  now: {found}")
            elif found != case["sentence"]:
                other.append(f"{about}\n  was: {case['sentence']}\n  now: {found}")
            case |= {"keys": keys(found), "sentence": found}
    for title, lines in (("WRONG", wrong), ("other sentences", other)):
        print(f"{title}: {len(lines)} of {len(cases)}", *lines, sep="\n")
    if given.write:
        lines = ",\n".join(map(json.dumps, cases))
        CASES.write_text(f"[\n{lines}\n]\n")
    elif wrong or (other and given.sentences):
        sys.exit(1)


def keys(sentence: str) -> list[str]:
    """Tell which settings a sentence names: the one that is blamed, then all others."""
    first = re.split(": | has ", sentence)[0]
    named = set(re.findall(rf"\b(?:{'|'.join(SECTIONS)})\.[a-z_]+", sentence))
    return [first, *sorted(named - {first})]


def write_data(folder: Path) -> None:
    """Write small data sets, and files and folders that are not as they should be."""
    images = np.zeros((12, 6, 6), np.uint8)
    series = np.linspace(-2, 2, 12 * 9 * 16).reshape(12, 9, 16)
    rows = np.linspace(0, 9, 36).reshape(12, 3)
    few = np.repeat(np.arange(2), 6)
    for name, x, y in (
        ("mine", images, few),
        ("three", images, np.repeat(np.arange(3), 4)),
        ("single", images, np.repeat(np.arange(2), [1, 11])),
        ("series", series, few),
        ("rows", rows, few),
    ):
        arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        np.savez(folder / f"{name}.npz", **arrays)
    test = {"x_test": images[5:7], "y_test": few[5:7]}
    np.savez(folder / "tested.npz", x_train=images, y_train=few, **test)
    np.savez(folder / "lacking.npz", x_train=images)
    (folder / "broken.npz").write_text("no arrays")
    (folder / "vectors.txt").write_text("word and no numbers\n")
    (folder / "strange.txt").write_text("zzzyzx 0.5 0.5\n")
    for place in ("a", "b"):
        (folder / place).mkdir()
        np.savez(folder / place / "twice.npz", x_train=images)
    for place, file in (
        ("finished", "summary.json"),
        ("client/task-01", "train.xyz"),
        ("untrained/task-01", "test.csv"),
    ):
        (folder / place).mkdir(parents=True)
        (folder / place / file).write_text("{}")
    (folder / "empty").mkdir()
    study = '[run]\ndata.datasets = "gone"\n[[variant]]\nstrategy.name = "fedavg"\n'
    (folder / "study.toml").write_text(study)
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text)


if __name__ == "__main__":
    main()
