"""The markup of a page, for Jinja2 with autoescape.

In Python, since Flower bundles no other files of this kind into an app.
"""

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
{{- name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for value in row %}<td{{ ' class="n"'|safe if loop.index > table.words }}>
{{- shown(value) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}

{%- macro chart(one) %}
<figure{% if one.width %} style="max-width:{{ one.width }}px"{% endif %}>
<div class="chart" role="img" aria-label="{{ one.what }}"
 style="height:{{ one.layout.height }}px"></div>
{% if one.caption %}<figcaption>{{ one.caption }}</figcaption>
{% endif %}
<details class="numbers"><summary>Numbers of this picture</summary>
{{ plain(one.numbers) }}</details>
</figure>
{% endmacro %}

{%- macro part(one) %}
{% if one.kind == "chart" %}{{ chart(one) }}
{% elif one.kind == "charts" %}<div class="multiples {{ one.name }}">
{% for small in one.charts %}{{ chart(small) }}{% endfor %}
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
{# The browser refuses any request, whatever a label contains; a live page may ask for
   itself. #}
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 base-uri 'none'; form-action 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data: blob:
 {%- if following %}; connect-src 'self'{% endif %}"/>
<title>{{ title }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
{% if following %}
<p id="live">Live: this page follows the run.</p>
{% endif %}
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
{% if following %}
<script>{{ following|safe }}</script>
{% endif %}
{% endif %}
</body>
</html>
"""
