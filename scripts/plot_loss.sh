#!/usr/bin/env bash
# Draws the training and validation losses of a run as an SVG picture.
#
#   scripts/plot_loss.sh RUN >loss.svg      RUN is a run folder or its metrics.jsonl
#
# Needs awk only (mawk, gawk or busybox). If a run was resumed from an earlier step, the later lines
# of metrics.jsonl replace the earlier ones. Exit codes: 64 wrong usage, 65 no losses, 66 no run.
set -euo pipefail

if [ $# -ne 1 ] || [ "$1" = --help ] || [ -z "$1" ]; then
    echo "usage: scripts/plot_loss.sh RUN >loss.svg (RUN: a run folder or its metrics.jsonl)" >&2
    exit 64
fi
file=$1 name=${1%/}
if [ -d "$file" ]; then
    file=$name/metrics.jsonl
else
    name=$(dirname "$file")
fi
if [ ! -r "$file" ]; then
    echo "plot_loss.sh: cannot read $file" >&2
    exit 66
fi

LC_ALL=C awk -v name="$name" '
# number LINE KEY: return the number of a key; "" if the key is missing or null.
function number(line, key,    at, rest) {
    at = index(line, "\"" key "\":")
    if (!at) return ""
    rest = substr(line, at + length(key) + 3)
    sub(/^ */, "", rest)
    return match(rest, /^-?[0-9][-+.eE0-9]*/) ? substr(rest, 1, RLENGTH) + 0 : ""
}

function add(kind, step, loss) {
    while (count[kind] && steps[kind, count[kind]] >= step) count[kind]--
    count[kind]++
    steps[kind, count[kind]] = step
    losses[kind, count[kind]] = loss
}

# tick_size SPAN: return the largest 1, 2 or 5 times a power of ten that fits into SPAN four times.
function tick_size(span,    size) {
    size = 1
    while (size * 4 > span) size /= 10
    while (size * 40 <= span) size *= 10
    return size * 20 <= span ? size * 5 : size * 8 <= span ? size * 2 : size
}

function x(step) { return left + (right - left) * (step - first) / (last - first) }
function y(loss) { return bottom - (bottom - top) * (loss - lowest) / (highest - lowest) }

function line(x1, y1, x2, y2, color) {
    printf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2,
        y2, color
}

function escape(text) {
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    return text
}

function curve(kind, color, width,    i, points, across, down) {
    for (i = 1; i <= count[kind]; i++) {
        across = x(steps[kind, i])
        down = y(losses[kind, i])
        points = points sprintf("%s%.1f,%.1f", i > 1 ? " " : "", across, down)
        if (kind == "evaluate")
            printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", across, down, color
    }
    printf "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"/>\n",
        points, color, width
}

function legend(kind, text, color, row,    height) {
    if (!count[kind]) return
    height = top + 14 + 18 * row
    line(right - 190, height - 4, right - 166, height - 4, color)
    printf "<text x=\"%d\" y=\"%d\">%s (last %.3f)</text>\n", right - 160, height, text,
        losses[kind, count[kind]]
}

/"event": *"(train|evaluate)"/ {
    loss = number($0, "loss")
    step = number($0, "step")
    if (loss != "" && step != "") add($0 ~ /"event": *"train"/ ? "train" : "evaluate", step, loss)
}

END {
    left = 60; right = 700; top = 40; bottom = 320; first = 0; last = 1
    for (kind in count)
        for (i = 1; i <= count[kind]; i++) {
            value = losses[kind, i]
            if (!points++) lowest = highest = value
            if (value < lowest) lowest = value
            if (value > highest) highest = value
            if (steps[kind, i] > last) last = steps[kind, i]
        }
    if (!points) exit 65
    if (highest - lowest < 1e-6) { lowest -= 0.5; highest += 0.5 }
    size = tick_size(highest - lowest)
    lowest = int(lowest / size) * size - (lowest < 0 ? size : 0)
    highest = (int(highest / size) + 1) * size

    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 370\"" \
        " width=\"720\" height=\"370\" font-family=\"sans-serif\" font-size=\"12\">"
    print "<rect width=\"720\" height=\"370\" fill=\"white\"/>"
    printf "<text x=\"%d\" y=\"22\" font-size=\"14\">%s: loss by step</text>\n", left,
        escape(name)
    for (i = 0; lowest + i * size <= highest + size / 1000; i++) {
        value = lowest + i * size
        line(left, y(value), right, y(value), "#ddd")
        printf "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", left - 8,
            y(value) + 4, value
    }
    size = tick_size(last)
    if (size < 1) size = 1
    for (i = 0; i * size <= last; i++)
        printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x(i * size),
            bottom + 18, i * size
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", (left + right) / 2,
        bottom + 38
    printf "<path d=\"M%d,%d V%d H%d\" fill=\"none\" stroke=\"#666\"/>\n", left, top, bottom, right
    curve("train", "#6baed6", 1.5)
    curve("evaluate", "#d6604d", 2)
    legend("train", "training", "#6baed6", 0)
    legend("evaluate", "validation", "#d6604d", 1)
    print "</svg>"
}' "$file" || {
    echo "plot_loss.sh: $file has no losses" >&2
    exit 65
}
