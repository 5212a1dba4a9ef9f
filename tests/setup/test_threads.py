"""How many threads a run computes on; what it changes is tested where runs are."""

from types import SimpleNamespace

from fcl_flower.setup import build


def test_what_both_sides_compute_with_is_there_before_it_is_limited(monkeypatch):
    done = []
    monkeypatch.setattr(build, "threadpool_limits", done.append)
    sides = {
        f"load_{side}": lambda side=side: done.append(side)
        for side in ("server", "client")
    }
    build.limited_threads(SimpleNamespace(**sides), 4)
    assert done == ["server", "client", 4]
