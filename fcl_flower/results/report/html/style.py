"""How the pages look. In Python, since Flower bundles no style sheets."""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f6f8; --ink: #1b2230; --muted: #5c6675;
  --rule: #dde1e7; --accent: #1f5f99; --good: #2d7d55; --bad: #b5483a;
  --cold: #eef3f8; --hot: #1d5a94; --on-cold: #1b2230; --on-hot: #ffffff;
    --mark: #e08a1e;
  --early: #d9962b; --middle: #2a9287; --late: #2b3f8f;
  --c0: #2b6cb0; --c1: #d17a22; --c2: #3a9067; --c3: #8257a5;
  --c4: #b5485d; --c5: #2396a6; --c6: #8c6d3a; --c7: #6d7684;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --panel: #1c222b; --ink: #e4e8ee; --muted: #98a2b1;
    --rule: #2f3743; --accent: #74b0e6; --good: #63bd8f; --bad: #e58271;
    --cold: #1f2833; --hot: #4f93cf; --on-cold: #e4e8ee; --on-hot: #10141a;
      --mark: #ffb454;
    --early: #eab45c; --middle: #4cc0b2; --late: #93a5f5;
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
header p { margin: 0; color: var(--muted); }
h1 { margin: 0 0 .25rem; font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
h2 { margin: 0 0 .3rem; font-size: 1.15rem; line-height: 1.35; }
section { margin-top: 3rem; overflow: auto hidden; }
section > p, .note { margin: 0 0 1rem; color: var(--muted); max-width: 46rem; }
.verdict { margin: 1.25rem 0 0; padding: .8rem 1.1rem; max-width: none;
  color: var(--ink);
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
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--ink); }
svg .tick { font-size: 11.5px; fill: var(--muted); font-variant-numeric: tabular-nums; }
svg .axis { font-size: 12px; fill: var(--muted); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .zero { stroke: var(--muted); stroke-width: 1.2; }
svg .seam { stroke: var(--muted); stroke-width: .6; }
svg .shade { fill: var(--panel); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
svg .dashed { stroke-dasharray: 7 5; stroke-linecap: butt; }
svg .leader { fill: none; stroke-width: 1; opacity: .55; }
svg .whisker { fill: none; stroke-width: 2.5; stroke-linecap: round; }
svg .band { opacity: .14; }
svg .trouble { fill: var(--bad); }
svg .mark { fill: var(--mark); stroke: var(--paper); stroke-width: .6;
  pointer-events: none; }
svg .on-hot, svg .on-cold, svg .on-category { font-size: 11.5px;
  font-variant-numeric: tabular-nums; pointer-events: none; }
svg .on-hot { fill: var(--on-hot); }
svg .on-cold { fill: var(--on-cold); }
svg .on-category { fill: var(--paper); }
svg .point { stroke: var(--paper); stroke-width: 1; }
svg .noise { stroke: var(--muted); stroke-width: 1; }
svg .bar { fill: none; stroke: var(--muted); stroke-width: 1.2; }
.multiples { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem,
  1fr)); gap: 1rem; }
.maps { grid-template-columns: repeat(auto-fill, minmax(24rem, 1fr)); }
figure { margin: 0; }
figcaption { font-size: .85rem; color: var(--muted);
  font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 .5rem;
  padding: 0; list-style: none; font-size: .87rem; color: var(--muted); }
.legend i { display: inline-block; width: .75rem; height: .75rem; margin-right: .4rem;
  border-radius: 2px; vertical-align: -1px; box-shadow: inset 0 0 0 1px var(--rule); }
.wide { overflow-x: auto; }
.tall { max-height: 40rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.1rem .35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
td:has(> .swatch) { white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
.scenario td { min-width: 8.5rem; }
.scenario td:first-child { min-width: 0; }
.scenario small { display: block; line-height: 1.35; color: var(--muted); }
.settings td { overflow-wrap: anywhere; }
.choices { margin-top: 1.25rem; }
pre { padding: .8rem 1rem; background: var(--panel); border-radius: 6px;
  overflow-x: auto; font-size: .87rem; }
summary { cursor: pointer; color: var(--accent); }
details > :not(summary) { margin-top: .75rem; }
footer { margin-top: 3.5rem; padding-top: .8rem; border-top: 1px solid var(--rule);
  font-size: .85rem; color: var(--muted); }
@media print { .tall { max-height: none; } body { max-width: none; } }
.swatch { display: inline-block; width: .7rem; height: .7rem; margin-right: .5rem;
  border-radius: 2px; }
"""
