"""How many neighbours share masks: known values of the rule, and counting."""

from fractions import Fraction
from math import comb

import pytest

from fcl_flower.config.run_config import FederationSection
from fcl_flower.core.errors import ConfigError
from fcl_flower.rounds.secure.graph import (
    MaskGraph,
    holders,
    least_ring,
    mask_graph,
)


@pytest.mark.parametrize(
    ("clients", "colluding", "dropping", "neighbours", "threshold"),
    [
        (100, 5, 5, 12, 6),
        (1000, 330, 330, 286, 150),
        (10, 0, 0, 2, 2),
        (50, 2, 2, 6, 3),
        (200, 10, 10, 20, 11),
        (1000, 50, 50, 30, 17),
        (10, 1, 1, 4, 2),
        (50, 5, 5, 12, 6),
        (200, 20, 20, 34, 19),
        (1000, 100, 100, 48, 27),
        (10, 1, 2, 4, 2),
        (50, 5, 10, 16, 6),
        (200, 20, 40, 44, 20),
        (1000, 100, 200, 66, 31),
        (10, 2, 2, 6, 3),
        (50, 10, 10, 22, 11),
        (200, 40, 40, 62, 34),
        (1000, 200, 200, 98, 54),
    ],
)
def test_the_rule_has_the_values_of_googles_implementation(
    clients, colluding, dropping, neighbours, threshold
):
    found = least_ring(clients, colluding, dropping)

    assert found == MaskGraph(neighbours, threshold)


def counted(clients, colluding, dropping):
    """Search a ring by counting whole numbers, without rounding."""
    n, lost = clients, colluding + dropping
    for k in range(2, n - 1, 2):
        gaps = Fraction(n * (n - k - 1), 2)
        torn = gaps * comb(n - k, lost - k) / comb(n, lost) if k <= lost else 0
        if torn >= Fraction(1, 2**41):
            continue

        def chance(marked, least, most, k=k):
            several = range(max(0, least), min(most, k) + 1)
            found = sum(comb(marked, x) * comb(n - marked, k - x) for x in several)
            return Fraction(found, comb(n, k))

        bounds = Fraction(1, 2**41 * n), Fraction(1, 2**20 * n)
        t1 = next(t for t in range(k + 1) if chance(colluding, t + 1, k) <= bounds[0])
        stay = n - dropping
        t2 = next(t for t in range(k + 1) if chance(stay, 0, t) >= bounds[1])
        if t2 > t1:
            return MaskGraph(k, max(t1 + 1, 2))
    return None


@pytest.mark.parametrize("clients", [3, 4, 10, 51, 80])
@pytest.mark.parametrize("colluding", [0, 0.1, 0.33, 0.41])
@pytest.mark.parametrize("dropping", [0, 0.1, 0.33, 0.49])
def test_the_rule_is_what_counting_finds(clients, colluding, dropping):
    lost = int(clients * colluding), int(clients * dropping)

    assert least_ring(clients, *lost) == counted(clients, *lost)


def test_no_ring_holds_what_only_everybody_together_can():
    assert least_ring(1000, 500, 500) is None
    assert least_ring(4, 2, 1) is None
    assert least_ring(3, 0, 0) is None


@pytest.mark.parametrize(
    ("clients", "settings", "graph"),
    [
        (5, {}, MaskGraph(4, 4)),
        (50, {}, MaskGraph(49, 34)),  # as it was without neighbours
        (51, {}, MaskGraph(28, 11)),
        (200, {}, MaskGraph(86, 39)),
        (200, {"secure_collusion": 0.1, "secure_threshold": 0.8}, MaskGraph(44, 20)),
    ],
)
def test_few_clients_share_masks_with_all_and_many_with_neighbours(
    clients, settings, graph
):
    assert mask_graph(clients, FederationSection(**settings)) == graph


def test_settings_that_no_ring_holds_are_refused():
    section = FederationSection(secure_collusion=0.6, secure_threshold=0.6)
    message = (
        r"^federation.secure_collusion: got 0.6, expected less for 100 clients, of "
        "whom 40 may drop out$"
    )
    with pytest.raises(ConfigError, match=message):
        mask_graph(100, section)


@pytest.mark.parametrize("threshold", [0.51, 0.67, 0.9, 1])
@pytest.mark.parametrize("clients", [51, 80, 200, 1000])
def test_a_ring_holds_whatever_the_configuration_allows(clients, threshold):
    most = round(threshold - 0.1, 9)
    section = FederationSection(secure_collusion=most, secure_threshold=threshold)

    graph = mask_graph(clients, section)

    assert 2 <= graph.threshold <= graph.neighbours <= clients - 2


@pytest.mark.parametrize(
    ("share", "clients", "most"), [(0.2, 51, 10), (0.29, 100, 29), (0, 7, 0)]
)
def test_at_most_a_share_of_the_clients_colludes(share, clients, most):
    assert FederationSection(secure_collusion=share).colluders(clients) == most


def test_neighbours_are_those_on_either_side():
    found = holders([7, 0, 3, 9, 1, 4], MaskGraph(4, 2))

    assert found == {
        7: [0, 1, 3, 4, 7],
        0: [0, 3, 4, 7, 9],
        3: [0, 1, 3, 7, 9],
        9: [0, 1, 3, 4, 9],
        1: [1, 3, 4, 7, 9],
        4: [0, 1, 4, 7, 9],
    }
    assert holders([7, 0, 3], MaskGraph(2, 2)) == {
        client: [0, 3, 7] for client in (7, 0, 3)
    }
