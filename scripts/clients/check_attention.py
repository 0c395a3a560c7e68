#!/usr/bin/env python3
"""Uses the page of `bireme attention` in headless Chromium, as a person does.

    scripts/clients/check_attention.py PAGE WEIGHTS [FOLDER]

PAGE is the file of --output, and WEIGHTS the output of --json of the same command. Opens the page
without network. Each cell of each picture must have the shade of its weight. Selects heads, tokens
and parts with mouse and keyboard, and compares the printed weights, the shades of the tokens and
the tokens with WEIGHTS. Writes screenshots to FOLDER. Requires Chromium; without it the exit code
is 77.
"""
import json
import math
import pathlib
import re
import sys

from browser import DESKTOP, check_looks, open_browser

STEP = 1 / 65535  # the page stores a weight in 16 bits


def read_parts(path):
    """The attentions: name, texts of queries and keys, weights[layer][head][query][key]."""
    data = json.loads(pathlib.Path(path).read_text())
    if "attentions" in data:
        return [("Attention", data["tokens"], data["tokens"], data["attentions"])]
    encoder, decoder = data["encoder_tokens"], data["decoder_tokens"]
    return [
        ("Encoder", encoder, encoder, data["encoder_attentions"]),
        ("Decoder", decoder, decoder, data["decoder_attentions"]),
        ("Cross-attention", decoder, encoder, data["cross_attentions"]),
    ]


def shown(token):
    """The text of a token on the page."""
    return token.replace("\n", "\u23ce") or "\u00a0"


def quoted(token):
    return f"\u201c{shown(token)}\u201d"


def list_texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})]"
                       ".map(e => e.textContent)")


def read_shades(browser, selector):
    """The width, the height and the alpha values of a picture, by rows."""
    return browser.run(f"(() => {{ const c = document.querySelector({json.dumps(selector)});"
                       " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
                       " return [c.width, c.height, [...d].filter((_, i) => i % 4 === 3)]; })()")


def check_picture(browser, selector, rows, name):
    """Each cell has the shade of its weight."""
    width, height, shades = read_shades(browser, selector)
    assert (width, height) == (len(rows[0]), len(rows)), f"{name}: {width} x {height} cells"
    for at, (shade, weight) in enumerate(zip(shades, sum(rows, []))):
        low, high = (255 * math.sqrt(max(0, w)) for w in (weight - STEP, weight + STEP))
        assert low - 0.51 <= shade <= high + 0.51, \
            f"{name}: cell {at} has the shade {shade}, its weight is {weight}"


def read_color(text):
    values = [float(v) for v in re.findall(r"[0-9.]+(?:e-?[0-9]+)?", text)[:3]]
    return [255 * v for v in values] if text.startswith("color") else values


def check_colors(browser, row, name):
    """The shade of a key's token increases with its weight, from the color of the page."""
    is_cross = browser.run("!document.querySelector('#keys').hidden")
    colors = browser.run(
        f"[...document.querySelectorAll('{'#keys' if is_cross else '#queries'} button')]"
        ".map(e => getComputedStyle(e).backgroundColor)")
    page = read_color(browser.run("getComputedStyle(document.body).backgroundColor"))
    distances = [math.dist(read_color(c), page) for c in colors]
    largest = max(distances[i] / math.sqrt(w) for i, w in enumerate(row) if w > 0.001)
    for i, weight in enumerate(row):
        assert abs(distances[i] - largest * math.sqrt(weight)) <= 3 + 0.02 * largest, \
            f"{name}: token {i} of the weight {weight} has the color {colors[i]}"


def check_value(browser, part, row, query, name):
    """The line below the tokens names the three largest weights of the query."""
    text = browser.run("document.querySelector('#value').textContent")
    start = f"{query}: {quoted(part[1][query])} attends to "
    assert text.startswith(start), f"{name}: {text}"
    expected = sorted(row, reverse=True)[:3]
    rest = text[len(start):]
    for weight in expected:
        found = re.match(r"(\d+): ", rest)
        assert found, f"{name}: {text}"
        key = int(found[1])
        begin = f"{key}: {quoted(part[2][key])} ("
        assert rest.startswith(begin), f"{name}: {text}"
        number = rest[len(begin):].split(")")[0]
        assert re.fullmatch(r"\d\.\d{4}", number), f"{name}: {text}"
        for other in (row[key], weight):
            assert abs(float(number) - other) <= 0.00005 + STEP, f"{name}: {text}, not {other}"
        rest = rest[len(begin) + len(number) + 1:].removeprefix(", ")
    assert rest == "", f"{name}: {text}"


def count_pressed(browser, box):
    return browser.run(f"[...document.querySelectorAll('{box} button')].map((b, i) => "
                       "b.getAttribute('aria-pressed') === 'true' ? i : -1).filter(i => i >= 0)")


