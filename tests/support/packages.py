"""Packages that are installed for one test, with entry points of their own."""

import sys


def install(monkeypatch, folder, group, points, source):
    """Put a package ``their_package`` with one module on the path.

    Args:
        monkeypatch: undoes it.
        folder: an empty one.
        group: of the entry points.
        points: what of the module is declared, by the name of the entry point.
        source: text of the module.
    """
    info = folder / "their_package-1.0.dist-info"
    info.mkdir()
    (folder / "their_package.py").write_text(source)
    lines = [f"{name} = their_package:{part}" for name, part in points.items()]
    (info / "METADATA").write_text("Name: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "their_package", raising=False)
