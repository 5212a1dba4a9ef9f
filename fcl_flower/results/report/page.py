"""The page of a report: its content as data, its markup and its style.

A page is one file that loads nothing, with Plotly compressed from 4.8 to 2.0 MB. Markup
and script stand in a Python file, since Flower bundles no other files into an app.
"""

import base64
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fcl_flower.core.files import replace_file
from fcl_flower.results.report.charts import Chart
from fcl_flower.results.report.wording import Table, Value

if TYPE_CHECKING:
    from jinja2 import Template

Tile: TypeAlias = tuple[str, Value, Value]
"""A headline figure: its name, its value and its meaning."""
Part: TypeAlias = Table | Chart | str | None
"""A part of a section; charts stand side by side where there is room."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page: a heading, a note that explains the parts, and the parts."""

    heading: str
    note: str
    parts: Sequence[Part]


def charts_of(sections: Iterable[Section]) -> list[Chart]:
    """List all charts in the order in which a page shows them."""
    parts = (part for section in sections for part in section.parts)
    return [part for part in parts if isinstance(part, Chart)]


def write_page(
    path: Path,
    title: str,
    subtitle: str,
    sections: Iterable[Section],
    sources: str,
    *,
    verdicts: Iterable[tuple[str, str]] = (),
    tiles: Iterable[Tile] = (),
) -> Path:
    """Write a page, and its folder if missing; the same content gives the same bytes.

    A section with nothing but empty tables is left out. Verdicts are sentences, each
    with its tone: ``good``, ``bad`` or empty.
    """
    shown = [
        section
        for section in sections
        if any(part.rows if isinstance(part, Table) else part for part in section.parts)
    ]
    figures = []
    for chart in charts_of(shown):
        drawn = chart.plotly()
        drawn["layout"]["height"] = chart.height
        figures.append({"what": chart.what, **drawn})
    text = _template().render(
        title=title,
        subtitle=subtitle,
        verdicts=verdicts,
        tiles=[*tiles],
        sections=shown,
        sources=sources,
        style=STYLE,
        script=SCRIPT,
        figures=figures,
        library=_library() if figures else "",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)
    return path


@cache
def _template() -> "Template":
    """Compile the page's template, which takes a tenth of a second."""
    # Imported here, since a server needs no templates before its last round.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # NaN is refused, since it would leave a chart empty without a message.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    return environment.from_string(TEMPLATE)


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
  :root {
    --paper: #14181f; --panel: #1c222b; --ink: #e4e8ee; --muted: #98a2b1;
    --rule: #2f3743; --accent: #74b0e6; --good: #63bd8f; --bad: #e58271;
    --cold: #1f2833; --hot: #4f93cf; --mark: #ffb454;
    --c0: #6ba8e5; --c1: #eba05a; --c2: #6fc398; --c3: #b594d6;
    --c4: #e58597; --c5: #5fc4d2; --c6: #c4a46c; --c7: #a0a9b6;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 66rem;
  background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.55 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header p, section > p, .small, small, figcaption, footer { color: var(--muted); }
header p { margin: 0; }
h1, h2 { margin: 0 0 .3rem; line-height: 1.3; }
h2 { font-size: 1.15rem; }
section, footer { margin-top: 3rem; }
section > p { margin: 0 0 1rem; max-width: 46rem; }
.verdict { margin: .6rem 0 0; padding: .8rem 1.1rem; background: var(--panel);
  border-left: 4px solid var(--accent); }
.verdict.good { border-color: var(--good); }
.verdict.bad { border-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr));
  gap: .75rem; margin: 1.75rem 0 0; }
