#!/usr/bin/env python3
"""Uses the chat page of `bireme serve` in headless Chromium, as a person does.

    scripts/clients/check_page.py URL TASK [FOLDER]

TASK is the tab to use: chat, completions, fill-mask, classify or answer. Types, presses keys, moves
the mouse, and compares the page with the answers of the server: streaming, the stop button,
settings, probabilities of tokens, errors, the light and the dark mode, and the size of a phone.
Writes screenshots to FOLDER. A text model must be able to write at least 300 tokens. Requires
Chromium; without it the exit code is 77. If the variable SERVER_PID is set to the process of the
server, the process is paused most of the time while the stop button is used, because a small model
can otherwise end its answer first.
"""
import contextlib
import json
import os
import signal
import sys
import threading
import urllib.request

import browser as chromium
from browser import DESKTOP, wait_for


def check_looks(browser, folder, name):
    """Takes screenshots. The button and the heads of tables must fit on each screen."""
    def check_screen(screen):
        button = browser.run("(() => { const b = [...document.querySelectorAll('button.primary')]"
                             ".find(e => e.checkVisibility()).getBoundingClientRect();"
                             " return b.bottom <= innerHeight && b.right <= innerWidth; })()")
        assert button, f"{screen}: the button is not on the screen"
        lines = browser.run("Math.max(0, ...[...document.querySelectorAll('th')].map(e => {"
                            " const r = document.createRange(); r.selectNodeContents(e);"
                            " return r.getClientRects().length; }))")
        assert lines <= 1, f"{screen}: the head of a table has {lines} lines"
    chromium.check_looks(browser, folder, name, check_screen)


PANEL = "[role=tabpanel]:not([hidden])"
SUBMIT = f"document.querySelector('{PANEL} .composer .primary')"
ANSWERS = f"[...document.querySelectorAll('{PANEL} .message.assistant')]"


def set_field(browser, label, value):
    browser.run(f"(() => {{ const l = [...document.querySelectorAll('{PANEL} label')]"
                f".find(l => l.textContent.startsWith({json.dumps(label)}));"
                f" l.querySelector('input, textarea').value = {json.dumps(value)}; }})()")


def send_message(browser, text):
    """Sends a message by keyboard; returns the number of the answer."""
    browser.run(f"document.querySelector('{PANEL} .composer textarea').focus()")
    browser.type(text)
    browser.press("Enter")
    browser.wait(f"{ANSWERS}.length > 0", "the answer appears")
    return browser.run(f"{ANSWERS}.length - 1")


@contextlib.contextmanager
def slow_server():
    """Lets the server process of SERVER_PID run for a few percent of the time."""
    process, ended = int(os.environ.get("SERVER_PID", "0")), threading.Event()

    def pause():
        while not ended.wait(0.002):
            os.kill(process, signal.SIGSTOP)
            ended.wait(0.05)
            os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=pause)
    if process > 0:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if process > 0:
            thread.join()


def start_long_answer(browser):
    """Starts an answer and returns while it is streamed. A random answer can be short, so that
    there are some attempts, each in a new conversation."""
    for _ in range(20):
        browser.press("O", modifiers=2 | 8)  # Ctrl+Shift+O
        set_field(browser, "Maximum tokens", "1000000")
        set_field(browser, "Temperature", "5")
        index = send_message(browser, "the work")
        tokens = f"{ANSWERS}[{index}].querySelectorAll('.token').length"
        browser.wait(f"{tokens} >= 3 || {SUBMIT}.textContent === 'Send'", "the answer is streamed")
        if browser.run(f"{SUBMIT}.textContent") == "Stop":
            return index, tokens
    raise AssertionError("all answers are too short for the stop button")


def check_stop(browser, url, stop):
    """Stops long answers until the server has cancelled a request. A random answer can also end
    before the stop, or before the server notices that the browser is gone."""
    cancelled = read_metric(url, "bireme_requests_cancelled_total")
    for _ in range(20):
        with slow_server():
            index, tokens = start_long_answer(browser)
            stop()
            browser.wait(f"{SUBMIT}.textContent === 'Send'", "the answer stops")
        note = browser.run(f"{ANSWERS}[{index}].querySelector('.note').textContent")
        if not note.endswith(", stopped"):
            continue
        count = browser.run(tokens)
        wait_for(lambda: read_metric(url, "bireme_requests_open") == 0, "the request ends")
        assert browser.run(tokens) == count, "the answer grows after the stop"
        if read_metric(url, "bireme_requests_cancelled_total") > cancelled:
            return
    raise AssertionError("the server cancels no request")


def read_metric(url, name):
    with urllib.request.urlopen(url + "/metrics") as reply:
        return next(float(line.split()[1]) for line in reply.read().decode().splitlines()
                    if line.startswith(name + " "))


def write_short_answer(browser, seed):
    """Starts a new conversation and returns the text of a short answer."""
    set_field(browser, "Seed", str(seed))
    browser.press("O", modifiers=2 | 8)  # Ctrl+Shift+O
    assert browser.run(f"{ANSWERS}.length") == 0, "the conversation is not new"
    index = send_message(browser, "the work")
    browser.wait(f"{SUBMIT}.textContent === 'Send'", "the answer ends")
    return browser.run(f"{ANSWERS}[{index}].querySelector('.text').textContent")


