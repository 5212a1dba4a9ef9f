import pytest
import torch

from fcl_flower.models.build import seeded


@pytest.mark.parametrize("accelerator", [False, True])
def test_the_numbers_are_those_of_torchs_own_seed(monkeypatch, accelerator):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(5)
    seeds = []
    plain = torch.manual_seed
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr(torch, "manual_seed", lambda s: (seeds.append(s), plain(s)))

    with seeded(7):
        found = torch.rand(5)

    assert torch.equal(found, expected)
    assert seeds == [7] * accelerator  # which seeds the accelerator's generators, too


def test_the_generator_is_as_before_even_after_an_error():
    def fail():
        with seeded(7):
            torch.rand(5)
            raise RuntimeError("inside")

    before = torch.random.get_rng_state()

    with pytest.raises(RuntimeError, match="inside"):
        fail()

    assert torch.equal(torch.random.get_rng_state(), before)
