"""A headless Chromium for the checks of pages (check_page.py, check_attention.py).

Chromium is driven by the DevTools protocol over a WebSocket, with the standard library of Python.
"""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

DESKTOP, PHONE = (1100, 760, False), (375, 667, True)
WAIT_SECONDS = 60


class Browser:
    """A tab of Chromium, driven by the DevTools protocol over a WebSocket."""

    def __init__(self, chromium, folder):
        self.process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
            env=dict(os.environ, TMPDIR=str(folder)),  # a killed Chromium leaves its folders
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = pathlib.Path(folder) / "DevToolsActivePort"
        wait_for(lambda: port_file.exists() and port_file.read_text().count("\n") >= 1,
                 "Chromium starts")
        self.port = int(port_file.read_text().split()[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/json/list") as reply:
            pages = [p for p in json.load(reply) if p["type"] == "page"]
        self.connect(pages[0]["webSocketDebuggerUrl"].split("/", 3)[3])
        self.next_id, self.events = 0, []
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.call(domain + ".enable")

    def connect(self, path):
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                             "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
                             ).encode())
        self.stream = self.socket.makefile("rb")
        assert b" 101 " in self.stream.readline(), "Chromium refuses the WebSocket"
        while self.stream.readline() != b"\r\n":
            pass

    def write_frame(self, data):
        length = len(data)
        head = (struct.pack("!BB", 0x81, 0x80 | length) if length < 126 else
                struct.pack("!BBH", 0x81, 0xFE, length) if length < 65536 else
                struct.pack("!BBQ", 0x81, 0xFF, length))
        self.socket.sendall(head + bytes(4) + data)  # a mask of zeros

    def read_message(self):
        message = b""
        while True:
            first, second = self.stream.read(2)
            length = second & 0x7F
            if length >= 126:
                size = 2 if length == 126 else 8
                length = int.from_bytes(self.stream.read(size), "big")
            data = self.stream.read(length)
            if first & 0x0F <= 2:
                message += data
                if first & 0x80:
                    return json.loads(message)

    def call(self, method, **parameters):
        self.next_id += 1
        self.write_frame(json.dumps({"id": self.next_id, "method": method,
                                     "params": parameters}).encode())
        while True:
            message = self.read_message()
            if message.get("id") == self.next_id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def run(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, expression, what):
        wait_for(lambda: self.run(f"Boolean({expression})"), what)

    def press(self, key, modifiers=0):
        code = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "Tab": 9,
                "O": 79}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      modifiers=modifiers, **(text if kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def move(self, selector):
        x, y = self.run(f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
                        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2];"
                        " })()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector):
        x, y = self.move(selector)
        for kind in ["mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                      clickCount=1)

    def set_mode(self, size, scheme):
        width, height, is_phone = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if is_phone else 1, mobile=is_phone)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self):
        self.process.terminate()
        self.process.wait()


def wait_for(condition, what):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"no sign that {what}"
        time.sleep(0.02)


# Contrast of the text with the background, as in WCAG 2.
CONTRAST = """(() => {
  const read = c => c.match(/[0-9.]+(e-?[0-9]+)?/g).slice(0, 3)
    .map(v => (/^color/.test(c) ? 255 : 1) * v);
  const light = c => read(c).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (!/^rgba.*, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  return Math.min(...[...document.querySelectorAll('body *')]
    .filter(e => e.checkVisibility() && !e.disabled &&
                 [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => { const a = light(getComputedStyle(e).color), b = light(back(e));
                return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
})()"""


def check_looks(browser, folder, name, check_screen=lambda screen: None, whole=False):
    """Takes screenshots in light and dark, wide and as on a phone, and checks what can be measured.

    check_screen is called on each of these screens. whole: the pictures show the whole page."""
    backgrounds = set()
    for size, size_name in [(DESKTOP, "wide"), (PHONE, "phone")]:
        for scheme in ["light", "dark"]:
            screen = f"{name}_{size_name}_{scheme}"
            browser.set_mode(size, scheme)
            time.sleep(0.1)
            width = browser.run("document.scrollingElement.scrollWidth")
            assert width <= size[0], f"{screen}: {width} pixels wide on a screen of {size[0]}"
            contrast = browser.run(CONTRAST)
            assert contrast >= 4.5, f"{screen}: a contrast of {contrast:.2f}"
            backgrounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
            check_screen(screen)
            if folder:
                image = browser.call("Page.captureScreenshot", format="png",
                                     captureBeyondViewport=whole)["data"]
                (pathlib.Path(folder) / f"{screen}.png").write_bytes(base64.b64decode(image))
    assert len(backgrounds) == 2, f"{name}: the dark mode has the background {backgrounds}"
    browser.set_mode(DESKTOP, "light")


@contextlib.contextmanager
def open_browser(command):
    """A browser without pages of earlier runs. Without Chromium the command ends with 77."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print(f"{command}: skipped: no chromium")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(chromium, profile)
        try:
            yield browser
        finally:
            browser.close()
