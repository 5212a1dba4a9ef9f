"""What a run's metrics say beyond accuracy and bytes: a convention of names.

Any algorithm may emit these scalars; where it does, the run folder gets a file more and
the report a section more. C and T, c and t are numbers of a client and of its task.

In the metrics of a client's update (`fcl_flower.core.types.Update`):

- ``attention/c/t``: weight, at least 0, that the client gives to the adapter of client
  c's task t in the task that it trains on; ``attention.json``.
- ``adapter_density``: fraction of the entries of the task's adapter that the client
  keeps when the task ends; a remark in the summary.
- ``multiply_adds``: what the client has computed in the round's training, where the
  run counts it; in the summary.
- ``epsilon``: what the client's examples have cost so far, where they are the privacy
  unit; in the summary.
- ``label_epsilon``: what statistics of the client's labels that it noised have cost so
  far; in the summary.

In the diagnostics of the server side (`fcl_flower.algorithms.base`):

- ``overlap/C/T/c/t``: similarity of client C's new task T and client c's finished task
  t, any finite number; ``overlap.json``.
- ``cluster/C``, ``origin/C``, ``reached/C``, ``map/C/x`` and ``map/C/y``, always
  together: for the model that client C sent, its cluster (-1: none), the concept model
  that it seems to have started from, the one that it was merged into (-1: none), and
  two coordinates for a picture; ``concepts.json``, where the concepts are hidden.

Every other scalar is recorded in ``rounds.jsonl`` as it is.
"""

from fcl_flower.config.sections import PrivacySection
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.privacy.ledger import Ledger
from fcl_flower.results.diagnostics.adapters import AdapterDiagnostics
from fcl_flower.results.diagnostics.base import Diagnostics
from fcl_flower.results.diagnostics.concepts import ConceptDiagnostics
from fcl_flower.results.diagnostics.labels import LabelDiagnostics
from fcl_flower.results.diagnostics.operations import OperationDiagnostics
from fcl_flower.results.diagnostics.privacy import PrivacyDiagnostics

__all__ = ["Diagnostics", "build_diagnostics"]


def build_diagnostics(
    scenario: Scenario,
    privacy: PrivacySection,
    ledger: Ledger | None,
    multiply_adds: bool = False,
) -> list[Diagnostics]:
    """Return a collector for every convention of this package that the run needs."""
    found: list[Diagnostics] = [
        AdapterDiagnostics(scenario),
        ConceptDiagnostics(scenario.stream),
        LabelDiagnostics(privacy.delta),
    ]
    if multiply_adds:
        found.append(OperationDiagnostics())
    if privacy.unit != "none":
        found.append(PrivacyDiagnostics(privacy, ledger))
    return found
