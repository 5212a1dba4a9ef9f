"""What a page does in the browser: it draws its charts by Plotly.

In Python, since Flower bundles no scripts.
"""

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
  const axis = { gridcolor: "var(--rule)", zerolinecolor: "var(--muted)",
    linecolor: "var(--rule)", automargin: true,
    title: { font: { color: "var(--muted)" }, standoff: 10 } };
  // A chart that is drawn anew stays as the reader has zoomed it: uirevision.
  const form = { uirevision: true, template: { layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: "var(--ink)" },
    margin: { l: 8, r: 8, t: 44, b: 8 }, hovermode: "closest",
    hoverlabel: { align: "left", namelength: -1, bgcolor: "var(--panel)",
      bordercolor: "var(--rule)", font: { color: "var(--ink)" } },
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    modebar: { color: "var(--muted)", activecolor: "var(--ink)",
      bgcolor: "rgba(0,0,0,0)" },
    xaxis: { ...axis, zeroline: false }, yaxis: axis,
    coloraxis: { colorscale: [[0, "var(--cold)"], [1, "var(--hot)"]],
      colorbar: { thickness: 10, outlinewidth: 0, nticks: 3 } },
  } } };

  // A spreadsheet would run a cell that starts like a formula.
  const field = cell => '"' + cell.textContent.trim()
    .replace(/^(?=[=@\\t]|[+-][^\\d.])/, "'").replaceAll('"', '""') + '"';
  const saved = graph => {
    const rows = [...graph.parentElement.querySelectorAll(".numbers tr")]
      .map(row => [...row.cells].map(field).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(
      new Blob([rows.join("\\r\\n") + "\\r\\n"], { type: "text/csv" }));
    link.download = graph.getAttribute("aria-label") + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  const config = figure => ({ responsive: true, displaylogo: false,
    toImageButtonOptions: { format: "svg", filename: figure.what },
    // By name, since Plotly's own set has one that sends the chart to a server.
    modeBarButtons: [["toImage", { name: "Download the numbers as CSV",
      icon: Plotly.Icons.disk, click: saved }],
      ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  const figures = JSON.parse(text("figures"));
  const places = [...document.querySelectorAll(".chart")];
  const draw = () => Promise.all(places.map((place, i) =>
    Plotly.react(place, coloured(figures[i].data),
      coloured({ ...form, ...figures[i].layout }), config(figures[i]))));

  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  addEventListener("beforeprint", () => { root.classList.add("print"); draw(); });
  addEventListener("afterprint", () => { root.classList.remove("print"); draw(); });
  await draw();
  root.dataset.drawn = places.length;
})();
"""