.tile { padding: .85rem 1rem .8rem; background: var(--panel); border-radius: 6px; }
.tile dd { margin: 0; }
.tile .figure { font-size: 1.65rem; line-height: 1.3; font-weight: 600; }
.small, .numbers, small, figcaption, footer { font-size: .85rem; }
.parts { display: flex; flex-wrap: wrap; gap: 1rem; }
.parts > * { flex: 1 1 100%; min-width: 0; }
.parts > figure[style] { flex-basis: min(22rem, 100%); }
figure { margin: 0; }
.wide { overflow: auto; max-height: 40rem; }
table { border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; }
.settings td { overflow-wrap: anywhere; }
th, td { padding: .35rem 1.1rem .35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; }
.scenario td + td { min-width: 8.5rem; }
.methods td:first-child { min-width: 11rem; }
td small { display: block; line-height: 1.35; }
a, summary { color: var(--accent); }
.swatch { display: inline-block; width: .7rem; height: .7rem; margin-right: .5rem; }
"""
"""The style sheet, with colours for light and for dark."""

SCRIPT = """
(async () => {
  const text = id => document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(text("library")), c => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream()
    .pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(unpacked).text();
  document.head.append(library);

  const root = document.documentElement;
  const coloured = node => {
    if (Array.isArray(node)) return node.map(coloured);
    if (node && typeof node === "object") return Object.fromEntries(
      Object.entries(node).map(([key, value]) => [key, coloured(value)]));
    if (typeof node === "string" && /^var\\(--[a-z0-9-]+\\)$/.test(node))
      return getComputedStyle(root).getPropertyValue(node.slice(4, -1)).trim();
    return node;
  };
  const axis = { gridcolor: "var(--rule)", linecolor: "var(--rule)",
    zeroline: false, automargin: true };
  // With uirevision a redrawn chart keeps the reader's zoom.
  const form = { uirevision: true, template: { layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: "var(--ink)" },
    margin: { l: 8, r: 8, t: 44, b: 8 }, hovermode: "closest",
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    xaxis: axis, yaxis: axis,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--muted)",
      activecolor: "var(--ink)" },
    coloraxis: { colorscale: [[0, "var(--cold)"], [1, "var(--hot)"]],
      colorbar: { thickness: 10, outlinewidth: 0, nticks: 3 } },
  } } };
  const figures = JSON.parse(text("figures"));
  const places = [...document.querySelectorAll(".chart")];
  const draw = () => Promise.all(places.map((place, i) =>
    Plotly.react(place, coloured(figures[i].data),
      coloured({ ...form, ...figures[i].layout }),
      // Plotly has a button that sends a chart to its maker, and shows it if not told.
      { responsive: true, displaylogo: false, showSendToCloud: false,
        modeBarButtonsToRemove: ["select2d", "lasso2d"],
        toImageButtonOptions: { format: "svg", filename: figures[i].what } })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  await draw();
  root.dataset.drawn = places.length;
})();
"""
"""The script that draws the charts with Plotly in the colours of the page."""

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

{%- macro part(content) %}
{% if content is string %}<p>{{ content }}</p>
{% elif content.kind == "chart" %}
<figure{% if content.width %} style="max-width:{{ content.width }}px"{% endif %}>
<div class="chart" role="img" aria-label="{{ content.what }}"
 style="height:{{ content.height }}px"></div>
<figcaption>{{ content.caption or content.what }}</figcaption>
<details class="numbers"><summary>Numbers of this picture</summary>
{{ plain(content.table) }}</details>
</figure>
{% elif content.folded and content.rows|length > content.open_up_to %}
<details><summary>{{ content.folded }}</summary>{{ plain(content) }}</details>
{% else %}{{ plain(content) }}
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
{% for sentence, tone in verdicts %}
<p class="{{ ['verdict', tone]|join(' ')|trim }}">{{ sentence }}</p>
{% endfor %}
{% if tiles %}<dl class="tiles">
{% for name, figure, meaning in tiles %}
<div class="tile"><dt>{{ name }}</dt><dd class="figure">{{ shown(figure) }}</dd>
<dd class="small">{{ shown(meaning) }}</dd></div>
{% endfor %}
</dl>
{% endif %}
{% for section in sections %}
<section><h2>{{ section.heading }}</h2><p>{{ section.note }}</p>
<div class="parts">
{% for content in section.parts if content %}{{ part(content) }}{% endfor %}
</div></section>
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
