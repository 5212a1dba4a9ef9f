"""How the pages look. In Python, since Flower bundles no style sheets."""

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
td.n, th.n { text-align: right; white-space: nowrap; }
.scenario td { min-width: 8.5rem; }
.scenario td:first-child { min-width: 0; }
td small { display: block; line-height: 1.35; color: var(--muted); }
.settings td { overflow-wrap: anywhere; }
.under-way td { white-space: nowrap; }
.choices { margin-top: 1.25rem; }
pre { padding: .8rem 1rem; background: var(--panel); border-radius: 6px;
  overflow-x: auto; font-size: .87rem; }
a { color: var(--accent); }
summary { cursor: pointer; color: var(--accent); }
details > :not(summary) { margin-top: .75rem; }
footer { margin-top: 3.5rem; padding-top: .8rem; border-top: 1px solid var(--rule);
  font-size: .85rem; color: var(--muted); }
#live { margin: -1.5rem 0 1rem; font-size: .85rem; color: var(--muted); }
@media print { #live { display: none; }
  .tall { max-height: none; } body { max-width: none; }
  figure, tr { break-inside: avoid; } details.numbers:not([open]) { display: none; } }
.swatch { display: inline-block; width: .7rem; height: .7rem; margin-right: .5rem;
  border-radius: 2px; }
"""
