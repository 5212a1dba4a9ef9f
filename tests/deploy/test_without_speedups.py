"""A federation with few speed-ups, or none, has the same numbers, only later."""

import pytest
from fakes import run_in_process, summary_of, tiny
from local_federation import LocalFederation

from fcl_flower.core.errors import ConfigError
from fcl_flower.deploy.speedups import RELEASES, SPEEDUPS, choose


@pytest.mark.soak
@pytest.mark.deploy
def test_a_run_where_one_client_has_speedups_gives_what_it_gives_in_one_process(
    tmp_path,
):
    lab = LocalFederation(tmp_path / "lab")
    off = ("--speedups", "off")
    try:
        lab.certificates(clients=2)
        lab.server(*off)
        for number in range(2):
            lab.client(number, *(() if number else off))
        for number in range(2):
            lab.until(f"client-{number}", "SuperNode ID")
        lab.run(
            *("--strategy", "fedweit", "--clients", 2, "--tasks", 1, "--rounds", 1),
            *("--classes-per-task", 2, "--seed", 7, "--output", "run"),
        )
        lab.finish("run")
        programs = {p for name in ("server", "client-0") for p, _ in lab.members(name)}
    finally:
        lab.end()

    assert not [name for name in programs if "speedups" in name or "worker" in name]
    assert "speed-ups: none, as asked" in lab.log("server")
    run_in_process(tiny(tmp_path / "alone", strategy="fedweit", tasks=1, seed=7))
    assert summary_of(tmp_path / "lab" / "run") == summary_of(tmp_path / "alone")


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_release_that_is_tested_gets_all_and_another_none(side):
    mine = {name for name, sides in SPEEDUPS.items() if side in sides}

    for release in RELEASES:
        assert {*choose("auto", side, release).names} == mine
    found = choose("auto", side, "1.99")
    assert found.names == ()
    assert found.sentence.endswith(
        "as they are tested with Flower 1.41 and 1.42, and this is 1.99"
    )


@pytest.mark.parametrize("setting", ["nosuch", "pace,nosuch", "large_objects"])
def test_a_speedup_that_a_client_has_not_is_refused_by_name(setting):
    name = setting.rpartition(",")[2]

    with pytest.raises(ConfigError, match=f"^speedups: got '{name}', expected auto"):
        choose(setting, "client", RELEASES[-1])


def test_a_flower_with_other_programs_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match=r"^flwr: got '1\.36', expected 1\.40 or"):
        choose("auto", "server", "1.36")
