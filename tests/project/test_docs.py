"""The manual says what the code does: names, keys, commands, links, numbers."""

import os
import re
import runpy
import subprocess
import time
from pathlib import Path

import click
import numpy as np
import pytest

import fcl_flower as fcl
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.cli.main import cli
from fcl_flower.config import run_config
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.exports import manifest
from fcl_flower.models.registry import MODELS
from fcl_flower.results import journal
from fcl_flower.rounds import checkpoint, clients, place, versions
from fcl_flower.rounds.checkpoint import FolderStateStore

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MANUAL = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *MANUAL,
    *sorted((ROOT / "experiments").glob("*/README.md")),
    *sorted((ROOT / "experiments").glob("*/HISTORY.md")),
    ROOT / "docker" / "README.md",
]


def shown(path):
    return str(path.relative_to(ROOT))


def anchors(text):
    """Return the anchors of a page's headings, as MkDocs and code hosts make them."""
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


def strategies():
    """Return the manual's pages on strategies, one after the other."""
    pages = sorted((ROOT / "docs" / "reference").glob("strategies*.md"))
    return "\n".join(page.read_text() for page in pages)


def page_of(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def commands(text):
    """Return the lines of code blocks that call fcl, continued ones joined."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    joined = re.sub(r" *\\\n\s*", " ", "\n".join(blocks))
    lines = (line.split("  #")[0].strip() for line in joined.splitlines())
    calls = (re.match(r"(?:.* )?\bfcl ([a-z].*)", line) for line in lines)
    return [call[1] for call in calls if call]


# ---------------------------------------------------------------- README


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_strategy_stands_in_the_manual(name):
    assert f"`{name}`" in strategies()


def test_the_readmes_numbers_are_those_of_the_studies():
    script = runpy.run_path(str(ROOT / "docs" / "images" / "make.py"))
    sent = {
        "Texts, new classes": ("analytic", "cost", "`analytic`", "up"),
    }
    expected = {}
    for (setting, _), pair in script["GAINS"].items():
        both, lonely = script["accuracies"](pair)
        with_up = sent.get(setting, (*pair[:3], "up"))
        up = script["cell"](*with_up)
        expected[setting.lower()] = [both, lonely, round(both - lonely, 1), up]
    results = README.read_text().partition("## Results")[2].partition("\n## ")[0]
    shown = [line for line in results.splitlines() if line.startswith("| ")][2:]

    found = {}
    for line in shown:
        setting, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[setting] = [
            float(re.findall(r"[+-]?[0-9]+\.[0-9]", c)[-1]) for c in cells
        ]
    assert found == expected


def test_charts_show_what_the_tables_of_the_studies_say(tmp_path):
    script = runpy.run_path(str(ROOT / "docs" / "images" / "make.py"))
    script["make"](tmp_path)

    def texts(folder):
        charts = sorted(folder.glob("*.svg"))
        return {c.name: re.findall(r">([^<]+)</text>", c.read_text()) for c in charts}

    drawn = texts(tmp_path)
    found = texts(ROOT / "docs" / "images")
    found = {name: chart for name, chart in found.items() if name in drawn}
    assert found == drawn, "python docs/images/make.py draws them anew"
    assert script["cell"]("overlapped_cifar100", "five", "FedAvg", "up") == 449.1
    assert "exact heads 61.0 (alone 57.9)" in found["bytes.svg"]
    with pytest.raises(LookupError, match="no row 'none'"):
        script["cell"]("overlapped_cifar100", "five", "none", "up")


# ---------------------------------------------------------------- names


def test_the_page_on_the_python_api_has_the_public_names():
    table = page_of("reference/api").partition("## Names")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(fcl.__all__)


@pytest.mark.parametrize("kind", [fcl.Result, fcl.Comparison])
def test_what_results_have_stands_on_the_page(kind):
    fields = {name for name in kind.__dataclass_fields__ if not name.startswith("_")}
    methods = {name for name in vars(kind) if not name.startswith("_")}

    assert all(
        f"`{n}" in page_of("reference/api") or f".{n}(" in page_of("reference/api")
        for n in fields | methods
    )


@pytest.mark.run
def test_python_on_the_first_pages_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}

    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)

    assert names["result"].average_accuracy > 0.5


def cards():
    """Return the card of each strategy by name, whatever the level of its heading."""
    sections = re.split(r"^##+ ", strategies(), flags=re.MULTILINE)[1:]
    named = [(re.match(r".*: `([\w-]+)`\n", section), section) for section in sections]
    return {name[1]: section for name, section in named if name}


def test_every_strategy_has_a_card_with_the_same_fields():
    order = ["Needs", "Fits", "Rival", "Paper", "Differs", "Parameters"]

    assert cards().keys() == algorithms().keys()
    for name, card in cards().items():
        found = re.findall(r"^- \[?\*\*(\w+)\*\*", card, re.MULTILINE)
        assert found == [field for field in order if field in found], name
        assert "Fits" in found
        assert "Paper" in found or name == "local"


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_the_rivals_of_a_card_are_strategies(name):
    rivals = re.search(r"\*\*Rival\*\*:(.*?)\n- ", cards()[name], re.DOTALL)

    assert rivals is None or algorithms().keys() & re.findall(r"`(\S+)`", rivals[1])


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_the_parameters_of_a_card_are_those_of_its_strategy(name):
    link = f"- [**Parameters**](parameters-strategies.md#{name})"
    _, _, listed = cards()[name].partition(link)
    known = algorithms()[name].params_type.model_fields.keys()

    first = re.split(r"\.\s|;|\n\n", listed)[0]
    assert set(re.findall(r"`(\w+)`", first)) <= known
    assert bool(listed) == bool(known)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_stands_in_the_manual(name):
    assert f"| `{name}` |" in page_of("howto/scenarios")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_stands_in_the_manual(name):
    assert f"`{name}`" in page_of("howto/models")


def known_keys():
    """Return every ``section.key`` that there is, parameters included."""
    found = set(RunConfig().flat())
    for section, kinds in (
        ("strategy", [entry.params_type for entry in algorithms().values()]),
        ("scenario", [entry.params for _, entry in SCENARIOS.items()]),
        ("model", [entry.params for _, entry in MODELS.items()]),
    ):
        found |= {f"{section}.{key}" for kind in kinds for key in kind.model_fields}
        found.add(f"{section}.params")
    return found


@pytest.mark.parametrize(
    "path", [page for page in PAGES if page.name != "own-method.md"], ids=shown
)
def test_settings_that_a_page_names_are_there(path):
    sections = "|".join(RunConfig.model_fields)
    named = re.findall(
        rf"(?:`|--set |\[?\b|^)((?:{sections})\.[a-z_0-9]+)(?=[`= ])", path.read_text()
    )
    files = {".py", ".md", ".json", ".sh"}

    unknown = {key for key in named if Path(key).suffix not in files} - known_keys()

    assert not unknown


@pytest.mark.parametrize(
    "path", [page for page in PAGES if page.name != "own-method.md"], ids=shown
)
def test_parameters_on_command_lines_are_there(path):
    every = {key.removeprefix("strategy.") for key in known_keys()}
    pairs = [
        pair.partition("=")[0]
        for line in commands(path.read_text())
        for pair in re.findall(r"--set (\S+)", line)
    ]

    assert {key for key in pairs if key not in known_keys() | every} == set()


def test_the_page_on_stability_has_the_numbers_of_protocol_and_formats():
    page = page_of("project/stability")
    formats = [
        *(run_config.FORMAT, journal.FORMAT, checkpoint.FORMAT),
        *(place.SPEC_FORMAT, versions.FORMAT, manifest.FORMAT),
    ]

    assert f"protocol {clients.PROTOCOL}." in page
    assert re.findall(r"^\|.*\| (\d+) \|$", page, re.M) == list(map(str, formats))


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_links_lead_to_files_and_headings_that_exist(path):
    broken = []
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(target)

    assert not broken


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_pictures_of_a_page_are_there_and_small(path):
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', path.read_text()):
        assert (path.parent / name).stat().st_size < 150_000


@pytest.mark.process
@pytest.mark.process
def test_dark_drawings_are_made_of_the_light_ones():
    images = ROOT / "docs" / "images"
    made = runpy.run_path(str(images / "dark.py"))

    for name in made["DRAWINGS"]:
        expected = made["darkened"]((images / f"{name}.svg").read_text())
        assert (images / f"{name}-dark.svg").read_text() == expected


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_commands_are_there_with_their_options(path):
    wrong = []
    for line in commands(path.read_text()):
        words = line.split()
        command = cli
        while isinstance(command, click.Group) and words:
            command = command.commands.get(words.pop(0))
        if command is None:
            wrong.append(line)
            continue
        known = {name for option in command.params for name in option.opts}
        known |= {n for option in command.params for n in option.secondary_opts}
        given = words[: words.index("--")] if "--" in words else words
        options = {word.partition("=")[0] for word in given if word.startswith("--")}
        wrong += [f"{line}: {option}" for option in options - known - {"--help"}]

    assert not wrong


def test_the_command_that_removes_old_states_leaves_those_of_runs_that_go_on(tmp_path):
    text = (ROOT / "docs" / "howto/operate.md").read_text()
    (command,) = re.findall(r"^find federation/.+$", text, re.MULTILINE)
    memory = tmp_path / "federation" / "client-3" / "memory"
    month = 31 * 86400
    states = [memory / run / "client-3" for run in ("old-1f", "long-2e")]
    for state in states:
        store = FolderStateStore(state)
        for number in (1, 2):
            store.save({"own": {"w": np.ones(2)}}, number)
        for path in (*state.iterdir(), state, state.parent):
            os.utime(path, (time.time() - month,) * 2)
    FolderStateStore(states[1]).save({"own": {"w": np.ones(2)}}, 3)

    subprocess.run(command, shell=True, check=True, cwd=tmp_path)

    assert [state.exists() for state in states] == [False, True]
    assert FolderStateStore(states[1]).load(before=3).round == 2
