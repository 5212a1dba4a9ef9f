"""Reads what a page of a report shows."""

import xml.etree.ElementTree as ET


def parsed(path):
    """Return the page as a tree: the pages are XHTML but for their first line."""
    return ET.fromstring(path.read_text(encoding="utf-8").split("\n", 1)[1])


def words(element):
    return " ".join("".join(element.itertext()).split())


def pictures(page):
    """Return the SVG pictures by their description."""
    return {svg.get("aria-label"): svg for svg in page.iter("svg")}


def headings(page):
    return [words(heading) for heading in page.iter("h2")]


def hints(picture):
    """Return the shapes that tell something, by what they tell."""
    return {shape.find("title").text: shape for shape in picture if len(shape)}


def tick_scale(picture, axis, anchor):
    """Return data = f(pixel), worked out from two of the axis' labels."""
    labels = [
        (float(t.get(axis)), float(t.text.split()[0].replace("\N{MINUS SIGN}", "-")))
        for t in picture.iter("text")
        if t.get("class") == "tick" and t.get("text-anchor") == anchor
    ]
    (p0, v0), (p1, v1) = labels[0], labels[1]
    offset = 4 if axis == "y" else 0
    return lambda pixel: v0 + (pixel + offset - p0) * (v1 - v0) / (p1 - p0)


def extent(shape):
    """Return left, right and y of a shape; a character is taken to be 6 pixels wide."""
    x, y = (float(shape.get(k, shape.get(f"c{k}", 0))) for k in "xy")
    length = 6 * len(shape.text) if shape.tag == "text" else 0
    left = x - {"end": 1, "middle": 0.5}.get(shape.get("text-anchor"), 0) * length
    return left, left + length, y


def require_layout(page):
    """Require that every shape is within its picture, and that none is undefined."""
    assert "nan" not in words(page).lower().split()
    for shape in page.iter():
        numbers_of = " ".join(shape.get(k, "") for k in ("x", "y", "d", "width", "cx"))
        assert "nan" not in numbers_of
        assert not shape.get("width", "0").startswith("-")
    for picture in page.iter("svg"):
        _, _, width, height = map(float, picture.get("viewBox").split())
        for shape in picture.iter():
            left, right, y = extent(shape)
            assert -2 <= left <= right <= width + 2, (shape.attrib, shape.text)
            assert 0 <= y <= height, (shape.attrib, shape.text)


def require_legible(page):
    """Require that no two labels of a picture overlap."""
    for picture in page.iter("svg"):
        labels = sorted((*extent(t), t.text) for t in picture.iter("text"))
        for place, (_, right, y, name) in enumerate(labels):
            for other_left, _, other_y, other in labels[place + 1 :]:
                if other_left >= right:
                    break
                assert abs(y - other_y) >= 10, (picture.get("aria-label"), name, other)


def table_of(page, class_):
    """Return the words in each cell of the first table of a class."""
    table = next(t for t in page.iter("table") if t.get("class") == class_)
    return [[words(cell) for cell in row] for row in table.findall("tbody/tr")]
