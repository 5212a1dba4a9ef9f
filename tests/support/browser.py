"""Looks at a page in a real browser: headless Chromium, where it is installed."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

PROBE = """<style>body { width: WIDTHpx; }</style><script>
const refused = [];
addEventListener("securitypolicyviolation", e => refused.push(e.blockedURI));
new MutationObserver((_, observer) => {
  const root = document.documentElement;
  if (root.dataset.drawn === undefined) return;
  observer.disconnect();
  const charts = [...document.querySelectorAll(".chart")];
  const seen = {
    width: document.body.clientWidth, scrolled: document.body.scrollWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    drawn: Number(root.dataset.drawn),
    charts: charts.map(chart => ({
      what: chart.getAttribute("aria-label"),
      marks: chart.querySelectorAll(
        ".points path, .point, .lines path, .hm image, .heatmaplayer image").length,
      texts: [...chart.querySelectorAll("text")].map(text => text.textContent),
      buttons: [...chart.querySelectorAll(".modebar-btn")]
        .map(button => button.dataset.title),
      bar: getComputedStyle(chart.querySelector(".modebar-group")).backgroundColor,
      ink: getComputedStyle(chart.querySelector(".xtick text")).fill,
      room: document.body.getBoundingClientRect().right
        - chart.getBoundingClientRect().right })),
    asked: performance.getEntriesByType("resource").map(one => one.name), refused,
    elements: [...document.querySelectorAll("body *")].map(e => e.localName),
  };
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(seen);
  document.body.append(note);
}).observe(document.documentElement, { attributes: true });
</script></head>"""
"""Put into a copy of the page: writes what the browser shows into the page itself.

The body is made narrow, since no window of Chromium is as narrow as a phone.
"""


@dataclass(frozen=True)
class Seen:
    """What the browser showed, and its complaints."""

    shown: dict
    complaints: list


class Note(HTMLParser):
    """Finds what a probe has written into the page."""

    def __init__(self):
        super().__init__()
        self.inside, self.text = False, ""

    def handle_starttag(self, tag, attrs):
        self.inside = ("id", "seen") in attrs

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        self.text += data if self.inside else ""


def opened(address, profile, *options, milliseconds=20_000):
    """Open an address in Chromium; return what a probe noted, and all complaints."""
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-background-networking", "--disable-component-update"),
            *("--enable-logging=stderr", f"--virtual-time-budget={milliseconds}"),
            *("--dump-dom", f"--user-data-dir={profile}", *options, address),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    note = Note()
    note.feed(done.stdout)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(note.text), complaints


def look(page, folder, width=1000, dark=False):
    """Open a copy of a page, ``width`` pixels wide, and return what was seen."""
    folder.mkdir()
    copy = folder / "page.html"
    text = page.read_text(encoding="utf-8")
    assert text.count("</head>") == 1
    copy.write_text(
        text.replace("</head>", PROBE.replace("WIDTH", str(width))), encoding="utf-8"
    )
    form = ["--blink-settings=preferredColorScheme=0"] if dark else []
    found, complaints = opened(
        copy.as_uri(),
        folder / "profile",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        *("--window-size=1200,1200", *form),
    )
    return Seen(found, complaints)
