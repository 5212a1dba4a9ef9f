"""Write docs/reference/configuration.md from the models of the configuration.

python docs/generate.py            # after a setting was changed
python docs/generate.py --check    # is the page as the code would have it?
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.parsing import Setting, describe, toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.scenarios.registry import SCENARIOS
from fcl_flower.models.registry import MODELS

PAGE = Path(__file__).parent / "reference" / "configuration.md"

HEAD = """\
# Configuration

<!-- Made by docs/generate.py; do not edit. -->

A run has a value for every setting below; where a default is 0 or empty, its meaning
says what is taken. Settings are given

- on the command line, as `--set SECTION.KEY=VALUE`, and the most frequent as flags
  (`fcl simulate --help`); parameters of the strategy without a section, as
  `--set lambda1=0.001`;
- in Python, as `fcl.simulate("fedweit", clients=4, lr_patience=0)`: the strategy's name
  is the first argument, its parameters are `strategy={"lambda1": 0.001}`, and
  `strategy="ewc"` is refused; all else by the last word of the key, with `scenario` and
  `model` for their names, `dataset`,
  `data_root`, `rounds` and `asynchronous` for `data.datasets`, `data.root`,
  `federation.rounds_per_task` and `asynchronous.enabled`; by `"section.key"`; or by a
  mapping for a section, as `scenario={"name": "concepts", "window": 64}`;
- in a file, as a table for each section;
- for plain Flower, as `flwr run . --run-config 'training.epochs=2'`.

`fcl list NAME` shows the same for one section, strategy, scenario or model.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *_sections(), *_parameters()])


def _sections() -> Iterator[str]:
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type)
        yield f"## {name}\n"
        yield f"{(kind.__doc__ or '').splitlines()[0]}\n"
        yield from _table(name, describe(kind))
        yield ""


def _parameters() -> Iterator[str]:
    for title, section, found in (
        (
            "strategies",
            "strategy",
            [(n, a.params_type) for n, a in algorithms().items()],
        ),
        ("scenarios", "scenario", [(n, s.params) for n, s in SCENARIOS.items()]),
        ("models", "model", [(n, m.params) for n, m in MODELS.items()]),
    ):
        yield f"## Parameters of {title}\n"
        by_kind: dict[type, list[str]] = {}
        for name, kind in found:
            by_kind.setdefault(kind, []).append(name)
        for kind, names in by_kind.items():
            bases = [base for base in by_kind if base in kind.__mro__[1:]]
            known = {
                one.key: one
                for base in bases
                if describe(base)
                for one in describe(base)
            }
            settings = [one for one in describe(kind) if known.get(one.key) != one]
            yield f"### {', '.join(names)}\n"
            yield from _presets(names if section == "strategy" else [])
            if not describe(kind):
                yield "None.\n"
                continue
            if known:
                parents = [n for b in bases if describe(b) for n in by_kind[b]]
                named = ", ".join(f"`{name}`" for name in parents)
                but = ", and:" if settings else "."
                yield f"Those of {named}{but}\n"
            if not settings:
                continue
            yield from _table(section, settings)
            yield ""


def _presets(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each strategy that has defaults of its own."""
    for name in names:
        defaults = algorithms()[name].defaults
        if defaults:
            given = ", ".join(f"`{key} = {toml(v)}`" for key, v in defaults.items())
            yield f"Unless other values are given, `{name}` has {given}.\n"


def _table(section: str, settings: Iterable[Setting]) -> Iterator[str]:
    yield "| key | type | range | default | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for one in settings:
        key = f"`{section}.{one.key}`"
        cells = (key, one.type, one.range, f"`{one.default}`", one.help)
        plain = (cell.replace("|", "\\|").replace("``", "`") for cell in cells)
        yield "".join(f"| {cell} " if cell else "| " for cell in plain) + "|"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE.name} is stale: run python docs/generate.py")


if __name__ == "__main__":
    main()
