"""Names of classes that are meant to be the same."""

import pytest

from fcl_flower.data.labels import plain


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("pneumonia", "pneumonia"),
        (" Pneumonia ", "pneumonia"),
        ("COVID\t 19", "covid 19"),
        ("ill\u00a0now", "ill now"),
        ("Ödem", "\u00f6dem"),
        ("O\u0308dem", "\u00f6dem"),  # composed of two code points
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("1", "1"),
        ("1.0", "1"),
        ("1.", "1"),
        ("-2.00", "-2"),
        ("10", "10"),
        ("1.5", "1.5"),
        ("1.50", "1.50"),
        ("v1.0", "v1.0"),
        ("1.0.0", "1.0.0"),
    ],
)
def test_what_a_spelling_leaves_open_is_folded(name, folded):
    assert plain(name) == folded
    assert plain(folded) == folded
