"""Write what follows from the code: pages of docs/reference, and Flower's defaults.

python docs/generate.py            # after a setting was changed
python docs/generate.py --check    # are the files as the code has them?
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import compatibility

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.parsing import Params, Setting, describe, toml
from fcl_flower.config.run_config import DEFAULTS, NamedSection, RunConfig
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.models.registry import MODELS

FOLDER = Path(__file__).parent / "reference"
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_DEFAULTS = re.compile(r"(?<=\[tool\.flwr\.app\.config\]\n)(?:\w+ = .*\n)+")

_MADE = "<!-- Made by docs/generate.py; do not edit. -->"

SETTINGS = f"""\
# Configuration

{_MADE}

This page lists every setting of a run, section by section. Where a default is 0 or
empty, the meaning says what the run takes. You give settings in one of four ways:

- On the command line, as `--set SECTION.KEY=VALUE`. `fcl simulate --help` lists the
  settings that are also flags.
- In Python, by the last word of the key: `fcl.simulate("fedavg", lr_patience=0)`.
- In a file, as a table for each section.
- For plain Flower, as `flwr run . --run-config 'training.epochs=2'`.

Two more pages list the parameters [of strategies](parameters-strategies.md) and [of
scenarios and models](parameters-data-models.md). `fcl list NAME` shows one section,
strategy, scenario or model in the terminal.

Six names differ in Python:

| in Python | key |
| --- | --- |
| `scenario`, `model` | `scenario.name`, `model.name` |
| `dataset`, `data_root` | `data.datasets`, `data.root` |
| `rounds` | `federation.rounds_per_task` |
| `asynchronous` | `asynchronous.enabled` |

Python also takes a full key, as in `**{{"data.root": "DIR"}}`. A mapping gives a whole
section: `scenario={{"name": "concepts", "window": 64}}`.
"""

OF_STRATEGIES = f"""\
# Parameters of strategies

{_MADE}

This page lists the parameters of each strategy. On the command line you give one
without its section, as `--set lambda1=0.001`. In Python the first argument names the
strategy, and a mapping gives its parameters:
`fcl.simulate("fedweit", strategy={{"lambda1": 0.001}})`.

The [strategies](strategies.md) say what each one does.
"""

OF_OTHERS = f"""\
# Parameters of scenarios and models

{_MADE}

This page lists the parameters that one scenario or one model has beside the settings of
its [section](configuration.md). You give them as `--set scenario.window=64`.

[Scenarios](../howto/scenarios.md) and [Models](../howto/models.md) say what each one
is.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    strategies = [(name, one.params_type) for name, one in algorithms().items()]
    scenarios = [(name, one.params) for name, one in SCENARIOS.items()]
    models = [(name, one.params) for name, one in MODELS.items()]
    others = [
        "## Scenarios\n",
        *_parameters("scenario", scenarios, "###"),
        "## Models\n",
        *_parameters("model", models, "###"),
    ]
    return {
        "configuration.md": "\n".join([SETTINGS, *_sections()]),
        "parameters-strategies.md": "\n".join(
            [OF_STRATEGIES, *_parameters("strategy", strategies, "##")]
        ),
        "parameters-data-models.md": "\n".join([OF_OTHERS, *others]),
        "compatibility.md": compatibility.page(),
    }


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file that follows from the code, and its text."""
    yield from ((FOLDER / name, text) for name, text in pages().items())
    defaults = "".join(_flower_defaults())
    yield PROJECT, _DEFAULTS.sub(lambda _: defaults, PROJECT.read_text())


def _flower_defaults() -> Iterator[str]:
    """Yield a line for each section: Flower refuses keys that have no default."""
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        pairs = ['params = ""'] if issubclass(kind, NamedSection) else []
        section = f"{name}."
        pairs += [
            f"{key.removeprefix(section)} = {toml(value)}"
            for key, value in DEFAULTS.items()
            if key.startswith(section)
        ]
        yield f"{name} = {{ {', '.join(pairs)} }}\n"


def _sections() -> Iterator[str]:
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        yield f"## {name}\n"
        yield f"{(kind.__doc__ or '').splitlines()[0]}\n"
        yield from _table(name, describe(kind))
        yield ""


def _parameters(
    section: str, found: Iterable[tuple[str, type[Params]]], level: str
) -> Iterator[str]:
    """Yield a heading and a table for each entry; what others have is a link."""
    first: dict[type[Params], str] = {}
    for name, kind in found:
        first.setdefault(kind, name)
    for name, kind in found:
        yield f"{level} {name}\n"
        if section == "strategy":
            yield from _presets(name)
        settings = describe(kind)
        if not settings:
            yield "None.\n"
        elif first[kind] != name:
            yield f"The same as [`{first[kind]}`](#{first[kind]}).\n"
        else:
            yield from _own(section, kind, first)


def _own(
    section: str, kind: type[Params], first: Mapping[type[Params], str]
) -> Iterator[str]:
    bases = [base for base in first if base in kind.__mro__[1:] and describe(base)]
    known = {one.key: one for base in bases for one in describe(base)}
    settings = [one for one in describe(kind) if known.get(one.key) != one]
    if bases:
        named = " and ".join(f"[`{first[base]}`](#{first[base]})" for base in bases)
        yield f"All of {named}{', and:' if settings else '.'}\n"
    if settings:
        yield from _table(section, settings)
        yield ""


def _presets(name: str) -> Iterator[str]:
    """Yield a sentence for a strategy that has defaults of its own."""
    defaults = algorithms()[name].defaults
    if defaults:
        given = ", ".join(f"`{key} = {toml(v)}`" for key, v in defaults.items())
        yield f"Unless you give other values, `{name}` takes {given}.\n"


def _table(section: str, settings: Iterable[Setting]) -> Iterator[str]:
    yield "| key | type | range | default | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for one in settings:
        key = f"`{section}.{one.key}`"
        cells = (key, one.type, one.range, f"`{one.default}`", one.help)
        plain = (cell.replace("|", "\\|").replace("``", "`") for cell in cells)
        yield "".join(f"| {cell} " if cell else "| " for cell in plain) + "|"


def main() -> None:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check, stale = parser.parse_args().check, []
    for path, text in files():
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: stale, run python docs/generate.py")


if __name__ == "__main__":
    main()
