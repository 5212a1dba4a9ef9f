"""MkDocs hook: files that lie elsewhere in the repository are pages of the site too.

In ``docs/`` a link names the file where it lies, such as ``../CONTRIBUTING.md``, so
that it works when the sources are read; here it becomes a link to the page. A picture
with a dark variant follows the reader's system there, and the site's own switch here.
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
    r'\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)


def repository_pages() -> dict[str, str]:
    """Return the page of each file outside ``docs/``, both relative to their roots."""
    studies = sorted((ROOT / "experiments").glob("*/README.md"))
    pages = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    pages["docker/README.md"] = "docker.md"
    return pages | {
        path.relative_to(ROOT).as_posix(): f"experiments/{path.parent.name}.md"
        for path in studies
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, page in repository_pages().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Turn links between files into links between pages, and pictures into two."""
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

    switched = _PICTURE.sub(r"![\3](\2#only-light)![\3](\1#only-dark)", markdown)
    return _LINK.sub(replaced, switched)