def check_short_answers(browser):
    """The settings limit the answer, and the same seed gives the same text. An answer can end with
    its first token, so that there are some attempts."""
    set_field(browser, "Maximum tokens", "12")
    for seed in range(5, 45):
        text = write_short_answer(browser, seed)
        count = browser.run(f"{ANSWERS}.at(-1).querySelectorAll('.token').length")
        assert count <= 12, f"{count} tokens"
        if count >= 2:
            break
    assert count >= 2, "all answers are too short"
    assert write_short_answer(browser, seed) == text, "the same seed gives another text"


def check_probabilities(browser):
    """Hovering over a token, and the arrow keys, show its candidates."""
    tip = "document.getElementById('tip')"
    last = f"{ANSWERS}.at(-1)"
    browser.run(f"{last}.querySelector('.token').id = 'hovered'")
    browser.move("#hovered")
    browser.wait(f"!{tip}.hidden", "the probabilities appear")
    cells = browser.run(f"[...{tip}.querySelectorAll('td:last-child')].map(c => c.textContent)")
    values = [float(c.removesuffix(" %")) for c in cells]
    assert len(values) >= 2 and values == sorted(values, reverse=True), cells
    assert 0 < sum(values) <= 100.5, cells
    chosen = browser.run(f"JSON.parse({tip}.querySelector('tr.chosen td').textContent)")
    shown = browser.run(f"{last}.querySelector('.token').textContent")
    assert chosen == shown or chosen.startswith("bytes:"), (chosen, shown)
    browser.move("header h1")
    browser.wait(f"{tip}.hidden", "the probabilities disappear")
    browser.run(f"{last}.querySelector('.text').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    place = f"[...{last}.querySelectorAll('.token')].indexOf(document.activeElement)"
    assert browser.run(place) == 1 and not browser.run(f"{tip}.hidden")


def use_text(browser, url, task, folder):
    browser.run(f"document.querySelector('{PANEL} details').open = true")
    check_looks(browser, folder, task + "_settings")
    browser.run(f"document.querySelector('{PANEL} details').open = false")
    check_stop(browser, url, lambda: browser.click(f"{PANEL} .composer .primary"))
    check_stop(browser, url, lambda: browser.press("Escape"))
    check_short_answers(browser)
    check_probabilities(browser)
    check_looks(browser, folder, task)
    browser.press("O", modifiers=2 | 8)
    set_field(browser, "Temperature", "-1")
    send_message(browser, "the")
    browser.wait(f"{ANSWERS}.at(-1).classList.contains('error')", "an error is shown")
    assert "temperature" in browser.run(f"{ANSWERS}.at(-1).textContent")


TASKS = {
    "fill-mask": ([("input", "the [MASK] of the work")],
                  lambda d: [t["text"] for m in d["masks"] for t in m]),
    "classify": ([("input", "the work of it")], lambda d: [label["label"] for label in d["labels"]]),
    "answer": ([("question", "of it?"), ("context", "the work of it")],
               lambda d: [d["answer"]] if d["answer"] else ["No answer in this text"]),
}


def use_task(browser, url, task, folder):
    fields, list_texts = TASKS[task]
    body = dict(fields, top_k=10)
    request = urllib.request.Request(url + "/v1/" + task, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        expected = list_texts(json.load(reply)["data"][0])
    for index, (_, text) in enumerate(fields):
        browser.run(f"document.querySelectorAll('{PANEL} textarea')[{index}].focus()")
        browser.type(text)
    browser.press("Enter", modifiers=2)
    cells = ("[...document.querySelectorAll('%s [aria-live] td:first-child, "
             "%s [aria-live] strong')].map(c => c.textContent)" % (PANEL, PANEL))
    browser.wait(f"{cells}.length > 0", "the result appears")
    assert browser.run(cells) == expected, (browser.run(cells), expected)
    check_looks(browser, folder, task)
    browser.run(f"document.querySelector('{PANEL} textarea').value = 'a\\0'")
    browser.click(f"{PANEL} .primary")
    browser.wait(f"document.querySelector('{PANEL} [aria-live] .error')", "an error is shown")


def check_events(browser, url):
    """No script failed, and everything came from this server."""
    for event in browser.events:
        name, data = event.get("method"), event.get("params", {})
        assert name != "Runtime.exceptionThrown", data
        if name == "Network.requestWillBeSent":
            address = data["request"]["url"]
            assert address.startswith((url + "/", "data:", "about:")), address


def use_page(browser, url, task, folder):
    browser.set_mode(DESKTOP, "light")
    browser.call("Page.navigate", url=f"{url}/#{task}")
    browser.wait(f"document.querySelector('[role=tab][aria-selected=true]')?.task === '{task}'",
                 f"the tab {task} is selected")
    with urllib.request.urlopen(url + "/v1/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    assert browser.run("document.getElementById('model').textContent") == model
    assert browser.run(f"document.activeElement.closest('{PANEL}') !== null"), "no field has focus"
    (use_task if task in TASKS else use_text)(browser, url, task, folder)
    browser.wait("true", "the page still answers")
    check_events(browser, url)


def main():
    url, task = sys.argv[1].rstrip("/"), sys.argv[2]
    folder = sys.argv[3] if len(sys.argv) > 3 else None
    with chromium.open_browser("check_page") as browser:
        use_page(browser, url, task, folder)
    print(f"the chat page, {task}: all checks passed")


if __name__ == "__main__":
    main()