def check_head(browser, part, layer, head, index):
    """Selects a head with the mouse and tokens with the mouse and the keyboard."""
    rows, name = part[3][layer][head], f"{part[0]}, layer {layer}, head {head}"
    browser.run(f"document.querySelectorAll('#heads button')[{index}].scrollIntoView()")
    browser.click(f"#heads button:nth-child({index + 1})")
    assert count_pressed(browser, "#heads") == [index], f"{name} is not selected"
    title = browser.run("document.querySelector('#name').textContent").lower()
    assert title.endswith(f"layer {layer}, head {head}"), f"{name}: {title}"
    label = browser.run(f"document.querySelectorAll('#heads button')[{index}]"
                        ".getAttribute('aria-label')")
    assert label.lower() == title, f"{name}: {label}"
    check_picture(browser, f"#heads button:nth-child({index + 1}) canvas", rows, name)
    check_picture(browser, "#view", rows, name)
    query = (3 * index + 1) % len(rows)
    browser.run(f"document.querySelectorAll('#queries button')[{query}].scrollIntoView()")
    browser.click(f"#queries button:nth-child({query + 1})")
    browser.move("h1")
    check_query(browser, part, rows, query, name)
    browser.press("ArrowLeft" if query > 0 else "ArrowRight")
    check_query(browser, part, rows, query + (-1 if query > 0 else 1), name)


def check_query(browser, part, rows, query, name):
    name = f"{name}, token {query}"
    assert count_pressed(browser, "#queries") == [query], f"{name} is not selected"
    check_value(browser, part, rows[query], query, name)
    check_colors(browser, rows[query], name)


def check_pointer(browser, part):
    """The pointer on a cell of the large picture shows its weight."""
    rows = part[3][-1][-1]
    browser.run("document.querySelector('#view').scrollIntoView()")
    box = browser.run("(() => { const b = document.querySelector('#view').getBoundingClientRect();"
                      " return [b.x, b.y, b.width, b.height]; })()")
    query, key = len(rows) - 1, len(rows[0]) // 2
    browser.call("Input.dispatchMouseEvent", type="mouseMoved",
                 x=box[0] + (key + 0.5) * box[2] / len(rows[0]),
                 y=box[1] + (query + 0.5) * box[3] / len(rows))
    text = browser.run("document.querySelector('#value').textContent")
    start = f"{query}: {quoted(part[1][query])} attends to {key}: {quoted(part[2][key])} ("
    assert text.startswith(start), f"{part[0]}, pointer: {text}"
    number = float(text[len(start):].rstrip(")"))
    assert abs(number - rows[query][key]) <= 0.00005 + STEP, f"{part[0]}, pointer: {text}"
    browser.move("h1")


def check_part(browser, part, index, count, folder):
    name, queries, keys, weights = part
    is_cross = name == "Cross-attention"
    if count > 1:
        browser.run("scrollTo(0, 0)")
        browser.click(f"#parts button:nth-child({index + 1})")
        assert list_texts(browser, "#parts button")[index] == name
        assert count_pressed(browser, "#parts") == [index], f"{name} is not selected"
    assert list_texts(browser, "#queries button") == [shown(t) for t in queries], name
    assert list_texts(browser, "#keys button") == [shown(t) for t in keys if is_cross], name
    heads = [(layer, head) for layer in range(len(weights)) for head in range(len(weights[0]))]
    assert list_texts(browser, "#heads button") == [f"{l}.{h}" for l, h in heads], name
    for at, (layer, head) in enumerate(heads):
        check_head(browser, part, layer, head, at)
    check_pointer(browser, part)

    def check_screen(screen):
        check_picture(browser, "#view", weights[-1][-1], screen)
        color, drawn = browser.run(
            "(() => { const c = document.querySelector('#view'), w = c.width;"
            " const d = [...c.getContext('2d').getImageData(0, 0, w, c.height).data];"
            " let at = 0; d.forEach((v, i) => { if (i % 4 === 3 && v > d[at + 3]) at = i - 3; });"
            " return [getComputedStyle(document.documentElement).getPropertyValue('--c0').trim(),"
            " d.slice(at, at + 3)]; })()")
        expected = [int(color[i:i + 2], 16) for i in (1, 3, 5)]
        assert max(abs(a - b) for a, b in zip(expected, drawn)) <= 2, \
            f"{screen}: the picture has the color {drawn}, the page {expected}"
    check_looks(browser, folder, name.lower(), check_screen, whole=True)


def check_events(browser, page):
    """No script failed, nothing was refused, and the browser has read only this file."""
    for event in browser.events:
        method, data = event.get("method"), event.get("params", {})
        assert method != "Runtime.exceptionThrown", data
        assert method != "Log.entryAdded" or data["entry"]["level"] != "error", data
        if method == "Network.requestWillBeSent":
            assert data["request"]["url"] == page, data["request"]["url"]


def main():
    page = pathlib.Path(sys.argv[1]).resolve().as_uri()
    parts, folder = read_parts(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    with open_browser("check_attention") as browser:
        browser.call("Network.emulateNetworkConditions", offline=True, latency=0,
                     downloadThroughput=-1, uploadThroughput=-1)
        browser.set_mode(DESKTOP, "light")
        browser.events.clear()
        browser.call("Page.navigate", url=page)
        browser.wait("document.readyState === 'complete' && document.querySelector('#heads button')",
                     "the page is shown")
        assert browser.run("navigator.onLine") is False, "the browser is not offline"
        names = list_texts(browser, "#parts button")
        assert names == [p[0] for p in parts], names
        for index, part in enumerate(parts):
            check_part(browser, part, index, len(parts), folder)
        assert any(e.get("method") == "Network.requestWillBeSent" for e in browser.events)
        check_events(browser, page)
    print(f"the page of attention, {', '.join(p[0] for p in parts)}: all checks passed")


if __name__ == "__main__":
    main()
