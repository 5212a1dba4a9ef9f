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
        ("01", "1"),
        ("-007.0", "-7"),
        ("000", "0"),
        ("0.10", "0.10"),
        ("\uff23\uff41\uff54", "cat"),  # of full width
        ("\uff10\uff11", "1"),
        ("heart \u2665\ufe0f", "heart \u2665"),  # a variation selector
        ("\u3164cat", "cat"),  # a Hangul filler
        ("type\u20111", "type-1"),  # a hyphen at which no line breaks
        ("Crohn\u2019s", "crohn's"),
        ("\u201cill\u201d", '"ill"'),
    ],
)
def test_what_a_spelling_leaves_open_is_folded(name, folded):
    assert plain(name) == folded
    assert plain(folded) == folded
