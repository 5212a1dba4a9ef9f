"""What a page does in the browser: it draws its charts by Plotly, and follows a run.

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
  // A chart that changes stays as the reader has zoomed it: uirevision.
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
  const drawn = new WeakMap();
  const draw = anew => {
    const figures = JSON.parse(text("figures"));
    const places = [...document.querySelectorAll(".chart")];
    return Promise.all(places.map((place, i) => {
      const now = JSON.stringify(figures[i]);
      if (!anew && drawn.get(place) === now) return null;
      drawn.set(place, now);
      return Plotly.react(place, coloured(figures[i].data),
        coloured({ ...form, ...figures[i].layout }), config(figures[i]));
    }));
  };

  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => draw(true));
  addEventListener("beforeprint", () => { root.classList.add("print"); draw(true); });
  addEventListener("afterprint", () => { root.classList.remove("print"); draw(true); });
  await draw(true);
  root.dataset.drawn = document.querySelectorAll(".chart").length;
  document.addEventListener("swapped", () => draw(false));
})();
"""

FOLLOWING = """
(() => {
  const SECONDS = 2;
  const note = document.getElementById("live");
  let tag = "", shown = new Date();

  // Names that stay while headings and numbers change.
  const chart = node => node?.querySelector(".chart")?.getAttribute("aria-label") ?? "";
  const part = node => chart(node) || (node.querySelector("table") ?? node).className
    || node.textContent;
  const fold = node => chart(node.closest("figure"))
    + node.querySelector("summary").textContent;
  const parts = page => [...page.body.children].filter(node =>
    !["SCRIPT", "NOSCRIPT"].includes(node.nodeName) && node.id !== "live");

  const swap = page => {
    const old = parts(document), fresh = parts(page);
    const box = node => node.getBoundingClientRect();
    // What begins on the screen stays where it is, else what fills it.
    const read = old.find(node => box(node).top >= 0 && box(node).top < innerHeight)
      ?? old.find(node => box(node).bottom > 0);
    const [name, top] = read ? [part(read), box(read).top] : [];
    const charts = new Map([...document.querySelectorAll(".chart")]
      .map(node => [node.getAttribute("aria-label"), node]));
    const open = new Set([...document.querySelectorAll("details[open]")].map(fold));
    const scrolled = new Map(old.flatMap(node =>
      [...node.querySelectorAll(".wide, .tall")].map((box, i) =>
        [part(node) + i, [box.scrollLeft, box.scrollTop]])));
    document.title = page.title;
    document.getElementById("figures").textContent =
      page.getElementById("figures")?.textContent ?? "[]";
    for (const node of page.querySelectorAll("details"))
      node.open = open.has(fold(node));
    const places = [...page.querySelectorAll(".chart")];
    note.after(...fresh);
    for (const node of places) {
      const kept = charts.get(node.getAttribute("aria-label"));
      if (!kept) continue;
      kept.style.height = node.style.height;
      node.replaceWith(kept);
    }
    for (const node of old) node.remove();
    for (const node of fresh)
      [...node.querySelectorAll(".wide, .tall")].forEach((box, i) => {
        [box.scrollLeft, box.scrollTop] = scrolled.get(part(node) + i) ?? [0, 0];
      });
    document.dispatchEvent(new Event("swapped"));
    const same = read && fresh.find(node => part(node) === name);
    if (same) scrollBy(0, box(same).top - top);
  };

  const ask = async () => {
    if (document.hidden) return true;
    const reply = await fetch("/", { cache: "no-store",
      headers: tag ? { "If-None-Match": tag } : {} });
    if (reply.status !== 304) {
      const text = await reply.text();
      if (!reply.ok) throw new Error(text);
      const page = new DOMParser().parseFromString(text, "text/html");
      const goesOn = page.getElementById("live") !== null;
      swap(page);
      tag = reply.headers.get("ETag");
      if (!goesOn) return false;
    }
    shown = new Date();
    note.textContent = "Live: this page follows the run; last asked at "
      + shown.toLocaleTimeString() + ".";
    return true;
  };
  const follow = async () => {
    let goesOn = true;
    try {
      goesOn = await ask();
    } catch (error) {
      const why = error instanceof TypeError
        ? "The command that serves this page has ended, or cannot be reached."
        : error.message;
      note.textContent = why + " The page is as it was at "
        + shown.toLocaleTimeString() + ".";
    }
    if (goesOn) setTimeout(follow, SECONDS * 1000);
    else note.textContent = "The command has finished; this page changes no more.";
  };
  setTimeout(follow, SECONDS * 1000);
})();
"""
