"""The table for a paper, line by line."""

import re

from fcl_flower.exports.latex import latex, write_latex
from fcl_flower.exports.sheets import METHOD_COLUMNS as COLUMNS
from fcl_flower.exports.sheets import Sheet


def methods(*rows):
    return Sheet.of("methods", COLUMNS, rows)


def spread(key, mean, deviation=None):
    return {f"{key}_mean": mean, f"{key}_deviation": deviation}


BEST = {
    "label": "50% of_it & \\more",
    **spread("average_accuracy", 0.9125, 0.02),
    **spread("forgetting", -0.0001),
}
OTHER = {
    "label": "other",
    **spread("average_accuracy", 0.5),
    "reference": "best\n\\evil",
    "difference": -0.4,
    "pairs": 3,
    "p": 0.0001,
    "p_adjusted": 0.0002,
}


def test_it_has_what_is_known_the_best_in_bold_and_the_test():
    third = OTHER | {"label": "third", "p_adjusted": 0.25, "difference": 0.0004}
    lines = latex(
        methods(BEST, OTHER, third | {"label": "x", "p_adjusted": None}, third)
    )

    assert lines.splitlines()[1:] == [
        "% Difference of accuracy to best \\evil, seed by seed; p of the two-sided "
        "paired t-test, Holm-adjusted.",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"method & accuracy & forgetting & difference & $p$ \\",
        r"\midrule",
        r"50\% of\_it \& \textbackslash{}more & $\mathbf{0.912} \pm 0.020$ & $0.000$ "
        r"& -- & -- \\",
        r"other & $0.500$ & -- & $-0.400$ & $<0.001$ \\",
        r"x & $0.500$ & -- & $0.000$ & -- \\",
        r"third & $0.500$ & -- & $0.000$ & $0.250$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_without_a_test_there_are_no_columns_for_it():
    lines = latex(methods(BEST)).splitlines()

    assert lines[0].startswith("%")
    assert lines[1] == r"\begin{tabular}{lrr}"
    assert lines[3] == r"method & accuracy & forgetting \\"


def test_every_special_sign_of_a_title_is_shown_as_it_is(tmp_path):
    title = r"& % $ # _ { } ~ ^ \ é"
    text = write_latex(methods({"label": title}), tmp_path).read_text("utf-8")

    row = text.splitlines()[5]
    assert row == (
        r"\& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{} é"
        r" \\"
    )
    assert re.search(r"\{l\}", text)
