"""Reads what a page of a report shows."""

import json
import re
import xml.etree.ElementTree as ET

import plotly.graph_objects as go


def parsed(path):
    """Return the page as a tree: XHTML but for its first line and its program."""
    text = path.read_text(encoding="utf-8").split("\n", 1)[1]
    return ET.fromstring(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))


def words(element):
    return " ".join("".join(element.itertext()).split())


def prose(page):
    """Return the words of a page without those of its pictures."""
    body = page.find("body")
    parts = [e for e in body if e.tag not in ("script", "noscript", "footer")]
    return " ".join(map(words, parts))


def figures(page):
    return [
        one
        for script in page.iter("script")
        if script.get("id") == "figures"
        for one in json.loads(script.text)
    ]


def pictures(page):
    """Return the figures that the library draws by their description."""
    return {figure["what"]: figure for figure in figures(page)}


def headings(page):
    return [words(heading) for heading in page.iter("h2")]


def tiles(page):
    """Return the figure and the meaning of each tile by its name."""
    return {
        tile.find("dt").text: [words(one) for one in tile.iter("dd")]
        for tile in page.iter("div")
        if tile.get("class") == "tile"
    }


def verdicts(page):
    """Return the tone of each sentence that is set apart."""
    return {
        words(p): p.get("class").removeprefix("verdict").strip()
        for p in page.iter("p")
        if (p.get("class") or "").startswith("verdict")
    }


def lines_of(picture):
    """Return x, y and the rest of each line, by its whole name."""
    return {
        trace["meta"][0]: (trace["x"], trace["y"], trace)
        for trace in picture["data"]
        if "lines" in trace.get("mode", "") and "meta" in trace
    }


def marks_of(picture):
    """Return row and column of the cells that bear a dot."""
    return {
        (round(y), round(x))
        for trace in picture["data"][1:]
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }


def require_layout(page):
    """Require that every picture has all it needs, and that nothing is undefined."""
    assert "nan" not in words(page.find("body")).lower().split()
    places = [e for e in page.iter("div") if e.get("class") == "chart"]
    drawn = figures(page)
    assert [e.get("aria-label") for e in places] == [one["what"] for one in drawn]
    assert len({one["what"] for one in drawn}) == len(drawn)
    for figure, place in zip(drawn, places, strict=True):
        go.Figure(figure["data"], figure["layout"])  # refuses what Plotly has not
        assert place.get("style") == f"height:{figure['layout']['height']}px"
        for trace in figure["data"]:
            if trace["type"] != "heatmap":
                assert len(trace["x"]) == len(trace["y"])
    for table in page.iter("table"):
        columns = len(table.findall("thead/tr/th"))
        assert {len(row) for row in table.findall("tbody/tr")} <= {columns}


def table_of(page, class_):
    """Return the words in each cell of the first table of a class."""
    table = next(t for t in page.iter("table") if t.get("class") == class_)
    return [[words(cell) for cell in row] for row in table.findall("tbody/tr")]


def head_of(page, class_):
    table = next(t for t in page.iter("table") if t.get("class") == class_)
    return [words(cell) for cell in table.findall("thead/tr/th")]


def numbers_of(page, what):
    """Return the table of the numbers of a picture: head and rows."""
    for figure in page.iter("figure"):
        if figure.find("div").get("aria-label") == what:
            table = figure.find("details/div/table")
            rows = [table.find("thead/tr"), *table.findall("tbody/tr")]
            return [[words(cell) for cell in row] for row in rows]
    raise AssertionError(f"no picture {what!r}")
