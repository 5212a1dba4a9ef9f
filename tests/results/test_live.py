"""The page of a run that goes on: when it is drawn, and who gets it."""

import http.client
import itertools
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.results import monitors
from fcl_flower.results.monitors import LivePage, live


@pytest.fixture
def drawn(tmp_path):
    """A page of a folder, drawn by a clock of ours: every drawing takes a second."""
    now, calls = [1000.0], []

    def draw(goes_on):
        calls.append(goes_on)
        now[0] += 1.0
        return f"drawing {len(calls)} of <b>é</b>"

    page = LivePage(draw, [tmp_path], lambda: now[0])
    return SimpleNamespace(page=page, calls=calls, now=now, folder=tmp_path)


def change(folder, name="progress.json", at=1):
    (folder / name).write_text("{}")
    os.utime(folder / name, (at, at))


@contextmanager
def served(page):
    told = []
    with live(0, page, told.append):
        (line,) = told
        assert line.startswith("live: http://127.0.0.1:")
        yield int(line.removeprefix("live: http://127.0.0.1:").removesuffix("/"))


def ask(port, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        for one in [value] if isinstance(value, str) else value:
            connection.putheader(name.replace("_", "-"), one)
    connection.endheaders()
    reply = connection.getresponse()
    found = reply.status, reply.read().decode(), dict(reply.getheaders())
    connection.close()
    return found


# ---- when it is drawn


def test_it_is_drawn_when_somebody_looks_and_a_file_has_changed(drawn):
    assert drawn.calls == []
    first = drawn.page.get()
    drawn.now[0] += 1000
    assert first == drawn.page.get()
    assert drawn.calls == [True]
    tags = {first[1]}
    for name in ("progress.json", "journal.jsonl", "summary.json"):
        for at in (1, 2):
            change(drawn.folder, name, at)
            drawn.now[0] += 1000
            tags.add(drawn.page.get()[1])
    assert len(tags) == len(drawn.calls) == 7


def test_drawing_takes_a_twentieth_of_the_time_at_most(drawn):
    drawn.page.get()  # took one second
    change(drawn.folder)
    drawn.now[0] += 19.9
    assert drawn.page.get()[0].decode().startswith("drawing 1")
    drawn.now[0] += 0.2
    assert drawn.page.get()[0].decode().startswith("drawing 2")


def test_the_last_page_is_drawn_at_once_and_waits_for_who_looked_of_late(
    drawn, monkeypatch
):
    waited, seen = [], []
    event = SimpleNamespace(wait=waited.append, set=lambda: seen.append(True))
    monkeypatch.setattr(drawn.page, "_seen_last", event)
    drawn.page.end()
    assert waited == [], "nobody has ever looked"

    drawn.page._goes_on = True
    _, tag = drawn.page.get()
    drawn.now[0] += 4.5
    drawn.page.end()
    assert waited == [6.0], "for no longer"
    drawn.page.sent(tag)
    assert seen == [], "it was asked for before the end"
    _, last = drawn.page.get()
    drawn.page.sent(last)
    assert seen == [True]
    assert drawn.calls == [True, False]
    drawn.page.get()
    assert drawn.calls == [True, False]

    drawn.now[0] += 10
    drawn.page.end()
    assert waited == [6.0]


def test_who_looks_gets_the_last_page_before_the_end(drawn):
    with served(drawn.page) as port:
        assert ask(port)[1].startswith("drawing 1")
        last = threading.Timer(0.3, lambda: pages.append(ask(port)[1]))
        pages, began = [], time.monotonic()
        last.start()
    last.join()
    assert pages == ["drawing 2 of <b>é</b>"]
    assert time.monotonic() - began < 5, "it waited for more than that"


# ---- who gets it


def test_the_page_is_served_at_its_address_with_a_tag(drawn):
    with served(drawn.page) as port:
        status, text, headers = ask(port)
        assert (status, text) == (200, "drawing 1 of <b>é</b>")
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Server"] == "fcl"
        assert "Access-Control-Allow-Origin" not in headers
        status, text, again = ask(port, If_None_Match=headers["ETag"])
        assert (status, text, again["ETag"]) == (304, "", headers["ETag"])
        assert ask(port, If_None_Match='"other"')[0] == 200
        drawn.now[0] += 1000  # so that nobody has looked of late


def test_nothing_else_is_answered_and_no_other_name(drawn):
    change(drawn.folder, "summary.json")
    with served(drawn.page) as port:
        for method in ("POST", "HEAD", "PUT", "OPTIONS", "DELETE"):
            assert ask(port, method=method)[0] == 501
        for path in ("/summary.json", "/?x", "/index.html", "/../summary.json"):
            assert ask(port, path)[:2] == (404, "only / is served")
        allowed = [f"127.0.0.1:{port}", f"localhost:{port}"]
        refused = ["127.0.0.1", f"evil.example:{port}", f"127.0.0.1:{port + 1}", "", []]
        refused += [[allowed[0], "evil.example"], f"127.0.0.1:{port}.evil.example"]
        for host in refused:
            assert ask(port, Host=host)[0] == 421, host
        assert drawn.calls == []
        for host in allowed:
            assert ask(port, Host=host)[0] == 200, host
        drawn.now[0] += 1000


def test_it_listens_on_this_machine_alone_and_leaves_nothing(drawn, monkeypatch):
    places, bind = [], monitors._Server.server_bind
    monkeypatch.setattr(
        monitors._Server,
        "server_bind",
        lambda server: (places.append(server.server_address[0]), bind(server)),
    )
    threads = threading.active_count()
    with live(None, drawn.page, lambda line: pytest.fail(line)):
        assert threading.active_count() == threads
    with served(drawn.page) as port:
        assert places == ["127.0.0.1"]
        assert threading.active_count() > threads
    with pytest.raises(ConnectionError):
        ask(port)
    assert threading.active_count() == threads


def test_what_cannot_be_shown_is_said_and_asked_for_again(tmp_path):
    def draw(goes_on):
        raise ConfigError("here: got <nothing>")

    now = itertools.count(step=100)
    with served(LivePage(draw, [tmp_path], lambda: next(now))) as port:
        status, text, headers = ask(port)
        assert (status, text) == (503, "nothing to show yet: here: got <nothing>")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Refresh"] == "2"


def test_who_asks_slowly_or_wrongly_keeps_nobody_waiting(drawn, capfd):
    with served(drawn.page) as port:
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"GET / HT")
            with socket.create_connection(("127.0.0.1", port)) as wrong:
                wrong.sendall(b"\x16\x03\x01\xff\r\n\r\n")
                assert b"400" in wrong.recv(1000)
            assert ask(port)[0] == 200
        drawn.now[0] += 1000
    assert capfd.readouterr() == ("", "")


def test_a_run_that_fails_is_not_held_up(drawn, monkeypatch):
    monkeypatch.setattr(drawn.page, "end", lambda: pytest.fail("waited"))
    with suppress(KeyError), served(drawn.page) as port:
        ask(port)
        raise KeyError
    with pytest.raises(ConnectionError):
        ask(port)


def test_a_port_that_is_taken_is_refused(drawn):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = rf"live-port: got {port}, expected a free port of 127\.0\.0\.1"
        with pytest.raises(ConfigError, match=expected):
            live(port, drawn.page, print).__enter__()
