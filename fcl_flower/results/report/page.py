"""The page that a report is: its content as data, its markup and its style.

One file that loads nothing: Plotly is in it compressed, 2.0 MB instead of 4.8. Markup
and style are Python, since Flower bundles no other files into an app.
"""

import base64
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from fcl_flower.results.report.charts import Chart
from fcl_flower.results.report.script import SCRIPT
from fcl_flower.results.report.wording import Table, Value


@dataclass(frozen=True, slots=True)
class Tiles:
    """Headline figures: each with its name, the figure and what it means."""

    kind: ClassVar = "tiles"
    entries: Sequence[tuple[str, Value, Value]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence set apart; its tone is ``good``, ``bad`` or neither."""

    kind: ClassVar = "verdict"
    sentence: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line between tables and charts; ``verbatim`` for a command."""

    kind: ClassVar = "text"
    text: str
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Small charts side by side; ``name`` is for the style sheet."""

    kind: ClassVar = "row"
    charts: Sequence[Chart]
    name: str = ""


Part = Table | Text | Chart | Row


@dataclass(frozen=True, slots=True)
class Section:
    """A heading that says what one sees, a note that explains it, and the parts."""

    kind: ClassVar = "section"
    heading: str
    note: str
    parts: Sequence[Part]


Block = Tiles | Verdict | Section


def charts_of(blocks: Iterable[Block]) -> list[Chart]:
    """List all charts in the order in which a page shows them."""
    found: list[Chart] = []
    for block in blocks:
        for part in block.parts if isinstance(block, Section) else ():
            if isinstance(part, Row):
                found += part.charts
            elif not isinstance(part, Table | Text):
                found.append(part)
    return found


def page(title: str, subtitle: str, body: Iterable[Block], sources: str) -> str:
    """Make one page; the same content gives the same bytes.

    A section without parts is left out.
    """
    # Here, since who only serves a round needs no templates.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # What is no number would leave a picture empty without a word.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    blocks = [one for one in body if not isinstance(one, Section) or one.parts]
    charts = charts_of(blocks)
    return environment.from_string(TEMPLATE).render(
        title=title,
        subtitle=subtitle,
        blocks=blocks,
        sources=sources,
        style=STYLE,
        script=SCRIPT,
        figures=[{"what": one.what, **one.data} for one in charts],
        library=_library() if charts else "",
    )


def write_page(path: Path, text: str) -> Path:
    """Write a page, whose folder is made if need be; return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


@cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), mtime=0)
    return base64.b64encode(packed).decode()


STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f6f8; --ink: #1b2230; --muted: #5c6675;
  --rule: #dde1e7; --accent: #1f5f99; --good: #2d7d55; --bad: #b5483a;
  --cold: #eef3f8; --hot: #1d5a94; --mark: #e08a1e;
  --c0: #2b6cb0; --c1: #d17a22; --c2: #3a9067; --c3: #8257a5;
  --c4: #b5485d; --c5: #2396a6; --c6: #8c6d3a; --c7: #6d7684;
}
@media screen and (prefers-color-scheme: dark) {
  :root:not(.print) {
    --paper: #14181f; --panel: #1c222b; --ink: #e4e8ee; --muted: #98a2b1;
    --rule: #2f3743; --accent: #74b0e6; --good: #63bd8f; --bad: #e58271;
    --cold: #1f2833; --hot: #4f93cf; --mark: #ffb454;
    --c0: #6ba8e5; --c1: #eba05a; --c2: #6fc398; --c3: #b594d6;
    --c4: #e58597; --c5: #5fc4d2; --c6: #c4a46c; --c7: #a0a9b6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 66rem;
  background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
    Arial, sans-serif;
}
header p { margin: 0; color: var(--muted); overflow-wrap: anywhere; }
h1 { margin: 0 0 .25rem; font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
h2 { margin: 0 0 .3rem; font-size: 1.15rem; line-height: 1.35;
  overflow-wrap: anywhere; }
section { margin-top: 3rem; }
section > p, .note { margin: 0 0 1rem; color: var(--muted); max-width: 46rem;
  overflow-wrap: anywhere; }
.verdict { margin: 1.25rem 0 0; padding: .8rem 1.1rem; max-width: none;
  color: var(--ink); overflow-wrap: anywhere;
  background: var(--panel); border-left: 4px solid var(--accent); }
.verdict + .verdict { margin-top: .4rem; }
.verdict.good { border-color: var(--good); }
.verdict.bad { border-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr));
  gap: .75rem; margin: 1.75rem 0 0; }
