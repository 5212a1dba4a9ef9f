"""MkDocs hook: files that lie elsewhere in the repository are pages of the site too.

In ``docs/`` a link names the file where it lies, such as ``../CONTRIBUTING.md``, so
that it works when the sources are read; here it becomes a link to the page.
"""

import re
from pathlib import Path
from posixpath import join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(\]\()([^)#\s]+)([^)\s]*\))")


def repository_pages() -> dict[str, str]:
    """Return the page of each file outside ``docs/``, both relative to their roots."""
    pages = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    pages["docker/README.md"] = "docker.md"
    for name, end in (("README.md", ""), ("HISTORY.md", "-details")):
        for path in sorted((ROOT / "experiments").glob(f"*/{name}")):
            source = path.relative_to(ROOT).as_posix()
            pages[source] = f"experiments/{path.parent.name}{end}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, page in repository_pages().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Turn links between files of the repository into links between pages."""
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

    return _LINK.sub(replaced, markdown)
