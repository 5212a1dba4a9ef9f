"""MkDocs hook: files that lie elsewhere in the repository are pages of the site too.

In ``docs/`` a link names the file where it lies, such as ``../CONTRIBUTING.md``, so
that it works when the sources are read; here it becomes a link to the page. A chart
that has a dark variant is followed by it, and the site shows one of the two; so does it
of a ``<picture>``, of which a code host shows the one for the reader's system. No line
breaks between a number and its deviation or its unit.
"""

import re
from pathlib import Path
from posixpath import join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(\]\()([^)#\s]+)([^)\s]*\))")
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    r'\s*<img src="([^"]+)"[^>]* alt="([^"]+)">\s*</picture>'
)
_SPACE = re.compile(
    r"<pre.*?</pre>|(?<=\d) (?=±|[kMG]?B\b|ms\b|%)|(?<=±) (?=\d)", re.DOTALL
)
_CHART = re.compile(r"(!\[[^\]]*\]\(\S*?images/([\w-]+))\.svg\)")


def repository_pages() -> dict[str, str]:
    """Return the page of each file outside ``docs/``, both relative to their roots."""
    pages = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    pages["docker/README.md"] = "docker.md"
    for path in sorted((ROOT / "experiments").glob("*/*")):
        study = f"experiments/{path.parent.name}"
        names = {"README.md": f"{study}.md", "HISTORY.md": f"{study}-history.md"}
        if path.suffix == ".svg":
            names[path.name] = f"{study}-{path.name}"
        if path.name in names:
            pages[path.relative_to(ROOT).as_posix()] = names[path.name]
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, page in repository_pages().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Turn links between files into links between pages, and charts into pairs."""
    pages = repository_pages()
    source_of = {target: source for source, target in pages.items()}
    here = page.file.src_uri
    source = source_of.get(here, f"docs/{here}")

    def replaced(match: re.Match[str]) -> str:
        path = normpath(join(source, "..", match[2]))
        target = pages.get(path, path.removeprefix("docs/") if "docs/" in path else "")
        if not target or "://" in match[2]:
            return match[0]
        return f"{match[1]}{relpath(target, join(here, '..'))}{match[3]}"

    def paired(match: re.Match[str]) -> str:
        if not (ROOT / "docs" / "images" / f"{match[2]}-dark.svg").exists():
            return match[0]
        light = f"{match[1]}.svg#only-light)"
        return f"{light}{match[1]}-dark.svg#only-dark)"

    switched = _PICTURE.sub(r"![\3](\2#only-light)![\3](\1#only-dark)", markdown)
    return _CHART.sub(paired, _LINK.sub(replaced, switched))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep a number, its deviation and its unit on one line; code stays as it is."""
    return _SPACE.sub(lambda m: "\N{NO-BREAK SPACE}" if m[0] == " " else m[0], html)