.tile { padding: .85rem 1rem .8rem; background: var(--panel); border-radius: 6px; }
.tile dt { font-size: .85rem; color: var(--muted); }
.tile dd { margin: 0; }
.tile .figure { font-size: 1.65rem; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tile .small { font-size: .82rem; line-height: 1.4; color: var(--muted); }
.multiples { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); }
.maps { grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); }
figure { margin: 0 0 1rem; min-width: 0; }
.numbers { font-size: .85rem; }
.numbers .wide { max-height: 24rem; overflow-y: auto; }
figcaption { font-size: .85rem; color: var(--muted);
  font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.tall { max-height: 40rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.1rem .35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
td:has(> .swatch) { white-space: nowrap; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; }
.scenario td { min-width: 8.5rem; }
.scenario td:first-child { min-width: 0; }
td small { display: block; line-height: 1.35; color: var(--muted); }
.settings td { overflow-wrap: anywhere; }
pre { padding: .8rem 1rem; background: var(--panel); border-radius: 6px;
  overflow-x: auto; font-size: .87rem; }
a { color: var(--accent); }
summary { cursor: pointer; color: var(--accent); }
details > :not(summary) { margin-top: .75rem; }
footer { margin-top: 3.5rem; padding-top: .8rem; border-top: 1px solid var(--rule);
  font-size: .85rem; color: var(--muted); }
@media print { .tall { max-height: none; } body { max-width: none; }
  figure, tr { break-inside: avoid; } details.numbers:not([open]) { display: none; } }
.swatch { display: inline-block; width: .7rem; height: .7rem; margin-right: .5rem;
  border-radius: 2px; }
"""
"""Colours are given for light and for dark."""

TEMPLATE = """\
<!DOCTYPE html>
{% macro shown(value) -%}
{% if value is string %}{{ value }}{% else %}
{% if value.colour %}<i class="swatch" style="background:{{ value.colour }}"></i>
{%- endif %}
<span{% if value.hint %} title="{{ value.hint }}"{% endif %}>
{%- if value.link %}<a href="{{ value.link }}">{{ value.text }}</a>
{%- else %}{{ value.text }}{% endif %}</span>
{%- for line in value.lines %}<small>{{ line }}</small>{% endfor %}
{%- endif %}
{%- endmacro %}

{%- macro plain(table) %}
<div class="wide"><table class="{{ table.name }}">
<thead><tr>
{%- for name in table.head %}<th{{ ' class="n"'|safe if loop.index > table.words }}>
{{- shown(name) }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for value in row %}<td{{ ' class="n"'|safe if loop.index > table.words }}>
{{- shown(value) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}

{%- macro figure(one) %}
<figure{% if one.width %} style="max-width:{{ one.width }}px"{% endif %}>
<div class="chart" role="img" aria-label="{{ one.what }}"
 style="height:{{ one.data.layout.height }}px"></div>
<figcaption>{{ one.caption or one.what }}</figcaption>
<details class="numbers"><summary>Numbers of this picture</summary>
{{ plain(one.table) }}</details>
</figure>
{% endmacro %}

{%- macro part(one) %}
{% if one.kind == "chart" %}{{ figure(one) }}
{% elif one.kind == "row" %}<div class="multiples {{ one.name }}">
{% for small in one.charts %}{{ figure(small) }}{% endfor %}
</div>
{% elif one.kind == "text" %}
{% if one.verbatim %}<pre>{{ one.text }}</pre>
{% else %}<p class="note">{{ one.text }}</p>
{% endif %}
{% elif one.folded %}<details><summary>{{ one.folded }}</summary>
<div class="tall">{{ plain(one) }}</div></details>
{% else %}{{ plain(one) }}
{% endif %}
{% endmacro -%}

<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
{# The browser refuses any request, whatever a label contains. #}
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 base-uri 'none'; form-action 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data: blob:"/>
<title>{{ title }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
<header><p>{{ subtitle }}</p><h1>{{ title }}</h1></header>
{% for block in blocks %}
{% if block.kind == "tiles" %}<dl class="tiles">
{% for name, figure, meaning in block.entries %}
<div class="tile"><dt>{{ name }}</dt><dd class="figure">{{ shown(figure) }}</dd>
<dd class="small">{{ shown(meaning) }}</dd></div>
{% endfor %}
</dl>
{% elif block.kind == "verdict" %}
<p class="{{ ['verdict', block.tone]|join(' ')|trim }}">{{ block.sentence }}</p>
{% else %}
<section><h2>{{ block.heading }}</h2><p>{{ block.note }}</p>
{% for one in block.parts %}{{ part(one) }}{% endfor %}
</section>
{% endif %}
{% endfor %}
<footer>Clients, tasks and concepts are counted from 0 and rounds from 1, as in the
files of the run. Accuracies are fractions of the test examples; a dash stands for
what was not measured. Rest the pointer on a picture or a size for the exact number;
drag over a picture to zoom, click a name in its legend to hide it. {{ sources }}
</footer>
{% if library %}
<noscript><style>.chart { display: none; }</style></noscript>
<script type="application/json" id="figures">{{ figures|tojson }}</script>
<script type="text/plain" id="library">{{ library }}</script>
<script>{{ script|safe }}</script>
{% endif %}
</body>
</html>
"""
