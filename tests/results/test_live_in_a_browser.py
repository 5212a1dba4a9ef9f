"""A live page in a real browser: it changes, and the reader stays where he was."""

import os

import pytest
from browser import CHROMIUM, opened
from run_folders import make_run, make_under_way

from fcl_flower.results import monitors
from fcl_flower.results.monitors import LivePage, live
from fcl_flower.results.report.run_page import report_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

EVIL = "<img src=x onerror=alert(1)>"
PROBE = """<script>
const refused = [], seen = [];
// A page that nobody sees asks for nothing: here until it is drawn.
Object.defineProperty(document, "hidden", { get: () => seen.length === 0 });
addEventListener("securitypolicyviolation", e => refused.push(e.blockedURI));
const chart = () => document.querySelector('[aria-label^="Accuracy of every task"]');
const heading = () => [...document.querySelectorAll("h2")].find(
  h => h.textContent.startsWith("Accuracy on every task")).getBoundingClientRect().top;
const look = () => ({
  title: document.title, range: chart().layout.xaxis.range, mine: chart().mine,
  lines: chart().data.filter(one => one.hoverinfo !== "skip").length,
  open: [...document.querySelectorAll("details[open]")].length,
  ours: chart().closest("figure").querySelector("details").open,
  top: heading(), note: document.getElementById("live").textContent,
  undrawn: [...document.querySelectorAll(".chart")].filter(c => !c.data).length,
  elements: [...document.querySelectorAll("body *")].map(e => e.localName),
});
new MutationObserver((_, observer) => {
  if (document.documentElement.dataset.drawn === undefined) return;
  observer.disconnect();
  chart().querySelector('[data-title="Zoom in"]').click();
  chart().mine = true;
  chart().closest("figure").querySelector("details").open = true;
  scrollBy(0, heading() - 50);
  setTimeout(() => seen.push(look()), 200);
  document.addEventListener("swapped", () => setTimeout(() => {
    seen.push(look());
    if (seen.length < 3) return;
    const note = document.createElement("pre");
    note.id = "seen";
    note.textContent = JSON.stringify({ seen, refused });
    document.body.append(note);
  }, 300));
}).observe(document.documentElement, { attributes: true });
</script></head>"""


def test_a_page_changes_under_a_reader_who_stays_where_he_is(tmp_path, monkeypatch):
    monkeypatch.setattr(monitors, "SHARE", 1e9)
    states = [
        make_under_way(tmp_path / "a", finished=5),
        make_under_way(tmp_path / "b", finished=9, label=EVIL),
        make_run(tmp_path / "c"),
    ]
    drawn, folder = [], tmp_path / "watched"
    folder.mkdir()

    def draw(goes_on):
        state = states[len(drawn)]
        drawn.append(state)
        (folder / "progress.json").touch()  # so that the next question finds another
        os.utime(folder / "progress.json", (len(drawn), len(drawn)))
        page = report_page(state, live=state is not states[-1])
        return page.replace("</head>", PROBE, 1)

    told = []
    with live(0, LivePage(draw, [folder]), told.append):
        found, complaints = opened(
            told[0].removeprefix("live: "),
            tmp_path / "profile",
            "--window-size=1200,900",
            milliseconds=8000,
        )
    first, second, last = found["seen"]

    assert len(drawn) == 3
    assert not complaints
    assert found["refused"] == []
    assert first["title"] == "fedweit, under way"
    assert second["title"] == f"{EVIL}, under way"
    assert last["title"] == "fedweit"
    assert [one["lines"] for one in (first, second, last)] == [1, 2, 3]
    for one in (first, second, last):
        assert one["mine"], "the chart is another one"
        assert one["range"] == first["range"], "it is no longer as it was zoomed"
        assert one["ours"]
        assert one["open"] == 1
        assert abs(one["top"] - first["top"]) < 2, "the page has moved"
        assert one["undrawn"] == 0
        assert "img" not in one["elements"]
    assert first["top"] < 100
    assert first["note"].startswith("Live: this page follows the run")
    assert last["note"] == "The command has finished; this page changes no more."
